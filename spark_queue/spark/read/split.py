"""Split a batch of several inputs into tasks, so that the n-th messages of all are together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spark_queue.spark.read.fetch import FetchRange, ZippedRange
from spark_queue.stores.base import partition_sizes


def split_batch(delivery: str, ranges: Mapping[str, Sequence[FetchRange]], min_tasks: int = 1) -> list[ZippedRange]:
    """Return the rows of each task of a batch. `ranges`: the messages of each input, in order.

    The n-th messages of all inputs are in the same task. There are at most as many tasks as the
    largest number of ranges of an input, and up to that at least `min_tasks`.
    """
    total = sum(one.rows or 0 for one in next(iter(ranges.values())))
    found, first = [], 0
    for rows in partition_sizes(total, max(map(len, ranges.values())), min_tasks):
        shares = {binding: _slice_ranges(own, first, first + rows) for binding, own in ranges.items()}
        found.append(ZippedRange(delivery, shares))
        first += rows
    return found


def _slice_ranges(ranges: Sequence[FetchRange], first: int, last: int) -> list[FetchRange]:
    """Return the ranges of the messages from number `first` to before `last`."""
    found, begin = [], 0
    for one in ranges:
        rows = one.rows or 0
        low, high = max(first, begin), min(last, begin + rows)
        if low < high:
            found.append(one.slice(low - begin, high - begin))
        begin += rows
    return found
