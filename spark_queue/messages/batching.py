"""Split items into batches that are bounded in size, such as by rows and bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from operator import add, gt
from typing import TypeVar

T = TypeVar("T")


def batch_by_size(
    items: Iterable[T], limits: tuple[int, ...], size: Callable[[T], tuple[int, ...]]
) -> Iterator[list[T]]:
    """Yield the items in order, in batches that exceed none of the `limits`.

    `size` returns the sizes of one item, such as its rows and bytes: one for each limit. An item
    that is larger than a limit is a batch of its own.
    """
    batch: list[T] = []
    total = (0,) * len(limits)
    for item in items:
        sizes = size(item)
        total = tuple(map(add, total, sizes))
        if batch and any(map(gt, total, limits)):
            yield batch
            batch, total = [], sizes
        batch.append(item)
    if batch:
        yield batch
