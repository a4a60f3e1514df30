"""The most that Spark can do with rows of ours: a source that has them at once, and a sink that drops them."""

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
from spark_queue.options.queue_options import QueueOptions
from spark_queue.spark.schema import batch_converter, read_schema
from spark_queue.stores.base import PAGE_ROWS


@dataclass
class Part(InputPartition):
    """So many rows for one task."""

    def __init__(self, rows: int) -> None:
        self.rows = rows


class Rows(DataSource):
    """Messages that are there at once: options `rows`, `maxRecordsPerTrigger`, `numPartitions`."""

    @classmethod
    def name(cls) -> str:
        return "bench_rows"

    def schema(self) -> StructType:
        return read_schema(OPTIONS)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        facts = [int(self.options[key]) for key in ("rows", "maxRecordsPerTrigger", "numPartitions")]
        return RowsReader(schema, *facts)

    def writer(self, schema: StructType, overwrite: bool) -> Drop:
        return Drop()


OPTIONS = QueueOptions(url="", queue="ceiling")


class RowsReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Makes a page of messages once for each task, and gives it again and again, shaped as ours are."""

    def __init__(self, schema: StructType, rows: int, most: int, partitions: int) -> None:
        self.schema, self.rows, self.most, self.partitions_wanted = schema, rows, most, partitions

    def initialOffset(self) -> dict[str, Any]:
        return {"n": 0}

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:
        return {"n": min(self.rows, (start or {"n": 0})["n"] + self.most)}

    def getDefaultReadLimit(self) -> Any:
        return ReadMaxRows(self.most)

    def prepareForTriggerAvailableNow(self) -> None:
        pass

    def partitions(self, start: Any, end: Any) -> Sequence[InputPartition]:
        each = -(-(end["n"] - start["n"]) // self.partitions_wanted)
        return [Part(each)] * self.partitions_wanted if each else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Part)
        n = PAGE_ROWS
        page = build_messages("ceiling", new_ids(n), payloads(n), ["json"] * n, [None] * n, [0] * n, [0] * n)
        shape = batch_converter(self.schema, OPTIONS)
        left = partition.rows
        while left > 0:
            yield shape(page.slice(0, min(left, PAGE_ROWS)), "ceiling/1/0")
            left -= PAGE_ROWS

    def commit(self, end: Any) -> None:
        pass


class Drop(DataSourceArrowWriter):
    """Takes rows, and does nothing with them."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()
