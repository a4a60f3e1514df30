"""The source of an executor query: its tasks execute events in the process that reads them.

If Spark applied a function to the rows of a source, all rows would go to another Python process and
back. So `read` itself executes the events, and Spark gets only the rest.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from spark_queue.events.spark_worker import ExecutorWork
from spark_queue.options.queue_options import QueueOptions
from spark_queue.spark.data_source import QueueDataSource
from spark_queue.spark.read.queue_stream import QueueStream
from spark_queue.spark.worker import freeze_gc

#: The columns that Spark gets. The payload is NULL, unless the event is left for the driver.
SOURCE_COLUMNS = "id STRING, payload STRING, mature TIMESTAMP, tries INT, tag STRING"


class EventSource(QueueDataSource):
    """The data source of an executor query. `serialize_work` returns its option `work`."""

    def __init__(self, options: Mapping[str, str]) -> None:
        own = dict(options)
        self._runs: ExecutorWork = cloudpickle.loads(base64.b64decode(own.pop("work")))
        super().__init__(own)

    @classmethod
    def name(cls) -> str:
        return "queue_events"

    def schema(self) -> str:  # type: ignore[override]
        return SOURCE_COLUMNS

    def streamReader(self, schema: StructType) -> EventStream:
        options = self._read_options(schema, "stream")
        return EventStream(options, schema, replace(self._runs, url=options.url))


#: Batches that take less than this are quick (s).
QUICK = 2.0


class EventStream(QueueStream):
    """A consumer of a queue of events whose tasks execute them.

    No other consumer gets events that are reserved ahead, and a new event with priority waits for
    them. So it reserves ahead only while batches are quick.
    """

    first_rows = 1_000  # events are often slow
    _quick = False
    _begun: float | None = None

    def __init__(self, options: QueueOptions, schema: StructType, work: ExecutorWork) -> None:
        super().__init__(options, schema)
        self._runs = work

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_runs": self._runs}

    def plan_tasks(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._begun = time.monotonic()
        return super().plan_tasks(start, end)

    def _prefetches(self) -> bool:
        if self._begun is not None:
            self._quick, self._begun = time.monotonic() - self._begun < QUICK, None
        return self._quick and super()._prefetches()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        freeze_gc()
        return self._runs(super().read(partition))


def serialize_work(work: ExecutorWork) -> str:
    """Return work as the text of an option, with functions that are not `module:function`."""
    return base64.b64encode(cloudpickle.dumps(work)).decode()  # type: ignore[no-untyped-call]
