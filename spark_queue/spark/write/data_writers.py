"""Write rows as messages of a queue, and answer Spark's calls of a writer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from spark_queue.errors import MessageError, SchemaError
from spark_queue.messages.dead_letter import put_letters
from spark_queue.messages.ids import new_id_array
from spark_queue.messages.rules import NOT_JSON, NOT_TEXT
from spark_queue.options.push import PushOptions
from spark_queue.options.queue_names import dead_letter_queue
from spark_queue.options.roles import WriteOptions
from spark_queue.spark.encode import (
    NewIds,
    coalesce_batches,
    dead_letters_of,
    encode_pushes,
)
from spark_queue.spark.json_style import check_style, style_of
from spark_queue.spark.json_types import WRITTEN_AS_JSON
from spark_queue.spark.json_write import JsonStyle
from spark_queue.spark.pickling import PickledWithLoader
from spark_queue.spark.tracebacks import hide_tracebacks
from spark_queue.spark.worker import BackgroundWriter
from spark_queue.spark.write.columns import PUSH_COLUMN_TYPES, check_write_schema
from spark_queue.spark.write.targets import CheckQueue, Part, split_by_queue
from spark_queue.stores.base import Store, rejected_rows_error
from spark_queue.stores.named import NamedStores
from spark_queue.stores.queue import StoredQueue
from spark_queue.stores.services.eviction import check_eviction
from spark_queue.stores.services.option_policy import push_policy

#: What to do about payloads that cannot become messages.
_PAYLOAD_REMEDIES = {
    NOT_JSON: "for plain text set payloadFormat=text; to write columns as JSON, to_json(struct(*)) AS payload",
    NOT_TEXT: "clean text with make_valid_utf8; for bytes write a column of type BINARY",
}


#: The dead letters of rows that name no queue are in the dead-letter queue of this one.
UNNAMED = "unnamed"


@dataclass
class WriteResult(WriterCommitMessage):
    """The result of one task: the number of `rows` written or settled, and of new dead letters.

    With exactly-once, the messages are in `stage`, for batch `batch` of `sink`; `staged_rows` has
    their number by database. `hashes`: the hashes of all rows, if a replay must be compared with
    them. `batch_job`: whether it is certain that no query writes.
    """

    rows: int = 0
    dead_letters: int = 0
    sink: str = ""
    batch: int = 0
    stage: str = ""
    staged_rows: dict[str, int] = field(default_factory=dict)
    hashes: bytes = b""
    batch_job: bool = False


def stores_of(options: WriteOptions) -> NamedStores:
    """Return the databases of a write, by name; a single one has an empty name."""
    return NamedStores(options.database.by_name, retry_timeout=options.database.retry_timeout)


def write_each(batches: Iterable[pa.RecordBatch], write: Callable[[pa.RecordBatch], None]) -> None:
    """Write the batches one after the other, each while the next one is received from Spark."""
    with BackgroundWriter() as behind:
        for batch in coalesce_batches(batches):
            behind.submit(partial(write, batch))


#: The options of a write.
W = TypeVar("W", bound=WriteOptions)


class WriteOperation(Generic[W]):
    """A write of a batch or a stream. It is pickled to executors, so it holds plain data only."""

    def __init__(self, options: W, schema: StructType) -> None:
        """Check what the options say about JSON. Raises `OptionError` if they are wrong."""
        self.options: W = options
        self.schema = schema
        check_style(options.formats, options.content, schema)

    @property
    def style(self) -> JsonStyle | None:
        """How the task that runs writes JSON; `None` if no payload becomes JSON."""
        writes_json = any(one.name == "payload" and isinstance(one.dataType, WRITTEN_AS_JSON) for one in self.schema)
        return style_of(self.options.content, self.options.formats) if writes_json else None

    def run(self, batches: Iterable[pa.RecordBatch]) -> WriteResult:
        done = WriteResult()
        with stores_of(self.options) as stores:
            write_each(batches, lambda batch: self.write(stores, batch, done))
        return done

    def write(self, stores: NamedStores, batch: pa.RecordBatch, done: WriteResult) -> None:
        raise NotImplementedError

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Complete the write: all tasks have succeeded."""

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Clean up: some tasks have failed."""


#: Pushes or stages rows of a queue.
Put = Callable[[str, pa.RecordBatch], object]


class Push(WriteOperation[PushOptions]):
    """Pushes rows as messages, which are visible as soon as their batch is pushed.

    Raises `SchemaError` if the columns cannot be written, `OptionError` if the delivery is
    exactly-once and a database evicts messages.
    """

    def __init__(self, options: PushOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        required = ["payload", *(["ns"] if options.database.urls else []), *([] if options.queue else ["queue"])]
        check_write_schema(schema, PUSH_COLUMN_TYPES, required)
        if "ns" in schema.names and not options.database.urls:
            raise SchemaError("column 'ns' names one of several databases: set them in option 'urls'", column="ns")
        with stores_of(options) as stores:
            for ns in stores.primary_names:
                exactly_once = options.guarantee.exactly_once
                check_eviction(stores[ns], exactly_once=exactly_once, allowed=options.guarantee.allow_eviction)

    def write(self, stores: NamedStores, batch: pa.RecordBatch, done: WriteResult) -> None:
        for part in self._split_by_queue(stores, batch, self._make_new_ids(stores, new_id_array)):
            self._put(partial(self._push, stores[part.ns]), part, done)

    def _push(self, store: Store, queue: str, rows: pa.RecordBatch) -> None:
        self._queue(store, queue).push(rows)

    def _queue(self, store: Store, queue: str) -> StoredQueue[Store]:
        """Return a queue to push to, in the layout that the options name."""
        return store.queue(queue, push_policy(self.options))

    def _make_new_ids(self, stores: NamedStores, new_ids: NewIds) -> NewIds:
        """Return a function that makes ids in the form of the database, if there is only one."""
        return new_ids if self.options.database.urls else lambda n: stores[""].native_ids(new_ids(n))

    def _put(self, put: Put, part: Part, done: WriteResult) -> None:
        """Push or stage the rows for one queue.

        Bad rows raise `MessageError` or become dead letters: see the option `onBadRow`.
        """
        queue, rows, faults = part.queue, part.rows, part.faults
        while rows.num_rows:
            try:
                if faults or queue is None:
                    raise rejected_rows_error(queue, rows, faults)
                put(queue, rows)
            except MessageError as error:  # may repeat: a store checks its own rules after the common ones
                if self.options.writing.on_bad_row == "fail" or not error.rows:
                    raise _add_remedy(error) from error
                bad = pa.array(list(error.rows))
                reasons = list(error.rows.values())
                dead = self._dead_letter_queue(queue)
                put_letters(partial(put, dead), dead_letters_of(queue, rows.take(bad), reasons))
                rows, faults = rows.filter(pc.invert(pc.is_in(pa.array(range(rows.num_rows)), bad))), {}
                done.dead_letters += len(bad)
            else:
                done.rows += rows.num_rows
                return

    def _dead_letter_queue(self, queue: str | None) -> str:
        """Return the dead-letter queue of a queue, or that of rows that name none."""
        if queue is None:
            return self.options.dead_letters.dead_letter_queue or dead_letter_queue(UNNAMED)
        return self.options.dead_letters.queue_of(queue)

    def _split_by_queue(self, stores: NamedStores, batch: pa.RecordBatch, new_ids: NewIds) -> Iterator[Part]:
        """Yield the rows of each queue, as PUSHES batches."""
        rows, faults = encode_pushes(batch, self.schema, self.options.content.payload_format, new_ids, self.style)
        check: CheckQueue = lambda ns, queue: stores[ns].check_queue(queue)  # noqa: E731
        return split_by_queue(batch, rows, faults, self.options, check)


def _add_remedy(error: MessageError) -> MessageError:
    """Return the error for bad rows, with the remedies for their payloads."""
    rules = [*error.rows.values()]
    remedies = [
        remedy for wrong, remedy in _PAYLOAD_REMEDIES.items() if any(rule.startswith(wrong) for rule in rules)
    ]
    if not remedies:
        return error
    return MessageError("; ".join([str(error), *remedies]), **cast("dict[str, Any]", error.facts))


@hide_tracebacks
class _Writer(PickledWithLoader):
    """Answers Spark's calls of a writer. A stream also passes the number of its batch."""

    def __init__(self, operation: WriteOperation[Any]) -> None:
        self.operation = operation

    def write(self, iterator: Iterator[Any]) -> WriteResult:
        return self.operation.run(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int = 0) -> None:
        self.operation.commit(messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int = 0) -> None:
        self.operation.abort(messages)


class BatchWriter(_Writer, DataSourceArrowWriter):
    """The writer of `df.write`."""


try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter

    class StreamWriter(_Writer, DataSourceStreamArrowWriter):
        """The writer of `df.writeStream`, which passes Arrow batches."""

except ImportError:

    class StreamWriter(_Writer, DataSourceStreamWriter, DataSourceArrowWriter):  # type: ignore[no-redef]
        """The writer of `df.writeStream` on Spark 4.0.

        It passes rows of Python to writers of streams, which hold not all of Spark's values. But to
        writers of Arrow batches it passes those, also from a stream.
        """
