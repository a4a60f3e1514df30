"""The size of a part of an expression: bytes of data, and how many elements.

A size within a lambda is a sum: a number of bytes, and multiples of the sizes of variables. So
`transform(words, word -> upper(word))` is as large as `words`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

#: What a number takes, or a time.
SCALAR = 2

INFINITE = math.inf


@dataclass(frozen=True, slots=True)
class Size:
    """The largest value of a part.

    `top`: bytes at most. `base` and `times`: the same as a sum, of bytes and of multiples of the
    sizes of a lambda's variables. `low`, `high`: between which it is, if it is a number. `items`:
    of an array or a map. `element`: the largest one of them.
    """

    top: float
    base: float
    times: Mapping[str, float] = field(default_factory=dict)
    low: float = -INFINITE
    high: float = INFINITE
    items: float = 0
    element: Size | None = None

    @property
    def inner(self) -> Size:
        """The size of an element, or of a field: at most that of the whole."""
        return self.element or replace(self, low=-INFINITE, high=INFINITE)


def fixed(top: float, **facts: float | Size) -> Size:
    """Return the size of a value of at most `top` bytes."""
    return Size(top, top, **facts)  # type: ignore[arg-type]


def text_of(top: float) -> Size:
    """Return the size of a text that may be parsed, or split into characters."""
    return fixed(top, items=top)


NUMBER = fixed(SCALAR)


def between(low: float, high: float) -> Size:
    """Return the size of a number."""
    return replace(NUMBER, low=low, high=high)


def total(parts: Iterable[Size]) -> Size:
    """Return the size of all parts together."""
    top = base = items = 0.0
    times, elements = dict[str, float](), []
    for one in parts:
        top, base, items = top + one.top, base + one.base, items + one.items
        for name, factor in one.times.items():
            times[name] = times.get(name, 0) + factor
        elements += [one.element] if one.element else []
    element = largest(elements) if elements else None
    return Size(max(top, SCALAR), base if top >= SCALAR else SCALAR, times, items=items, element=element)


def largest(parts: Iterable[Size]) -> Size:
    """Return the size of one of the parts."""
    parts = list(parts)
    if not parts:
        return NUMBER
    names = {name for one in parts for name in one.times}
    elements = [one.element for one in parts if one.element]
    return Size(
        max(one.top for one in parts),
        max(one.base for one in parts),
        {name: max(one.times.get(name, 0) for one in parts) for name in names},
        low=min(one.low for one in parts),
        high=max(one.high for one in parts),
        items=max(one.items for one in parts),
        element=largest(elements) if elements and len(elements) == len(parts) else None,
    )


def scaled(one: Size, factor: float, extra: float = 0) -> Size:
    """Return the size of `factor` copies, and `extra` bytes."""
    factor = factor if one.top else 0
    return Size(
        one.top * factor + extra,
        one.base * factor + extra,
        {name: times * factor for name, times in one.times.items()},
        items=one.items * max(factor, 1) + extra,
    )
