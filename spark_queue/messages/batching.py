"""Things in groups that are not too large: what goes to a database together, and what is written in one step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from operator import add, gt
from typing import TypeVar

T = TypeVar("T")


def grouped(items: Iterable[T], most: tuple[int, ...], size: Callable[[T], tuple[int, ...]]) -> Iterator[list[T]]:
    """The items in order, in groups of which none is more than `most` in any of its measures.

    `size` gives the measures of one item, such as its rows and its bytes. One that is too large stands alone.
    """
    group: list[T] = []
    total = (0,) * len(most)
    for item in items:
        more = size(item)
        total = tuple(map(add, total, more))
        if group and any(map(gt, total, most)):
            yield group
            group, total = [], more
        group.append(item)
    if group:
        yield group
