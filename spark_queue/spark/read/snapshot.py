"""Read a queue, or its history, as a batch. Nothing is changed."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from spark_queue.messages.schema import HISTORY_FIELDS
from spark_queue.options.queue_options import QueueOptions
from spark_queue.spark.pickling import PickledWithLoader
from spark_queue.spark.read.limits import partition_limits
from spark_queue.spark.schema import batch_converter
from spark_queue.spark.tracebacks import hide_tracebacks
from spark_queue.spark.worker import main_module
from spark_queue.stores import open_store
from spark_queue.stores.base import Store
from spark_queue.stores.services.existence import check_exists, exists
from spark_queue.stores.spans import Span
from spark_queue.stores.types import Condition, View

#: Spark's filter classes (4.1 and later), by name, and the condition that each becomes.
_OPERATORS = {
    "EqualTo": "=",
    "EqualNullSafe": "=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "In": "in",
}


#: Columns that are never NULL, so `IS NOT NULL` need not be checked.
NEVER_NULL = ("id", "mature", "tries", "queue", "processed", "outcome")

#: The worker to which Spark passes filters, if spark.sql.python.filterPushdown.enabled is true.
_PUSHDOWN_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"


def snapshot_reader(options: QueueOptions, schema: StructType) -> SnapshotReader:
    """Return the reader of a batch read.

    By default Spark passes no filters, and then refuses a reader that takes them. So only the
    worker that passes filters gets such a reader.
    """
    takes_filters = _PUSHDOWN_WORKER in sys.modules or main_module() == _PUSHDOWN_WORKER
    return FilteringReader(options, schema) if takes_filters else SnapshotReader(options, schema)


def queue_exists(store: Store, options: QueueOptions) -> bool:
    """Return whether the queue exists. Raises `OptionError` if not and `failIfMissing` is set."""
    queue = options.queue or ""
    if options.fail_if_missing:
        check_exists(store, queue, "With failIfMissing=false it is read as empty.")
    return exists(store, queue)


@dataclass
class SpanPartition(InputPartition):
    """The messages that one task reads; `None`: no messages."""

    span: Span | None


@hide_tracebacks
class SnapshotReader(PickledWithLoader, DataSourceReader):
    """Reads all messages of a queue, reserved ones too, in several tasks: see `Store.spans`."""

    def __init__(self, options: QueueOptions, schema: StructType) -> None:
        self.options = options
        self.schema = schema
        self.conditions: list[Condition] = []
        self.empty = False

    @property
    def _view(self) -> View:
        return "history" if self.options.view == "history" else "messages"

    def partitions(self) -> Sequence[InputPartition]:
        names_ids = any(one.column == "id" and one.op in ("=", "in") for one in self.conditions)
        with open_store(self.options.url, retry_timeout=self.options.retry_timeout, create=False) as store:
            if not queue_exists(store, self.options) or self.empty:
                return [SpanPartition(None)]
            tasks = 1 if names_ids else partition_limits(self.options)[0]
            return list(map(SpanPartition, store.spans(self.options.queue or "", tasks, view=self._view)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SpanPartition)
        shape = batch_converter(self.schema, self.options)
        if self.options.queue is None or partition.span is None:
            return
        with open_store(self.options.url, retry_timeout=self.options.retry_timeout, create=False) as store:
            found = store.peek(
                self.options.queue, self.conditions, view=self._view, check_json=False, span=partition.span
            )
            for batch in found:
                yield shape(batch, None)


@hide_tracebacks
class FilteringReader(SnapshotReader):
    """Lets the store apply the filters, except those on payload and headers."""

    def pushFilters(self, filters: Sequence[Any]) -> Iterable[Any]:
        columns = {"id", "mature", "tries", *(HISTORY_FIELDS.names if self.options.view == "history" else ())}
        for one in filters:
            column = one.attribute[0] if len(getattr(one, "attribute", ())) == 1 else ""
            op = _OPERATORS.get(type(one).__name__)
            if column == "queue" and op in ("=", "in"):
                self.empty |= self.options.queue not in (one.value if op == "in" else [one.value])
            elif column in columns and op and (condition := _condition(column, op, one.value)):
                self.conditions.append(condition)
            elif not (type(one).__name__ == "IsNotNull" and column in NEVER_NULL):
                yield one


def _condition(column: str, op: str, value: Any) -> Condition | None:
    """Return a filter as a condition of the store, or `None` to let Spark filter."""
    values = [_value(column, one) for one in (value if op == "in" else [value])]
    if any(one is None for one in values):
        return None
    return Condition(column, op, tuple(values) if op == "in" else values[0])  # type: ignore[arg-type]


def _value(column: str, value: Any) -> str | int | None:
    if column in ("mature", "processed"):
        if not isinstance(value, datetime):
            return None
        moment = value.astimezone(UTC)
        # The store keeps milliseconds; a finer moment is left to Spark.
        return None if moment.microsecond % 1000 else round(moment.timestamp() * 1000)
    if column in ("id", "consumer", "outcome"):
        return value if isinstance(value, str) else None
    return value if isinstance(value, int) and abs(value) < 2**31 else None
