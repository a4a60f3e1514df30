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
from spark_queue.rest.receipts import sibling_tag
from spark_queue.stores.base import Store
from spark_queue.stores.services.dead_letters import dead_letter_exhausted, roll_back_or_dead_letter

#: The lease of popped messages (ms), until they are removed.
POP_LEASE = 60_000


@dataclass(frozen=True)
class TakenBatches:
    """Messages that a tag holds, as MESSAGES batches."""

    tag: str
    batches: list[pa.RecordBatch]


@dataclass(frozen=True)
class BoundQueue:
    """A queue, its store, and the options of its namespace. Its methods may block."""

    ns: str
    queue: str
    store: Store
    options: StreamOptions
    metrics: ServerMetrics

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

    def take(self, tag: str, limit: int, max_bytes: int, lease: int | None) -> TakenBatches | None:
        """Reserve up to `limit` messages, about `max_bytes` in all. Return `None` if none is ready.

        Messages that failed too often become dead letters instead, and so do damaged records.
        """
        options, dead = self.options, self.options.dead_letters.queue_of(self.queue)
        while rows := sum(self.store.reserve(self.queue, tag, limit, lease=lease)):
            if options.outcomes.max_tries is not None:
                rows -= dead_letter_exhausted(
                    self.store, self.queue, tag, options.outcomes.max_tries, dead, options.outcomes.history_ms
                )
            batches: list[pa.RecordBatch] = []
            found = weight = 0
            fetch_options: dict[str, Any] = {"dead": dead, "history": options.outcomes.history_ms, "check_json": True}
            for batch in self.store.fetch(self.queue, f"{tag}/0", **fetch_options) if rows else ():
                batches.append(batch)
                found += batch.num_rows
                weight += batch.nbytes
                if found >= rows or weight >= max_bytes:  # saves the last read, which returns nothing
                    break
            if found < rows:
                tag = self._release_unread(tag, batches, lease)
            if found:
                return TakenBatches(tag, batches)
        return None

    def _release_unread(self, tag: str, keep: Sequence[pa.RecordBatch], lease: int | None) -> str:
        """Release the messages that were not read, and return a new tag that holds the others."""
        ids = [id for batch in keep for id in batch.column("id").to_pylist()]
        rest = sibling_tag(tag)
        self.store.transfer(self.queue, tag, f"{rest}/0", ids, lease=lease)
        self.store.rollback(self.queue, tag, failed=False)
        return rest

    def push(self, rows: list[dict[str, Any]]) -> list[str | Exception]:
        """Push messages of different callers in one batch. Return the id or the error of each.

        Messages without an id get one, in their order.
        """
        new_ids = iter(self.store.native_ids(new_id_array(sum(row["id"] is None for row in rows))).to_pylist())
        rows = [row if row["id"] is not None else row | {"id": next(new_ids)} for row in rows]
        try:
            self.store.push(self.queue, pa.RecordBatch.from_pylist(rows, schema=PUSHES))
        except (QueueError, ValueError) as error:
            if isinstance(error, StoreUnavailable) or len(rows) == 1:
                return [error] * len(rows)
            return [self.push([row])[0] for row in rows]
        return [row["id"] for row in rows]

    def commit(self, tag: str, ids: Sequence[str] | None = None) -> int:
        """Commit messages that the tag still holds, all or with these ids. Return their number."""
        return self.store.commit(self.queue, tag, ids, history=self.options.outcomes.history_ms)

    def remove_popped(self, taken: TakenBatches) -> None:
        """Remove popped messages, and count each as one `get`, as keuss does."""
        done = self.commit(taken.tag)
        self.store.count(self.queue, reserve=-done, commit=-done, get=done)

    def release(self, taken: TakenBatches) -> None:
        """Release messages that did not reach their caller: they did not fail."""
        self.store.rollback(self.queue, taken.tag, failed=False)

    def rollback(self, tag: str, ids: Sequence[str] | None, delay: int) -> tuple[int, int]:
        """Roll back messages that the tag still holds, all or those with these ids.

        Return the number that is ready again after `delay` ms, and the number of new dead letters.
        """
        options = self.options
        return roll_back_or_dead_letter(
            self.store, self.queue, tag, ids, delay=delay, max_tries=options.outcomes.max_tries,
            dead=options.dead_letters.queue_of(self.queue), history=options.outcomes.history_ms,
        )  # fmt: skip
