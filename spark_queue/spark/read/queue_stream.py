"""Stream reserved messages of one queue, or of several inputs."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from spark_queue.options.stream import StreamOptions
from spark_queue.spark.read.arrival import ARRIVED
from spark_queue.spark.read.consumer import Consumer
from spark_queue.spark.read.driver_process import DriverProcess
from spark_queue.spark.read.fetch import FetchRange, ZippedRange, fetch_messages, fetch_zipped
from spark_queue.spark.read.multi_input import MultiInputPlanner
from spark_queue.spark.read.prefetch import RELEASE_TIMEOUT
from spark_queue.spark.read.proof import TaskProof
from spark_queue.spark.read.stream import PlannedStream
from spark_queue.spark.read.unasked import UnaskedReader
from spark_queue.spark.schema import batch_converter, batch_joiner
from spark_queue.spark.tracebacks import hide_tracebacks
from spark_queue.spark.worker import main_module

#: The module that the driver's reader process runs.
_READER_PROCESS = "pyspark.sql.streaming.python_streaming_source_runner"


@dataclass
class FetchPartition(InputPartition):
    """The messages that one task fetches, as a partition of Spark.

    `arrived`: when they were reserved (ms), see `arrival.py`. `proof`: with `onUnread=fail`.
    """

    fetch_range: FetchRange | ZippedRange
    arrived: int | None
    proof: TaskProof | None = None


@hide_tracebacks
class QueueStream(PlannedStream[Consumer | MultiInputPlanner]):
    """The stream reader of a queue, or of several inputs. Tasks may fetch messages repeatedly."""

    _ending = _signalled = False
    _unasked: UnaskedReader | None = None
    _driver: DriverProcess | None = None

    def __init__(self, options: StreamOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        if main_module() == _READER_PROCESS:
            self._unasked = UnaskedReader.create(options)
            self._driver = DriverProcess()

    def create_planner(self) -> Consumer | MultiInputPlanner:
        planner = Consumer(self.options) if self.options.inputs is None else MultiInputPlanner(self.options)
        if main_module() == _READER_PROCESS:
            signal.signal(signal.SIGTERM, self._on_signal)
        return planner

    def latestOffset(self, start: Any = None, limit: Any = None) -> Any:
        if self._unasked is not None:
            self._unasked.check()
        return super().latestOffset(start, limit)

    def _next(self, start: Any, limit: int, following: int) -> Any:
        return self.planner.next(start, limit, prefetch=following if self._prefetches() else 0)

    def _prefetches(self) -> bool:
        """Whether the next batch may be reserved while Spark works on one."""
        return self.options.reserve_ahead

    def plan_tasks(self, start: Any, end: Any) -> Sequence[InputPartition]:
        if self._unasked is not None:
            self._unasked.end()  # this batch was reserved by an earlier process
        shares: Sequence[FetchRange | ZippedRange] = self.planner.plan(start, end)
        if end["seq"] == start["seq"]:  # no batch
            return [FetchPartition(share, None) for share in shares]
        proofs = self.planner.begin_reading(end, len(shares))
        return [FetchPartition(share, end.get(ARRIVED), proof) for share, proof in zip(shares, proofs, strict=True)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, FetchPartition)
        if (proof := partition.proof) is None:
            yield from self._fetch(partition)
            return
        proof.check_is_heard()
        rows = 0
        for batch in self._fetch(partition):
            yield batch
            rows += batch.num_rows
        proof.note(self.options, rows)

    def _fetch(self, partition: FetchPartition) -> Iterator[pa.RecordBatch]:
        fetch_range = partition.fetch_range
        if isinstance(fetch_range, ZippedRange):
            join = batch_joiner(self.schema, self.options.content)
            for batches in fetch_zipped(self.options, fetch_range):
                yield join(batches, fetch_range.delivery, partition.arrived)
            return
        shape = batch_converter(self.schema, self.options.content)
        for batch in fetch_messages(self.options, fetch_range):
            yield shape(batch, fetch_range.tag, arrived=partition.arrived)

    def commit(self, end: Any) -> None:
        self.planner.commit(end)

    def stop(self) -> None:
        self._ending = True
        if self.running is not None and self._driver is not None and self._driver.is_alive():
            self.running.leave()
        super().stop()
        if self._signalled:
            _terminate()

    def _on_signal(self, *_: object) -> None:
        """End this process: Spark sends a signal, and does not call `stop`.

        `stop` is called first if there is a prefetched batch to release, or a batch in work. It
        notes that the process ends in order, and has RELEASE_TIMEOUT seconds. An alarm ends a
        process that is suspended meanwhile, before another one takes over.
        """
        if not self._ending and (self.running is None or not (self.running.has_prefetched or self.running.works)):
            _terminate()
        if not self._signalled:
            self._signalled = True
            signal.alarm(RELEASE_TIMEOUT)
            if not self._ending:
                raise SystemExit


def _terminate() -> None:
    """End this process as the signal does without a handler."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)
