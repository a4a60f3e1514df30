"""Streaming reads: what Spark asks of a source, answered by a `Consumer`, `Inputs` or a `LogReader`; see there.

The driver's reader process plans. Executors fetch what a tag holds, as often as they like.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from spark_queue.options.queue_options import QueueOptions
from spark_queue.spark.carried import Carried
from spark_queue.spark.read.consumer import Consumer
from spark_queue.spark.read.fetch import Rows, Share, fetched, side_by_side
from spark_queue.spark.read.limits import SupportsTriggerAvailableNow, most_of
from spark_queue.spark.read.multi_input import Inputs
from spark_queue.spark.read.prefetch import GRACE
from spark_queue.spark.schema import joiner, shaper
from spark_queue.spark.sentence import sentence_first
from spark_queue.spark.worker import program


class Planner(Protocol):
    """What plans the batches of a query, with offsets of its own."""

    @property
    def initial(self) -> Any: ...
    @property
    def planned(self) -> Any: ...
    @property
    def holds_ahead(self) -> bool: ...
    def next(self, start: Any, most: int, *, ahead: bool) -> Any: ...
    def plan(self, start: Any, end: Any) -> Sequence[Any]: ...
    def commit(self, end: Any) -> None: ...
    def stop_at_now(self) -> None: ...
    def backlog(self) -> dict[str, Any]: ...
    def close(self) -> None: ...


#: What runs in the driver's reader process.
_READER_PROCESS = "pyspark.sql.streaming.python_streaming_source_runner"


@dataclass
class SharePartition(InputPartition):
    """What one task fetches, as Spark carries it."""

    share: Share | Rows

    def __init__(self, share: Share | Rows) -> None:
        self.share = share


@sentence_first
class QueueStream(Carried, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A consumer of a queue, or of several.

    Spark makes it anew in the driver's reader process, in planners, and pickles it to executors: it holds facts
    only, and what runs is made when the reader process first needs it.
    """

    _ending = _signalled = False

    def __init__(self, options: QueueOptions, schema: StructType) -> None:
        self.options = options
        self.schema = schema
        self._running: Planner | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options, "schema": self.schema, "_running": None}

    def _made(self) -> Planner:
        return Consumer(self.options) if self.options.inputs is None else Inputs(self.options)

    @property
    def _consumer(self) -> Planner:
        if self._running is None:
            self._running = self._made()
            if program() == _READER_PROCESS:
                signal.signal(signal.SIGTERM, self._on_signal)
        return self._running

    def initialOffset(self) -> Any:
        return self._consumer.initial

    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> Any:
        # Spark 4.0 and 4.1 give no start: then all that was planned is finished, for they ask between batches only.
        known = start is not None  # Spark 4.0 and 4.1 do not tell either whether another batch will follow
        begin = start if start is not None else self._consumer.planned
        return self._consumer.next(begin, most_of(limit, self.options), ahead=known and self._looks_ahead())

    def _looks_ahead(self) -> bool:
        """Whether the next batch may be reserved while Spark works on one."""
        return self.options.reserve_ahead

    def getDefaultReadLimit(self) -> Any:
        from pyspark.sql.streaming.datasource import ReadMaxRows

        return ReadMaxRows(self.options.max_records_per_trigger)

    def reportLatestOffset(self) -> dict[str, Any]:
        return self._consumer.backlog()

    def prepareForTriggerAvailableNow(self) -> None:
        self._consumer.stop_at_now()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [SharePartition(share) for share in self._consumer.plan(start, end)]

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
