"""Read logs as a stream, or their retained messages as a batch. See `log_reader.py`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from spark_queue.options.queue_options import QueueOptions
from spark_queue.spark.carried import Carried
from spark_queue.spark.read.limits import cores
from spark_queue.spark.read.log_cursor import log_of
from spark_queue.spark.read.log_reader import LogReader, shared
from spark_queue.spark.read.snapshot import is_there
from spark_queue.spark.read.stream import PlannedStream
from spark_queue.spark.schema import Shaper, shaper
from spark_queue.spark.sentence import sentence_first
from spark_queue.stores import open_store
from spark_queue.stores.base import spread
from spark_queue.stores.services.log.log import retained
from spark_queue.stores.services.log.segments import Piece


@dataclass
class PiecesPartition(InputPartition):
    """The pieces that one task fetches. `reader`: `name/epoch` in a stream, else `None`."""

    pieces: Sequence[Piece]
    reader: str | None

    def __init__(self, pieces: Sequence[Piece], reader: str | None) -> None:
        self.pieces = pieces
        self.reader = reader


@sentence_first
class LogStream(PlannedStream[LogReader]):
    """The stream reader of a log."""

    def start(self) -> LogReader:
        return LogReader(self.options)

    def partitions(self, start: Any, end: Any) -> Sequence[InputPartition]:
        return [PiecesPartition(pieces, end["reader"]) for pieces in self.planner.plan(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, PiecesPartition)
        return fetched(self.options, shaper(self.schema, self.options), partition)


@sentence_first
class LogSnapshot(Carried, DataSourceReader):
    """Reads all retained messages, and changes nothing. Messages not yet sealed are left out."""

    def __init__(self, options: QueueOptions, schema: StructType) -> None:
        self.options = options
        self.schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        if not is_there(self.options):
            return [PiecesPartition([], None)]
        with open_store(self.options.url, patience=self.options.retry_timeout / 1000, create=False) as store:
            if retained(store, self.options.queue or "") is None:
                return [PiecesPartition([], None)]
            found = log_of(store, self.options)
            pieces = found.between(found.first(), found.end())
        shares = shared(pieces, spread(sum(one.rows for one in pieces), cores()))
        return [PiecesPartition(some, None) for some in shares or [[]]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, PiecesPartition)
        return fetched(self.options, shaper(self.schema, self.options), partition)


def fetched(options: QueueOptions, shape: Shaper, partition: PiecesPartition) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a partition as batches of the DataFrame."""
    if not partition.pieces:
        return
    with open_store(options.url, patience=options.retry_timeout / 1000) as store:
        found = log_of(store, options)
        for piece in partition.pieces:
            tag = None if partition.reader is None else f"{partition.reader}/{piece.tag}"
            position = piece.start.position
            for batch in found.fetch(piece):
                yield shape(batch, tag, position)
                position += batch.num_rows
