"""URLs of stores, and their parameters for this package (`?layout=pl-mongo&pipeline=flights`).

| parameter | default | meaning |
|---|---|---|
| `layout` | | how the database stores messages, by keuss' and rfq's names; see `Store.layouts` |
| `ns` | `N` | name of keuss' factory, under which signals and statistics are kept |
| `pipeline` | `default` | for `pl-mongo`: collection that holds the queues |
| `front` | `false` | for `rfq`: whether pushed messages go to the front |
| `stats` | database of the queues + `_stats` | for MongoDB: database or URL of keuss' statistics |
| `signals` | database of the queues + `_signal` | for MongoDB: database or URL of keuss' signals |
| `ttl` | 3600 | for `ps-mongo`: seconds for which processed messages are kept |
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote_plus, urlencode

from spark_queue.errors import OptionError, did_you_mean
from spark_queue.options.masking import HIDDEN, PARAMETERS, mask


class StoreUrl(NamedTuple):
    """The URL for the driver, and the parameters for this package."""

    url: str
    parameters: Mapping[str, str]

    def __repr__(self) -> str:
        url = mask(self.url) if self._has_no_secret() else HIDDEN
        return (
            f"StoreUrl(url={url!r}, parameters={ {name: self.masked_parameter(name) for name in self.parameters}!r})"
        )

    @classmethod
    def parse(cls, url: str) -> StoreUrl:
        """Split a URL. The URL for the driver keeps its spelling.

        Raises `OptionError` if one of our parameters has no value, or has two different values.
        """
        head, _, query = url.partition("?")
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

    def masked_parameter(self, name: str) -> str:
        """Return the value of one of our parameters for an error, hidden if it may be a secret."""
        return self.parameters[name] if self._has_no_secret() else HIDDEN

    def _has_no_secret(self) -> bool:
        """Return whether no parameter can be a part of a password.

        One may be if the rest of the URL cannot be parsed or has a secret. So may a value with `@`
        or `:`, since it may be a URL in the wrong place.
        """
        head, _, query = mask(self.url).partition("?")
        hides_part = "…" in head or head == HIDDEN or re.search(r"…|\*\*\*", query)
        return not hides_part and not any(re.search("[@:]", one) for one in self.parameters.values())

    def with_layout(self, layout: str) -> str:
        """Return the URL with this layout. Raises `OptionError` if the URL has another one."""
        if self.parameters.get("layout", layout) != layout:
            own = self.masked_parameter("layout")
            raise OptionError(f"option 'layout' is {layout!r}, but the URL has layout={own}", option="layout")
        return self._with({"layout": layout, **self.parameters})

    def with_parameters(self, **ours: str) -> str:
        """Return the URL with these parameters, in the place of those that it has."""
        return self._with({**self.parameters, **ours})

    def _with(self, ours: Mapping[str, str]) -> str:
        return f"{self.url}{'&' if '?' in self.url else '?'}{urlencode(ours)}"

    def check_parameters(self, layout: str, names: Iterable[str]) -> None:
        """Raise `OptionError` for one of our parameters that the layout does not have."""
        allowed = {"layout", *names}
        for name in self.parameters:
            if name not in allowed:
                wrong = f"the layout {layout!r} has no parameter {name!r}{did_you_mean(name, allowed)}"
                raise OptionError(f"option 'url': {wrong}", option="url")
