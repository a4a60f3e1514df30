"""Requests and results of a scan: pages of the messages of a queue, in order.

The order is that of the due time, then that of the pushes. A message that is reserved has the place
that it had before. A history is in an order of its store. A page begins after a *place*: no page
reads those before it again, and no cursor is kept on the server.

A store reads a scan in steps. A step examines a bounded number of records, changes nothing, and may
be repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from spark_queue.stores.support.damaged import Records
from spark_queue.stores.types import Condition, View

#: The place of a record in the order of a scan: JSON values, in the own form of a store.
Place = list[Any]


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


class Page(NamedTuple):
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
    after: Place | None = None


class Scanned(NamedTuple):
    """The records of a step that meet its conditions, each with its place, in order.

    `next`: after which place to continue; `None`: there are no more records.
    """

    records: Records
    places: Sequence[Place]
    next: Place | None
