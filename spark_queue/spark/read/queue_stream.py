"""Stream reserved messages of one queue, or of several inputs."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from spark_queue.spark.read.consumer import Consumer
from spark_queue.spark.read.fetch import Rows, Share, fetched, side_by_side
from spark_queue.spark.read.limits import most_of
from spark_queue.spark.read.multi_input import Inputs
from spark_queue.spark.read.planner import ReservingPlanner
from spark_queue.spark.read.prefetch import GRACE
from spark_queue.spark.read.stream import PlannedStream
from spark_queue.spark.schema import joiner, shaper
from spark_queue.spark.sentence import sentence_first
from spark_queue.spark.worker import program

#: The module that the driver's reader process runs.
_READER_PROCESS = "pyspark.sql.streaming.python_streaming_source_runner"


@dataclass
class SharePartition(InputPartition):
    """The messages that one task fetches, as a partition of Spark."""

    share: Share | Rows

    def __init__(self, share: Share | Rows) -> None:
        self.share = share


@sentence_first
class QueueStream(PlannedStream[ReservingPlanner]):
    """The stream reader of a queue, or of several inputs. Tasks may fetch messages repeatedly."""

    _ending = _signalled = False

    def start(self) -> ReservingPlanner:
        planner = Consumer(self.options) if self.options.inputs is None else Inputs(self.options)
        if program() == _READER_PROCESS:
            signal.signal(signal.SIGTERM, self._on_signal)
        return planner

    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> Any:
        if start is None:  # Spark 4.0 and 4.1; another batch may never follow
            return super().latestOffset(start, limit)
        return self.planner.next(start, most_of(limit, self.options), ahead=self._looks_ahead())

    def _looks_ahead(self) -> bool:
        """Return whether the next batch may be reserved while Spark works on one."""
        return self.options.reserve_ahead

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [SharePartition(share) for share in self.planner.plan(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SharePartition)
        share = partition.share
        if isinstance(share, Rows):
            join = joiner(self.schema, self.options)
            for batches in side_by_side(self.options, share):
                yield join(batches, share.delivery)
            return
        shape = shaper(self.schema, self.options)
        for batch in fetched(self.options, share):
            yield shape(batch, share.tag)

    def commit(self, end: dict[str, Any]) -> None:
        self.planner.commit(end)

    def stop(self) -> None:
        self._ending = True
        super().stop()
        if self._signalled:
            _end()

    def _on_signal(self, *_: object) -> None:
        """End this process: Spark sends a signal, and does not call `stop`.

        If there is a prefetched batch to release, `stop` is called first, for up to RELEASE_TIMEOUT
        seconds. An alarm ends a process that is suspended meanwhile, before another one takes over.
        """
        if not self._ending and (self.running is None or not self.running.holds_ahead):
            _end()
        if not self._signalled:
            self._signalled = True
            signal.alarm(GRACE)
            if not self._ending:
                raise SystemExit


def _end() -> None:
    """End this process as the signal does without a handler."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)
