"""Count the messages of a queue by state: all of them, or up to a limit."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from spark_queue.messages.buckets import MAX_ROWS_DIGITS
from spark_queue.stores.types import Sizes

_FREE = "lease IS NULL AND queue = ?"
_IS_BUCKET = f"rows > 1 AND rows < 1e{MAX_ROWS_DIGITS}"  # excludes text, which is greater than any number
#: How many messages a record holds.
MESSAGES_OF_RECORD = f"iif({_IS_BUCKET}, rows, 1)"

_HELD = "lease IS NOT NULL AND lease IN (SELECT id FROM lease WHERE queue = ? AND {})"
_FIRST_EXPIRED = (
    "SELECT until FROM lease WHERE queue = ? AND until <= ? "
    "AND EXISTS (SELECT 1 FROM message WHERE message.lease = lease.id) ORDER BY until LIMIT 1"
)

_FIRST_END = "SELECT min(until) FROM lease WHERE queue = ?"


def extra_messages(db: sqlite3.Connection, where: str, values: Sequence[Any], limit: int | None = None) -> int:
    """Return how many more messages than records meet a condition: buckets hold many.

    With a `limit`, it counts until it has found that number.
    """
    source = f"FROM message INDEXED BY message_bucket WHERE {_IS_BUCKET} AND {where}"
    if limit is None:
        (extra,) = db.execute(f"SELECT coalesce(sum(rows - 1), 0) {source}", values).fetchone()
        return int(extra)
    found = 0
    for (rows,) in db.execute(f"SELECT rows {source}", values):
        found += int(rows) - 1
        if found >= limit:
            break
    return found


def count_messages(db: sqlite3.Connection, queue: int, now: int, limit: int | None = None) -> Sizes:
    """Count the messages of a queue by state at `now` (ms): see `Store.sizes`."""
    free, many_free = count_matching(db, f"{_FREE} AND mature <= ?", (queue, now), limit)
    scheduled, many_scheduled = count_matching(db, f"{_FREE} AND mature > ?", (queue, now), limit)
    expired, many_expired = count_matching(db, _HELD.format("until <= ?"), (queue, now), limit)
    held, many_held = count_matching(db, _HELD.format("(until IS NULL OR until > ?)"), (queue, now), limit)
    first = f"SELECT mature FROM message WHERE {_FREE} ORDER BY mature LIMIT 1"
    free_first, expired_first, lease_end = (
        _number(db.execute(query, values).fetchone())
        for query, values in ((first, (queue,)), (_FIRST_EXPIRED, (queue, now)), (_FIRST_END, (queue,)))
    )
    ready_since = [one for one in (free_first, expired_first) if one is not None and one <= now]
    next_ones = [one for one in (free_first, lease_end) if one is not None]
    many = {"ready": many_free or many_expired, "scheduled": many_scheduled, "reserved": many_held}
    return Sizes(
        free + expired,
        scheduled,
        held,
        now - int(min(ready_since)) if ready_since else None,
        frozenset(state for state, capped in many.items() if capped),
        int(min(next_ones)) - now if next_ones else None,
    )


def _number(row: tuple[Any] | None) -> int | float | None:
    """Return the number in a row; `None` if there is none, or text of another program."""
    return row[0] if row and isinstance(row[0], int | float) else None


def count_matching(db: sqlite3.Connection, where: str, values: Sequence[Any], limit: int | None) -> tuple[int, bool]:
    """Return the number of messages that meet a condition, and whether there may be more.

    With a `limit`, it counts until it has found that number.
    """
    if limit is None:
        (records,) = db.execute(f"SELECT count(*) FROM message WHERE {where}", values).fetchone()
        return int(records) + extra_messages(db, where, values), False
    some = f"SELECT 1 FROM message WHERE {where} LIMIT ?"
    (records,) = db.execute(f"SELECT count(*) FROM ({some})", (*values, limit)).fetchone()
    found = int(records) if records >= limit else int(records) + extra_messages(db, where, values, limit)
    return found, found >= limit
