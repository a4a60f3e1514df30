"""Where a query of events comes in: a source whose tasks run events where they read them.

A function applied to what a source reads runs in a Python process of its own, and all rows go there and back. So
events are run by `read` itself, and Spark gets what is left.
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
from spark_queue.spark.worker import settle_in

#: What is read of a message, and told of it: its payload, if it is to run in the process of the query, else NULL.
SOURCE_COLUMNS = "id STRING, payload STRING, mature TIMESTAMP, tries INT, tag STRING"


class EventSource(QueueDataSource):
    """A queue of events as a source of what is left of them. The option `work` is made by `carried`."""

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


#: Seconds: batches that take less are quick.
QUICK = 2.0


class EventStream(QueueStream):
    """A consumer of a queue of events, whose tasks run them.

    What is reserved ahead is for no other consumer, nor for an event of priority that comes now. So only those events
    are whose turn is near: while batches are quick.
    """

    _quick = False
    _begun: float | None = None

    def __init__(self, options: QueueOptions, schema: StructType, work: ExecutorWork) -> None:
        super().__init__(options, schema)
        self._runs = work

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_runs": self._runs}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._begun = time.monotonic()
        return super().partitions(start, end)

    def _looks_ahead(self) -> bool:
        if self._begun is not None:
            self._quick, self._begun = time.monotonic() - self._begun < QUICK, None
        return self._quick and super()._looks_ahead()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        settle_in()
        return self._runs(super().read(partition))


def carried(work: ExecutorWork) -> str:
    """What a query does, as an option: functions that are no `module:function` go along."""
    return base64.b64encode(cloudpickle.dumps(work)).decode()  # type: ignore[no-untyped-call]
