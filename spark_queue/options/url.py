"""URLs of stores: parameters that are ours and not the driver's (`?layout=pl-mongo&pipeline=flights`).

| parameter | meaning |
|---|---|
| `layout` | how messages lie in the database, by keuss' and rfq's names; see `Store.layouts` |
| `ns` | the name of keuss' factory, in whose name signals and statistics are kept: `N`, as keuss has it |
| `pipeline` | of `pl-mongo`: the collection that holds the queues: `default` |
| `front` | of `rfq`: whether what is pushed goes to the front, `true` or `false`, as it is without |
| `ttl` | of `ps-mongo`: seconds for which what was processed is kept: 3600 |
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote_plus, urlencode

from spark_queue.errors import OptionError, near
from spark_queue.options.masking import HIDDEN, PARAMETERS, mask


class Address(NamedTuple):
    """A URL taken apart: what the driver gets, and what is for us."""

    url: str
    ours: Mapping[str, str]

    def __repr__(self) -> str:
        url = mask(self.url) if self._is_sure() else HIDDEN
        return f"Address(url={url!r}, ours={ {name: self.shown(name) for name in self.ours}!r})"

    @classmethod
    def of(cls, url: str) -> Address:
        """Take a URL apart. What is for the driver stays as it was written.

        Raises `OptionError` where a parameter of ours is given twice or has no value.
        """
        head, mark, query = url.partition("?")
        if not mark:
            return cls(url, {})
        ours: dict[str, str] = {}
        rest: list[str] = []
        for one in query.split("&"):
            name = unquote_plus(one.partition("=")[0])
            if name not in PARAMETERS:
                rest.append(one)
                continue
            value = parse_qsl(one, keep_blank_values=True)[0][1]
            if not value:
                raise OptionError(f"option 'url': its parameter {name!r} has no value", option="url")
            if ours.setdefault(name, value) != value:
                raise OptionError(f"option 'url': its parameter {name!r} is given twice", option="url")
        return cls(f"{head}?{'&'.join(rest)}" if any(rest) else head, ours)

    def shown(self, name: str) -> str:
        """Return the value of a parameter of ours for a message; of one that may be a part of a password, nothing."""
        return self.ours[name] if self._is_sure() else HIDDEN

    def _is_sure(self) -> bool:
        """Return whether no parameter can be a part of a password, with which the rest of the URL would be odd."""
        head, _, query = mask(self.url).partition("?")
        odd = "…" in head or head == HIDDEN or re.search(r"…|\*\*\*", query)
        return not odd and not any("@" in one for one in self.ours.values())

    def in_layout(self, layout: str) -> str:
        """The URL with this layout. Raises `OptionError` where it says another."""
        if self.ours.get("layout", layout) != layout:
            own = self.shown("layout")
            raise OptionError(f"option 'layout' is {layout!r}, and the URL says layout={own}", option="layout")
        ours = {"layout": layout, **self.ours}
        return f"{self.url}{'&' if '?' in self.url else '?'}{urlencode(ours)}"

    def check(self, layout: str, known: Iterable[str]) -> None:
        """Raise `OptionError` where a parameter of ours means nothing in a layout."""
        allowed = {"layout", *known}
        for name in self.ours:
            if name not in allowed:
                raise OptionError(
                    f"option 'url': the layout {layout!r} has no parameter {name!r}{near(name, allowed)}",
                    option="url",
                )
