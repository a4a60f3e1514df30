"""The place of a record among those of the same due time: its rowid.

SQLite gives a new row the rowid after the largest one, within the transaction of the push. So the
rowid grows with each push, of all processes, and needs no column and no space in an index: it ends
each index anyway. A message keeps its place while it is reserved, released or moved.

A bucket takes as many places as it has messages, and its rowid is the last of them. So if it is
split, its parts fit into its place.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from itertools import accumulate

from spark_queue.messages.buckets import rows_of


def next_place(rows: int) -> str:
    """Return SQL for the place of a new record with this number of messages."""
    return "NULL" if rows == 1 else f"(SELECT coalesce(max(rowid), 0) FROM message) + {rows}"


def places_up_to(db: sqlite3.Connection, last: int, ids: Sequence[str]) -> list[int] | None:
    """Return the places of records that follow each other, the last one at `last`.

    Return `None` if some are taken, so that the records need new ones. That is so for a bucket of
    an earlier version, or one that a compaction has made of messages with gaps between them.
    """
    rows = [rows_of(id) for id in ids]
    places = [last - sum(rows) + end for end in accumulate(rows)]
    taken = "SELECT 1 FROM message WHERE rowid IN (SELECT value FROM json_each(?)) LIMIT 1"
    return None if db.execute(taken, (json.dumps(places),)).fetchone() else places
