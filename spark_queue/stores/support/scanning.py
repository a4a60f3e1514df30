"""Read the pages of a scan: open buckets, and remember how far a page has come within one.

A page may end within a bucket. The next one begins with the record after the place before it: the
same bucket, so as many messages are passed as were returned. If others have split it meanwhile, its
messages are in several records there. Then those that come after the last one that was returned
come. If that one is gone too, the rest of the bucket may be missing, but nothing comes twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from spark_queue.messages.buckets import is_bucket
from spark_queue.messages.columns import milliseconds
from spark_queue.messages.schema import HISTORY, MESSAGES
from spark_queue.stores.support.budget import spend
from spark_queue.stores.support.conditions import check_conditions
from spark_queue.stores.support.cursors import Cursor, InBucket, digest_of
from spark_queue.stores.support.damaged import check_payloads, open_buckets
from spark_queue.stores.support.scan import Scan, Scanned, ScanPlace, ScanStep
from spark_queue.stores.types import Condition, filter_rows

#: Most messages that one step is to examine, and by which factor steps grow while few of them meet
#: the conditions.
MAX_STEP, STEP_GROWTH = 10_000, 2


class ScannedStore(Protocol):
    """The part of `Store` that a scan needs."""

    def scan_step(self, step: ScanStep) -> Scanned: ...
    def scan_scope(self, scan: Scan) -> str: ...


@dataclass(slots=True)
class _Group:
    """Messages that follow each other: those of one bucket, or single ones, each with its place.

    `before`: the place of the record before them. `numbers`: the rows that are still to be
    returned, of all `messages`.
    """

    before: ScanPlace | None
    places: Sequence[ScanPlace]
    bucket: str  #: the id of the bucket, empty for single messages
    messages: pa.RecordBatch
    numbers: pa.Array = field(init=False)

    def __post_init__(self) -> None:
        self.numbers = pa.array(range(self.messages.num_rows), pa.int64())

    def pass_first(self, number: int) -> None:
        """Leave out the first messages, which were returned before."""
        self.numbers = self.numbers.filter(pc.greater_equal(self.numbers, number))

    def filter(self, where: Sequence[Condition]) -> None:
        """Leave out the messages of a bucket that do not meet the conditions."""
        if self.bucket and where:
            numbered = self.messages.append_column("number", pa.array(range(self.messages.num_rows), pa.int64()))
            fitting = filter_rows(numbered, where).column("number")
            self.numbers = self.numbers.filter(pc.is_in(self.numbers, fitting))

    def take(self, limit: int) -> pa.RecordBatch:
        """Return the first `limit` of the messages."""
        numbers = self.numbers.slice(0, limit)
        if len(numbers) == self.messages.num_rows:
            return self.messages
        return self.messages.take(numbers)

    def cursor_after(self, limit: int) -> Cursor:
        """Return the cursor of a page that ends with the last of the first `limit` messages."""
        row = self.numbers[min(limit, len(self.numbers)) - 1].as_py()
        if not self.bucket:
            return Cursor(self.places[row])
        if row == self.messages.num_rows - 1:
            return Cursor(self.places[0])
        ids, due = self.messages.column("id"), pc.max(milliseconds(self.messages.column("mature"))).as_py()
        grow = pc.all(pc.less(ids.slice(0, len(ids) - 1), ids.slice(1))).as_py()
        first = ids[0].as_py() if grow else None
        return Cursor(self.before, InBucket(digest_of(self.bucket), len(ids), row + 1, first, ids[row].as_py(), due))


class PageReader:
    """Reads one page. It yields batches of it, and then has the cursor of the next page."""

    def __init__(self, store: ScannedStore, scan: Scan) -> None:
        """Read nothing yet.

        Raises `OptionError` for a wrong cursor, and for conditions as `check_conditions` does.
        """
        check_conditions(scan.where, scan.view)
        self._store, self._scan = store, scan
        self._where = [one.possible() for one in scan.where]
        self._scope = store.scan_scope(scan)
        self._start = Cursor() if scan.cursor is None else Cursor.parse(scan.cursor, self._scope)
        self._left = scan.limit
        self.cursor: str | None = None  #: that of the next page; `None` at the end

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches of the page; read as few records as are needed."""
        for group in self._resumed(self._groups(self._start.place)):
            group.filter(self._where)
            if not len(group.numbers):
                continue
            batch = group.take(self._left)
            if batch.num_rows == self._left:
                self.cursor = group.cursor_after(self._left).text(self._scope)
            self._left -= batch.num_rows
            yield batch
            if not self._left:
                return

    def _groups(self, after: ScanPlace | None) -> Iterator[_Group]:
        """Yield the messages after a place. Steps grow: few may meet the conditions."""
        scan, factor = self._scan, 1
        while True:
            rows = max(1, min(self._left * factor, MAX_STEP))
            found = self._store.scan_step(ScanStep(scan.queue, self._where, rows, scan.view, after))
            factor = min(factor * STEP_GROWTH, MAX_STEP)
            yield from self._split(found, after)
            if found.next is None:
                return
            after = found.next

    def _split(self, found: Scanned, before: ScanPlace | None) -> Iterator[_Group]:
        """Yield the messages of a step in groups."""
        if not found.places:
            return
        records, schema = found.records, HISTORY if self._scan.view == "history" else MESSAGES
        if records.batch.schema != schema:
            records = records._replace(batch=records.batch.cast(schema))
        row, ids = 0, records.batch.column("id")
        for opened in open_buckets(records):
            batch = check_payloads(opened, check_json=self._scan.check_json).batch
            id, size = ids[row].as_py(), batch.num_rows
            bucket = id if is_bucket(id) else ""
            if bucket:
                spend(batch.num_rows, batch.nbytes)
                size = 1
            yield _Group(before, found.places[row : row + size], bucket, batch)
            row, before = row + size, found.places[row + size - 1]

    # --- within a bucket --------------------------------------------------------------------------

    def _resumed(self, groups: Iterator[_Group]) -> Iterator[_Group]:
        """Yield the groups without the messages of a bucket that the page before has returned."""
        inside = self._start.inside
        if inside is None:
            yield from groups
            return
        first = next(groups, None)
        if first is None:
            return
        if digest_of(first.bucket) == inside.digest:
            first.pass_first(inside.done)
            yield first
        else:
            parts = [first]  # at most as many messages as the bucket had
            found = first.messages.num_rows
            while found < inside.rows and (more := next(groups, None)) is not None:
                parts.append(more)
                found += more.messages.num_rows
            _pass_returned(parts, inside)
            yield from parts
        yield from groups


def _pass_returned(parts: Sequence[_Group], inside: InBucket) -> None:
    """Leave out what a page has returned of a bucket that others have split since.

    `parts` are the records in its place, and perhaps some after them.
    """
    ids = [id for part in parts for id in part.messages.column("id").to_pylist()]
    if inside.last in ids:
        number = ids.index(inside.last) + 1
        for part in parts:
            part.pass_first(number)
            number = max(0, number - part.messages.num_rows)
        return
    for part in parts:
        ids, dues = part.messages.column("id"), milliseconds(part.messages.column("mature"))
        returned = pc.less_equal(dues, inside.due)
        if inside.first is not None:
            within = pc.and_(pc.greater_equal(ids, inside.first), pc.less_equal(ids, inside.last))
            returned = pc.and_(returned, within)
        part.numbers = part.numbers.filter(pc.invert(returned))
