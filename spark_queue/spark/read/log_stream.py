"""Read logs as a stream, or their retained messages as a batch. See `log_reader.py`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from spark_queue.options.queue_options import QueueOptions
from spark_queue.spark.pickling import PickledWithLoader
from spark_queue.spark.read.arrival import ARRIVED
from spark_queue.spark.read.limits import partition_limits
from spark_queue.spark.read.log_cursor import log_of, rows_of, split_pieces
from spark_queue.spark.read.log_range import check_without_log, ending_place, starting_place
from spark_queue.spark.read.log_reader import LogReader
from spark_queue.spark.read.snapshot import queue_exists
from spark_queue.spark.read.stream import PlannedStream
from spark_queue.spark.schema import batch_converter
from spark_queue.spark.tracebacks import hide_tracebacks
from spark_queue.stores import open_store
from spark_queue.stores.base import partition_sizes
from spark_queue.stores.services.log.log import find_retained
from spark_queue.stores.services.log.segments import LogRange


@dataclass
class PiecesPartition(InputPartition):
    """The pieces that one task fetches.

    `reader`: `name/epoch` in a stream, else `None`. `arrived`: as in `FetchPartition`.
    """

    pieces: Sequence[LogRange]
    reader: str | None = None
    arrived: int | None = None


@hide_tracebacks
class LogStream(PlannedStream[LogReader]):
    """The stream reader of a log."""

    def create_planner(self) -> LogReader:
        return LogReader(self.options)

    def plan_tasks(self, start: Any, end: Any) -> Sequence[InputPartition]:
        arrived = end.get(ARRIVED)
        return [PiecesPartition(pieces, end["reader"], arrived) for pieces in self.planner.plan(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return fetch_pieces(self.options, self.schema, partition)


@hide_tracebacks
class LogSnapshot(PickledWithLoader, DataSourceReader):
    """Reads the retained messages of a log, or a range of them, and changes nothing.

    Messages not yet sealed are left out.
    """

    def __init__(self, options: QueueOptions, schema: StructType) -> None:
        self.options = options
        self.schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        with open_store(self.options.url, retry_timeout=self.options.retry_timeout, create=False) as store:
            if not queue_exists(store, self.options):
                return [PiecesPartition([])]
            if find_retained(store, self.options.queue or "") is None:
                check_without_log(self.options)
                return [PiecesPartition([])]
            queue_log = log_of(store, self.options)
            pieces = queue_log.ranges_between(
                starting_place(queue_log, self.options), ending_place(queue_log, self.options)
            )
        parts = split_pieces(pieces, partition_sizes(rows_of(pieces), *partition_limits(self.options)))
        return [PiecesPartition(some) for some in parts or [[]]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return fetch_pieces(self.options, self.schema, partition)


def fetch_pieces(options: QueueOptions, schema: StructType, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a partition as batches of the DataFrame."""
    assert isinstance(partition, PiecesPartition)
    if not partition.pieces:
        return
    shape = batch_converter(schema, options)
    with open_store(options.url, retry_timeout=options.retry_timeout) as store:
        queue_log = log_of(store, options)
        for piece in partition.pieces:
            tag = None if partition.reader is None else f"{partition.reader}/{piece.tag}"
            position = piece.start.position
            for batch in queue_log.fetch(piece):
                yield shape(batch, tag, position, partition.arrived)
                position += batch.num_rows
