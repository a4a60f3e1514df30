"""Cut the tables of messages and of the history: see `stores/spans.py`.

Messages are cut by their ids, which have an index. An id occurs several times in the history, which
is cut in the order of its own index: rows of it never change.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from spark_queue.stores.spans import INDEX_WALK, OWN_SHARE, Sample, Span
from spark_queue.stores.types import View

#: How many rows of a table are looked at for each wanted place: many may be of other queues.
PROBES = 3

#: The columns of a place, for comparisons and for reading. A place is plain text and numbers.
_PLACE = {"messages": "(id)", "history": "(mature, id)"}
_READ_PLACE = {"messages": "CAST(id AS BLOB)", "history": "CAST(id AS BLOB), mature"}
_PLAIN = {"messages": "typeof(id) = 'text'", "history": "typeof(id) = 'text' AND typeof(mature) = 'integer'"}
_TABLE = {"messages": "message", "history": "history"}


def span_clause(view: View, span: Span) -> tuple[list[str], list[Any]]:
    """Return the WHERE clauses of the records in a span, and their values."""
    clauses: list[str] = []
    values: list[Any] = []
    for op, place in ((">=", span.low), ("<", span.high)):
        if place is not None:
            clauses.append(f"{_PLACE[view]} {op} ({', '.join('?' * len(place))})")
            values += place
    return clauses, values


def sample_records(db: sqlite3.Connection, queue: int, view: View, size: int) -> Sample:
    """Return places of the records of a queue, spread evenly; all of them if there are few."""
    table, columns, plain = _TABLE[view], _READ_PLACE[view], _PLAIN[view]
    order = _PLACE[view].strip("()")
    walked = db.execute(
        f"SELECT {columns} FROM {table} WHERE queue = ? AND {plain} ORDER BY {order} LIMIT ?",
        (queue, INDEX_WALK * size),
    ).fetchall()
    if len(walked) < INDEX_WALK * size:
        return Sample(_places(walked), len(walked))
    (first,) = db.execute(f"SELECT min(rowid) FROM {table}").fetchone()
    (last,) = db.execute(f"SELECT max(rowid) FROM {table}").fetchone()
    number, rows = PROBES * size, last - first + 1
    probe = f"SELECT queue, {plain}, {columns} FROM {table} WHERE rowid >= ? ORDER BY rowid LIMIT 1"
    probed = (db.execute(probe, (first + rows * at // number,)).fetchone() for at in range(number))
    own = [place for found, is_plain, *place in filter(None, probed) if found == queue and is_plain]
    records = max(len(walked), rows * len(own) // number)
    if len(own) < OWN_SHARE * size:  # most rows are of other queues: scan the index of this one
        ranked = f"SELECT {columns}, row_number() OVER (ORDER BY {order}) AS rank FROM {table}"
        each = f"SELECT * FROM ({ranked} WHERE queue = ? AND {plain}) WHERE rank % ? = 0"
        own = [place for *place, _ in db.execute(each, (queue, max(INDEX_WALK, records // size)))]
    return Sample(_places(own), records)


def _places(found: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """Return the different ones of these places that are text, in order."""
    places: dict[tuple[Any, ...], None] = {}
    for id, *mature in found:
        try:
            text = id.decode()
        except UnicodeDecodeError:  # a damaged record
            continue
        places[(*mature, text)] = None
    # SQLite compares the bytes of texts.
    return sorted(places, key=lambda place: (*place[:-1], place[-1].encode()))
