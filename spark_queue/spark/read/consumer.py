"""Plan the batches of a consumer, in the driver's reader process. Their life is in `batches.py`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from spark_queue.messages.times import MAX_TIME_MS
from spark_queue.options.queue_options import QueueOptions
from spark_queue.options.values import FAIL
from spark_queue.spark.read.arrival import ARRIVED, next_arrival
from spark_queue.spark.read.batch_size import MAX_ROWS
from spark_queue.spark.read.batches import Batches
from spark_queue.spark.read.deadly_batch import check_deaths
from spark_queue.spark.read.delivery import ON_UNREAD, is_dropped
from spark_queue.spark.read.fetch import FetchRange
from spark_queue.spark.read.offsets import OFFSET_VERSION, Offset, check_offset, new_consumer, tag_of
from spark_queue.spark.read.opening import open_query_store
from spark_queue.spark.read.pacing import SIZE_FIELDS, Stopwatch
from spark_queue.spark.read.proof import ReadProof, TaskProof
from spark_queue.spark.read.queue_state import QueueState


class Consumer:
    """Plans the batches of one queue."""

    def __init__(self, options: QueueOptions) -> None:
        assert options.queue is not None
        self._options = options
        self.queue = options.queue
        self.store = open_query_store(options)
        consumer = new_consumer(options)
        self.initial: Offset = {"v": OFFSET_VERSION, "queue": self.queue, "consumer": consumer, "seq": 0}
        self.planned = self.initial
        self.before = MAX_TIME_MS  #: messages that are due later (ms) are not reserved
        self.owned: Batches | None = None  #: its batches, once this process owns the consumer
        self.waiting = Stopwatch()  #: how long it waited for messages, and for a prefetched batch
        self.state = QueueState(self.store, self.queue, options.dead_letter_queue_of(self.queue))
        self.active = False  #: whether the query found messages when it last looked for a batch
        self._proof = ReadProof(self.store) if options.on_unread == FAIL else None

    def batches(self, offset: Offset) -> Batches:
        """Return the batches of the consumer in an offset of Spark, and become its owner.

        Raises `CheckpointError` if the offset does not match the options or the consumer's note,
        `FencedError` if another process is the owner.
        """
        check_offset(offset, self._options)
        if self.owned is None:
            self.owned = Batches(self.store, self._options, offset, self.waiting)
            self.planned = offset
        return self.owned

    def next(self, start: Offset, limit: int, *, prefetch: int = 0) -> Offset:
        """Commit up to `start` and reserve the next batch.

        Return its end, or `start` if no message is ready. `prefetch`: as in `Batches.reserve`.
        """
        batches = self.batches(start)
        self.commit(start)
        batches.clean_up(start)
        wait = partial(self.wait, self._options.wait_timeout)
        rows = batches.reserve(start, limit, before=self.before, wait=wait, prefetch=prefetch)
        self.active = bool(rows)
        if rows:
            return batches.offset(start, rows, next_arrival(self.store, start))
        self.state.check_paused()
        return start

    def wait(self, timeout: int) -> bool:
        """Wait up to `timeout` ms until a message is ready; return whether one is."""
        if self.before < MAX_TIME_MS:
            return True
        with self.waiting:
            return self.store.wait(self.queue, timeout)

    def plan(self, start: Offset, end: Offset) -> list[FetchRange]:
        """Start the batch from `start` to `end`, and return the ranges that its tasks fetch."""
        check_offset(start, self._options)
        # Not `start`: after a restart, that of the first batch has another epoch.
        batches = self.batches(end)
        self.planned = end
        if end["seq"] == start["seq"]:
            # Spark's first batch has no messages. Its task notes which query reads the queue.
            return [] if end["seq"] else [FetchRange(f"{tag_of(end)}/0", 0)]
        batches.start(end)
        if not is_dropped(end, self._options):
            check_deaths([(batches, end)])
        return batches.hold(end)

    def commit(self, end: Offset) -> None:
        """Remove the messages of the batch of `end`, if not done yet.

        Raises as `Batches.check`, `check_read` and `Batches.remove`.
        """
        batches = self.batches(end)
        if batches.check(end):
            self.check_read(end, self.rows(end, end), lambda: self.holds(end))
            batches.remove(end)

    def holds(self, end: Offset) -> bool:
        """Return whether messages of the batch of `end` are reserved."""
        return bool(self.store.reservations(self.queue, tag_of(end)))

    def begin_reading(self, end: Offset, tasks: int) -> list[TaskProof | None]:
        """Return the proof of each task of a batch that this process plans: see `ReadProof`."""
        if self._proof is None:
            return [None] * tasks
        reading = self._proof.begin(end, self.batches(end).number, tasks)
        return [TaskProof(reading, task) for task in range(tasks)]

    def check_read(self, end: Offset, rows: int, is_held: Callable[[], bool]) -> None:
        """Raise `UnreadError` if `onUnread` is fail and a batch was not read: see `ReadProof`."""
        if self._proof is not None:
            self._proof.check(end, rows, is_held)

    def rows(self, start: Offset, end: Offset) -> int:
        """Return the number of rows of the batch that ends at `end`."""
        return sum(end.get("rows", []))

    @property
    def max_rows(self) -> int:
        """The most rows of a batch, as far as memory and the database limit them."""
        return MAX_ROWS if self.owned is None else self.owned.max_rows

    def stop_at_now(self) -> None:
        """Bound the run: reserve only messages that are due by now."""
        self.before = self.store.now()

    def backlog(self) -> dict[str, Any]:
        """Return the last planned offset and the sizes of the queue."""
        hidden = ("rows", "delivery", "places", ON_UNREAD, ARRIVED, *SIZE_FIELDS)
        offset = {key: value for key, value in self.planned.items() if key not in hidden}
        return offset | self.state.report(self.active)

    @property
    def has_prefetched(self) -> bool:
        """Whether `close` has a prefetched batch to release."""
        return self.owned is not None and self.owned.prefetcher.pending is not None

    @property
    def works(self) -> bool:
        """Whether tasks may work on a batch of this process."""
        return self.owned is not None and self.owned.busy

    def leave(self) -> None:
        """Note that this process ends in order: see `Batches.leave`."""
        if self.owned is not None:
            self.owned.leave()

    def announce_exit(self) -> None:
        """Announce that this process ends soon: a new query then waits, and is not refused."""
        if self.owned is not None:
            self.owned.ownership.announce_exit()

    def close(self) -> None:
        """Release the prefetched batch, stop the heartbeat and close the connections.

        The batch in Spark's log stays reserved.
        """
        self.announce_exit()
        if self.owned is not None:
            self.owned.close()
        self.store.close()
