"""The source of an executor query: its tasks execute events in the process that reads them.

If Spark applied a function to the rows of a source, all rows would go to another Python process and
back. So `read` itself executes the events, and Spark gets only the rest.

What runs is in the class that the driver registers. The option of the source only names it: see
`spark_queue.events.work_tokens`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource, InputPartition
from pyspark.sql.types import StructType

from spark_queue.errors import OptionError
from spark_queue.events.spark_worker import ExecutorWork
from spark_queue.events.work_tokens import (
    SOURCE_NAME,
    TOKEN_OPTION,
    Works,
    digest_of,
    find_work,
    registered_works,
    registering,
)
from spark_queue.options.stream import StreamOptions
from spark_queue.spark.data_source import QueueDataSource
from spark_queue.spark.pickling import portable_source
from spark_queue.spark.read.queue_stream import QueueStream
from spark_queue.spark.tracebacks import hide_tracebacks
from spark_queue.spark.worker import freeze_gc

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The columns that Spark gets. The payload is NULL, unless the event is left for the driver.
SOURCE_COLUMNS = "id STRING, payload STRING, mature TIMESTAMP, tries INT, tag STRING"


@hide_tracebacks
class EventSource(QueueDataSource):
    """The data source of an executor query: of one of `works`, which the option `work` names."""

    def __init__(self, options: Mapping[str, str], works: Works | None = None) -> None:
        """Keep the named work. Without any, the other methods raise `OptionError`."""
        self._given, works = dict(options), works or {}
        named = digest_of(str(options.get(TOKEN_OPTION, "")))
        self._works: Works = {named: works[named]} if named in works else {}
        super().__init__({})

    @classmethod
    def name(cls) -> str:
        return SOURCE_NAME

    def schema(self) -> str:  # type: ignore[override]
        find_work(self._given, self._works)
        return SOURCE_COLUMNS

    def streamReader(self, schema: StructType) -> EventStream:
        self.options, pickled = find_work(self._given, self._works)
        work: ExecutorWork = cloudpickle.loads(pickled)
        options = self._stream_options(schema)
        return EventStream(options, schema, replace(work, url=options.database.url))

    def reader(self, schema: StructType) -> NoReturn:
        raise _only_for_queries()

    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:
        raise _only_for_queries()

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:
        raise _only_for_queries()


def _only_for_queries() -> OptionError:
    return OptionError(
        f'format("{SOURCE_NAME}") is for queries of ExecutorQuery only; read or write the queue with format("queue")'
    )


def register_source(spark: SparkSession) -> None:
    """Register the source in a session, with all work of this process."""
    with registering:
        spark.dataSource.register(_source_of(registered_works()))


def _source_of(works: Works) -> type[DataSource]:
    """Return the source with this work, as a class to register."""

    class RegisteredEventSource(EventSource):
        def __new__(cls, options: Mapping[str, str]) -> Any:
            return EventSource(options, works)

    return portable_source(RegisteredEventSource)


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

    def __init__(self, options: StreamOptions, schema: StructType, work: ExecutorWork) -> None:
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
