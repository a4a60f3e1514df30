"""Streaming reads: what Spark asks of a source, answered by a `Consumer`; see there how a batch is read.

The driver's reader process plans. Executors fetch what a tag holds, as often as they like.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from spark_queue.options import QueueOptions
from spark_queue.spark.ahead import GRACE
from spark_queue.spark.consumer import Consumer, Offset, Share, check_fetched
from spark_queue.spark.schema import shaper
from spark_queue.store import open_store
from spark_queue.store.base import Store
from spark_queue.store.isolation import note_query

if TYPE_CHECKING:

    class SupportsTriggerAvailableNow:
        """What Spark 4.2 and later know a reader by that can bound a run to what is there at its start."""


else:
    try:
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
    except ImportError:  # Spark 4.0 and 4.1 run AvailableNow as one batch

        class SupportsTriggerAvailableNow:
            """Not known to this Spark."""


#: The rows of a batch that takes all there is.
ALL = 2**31 - 1

#: What runs in the driver's reader process.
_READER_PROCESS = "pyspark.sql.streaming.python_streaming_source_runner"


@dataclass
class SharePartition(InputPartition):
    """What one task fetches, as Spark carries it."""

    share: Share

    def __init__(self, share: Share) -> None:
        self.share = share


class QueueStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A consumer of a queue.

    Spark makes it anew in the driver's reader process, in planners, and pickles it to executors: it holds facts
    only, and what runs is made when the reader process first needs it.
    """

    _ending = _signalled = False

    def __init__(self, options: QueueOptions, schema: StructType) -> None:
        self.options = options
        self.schema = schema
        self._running: Consumer | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options, "schema": self.schema, "_running": None}

    @property
    def _consumer(self) -> Consumer:
        if self._running is None:
            self._running = Consumer(self.options)
            spec = getattr(sys.modules["__main__"], "__spec__", None)
            if spec is not None and spec.name == _READER_PROCESS:
                signal.signal(signal.SIGTERM, self._on_signal)
        return self._running

    def initialOffset(self) -> Offset:  # type: ignore[override]
        return self._consumer.initial

    def latestOffset(self, start: Offset | None = None, limit: Any = None) -> Offset:  # type: ignore[override]
        # Spark 4.0 and 4.1 give no start: then all that was planned is finished, for they ask between batches only.
        known = start is not None  # Spark 4.0 and 4.1 do not tell either whether another batch will follow
        begin = start if start is not None else self._consumer.planned
        return self._consumer.next(begin, most_of(limit, self.options), ahead=known and self.options.reserve_ahead)

    def getDefaultReadLimit(self) -> Any:
        from pyspark.sql.streaming.datasource import ReadMaxRows

        return ReadMaxRows(self.options.max_records_per_trigger)

    def reportLatestOffset(self) -> dict[str, Any]:
        return self._consumer.backlog()

    def prepareForTriggerAvailableNow(self) -> None:
        self._consumer.stop_at_now()

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:  # type: ignore[override]
        return [SharePartition(share) for share in self._consumer.plan(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SharePartition)
        share, queue = partition.share, self.options.queue or ""
        shape = shaper(self.schema, self.options)
        rows = 0
        with open_store(self.options.url, patience=self.options.retry_timeout / 1000) as store:
            if share.again:
                _tell_query(store, queue, share)
            for batch in store.fetch(queue, share.tag):
                rows += batch.num_rows
                yield shape(batch, share.tag)
            check_fetched(store, self.options, share, rows)

    def commit(self, end: Offset) -> None:  # type: ignore[override]
        self._consumer.commit(end)

    def stop(self) -> None:
        self._ending = True
        if self._running is not None:
            self._running.close()
        if self._signalled:
            _end()

    def _on_signal(self, *_: object) -> None:
        """End this process, as Spark wants it: it sends a signal where one expects a call of `stop`.

        Where there is something to give back, that call is made now, and has a few seconds: a process that stands
        still meanwhile is ended by its alarm before anybody takes over.
        """
        if not self._ending and (self._running is None or not self._running.holds_ahead):
            _end()
        if not self._signalled:
            self._signalled = True
            signal.alarm(GRACE)
            if not self._ending:
                raise SystemExit


def _end() -> None:
    """End this process as if the signal had met no handler."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)


def _tell_query(store: Store, queue: str, share: Share) -> None:
    """Only tasks know which query they belong to; what fails again and again is told with its query's error."""
    task = TaskContext.get()
    query = task.getLocalProperty("sql.streaming.queryId") if task else None
    if query is not None:
        note_query(store, queue, share.tag.rsplit("/", 2)[0], query)


def most_of(limit: Any, options: QueueOptions) -> int:
    """The most rows that Spark allows of this batch.

    Trigger.Once and its like allow all that is there.
    """
    name = type(limit).__name__
    if name == "ReadMaxRows":
        return int(limit.max_rows)
    if name == "ReadAllAvailable":
        return ALL
    return options.max_records_per_trigger
