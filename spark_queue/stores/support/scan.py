"""Requests and results of a scan: pages of the messages of a queue, in order.

The order is that of the due time, then that of the pushes. A message that is reserved has the place
that it had before. A history is in an order of its store. A page begins after a *place*: no page
reads those before it again, and no cursor is kept on the server.

A store reads a scan in steps. A step examines a bounded number of records, changes nothing, and may
be repeated.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from spark_queue.errors import OptionError
from spark_queue.messages.columns import milliseconds
from spark_queue.messages.schema import MESSAGES, NO_MESSAGES
from spark_queue.stores.support.damaged import Records, filter_records
from spark_queue.stores.types import Condition, View

#: The place of a record in the order of a scan: JSON values, in the own form of a store.
ScanPlace = list[Any]


@dataclass(frozen=True, slots=True)
class Scan:
    """A request for a page: up to `limit` messages that meet every condition, in order.

    `cursor`: that of the page before, `None` for the first page. `check_json`: as in `Store.peek`.
    """

    queue: str
    where: Sequence[Condition] = ()
    limit: int = 10_000
    view: View = "messages"
    cursor: str | None = None
    check_json: bool = True


class ScanPage(NamedTuple):
    """The messages of a page, and the cursor of the next page; `None` at the end."""

    batches: list[pa.RecordBatch]
    cursor: str | None


@dataclass(frozen=True, slots=True)
class ScanStep:
    """A request to a store: the next records of a queue after a place, `None` for the first.

    The store examines about as many records as hold `rows` messages. A bucket meets the conditions
    on `id` and `mature`: these are for its messages.
    """

    queue: str
    where: Sequence[Condition]
    rows: int
    view: View = "messages"
    after: ScanPlace | None = None


class Scanned(NamedTuple):
    """The records of a step that meet its conditions, each with its place, in order.

    `next`: after which place to continue; `None`: there are no more records.
    """

    records: Records
    places: Sequence[ScanPlace]
    next: ScanPlace | None


def with_places(
    records: Records, places: Sequence[ScanPlace], where: Sequence[Condition]
) -> tuple[Records, list[ScanPlace]]:
    """Return the records that are buckets or meet the conditions, each with its place."""
    numbers = pa.array(range(records.batch.num_rows), pa.int64())
    numbered = records._replace(batch=records.batch.append_column("place", numbers))
    kept = filter_records(numbered, where)
    rows = kept.batch.column("place").to_pylist()
    return kept._replace(batch=kept.batch.drop_columns(["place"])), [places[row] for row in rows]


# --- layouts without a place that stays -----------------------------------------------------------


def scan_by_maturity(step: ScanStep, pages: Iterable[Records]) -> Scanned:
    """Return a step from all messages that meet its conditions, sorted by due time.

    Those of one moment stay in their order. A place has the moment (ms), the id, and how many
    messages of that moment there were up to it: for a layout whose messages have no place of their
    own. Raises `OptionError` for an invalid place.
    """
    found = list(pages)
    reasons = [page.damaged.get(row) for page in found for row in range(page.batch.num_rows)]
    table = pa.Table.from_batches([page.batch for page in found], MESSAGES)
    table = table.append_column("reason", pa.array(reasons, pa.string())).sort_by("mature").combine_chunks()
    moments, ids = milliseconds(table.column("mature")).to_pylist(), table.column("id").to_pylist()
    start = _row_after(step.after, moments, ids)
    some = table.slice(start, step.rows)
    places: list[ScanPlace] = []
    for row in range(start, start + some.num_rows):
        places.append([moments[row], ids[row], row + 1 - bisect_left(moments, moments[row])])
    damaged = {row: why for row, why in enumerate(some.column("reason").to_pylist()) if why is not None}
    (batch,) = some.drop_columns(["reason"]).combine_chunks().to_batches() or [NO_MESSAGES]
    ended = start + some.num_rows >= table.num_rows
    return Scanned(Records(batch, None, damaged), places, None if ended else places[-1])


def _row_after(place: ScanPlace | None, moments: Sequence[int], ids: Sequence[str]) -> int:
    """Return the number of the first message after a place.

    Raises `OptionError` for an invalid place.
    """
    if place is None:
        return 0
    try:
        moment, id, seen = place
        first, end = bisect_left(moments, moment), bisect_right(moments, moment)
        if type(seen) is int and seen >= 0 and isinstance(id, str):
            return ids.index(id, first, end) + 1 if id in ids[first:end] else min(end, first + seen)
    except (ValueError, TypeError):
        pass
    raise OptionError("the cursor is not that of this store: begin with the first message", option="cursor")
