"""Split items into batches that are bounded in size, such as by rows and bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from operator import add, gt
from typing import TypeVar

T = TypeVar("T")


def grouped(items: Iterable[T], most: tuple[int, ...], size: Callable[[T], tuple[int, ...]]) -> Iterator[list[T]]:
    """Yield the items in order, in batches that exceed none of the `limits`.

    `size` returns the sizes of one item, such as its rows and bytes: one for each limit. An item
    that is larger than a limit is a batch of its own.
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
