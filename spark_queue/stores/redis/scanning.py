"""Read the steps of a scan: see `support/scan.py`, and `lua/scan.lua`.

The index has a held record at the end of its lease, and `held` has each tag in the order of the due
times. A step merges these. Where the index comes to the end of a lease, it does not say which of
its records are held. Then a step reads what the tags of that lease hold. That costs as much as they
hold, once on the way through the queue.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import redis

from spark_queue.errors import OptionError
from spark_queue.messages.buckets import rows_of
from spark_queue.messages.schema import BUCKET_PREFIX
from spark_queue.messages.times import MAX_TIME_MS
from spark_queue.stores.redis.documents import as_records, read_entry
from spark_queue.stores.redis.keys import PARTS, DueId, Keys, messages_of
from spark_queue.stores.support.budget import spend
from spark_queue.stores.support.conditions import MAX_NAMED_IDS, due_range, meets, named_ids
from spark_queue.stores.support.damaged import EMPTY_PAGE, Records, id_of, keys_of
from spark_queue.stores.support.scan import Scanned, ScanPlace, ScanStep, with_places
from spark_queue.stores.types import Condition, View

#: Comes after all ids: these are UTF-8, which does not have it.
AFTER_ALL_IDS = b"\xff"

#: Reads documents: how many rows were read, which of them exist, and their documents.
ReadDocuments = Callable[[str, View, Sequence[DueId]], tuple[int, list[DueId], list[bytes]]]


class _Step(NamedTuple):
    """Records in order, and after which place to continue; `None`: there are no more."""

    found: list[DueId]
    next: DueId | None


def place_of(record: DueId) -> ScanPlace:
    """Return a record as a place: its score, and its id, in which each byte is a character."""
    return [float(record[0]), record[1].decode("latin-1")]


def parse_place(place: ScanPlace | None) -> DueId | None:
    """Return the record of a place. Raises `OptionError` if it is invalid."""
    if place is None:
        return None
    try:
        score, id = place
        if type(score) is float and not math.isnan(score):
            return score, id.encode("latin-1")
    except (ValueError, AttributeError, UnicodeError):
        pass
    raise OptionError("the cursor is not that of this store: begin with the first message", option="cursor")


class Scanner:
    """Reads the steps of scans of one queue."""

    def __init__(
        self,
        queue: str,
        keys: Keys,
        connection: Callable[[], AbstractContextManager[Any]],
        run: Callable[..., Any],
        read_documents: ReadDocuments,
    ) -> None:
        """`run` calls a script of the queue."""
        self._queue, self._keys, self._connection = queue, keys, connection
        self._run, self._read_documents = run, read_documents

    def read(self, step: ScanStep, most: int) -> Scanned:
        """Return the records of a step, which examines at most `most` records.

        Raises `OptionError` for an invalid place, and `StoreError`.
        """
        rows, after = min(step.rows, most), parse_place(step.after)
        missed: set[DueId] = set()
        while True:
            if step.view == "history":
                examined = self._history(after, rows)
                fitting = [
                    one for one in examined.found if _is_bucket(one[1]) or meets(step.where, "id", id_of(one[1]))
                ]
            else:
                examined = self._messages(step.where, after, rows)
                fitting = [one for one in examined.found if _may_meet(step.where, one)]
            spend(len(examined.found))
            read, existing, documents = (
                self._read_documents(self._queue, step.view, fitting) if fitting else (0, [], [])
            )
            gone = {one for one in fitting[:read] if _is_bucket(one[1])}.difference(existing)
            if gone <= missed:
                break
            missed |= gone  # a bucket was split meanwhile: its messages are in other records now
        records = self._as_records(step, existing, documents)
        found, places = with_places(records, list(map(place_of, existing)), step.where)
        end = fitting[read - 1] if read < len(fitting) else examined.next
        return Scanned(found, places, None if end is None else place_of(end))

    def _as_records(self, step: ScanStep, rows: Sequence[DueId], documents: Sequence[bytes]) -> Records:
        if not rows:
            return EMPTY_PAGE
        if step.view == "messages":
            return as_records(self._queue, [(_due_of(score), id) for score, id in rows], documents)
        dues, processed, texts = zip(*map(read_entry, documents), strict=True)
        named = [(due, id) for due, (_, id) in zip(dues, rows, strict=True)]
        return as_records(self._queue, named, texts, processed)

    # --- which records ----------------------------------------------------------------------------

    def _history(self, after: DueId | None, rows: int) -> _Step:
        found, _, known = self._call(after, rows, "history")
        records = _pairs(found)
        return _Step(records, records[-1] if known else None)

    def _messages(self, where: Sequence[Condition], after: DueId | None, rows: int) -> _Step:
        bounds, ids = due_range(where), named_ids(where)
        with self._connection() as client:
            has_buckets = (
                bool(client.exists(self._keys.buckets)) if ids is not None or bounds.last is not None else True
            )
        if ids is not None and len(ids) <= MAX_NAMED_IDS and not has_buckets:
            named = [one for one in self._named(ids) if after is None or one > after][: rows + 1]
            return _Step(named[:rows], named[rows - 1] if len(named) > rows else None)
        if bounds.first is not None:
            after = max(after or (-math.inf, b""), (float(bounds.first), b""))
        found, next = self._next_records(after, rows)
        if bounds.last is not None and not has_buckets:
            within = [one for one in found if one[0] < bounds.last + 1]
            if len(within) < len(found) or (next is not None and next[0] >= bounds.last + 1):
                return _Step(within, None)
        return _Step(found, next)

    def _next_records(self, after: DueId | None, rows: int) -> _Step:
        """Return the next free and held records, in order."""
        free, runs, known = self._call(after, rows, "messages")
        found = _pairs(free)
        found += [(score, id) for run in runs for _, score, id in messages_of(run)]
        found.sort()
        last = min(_pairs(known), default=None)
        if last is not None:
            found = [one for one in found if one <= last]
            if not found and after is not None and last <= after:
                return self._at_end_of_lease(after, rows)
        some = _first_with_rows(found, rows)
        return _Step(some, some[-1] if len(some) < len(found) else last)

    def _call(self, after: DueId | None, rows: int, view: str) -> Any:
        score, id = ("", b"") if after is None else (repr(after[0]), after[1])
        return self._run("scan", self._queue, score, id, rows, view)

    def _at_end_of_lease(self, after: DueId, rows: int) -> _Step:
        """Return the next free records among those whose score is the end of a lease."""
        score, last_id = after
        with self._connection() as client:
            tags = {name.rstrip(b"\0") for name in client.zrangebyscore(self._keys.leases, score, score)}
            members, *held = self._at_one_moment(
                client,
                lambda pipeline: pipeline.zrangebyscore(self._keys.moments, score, score),
                *(_reader(self._keys.held, tag) for tag in tags),
            )
        ids = {id for runs in held for run in runs for _, _, id in messages_of(run)}
        free = [(score, id) for id in members if id > last_id and id not in ids]
        some = _first_with_rows(free, rows)
        return _Step(some, some[-1] if len(some) < len(free) else (score, AFTER_ALL_IDS))

    def _named(self, ids: set[str]) -> list[DueId]:
        """Return those records with these ids that exist, in order."""
        names = [key for id in sorted(ids) for key in keys_of(id)]
        if not names:
            return []
        with self._connection() as client:
            scores, leases = self._at_one_moment(
                client,
                lambda pipeline: pipeline.zmscore(self._keys.moments, names),
                lambda pipeline: pipeline.zrange(self._keys.leases, 0, -1, withscores=True),
            )
            tags = {name.rstrip(b"\0") for name, end in leases if end in set(scores)}
            if tags:  # some may be held
                scores, *held = self._at_one_moment(
                    client,
                    lambda pipeline: pipeline.zmscore(self._keys.moments, names),
                    *(_reader(self._keys.held, tag) for tag in tags),
                )
                ends = {(name.rstrip(b"\0"), end) for name, end in leases}
                wanted = dict(zip(names, scores, strict=True))
                for tag, score, id in (one for runs in held for run in runs for one in messages_of(run)):
                    if id in wanted and (tag, wanted[id]) in ends:
                        wanted[id] = score
                scores = list(wanted.values())
        return sorted((score, id) for score, id in zip(scores, names, strict=True) if score is not None)

    @staticmethod
    def _at_one_moment(client: Any, *reads: Callable[[Any], Any]) -> list[Any]:
        for whole in (True, False):
            pipeline = client.pipeline(transaction=whole)
            for read in reads:
                read(pipeline)
            try:
                found: list[Any] = pipeline.execute()
                return found
            except redis.exceptions.OutOfMemoryError:  # a full server refuses transactions, but no reads
                if not whole:
                    raise
        raise AssertionError("the second attempt returns or raises")


def _reader(held: str, tag: bytes) -> Callable[[Any], Any]:
    """Return what reads all runs of a tag."""
    return lambda pipeline: pipeline.zrangebylex(held, b"[%b\0" % tag, b"(%b\1" % tag)


def _pairs(flat: Sequence[bytes]) -> list[DueId]:
    """Return records from scores and ids."""
    return [(float(score), id) for score, id in zip(flat[::2], flat[1::2], strict=True)]


def _first_with_rows(found: list[DueId], rows: int) -> list[DueId]:
    """Return the first records that hold about `rows` messages."""
    for number, (_, id) in enumerate(found):
        rows -= rows_of(id.decode(errors="replace")) if _is_bucket(id) else 1
        if rows <= 0:
            return found[: number + 1]
    return found


def _is_bucket(id: bytes) -> bool:
    return id.startswith(BUCKET_PREFIX.encode())


def _may_meet(where: Sequence[Condition], record: DueId) -> bool:
    """Return whether a record meets the conditions on id and due time."""
    score, id = record
    return _is_bucket(id) or (meets(where, "mature", int(_due_of(score))) and meets(where, "id", id_of(id)))


def _due_of(score: float) -> float:
    """Return a score as a time in our range (ms, with parts): other programs write any score."""
    return math.floor(min(max(score, -MAX_TIME_MS), MAX_TIME_MS) * PARTS) / PARTS
