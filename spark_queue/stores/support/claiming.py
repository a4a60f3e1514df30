"""What a claim reserves: its request, and how its messages are shared among its partitions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from spark_queue.messages.buckets import ClaimLimit, Selected, select_records
from spark_queue.messages.times import MAX_TIME_MS
from spark_queue.stores.types import Claim, seen_tag, unseen_tag


def share_evenly(rows: int, partitions: int, min_partitions: int, smallest: int) -> list[int]:
    """Return the sizes of partitions that share `rows` evenly; none is empty.

    There is one partition for each `smallest` rows, but at least `min_partitions` and at most
    `partitions`. `claim.lua` has the same rule.
    """
    parts = min(partitions, max(-(-rows // smallest), min(rows, min_partitions)))
    return [rows // parts + (part < rows % parts) for part in range(parts)] if rows else []


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """Which messages a claim reserves, under which tags, and for how long.

    It reserves up to `rows` ready messages, in order. They mature by the moment `before` (ms), and
    have no more than `bytes` together; but the first one is reserved however large it is.

    They go to the tags of up to `partitions` partitions, in order. There is one for each `smallest`
    messages, but `min_partitions` if there are as many messages. One partition may be `unseen`: its
    messages are reserved ahead. `lease` is in ms; `None` never ends.
    """

    tag: str
    rows: int
    bytes: int | None = None
    partitions: int = 1
    min_partitions: int = 1
    lease: int | None = None
    before: int = MAX_TIME_MS
    unseen: bool = False
    smallest: int = 1

    def tag_of(self, partition: int) -> str:
        """Return the tag of a partition."""
        if self.partitions > 1:
            return f"{self.tag}/{partition}"
        return unseen_tag(self.tag) if self.unseen else seen_tag(self.tag)

    def held_rows(self, held: Mapping[str, int]) -> list[int]:
        """Return the number of messages of each partition. `held`: those by tag, of others too.

        With several partitions, an earlier claim may have had more of them.
        """
        tags = [self.tag_of(0)]
        if self.partitions > 1:
            names = (tag.removeprefix(f"{self.tag}/") for tag in held)
            last = max((int(name) for name in names if name.isascii() and name.isdecimal()), default=-1)
            tags = [self.tag_of(partition) for partition in range(last + 1)]
        return without_empty([held.get(tag, 0) for tag in tags])

    def limit(self) -> ClaimLimit:
        """Return the limit of the first partition, if it may take all messages."""
        share = None if self.bytes is None else self.bytes // self.partitions
        return ClaimLimit(self.rows, self.rows, share)


class Shares:
    """The messages that a claim has reserved, by partition, and how many each may take.

    Iterate over it to get each partition that may take more, with its limit, and `add` what that
    takes before the next one. Partitions get equal shares of messages and bytes. If large messages
    fill a share of bytes, there are as many partitions as are allowed.
    """

    def __init__(self, request: ClaimRequest, ready: int) -> None:
        """`ready`: how many messages can be reserved. It does not matter to a single partition."""
        self._request = request
        self._sizes = [request.rows]
        if request.partitions > 1:
            rows = min(ready, request.rows)
            self._sizes = share_evenly(rows, request.partitions, request.min_partitions, request.smallest)
        self._total = sum(self._sizes)
        self._byte_shares: list[int | None] = []
        self._rows: list[int] = []
        self._bytes: list[int] = []
        self._full: set[int] = set()  # the partitions whose bytes are filled
        self._oversized_bucket: str | None = None

    @property
    def left(self) -> int:
        """How many more messages may be reserved."""
        return max(0, self._total - sum(self._rows))

    @property
    def _must_split(self) -> bool:
        """Whether nothing can be reserved before the first bucket is split."""
        return self._oversized_bucket is not None and not any(self._rows)

    def __iter__(self) -> Iterator[tuple[int, ClaimLimit]]:
        at = 0
        while at < len(self._sizes) and self.left and not self._must_split:
            if at == len(self._rows):
                self._byte_shares.append(self._next_byte_share())
                self._rows.append(0)
                self._bytes.append(0)
            target = min(self._sizes[at] - self._rows[at], self.left)
            if target > 0 and at not in self._full:
                share = self._byte_shares[at]
                left_bytes = None if share is None else max(0, share - self._bytes[at])
                yield at, ClaimLimit(self.left, target, left_bytes, any(self._rows))
            at += 1

    def _next_byte_share(self) -> int | None:
        if self._request.bytes is None:
            return None
        left = max(0, self._request.bytes - sum(self._bytes))
        return left // (self._request.partitions - len(self._rows))

    def add(self, partition: int, selected: Selected) -> None:
        """Add what a partition took."""
        self._rows[partition] += selected.rows
        self._bytes[partition] += selected.bytes
        self._oversized_bucket = selected.oversized_bucket
        if selected.full:
            self._full.add(partition)
            if partition == len(self._sizes) - 1 and len(self._sizes) < self._request.partitions:
                self._sizes.append(self.left)

    def cut(self, records: Sequence[tuple[Any, str, int]]) -> dict[int, list[Any]]:
        """Add the first of these records, and return the keys of each partition.

        `records` are keys, ids and sizes: see `bytes_of`.
        """
        at, keys = 0, {}
        for partition, limit in self:
            found = select_records(islice(records, at, None), limit)
            self.add(partition, found)
            at += len(found.keys)
            if found.keys:
                keys[partition] = found.keys
        return keys

    @property
    def is_complete(self) -> bool:
        """Whether no partition may take more."""
        return not any(True for _ in self)

    def correct(self, rows: list[int]) -> None:
        """Set how many messages each partition holds, since others took some of them first.

        It is not known which ones. So their bytes still count, if the partition holds any message.
        """
        self._rows = [*rows, *([0] * (len(self._rows) - len(rows)))]
        self._oversized_bucket = None
        for at, left in enumerate(self._rows):
            if not left:
                self._bytes[at] = 0
                self._full.discard(at)

    def claim(self) -> Claim:
        """Return the claim of all reserved messages."""
        rows = without_empty(self._rows)
        bucket = self._oversized_bucket if self._must_split else None
        return Claim(rows, bucket, bytes=sum(self._bytes), full=bool(self._full) and self.left > 0)


def without_empty(rows: list[int]) -> list[int]:
    """Return the numbers without the zeros at the end: the first tags may hold whole buckets."""
    last = max((at for at, one in enumerate(rows) if one), default=-1)
    return rows[: last + 1]
