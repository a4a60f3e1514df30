"""The table of all options in `docs/options.md`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from spark_queue.options.declaration import Option, option_name, own_options, parts_of
from spark_queue.options.roles import OPTION_CLASSES, declared


def table() -> str:
    """Return the options as a Markdown table, as `docs/options.md` shows it."""
    rows = ["| option | default | goes with | meaning |", "|---|---|---|---|"]
    for key, option in _in_order():
        default = option.shown
        if re.fullmatch(r"[\w-]+", default) and default not in ("required", "none"):
            default = f"`{default}`"
        roles = ", ".join(role for role, options in declared().items() if key in options)
        rows.append(f"| `{option_name(key)}` | {default} | {roles} | {option.doc} |")
    return "\n".join(rows)


def _in_order() -> Iterator[tuple[str, Option]]:
    """Yield the options in order: each directly after the one that its declaration names."""
    following: dict[str, dict[str, Option]] = {}
    for kind in _declaring_classes():
        before = ""
        for key, declared_option in own_options(kind):
            following.setdefault(declared_option.after or before, {})[key] = declared_option
            before = key
    waiting: list[tuple[str, Option | None]] = [("", None)]
    while waiting:
        key, option = waiting.pop()
        if option is not None:
            yield key, option
        waiting.extend(following.pop(key, {}).items())
    assert not following, f"no options are named {', '.join(following)}"


def _declaring_classes() -> Iterator[type[Any]]:
    for kind in OPTION_CLASSES.values():
        yield kind
        yield from parts_of(kind)
