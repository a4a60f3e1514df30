"""Read the steps of a scan: see `support/scan.py`.

Free messages of a queue are in the order of one index, and those of each lease in that of another.
A step merges these, from a place on. It reads index entries only, until it has enough of them; then
the rows that meet the conditions. So it costs what it examines, and a look into the index for each
lease of the queue.
"""

from __future__ import annotations

import base64
import heapq
import json
import sqlite3
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from typing import Any, NamedTuple

from spark_queue.errors import OptionError
from spark_queue.stores.sqlite.records import BrokenText, RowPlace, ids_clause, read_records
from spark_queue.stores.support.budget import spend
from spark_queue.stores.support.conditions import MAX_NAMED_IDS, due_range, named_ids
from spark_queue.stores.support.damaged import EMPTY_PAGE
from spark_queue.stores.support.scan import Scanned, ScanPlace, ScanStep
from spark_queue.stores.types import PER_MESSAGE_COLUMNS, Condition

#: The raw due time of a record: a text may not be UTF-8.
_DUE = "typeof(mature), iif(typeof(mature) IN ('integer', 'real'), mature, CAST(mature AS BLOB))"


class _Entry(NamedTuple):
    """A record as an index has it, in the order of SQLite: numbers, texts, blobs."""

    kind: int
    due: Any
    rowid: int
    rows: int

    @classmethod
    def of(cls, type: str, due: Any, rowid: int, rows: int) -> _Entry:
        return cls({"text": 1, "blob": 2}.get(type, 0), due, rowid, rows)

    @property
    def row_place(self) -> RowPlace:
        """Its place, as SQLite compares it."""
        return RowPlace(BrokenText(self.due) if self.kind == 1 else self.due, self.rowid)

    @property
    def place(self) -> ScanPlace:
        due = base64.b64encode(self.due).decode() if self.kind else self.due
        return [self.kind, due, self.rowid]


def parse_place(place: ScanPlace | None) -> RowPlace | None:
    """Return a place as SQLite compares it. Raises `OptionError` if it is invalid."""
    if place is None:
        return None
    try:
        kind, due, rowid = place
        if type(rowid) is int and -(2**63) <= rowid < 2**63:
            if kind == 0 and type(due) in (int, float) and (type(due) is float or -(2**63) <= due < 2**63):
                return RowPlace(due, rowid)
            if kind in (1, 2):
                content = base64.b64decode(due, validate=True)
                return RowPlace(BrokenText(content) if kind == 1 else content, rowid)
    except (ValueError, TypeError):
        pass
    raise OptionError("the cursor is not that of this store: begin with the first message", option="cursor")


def scan_records(db: sqlite3.Connection, queue: int, step: ScanStep, bucket: str, now: int) -> Scanned:
    """Read one step.

    `queue`: the row id of the queue. `bucket`: SQL that says whether a row is a bucket. Raises
    `OptionError` for an invalid place.
    """
    history = step.view == "history"
    table, bounds = "history" if history else "message", due_range(step.where)
    after = _start(parse_place(step.after), bounds.first)
    with closing(_entries_of(db, queue, step, after, bounds.last, bucket)) as entries:
        examined, ended = _take(entries, step.rows)
    clauses, values = condition_clauses(step.where, bucket)
    if history:
        clauses.append("until > ?")
        values.append(now)
    matching = {one.rowid: one for one in examined}
    if clauses and examined:
        rowids = json.dumps([one.rowid for one in examined])
        select = f"SELECT rowid FROM {table} WHERE rowid IN (SELECT value FROM json_each(?))"
        found = db.execute(f"{select} AND {' AND '.join(clauses)}", (rowids, *values)).fetchall()
        matching = {one.rowid: one for one in sorted(matching[rowid] for (rowid,) in found)}
        spend(len(examined) - len(matching))
    source = f"FROM {table} WHERE rowid IN (SELECT value FROM json_each(?)) ORDER BY mature, rowid"
    records = EMPTY_PAGE
    if matching:
        rowids = json.dumps(list(matching))
        records = next(read_records(db, step.queue, source, (rowids,), len(matching), history=history), EMPTY_PAGE)
    places = [one.place for one in list(matching.values())[: records.batch.num_rows]]
    if len(places) < len(matching):  # the others are too large for one page
        return Scanned(records, places, places[-1])
    return Scanned(records, places, None if ended else examined[-1].place)


def _start(after: RowPlace | None, first: int | None) -> RowPlace | None:
    """Return the place to begin after: not before messages that are due at `first` (ms)."""
    if first is not None and (after is None or (isinstance(after.mature, int | float) and after.mature < first)):
        return RowPlace(first, -(2**63))
    return after


def _take(entries: Iterator[_Entry], rows: int) -> tuple[list[_Entry], bool]:
    """Return the first entries that hold `rows` messages, and whether there are no more."""
    found: list[_Entry] = []
    for one in entries:
        found.append(one)
        rows -= one.rows
        if rows <= 0:
            return found, False
    return found, True


