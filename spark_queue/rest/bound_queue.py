"""A queue for one request: its store, and the options of its namespace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from spark_queue.errors import QueueError, StoreUnavailable
from spark_queue.messages.ids import new_id_array
from spark_queue.messages.schema import PUSHES
from spark_queue.options.stream import StreamOptions
from spark_queue.rest.metrics import ServerMetrics
from spark_queue.stores.base import Store
from spark_queue.stores.queue import Consumed, StoredQueue

#: The lease of popped messages (ms), until they are removed.
POP_LEASE = 60_000


@dataclass(frozen=True)
class BoundQueue:
    """A queue with the policy of its namespace. Its methods may block."""

    ns: str
    stored: StoredQueue[Store]
    options: StreamOptions
    metrics: ServerMetrics

    @property
    def queue(self) -> str:
        """The name of the queue."""
        return self.stored.name

    @property
    def store(self) -> Store:
        """The store of the queue."""
        return self.stored.store

    def count(self, act: str, status: str, messages: int = 1) -> None:
        """Count outcomes of messages: `ok`, `notfound`, `deadletter`, `timeout`, `cancel`, `ko`."""
        if messages:
            self.metrics.count(act, self.ns, self.queue, status, messages)

    @contextmanager
    def count_errors(self, act: str) -> Iterator[None]:
        """Count a `QueueError` within the block as `ko`, and raise it again."""
        try:
            yield
        except QueueError:
            self.count(act, "ko")
            raise

    def count_rollback(self, rolled_back: int, dead: int) -> None:
        """Count the outcome of a rollback."""
        self.count("rollback", "ok", rolled_back)
        self.count("rollback", "deadletter", dead)
        self.count("rollback", "notfound", 0 if rolled_back or dead else 1)

    def consume(self, tag: str, limit: int, max_bytes: int, lease: int | None) -> Consumed | None:
        """Reserve up to `limit` messages, about `max_bytes` in all. Return `None` if none is ready.

        Messages that failed too often become dead letters instead, and so do damaged records.
        """
        found = self.stored.with_policy(lease=lease).consume(limit, max_bytes, tag=tag)
        return found if found.batches else None

    def push(self, rows: list[dict[str, Any]]) -> list[str | Exception]:
        """Push messages of different callers in one batch. Return the id or the error of each.

        Messages without an id get one, in their order.
        """
        new_ids = iter(self.store.native_ids(new_id_array(sum(row["id"] is None for row in rows))).to_pylist())
        rows = [row if row["id"] is not None else row | {"id": next(new_ids)} for row in rows]
        try:
            self.stored.push(pa.RecordBatch.from_pylist(rows, schema=PUSHES))
        except (QueueError, ValueError) as error:
            if isinstance(error, StoreUnavailable) or len(rows) == 1:
                return [error] * len(rows)
            return [self.push([row])[0] for row in rows]
        return [row["id"] for row in rows]

    def commit(self, tag: str, ids: Sequence[str] | None = None) -> int:
        """Commit messages that the tag still holds, all or with these ids. Return their number."""
        return self.stored.commit(tag, ids)

    def remove_popped(self, taken: Consumed) -> None:
        """Remove popped messages, and count each as one `get`, as keuss does."""
        done = self.commit(taken.tag)
        self.store.count(self.queue, reserve=-done, commit=-done, get=done)

    def release(self, taken: Consumed) -> None:
        """Release messages that did not reach their caller: they did not fail."""
        self.stored.release(taken.tag)

    def rollback(self, tag: str, ids: Sequence[str] | None, delay: int) -> tuple[int, int]:
        """Roll back messages that the tag still holds, all or those with these ids.

        Return the number that is ready again after `delay` ms, and the number of new dead letters.
        """
        return self.stored.roll_back(tag, ids, delay=delay)
