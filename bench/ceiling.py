"""Spark's ceiling: a source that has our rows at once, and a sink that drops them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from common import payloads
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from spark_queue.messages.columns import build_messages
from spark_queue.messages.ids import new_ids
from spark_queue.options.parts import Database
from spark_queue.options.stream import StreamOptions
from spark_queue.spark.schema import batch_converter, read_schema
from spark_queue.stores.base import PAGE_ROWS


@dataclass
class Part(InputPartition):
    """The number of rows of one task."""

    def __init__(self, rows: int) -> None:
        self.rows = rows


class Rows(DataSource):
    """A source of messages in memory. Options: `rows`, `maxRecordsPerTrigger`, `numPartitions`."""

    @classmethod
    def name(cls) -> str:
        return "bench_rows"

    def schema(self) -> StructType:
        return read_schema(OPTIONS)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        numbers = [int(self.options[key]) for key in ("rows", "maxRecordsPerTrigger", "numPartitions")]
        return RowsReader(schema, *numbers)

    def writer(self, schema: StructType, overwrite: bool) -> Drop:
        return Drop()


OPTIONS = StreamOptions(database=Database(url=""), single_queue="ceiling")


class RowsReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Each task creates one page of messages and yields it repeatedly, with the columns of ours."""

    def __init__(self, schema: StructType, rows: int, limit: int, partitions: int) -> None:
        self.schema, self.rows, self.limit, self.num_partitions = schema, rows, limit, partitions

    def initialOffset(self) -> dict[str, Any]:
        return {"n": 0}

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:
        return {"n": min(self.rows, (start or {"n": 0})["n"] + self.limit)}

    def getDefaultReadLimit(self) -> Any:
        return ReadMaxRows(self.limit)

    def prepareForTriggerAvailableNow(self) -> None:
        pass

    def partitions(self, start: Any, end: Any) -> Sequence[InputPartition]:
        each = -(-(end["n"] - start["n"]) // self.num_partitions)
        return [Part(each)] * self.num_partitions if each else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Part)
        n = PAGE_ROWS
        page = build_messages("ceiling", new_ids(n), payloads(n), ["json"] * n, [None] * n, [0] * n, [0] * n)
        shape = batch_converter(self.schema, OPTIONS.content)
        left = partition.rows
        while left > 0:
            yield shape(page.slice(0, min(left, PAGE_ROWS)), "ceiling/1/0")
            left -= PAGE_ROWS

    def commit(self, end: Any) -> None:
        pass


class Drop(DataSourceArrowWriter):
    """A sink that drops its rows."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()