def condition_clauses(where: Sequence[Condition], bucket: str) -> tuple[list[str], list[Any]]:
    """Return conditions as WHERE clauses, and their values. `bucket`: as in `scan_records`."""
    clauses: list[str] = []
    values: list[Any] = []
    for one in where:
        in_bucket = f" OR {bucket}" if one.column in PER_MESSAGE_COLUMNS else ""
        if one.column == "id" and one.op in ("=", "in"):
            by_id, ids = ids_clause(list(map(str, one.values)))
            clauses.append(f"({by_id}{in_bucket})")
            values += ids
        elif one.op == "in":
            clauses.append(f"({one.column} IN (SELECT value FROM json_each(?)){in_bucket})")
            values.append(json.dumps(one.value))
        else:
            clauses.append(f"({one.column} {one.op} ?{in_bucket})")
            values.append(one.value)
    return clauses, values


# --- entries of the indexes -----------------------------------------------------------------------


def _entries_of(
    db: sqlite3.Connection, queue: int, step: ScanStep, after: RowPlace | None, last: int | None, bucket: str
) -> Generator[_Entry]:
    """Yield the entries to examine: no others can meet the conditions."""
    if step.view == "history":
        return _ordered(db, "FROM history WHERE queue = ?", (queue,), after, last, "1")
    ids = named_ids(step.where)
    if ids is not None and len(ids) <= MAX_NAMED_IDS and not _exists(db, f"WHERE queue = ? AND {bucket}", queue):
        by_id, values = ids_clause(sorted(ids))
        return _ordered(db, f"FROM message WHERE queue = ? AND {by_id}", (queue, *values), after, None, "rows")
    if last is not None and _has_bucket_after(db, queue, last):
        last = None  # some of its messages may be due earlier
    return _all_entries(db, queue, after, last)


def _has_bucket_after(db: sqlite3.Connection, queue: int, moment: int) -> bool:
    """Return whether a bucket of several messages is due after a moment (ms)."""
    indexed = "INDEXED BY message_bucket WHERE rows > 1 AND lease"
    free = f"{indexed} IS NULL AND queue = ? AND mature > ?"
    held = f"{indexed} IN (SELECT id FROM lease WHERE queue = ?1) AND queue = ?1 AND mature > ?2"
    return _exists(db, free, queue, moment) or _exists(db, held, queue, moment)


def _exists(db: sqlite3.Connection, where: str, *values: int) -> bool:
    return db.execute(f"SELECT 1 FROM message {where} LIMIT 1", values).fetchone() is not None


def _read(db: sqlite3.Connection, select: str, values: Sequence[Any]) -> Generator[_Entry]:
    """Yield entries as they are needed."""
    with closing(db.execute(select, values)) as cursor:
        for row in cursor:
            yield _Entry.of(*row)


def _ranges(after: RowPlace | None) -> list[tuple[str, tuple[Any, ...]]]:
    """Return the WHERE clauses of the records after a place, in order, and their values.

    They are those of the same due time, and the later ones. SQLite would find one range for both by
    the due time alone, and walk through all records of that time.
    """
    if after is None:
        return [("1", ())]
    mature = "CAST(? AS TEXT)" if isinstance(after.mature, BrokenText) else "?"
    return [(f"mature = {mature} AND rowid > ?", tuple(after)), (f"mature > {mature}", (after.mature,))]


def _ordered(
    db: sqlite3.Connection, source: str, values: Sequence[Any], after: RowPlace | None, last: int | None, rows: str
) -> Generator[_Entry]:
    until, end = ("", ()) if last is None else (" AND mature <= ?", (last,))
    for within, place in _ranges(after):
        select = f"SELECT {_DUE}, rowid, {rows} {source} AND {within}{until} ORDER BY mature, rowid"
        yield from _read(db, select, (*values, *place, *end))


def _all_entries(db: sqlite3.Connection, queue: int, after: RowPlace | None, last: int | None) -> Generator[_Entry]:
    """Yield the messages of a queue, free and reserved ones, in order."""
    free = _ordered(db, "FROM message WHERE queue = ? AND lease IS NULL", (queue,), after, last, "rows")
    held = (_held_entries(db, lease, first, last) for lease, first in _first_of_leases(db, queue, after, last))
    with ExitStack() as opened:
        streams = [opened.enter_context(closing(one)) for one in (free, *held)]
        yield from heapq.merge(*streams)


def _first_of_leases(
    db: sqlite3.Connection, queue: int, after: RowPlace | None, last: int | None
) -> list[tuple[int, _Entry]]:
    """Return the first message after a place of each lease that has one."""
    ranges = _ranges(after)
    firsts = ", ".join(
        f"(SELECT rowid FROM message WHERE lease = held.id AND {within} ORDER BY mature, rowid LIMIT 1)"
        for within, _ in ranges
    )
    source = f"FROM lease AS held JOIN message ON message.rowid = coalesce({firsts}, NULL)"
    select = f"SELECT held.id, {_DUE}, message.rowid, rows {source}"
    where, values = "WHERE held.queue = ?", [*(value for _, place in ranges for value in place), queue]
    if last is not None:
        where += " AND mature <= ?"
        values.append(last)
    found = db.execute(f"{select} {where}", values).fetchall()
    return [(lease, _Entry.of(*entry)) for lease, *entry in found]


def _held_entries(db: sqlite3.Connection, lease: int, first: _Entry, last: int | None) -> Generator[_Entry]:
    """Yield the messages of a lease from `first` on; read the others only if they are needed."""
    yield first
    yield from _ordered(db, "FROM message WHERE lease = ?", (lease,), first.row_place, last, "rows")
