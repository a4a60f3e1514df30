"""Read a queue as one of several inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spark_queue.spark.read.arrival import next_arrival
from spark_queue.spark.read.consumer import Consumer
from spark_queue.spark.read.fetch import FetchRange
from spark_queue.spark.read.offsets import Offset, tag_of
from spark_queue.stores.services.option_policy import stream_policy
from spark_queue.stores.support.waiting import AwaitedQueue
from spark_queue.stores.types import COUNT_LIMIT, Condition


class QueueInput(Consumer):
    """A queue whose batches are planned with those of other inputs.

    It numbers batches as the query does. `LogInput` has the same methods.
    """

    @property
    def number(self) -> int:
        """The number of this process among those of the consumer, which it must own."""
        assert self.owned is not None
        return self.owned.number

    def check(self, end: Offset) -> bool:
        """Return whether a batch is not committed yet. Raises as `Batches.check`."""
        return self.batches(end).check(end)

    def remove(self, end: Offset) -> None:
        """Remove the messages of a batch for which `check` returned true; see `Batches.remove`."""
        self.batches(end).remove(end)

    def clean_up(self, start: Offset) -> None:
        """Release the batches after `start` of earlier processes: see `Batches.clean_up`."""
        self.batches(start).clean_up(start)

    def look_for_abandoned(self, start: Offset) -> int:
        """Give back what abandoned epochs hold, and return how many messages may follow.

        Their owners count as alive, but have shown no sign of life since the first look.
        """
        abandoned = self.batches(start).abandoned
        abandoned.release()
        return abandoned.undecided

    def describe_missing(self, start: Offset) -> str:
        """Return which messages do not come in their place; an empty text if none are known."""
        own = start["consumer"] + "/"
        held = sum(one.rows for one in self.store.reservations(self.queue) if not one.tag.startswith(own))
        counts = {"held by other consumers": held, "retried later": self._count_retried_later()}
        return ", ".join(f"{rows:,} {state}" for state, rows in counts.items() if rows)

    def _count_retried_later(self) -> int:
        """Return how many messages have failed and are scheduled.

        Returns 0 for a queue that is too large to look at all that are scheduled.
        """
        sizes = self.store.sizes(self.queue, COUNT_LIMIT)
        if not sizes.scheduled or sizes.capped:
            return 0
        failed = Condition("tries", ">=", 1), Condition("mature", ">", self.store.now())
        return sum(batch.num_rows for batch in self.store.peek(self.queue, failed, check_json=False))

    def awaited(self) -> AwaitedQueue:
        """Return what a wait for the next batch is for."""
        return AwaitedQueue(self.store, self.queue)

    def count_ready(self, limit: int) -> int:
        """Return the number of ready messages, up to `limit`."""
        return self.store.ready(self.queue, limit, before=self.before)

    def claim(self, start: Offset, limit: int) -> list[int]:
        """Reserve messages after `start` until some can be read; return their rows by partition.

        A task finds its messages by their place in the batch, so none may leave it later.
        Messages that cannot be read become dead letters now.
        """
        batches = self.batches(start)
        while rows := batches.reserve(start, limit, before=self.before):
            if any(readable := self._bury_unreadable(batches.tag_after(start), len(rows))):
                return readable
        self.on_idle()
        return []

    def _bury_unreadable(self, tag: str, parts: int) -> list[int]:
        """Make dead letters of unreadable messages of a tag; return the other rows by partition."""
        stored = self.store.queue(self.queue, stream_policy(self._options))
        return [sum(page.num_rows for page in stored.read(f"{tag}/{part}")) for part in range(parts)]

    def trim(self, start: Offset, rows: list[int], limit: int) -> list[int]:
        """Release all but the first `limit` messages after `start`; return the rows that stay.

        Released messages return to their place in the queue, and their tries do not change. Raises
        `FencedError` if this process lost the consumer.
        """
        batches, kept = self.batches(start), []
        tag = batches.tag_after(start)
        if sum(rows) > limit:
            batches.lease_renewer.check()
        for part, held in enumerate(rows):
            kept_rows = min(held, limit)
            limit -= kept_rows
            kept.append(kept_rows)
            if kept_rows < held:
                ids = self._ids_after(f"{tag}/{part}", kept_rows) if kept_rows else None
                self.store.rollback(self.queue, f"{tag}/{part}", ids, delay=None, failed=False)
        while kept and not kept[-1]:
            kept.pop()
        return kept

    def _ids_after(self, tag: str, first: int) -> list[str]:
        """Return the ids of the messages under a tag, without the `first` ones."""
        found: list[str] = []
        for batch in self.store.peek_reserved(self.queue, tag):
            found += batch.column("id").to_pylist()
        return found[first:]

    def next_arrival(self, start: Mapping[str, Any]) -> int:
        """Return when the batch after `start` was reserved: see `arrival.py`."""
        return next_arrival(self.store, start)

    def mark_reserved(self, start: Offset, rows: list[int], arrived: int) -> None:
        """Record that this process reserved the batch after `start`."""
        self.batches(start).offset(start, rows, arrived)

    def own(self, end: Offset) -> None:
        """Become the owner of the consumer of a batch: see `Batches`."""
        self.batches(end)

    def is_started(self, end: Offset) -> bool:
        """Return whether a batch is started: see `Batches.is_started`."""
        return self.batches(end).is_started(end)

    def start(self, end: Offset) -> None:
        """Record that a batch is started: see `Batches.start`."""
        self.batches(end).start(end)

    def hold(self, end: Offset) -> list[FetchRange]:
        """Hold a started batch; return the ranges that its tasks fetch: see `Batches.hold`."""
        return self.batches(end).hold(end)

    def ranges(self, end: Offset, *, replayed: bool = False) -> list[FetchRange]:
        """Return the ranges of a batch's messages, in order; of a `replayed` one, of those left."""
        parts = self._held_rows(end) if replayed else end["rows"]
        return [FetchRange(f"{tag_of(end)}/{part}", rows, first=0) for part, rows in enumerate(parts) if rows]

    def lost_rows(self, end: Offset) -> int:
        """Return the number of a batch's messages that it no longer holds."""
        return sum(max(0, rows - held) for rows, held in zip(end["rows"], self._held_rows(end), strict=True))

    def _held_rows(self, end: Offset) -> list[int]:
        """Return the number of messages that a batch holds, by partition."""
        tag = tag_of(end)
        held = {one.tag: one.rows for one in self.store.reservations(self.queue, tag)}
        return [held.get(f"{tag}/{part}", 0) for part in range(len(end["rows"]))]

    def release(self, end: Offset) -> int:
        """Release a batch, and return the number of messages. Their tries do not change.

        Raises `FencedError` if this process lost the consumer.
        """
        self.batches(end).lease_renewer.check()
        return self.store.rollback(self.queue, tag_of(end), delay=None, failed=False)

    def release_unread(self, end: Offset) -> int:
        """Release a batch that was never started, as `release`.

        Another process may start it meanwhile, and give it an unlimited lease: it then keeps it.
        """
        self.batches(end).lease_renewer.check()
        return self.store.rollback(self.queue, tag_of(end), delay=None, failed=False, include_endless=False)

    def on_idle(self) -> None:
        """Log a warning if the queue is paused: no message is ready."""
        self.state.check_paused()
