"""A source and a sink without Spark: the test runs the tasks and the driver, in its own order.

The data source, its readers and its writers are those that Spark makes, and reach a task pickled,
as in Spark. A task finds Spark's own `TaskContext`, filled as Spark's Python worker fills it. The
stores are real.
"""

from __future__ import annotations

import json
import pickle
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyspark import TaskContext, cloudpickle
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from spark_queue import open_store
from spark_queue.messages.message import messages
from spark_queue.spark import QueueDataSource
from spark_queue.spark.read.offsets import input_offsets
from spark_queue.spark.read.proof import proving_input, reading_of
from spark_queue.spark.read.snapshot import FilteringReader
from spark_queue.spark.schema import arrow_schema
from spark_queue.spark.task_context import LISTENER_PROPERTY, TIME_ZONE
from spark_queue.spark.write.data_writers import WriteResult
from spark_queue.stores.services.ledger import ledger_of
from spark_queue.stores.services.owner import revoke
from tests.spark_session import SPARK

#: As Spark Connect marks its jobs.
CONNECT_TAG = "SparkConnect_OperationTag_User__Session_5a0b_Operation_91c4"


@contextmanager
def task(
    partition: int = 0,
    query: str | None = None,
    batch: int | None = None,
    *,
    connect: bool = False,
    listened: bool = True,
) -> Iterator[TaskContext]:
    """Run in a task of this partition; of this batch of a streaming query, where they are given.

    `connect`: the job came over Spark Connect. `listened`: the session has our listener.
    """
    outer, inner = TaskContext.get(), object.__new__(TaskContext)
    inner._partitionId = partition
    inner._attemptNumber = 0
    inner._localProperties = {"spark.job.tags": f"{CONNECT_TAG},other"} if connect else {}
    if outer is not None and (zone := outer.getLocalProperty(TIME_ZONE)):  # of the session, as those within it
        inner._localProperties[TIME_ZONE] = zone
    if query is not None:
        inner._localProperties |= {LISTENER_PROPERTY: "true"} if listened else {}
        inner._localProperties |= {"sql.streaming.queryId": query, "streaming.sql.batchId": str(batch)}
    TaskContext._setTaskContext(inner)
    try:
        yield inner
    finally:
        TaskContext._setTaskContext(outer)


def source(options: dict[str, str]) -> QueueDataSource:
    """Make the data source as Spark does."""
    given = CaseInsensitiveDict()
    given.update(options)
    return QueueDataSource(given)


def carried(thing: Any) -> Any:
    """Return what arrives of it in another process."""
    return pickle.loads(cloudpickle.dumps(thing))


# --- the sink -------------------------------------------------------------------------------------


def rows(values: Iterable[Any], **columns: Any) -> pa.RecordBatch:
    """Return a batch with these payloads; a column is an array, or one value for all rows."""
    payloads = [json.dumps(value) for value in values]
    made = {name: one if isinstance(one, list | pa.Array) else [one] * len(payloads) for name, one in columns.items()}
    return pa.record_batch({"payload": payloads} | made)


def new_ids(count: int) -> pa.Array:
    """Return an id for every other row, new in each attempt; the sink makes those of the others.

    So a message that is doubled cannot hide behind its twin.
    """
    return pa.array([uuid.uuid4().hex[:24] if n % 2 == 0 else None for n in range(count)], pa.string())


def attempt(values: Iterable[Any], **columns: Any) -> pa.RecordBatch:
    """Return a batch with these payloads for one attempt to write them: see `new_ids`."""
    given = list(values)
    return rows(given, id=new_ids(len(given)), **columns)


TEXT = pa.schema({"payload": pa.string()})
ATTEMPT = pa.schema({"payload": pa.string(), "id": pa.string()})


class Write:
    """A write of rows with these columns by one driver: `df.write`, or a batch of a stream.

    `within`: the query whose `foreachBatch` calls `df.write`. `connect`: over Spark Connect.
    Each `task` is one attempt: it may be run twice for a partition, and never be committed.
    """

    def __init__(
        self,
        columns: pa.Schema | StructType = TEXT,
        *,
        query: str | None = None,
        batch: int = 0,
        within: str | None = None,
        connect: bool = False,
        overwrite: bool = False,
        **options: str,
    ) -> None:
        self.schema = columns if isinstance(columns, StructType) else from_arrow_schema(columns)
        self.query, self.batch, self.within, self.connect = query, batch, within, connect
        data_source = source(options)
        self.writer: Any = (
            data_source.writer(self.schema, overwrite)
            if query is None
            else data_source.streamWriter(self.schema, overwrite)
        )

    def task(self, batches: Iterable[pa.RecordBatch], partition: int = 0) -> WriteResult:
        """Run a task on these rows, and return its message to the driver."""
        writer, expected = carried(self.writer), arrow_schema(self.schema)
        given = (pa.RecordBatch.from_arrays(one.columns, schema=expected) for one in batches)
        with task(partition, self.query or self.within, self.batch, connect=self.connect):
            return carried(writer.write(given))

    def commit(self, *written: WriteResult | None) -> None:
        """Let the driver commit: all tasks have succeeded."""
        self.writer.commit(list(written), *self._number)

    def abort(self, *written: WriteResult | None) -> None:
        """Let the driver abort; it has no message of a task that failed."""
        self.writer.abort(list(written), *self._number)

    @property
    def _number(self) -> list[int]:
        return [] if self.query is None else [self.batch]

    def run(self, *partitions: pa.RecordBatch | Iterable[pa.RecordBatch]) -> None:
        """Run one task for each partition, then commit; abort where that, or a task, fails."""
        written: list[WriteResult | None] = [None] * len(partitions)
        try:
            for number, one in enumerate(partitions):
                written[number] = self.task([one] if isinstance(one, pa.RecordBatch) else one, number)
            self.commit(*written)
        except Exception:
            self.abort(*written)
            raise


def save(*partitions: pa.RecordBatch, **options: Any) -> None:
    """Write rows as `df.write` does, each batch in a task of its own."""
    Write(partitions[0].schema, **options).run(*partitions)


# --- the source -----------------------------------------------------------------------------------


class Batch:
    """A micro-batch: what tasks read of it, each time anew."""

    def __init__(self, query: Query, reader: Any, number: int, partitions: list[Any]) -> None:
        self.query, self.number = query, number
        self.taken = 0  #: how many rows were read, as Spark counts them
        self.reader, self._partitions = reader, partitions

    def read(self, partition: int) -> Iterator[pa.RecordBatch]:
        """Read as a task does: what it yields is what Spark accepts."""
        reader, part = carried((self.reader, self._partitions[partition]))
        expected = arrow_schema(reader.schema)
        with task(partition, self.query.id, self.number, listened=self.query.listened):
            for batch in reader.read(part):
                assert batch.schema == expected
                self.taken += batch.num_rows
                yield batch

    @property
    def partitions(self) -> list[list[pa.RecordBatch]]:
        """What the task of each partition reads."""
        return [list(self.read(number)) for number in range(len(self._partitions))]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """All rows, in the order of the partitions."""
        return [row for part in self.partitions for batch in part for row in batch.to_pylist()]

    @property
    def payloads(self) -> list[Any]:
        return [json.loads(row["payload"]) for row in self.rows]

    def write(self, **options: str) -> None:
        """Write the payloads with the sink of the query, each partition with a task of its own."""
        parts = [
            [pa.RecordBatch.from_arrays([one.column("payload"), new_ids(len(one))], schema=ATTEMPT) for one in part]
            for part in self.partitions
        ]
        # Without a partition Spark runs a task without rows.
        Write(ATTEMPT, query=self.query.id, batch=self.number, **options).run(*(parts or [[]]))


class Query:
    """A streaming query from a queue, and its checkpoint: it runs, dies, and is started again.

    `work` is called with each batch. An error of it ends the run; the next one repeats the batch.
    `columns`: the user's own schema.
    """

    def __init__(self, work: Callable[[Batch], Any], columns: StructType | None = None, **options: str) -> None:
        self.work, self.columns = work, columns
        self.id = str(uuid.uuid4())
        self.options = {"waitTimeout": "0s"} | options
        self.offsets: list[dict[str, Any]] = []  #: Spark's log of what was planned
        self.finished = 0  #: of those so many are done: Spark's log of commits
        self.listened = True  #: whether the session has our listener
        self.reports = True  #: whether the driver lives until that hears what was read

    def run(self, *, old: bool = False) -> None:
        """Run until nothing is ready, as `availableNow`; `old`: as Spark 4.0 and 4.1 do."""
        data_source = source(self.options)
        reader: Any = data_source.streamReader(self.columns or data_source.schema())
        limit = reader.getDefaultReadLimit() if SPARK >= (4, 2) else None
        try:
            if old and self.offsets:  # they tell a restarted query where it stands
                assert list(reader.partitions(self.offsets[-1], self.offsets[-1])) == []
            start: dict[str, Any] = self.offsets[self.finished - 1] if self.finished else reader.initialOffset()
            if not old:
                reader.prepareForTriggerAvailableNow()
            for end in self.offsets[self.finished :]:
                self._run(reader, start, end)
                start = end
            while (end := reader.latestOffset() if old else reader.latestOffset(start, limit)) != start:
                self.offsets.append(end)
                if old and self.finished:
                    reader.commit(start)
                self._run(reader, start, end)
                start = end
        finally:
            reader.stop()
            self.dies()

    def _run(self, reader: Any, start: dict[str, Any], end: dict[str, Any]) -> None:
        batch = Batch(self, reader, self.finished, list(reader.partitions(start, end)))
        self.work(batch)
        self.finished += 1
        if end.get("onUnread") == "fail" and self.listened and self.reports:
            self._report(end, batch.taken)

    def _report(self, end: Any, taken: int) -> None:
        """Note how many rows were read, as the listener does."""
        binding = proving_input(end) if "inputs" in end else None
        own = end if binding is None else input_offsets(end)[binding]
        with open_store(self.options["url"]) as store:
            reading_of(own).note_taken(store, taken)

    def dies(self) -> None:
        """Let its process be gone: another one may run its consumer at once."""
        if self.offsets and self.options.get("mode") != "log":  # what nobody reserves has no owner
            with open_store(self.options["url"]) as store:
                inputs = json.loads(self.options.get("inputs", "{}")) or {"": {"queue": self.options.get("queue")}}
                for one in inputs.values():
                    if one.get("mode") != "log":
                        revoke(store, one["queue"], self.offsets[-1]["consumer"])


def snapshot(
    columns: pa.Schema | StructType | None = None, filters: Sequence[Any] | None = None, **options: str
) -> list[dict[str, Any]]:
    """Return the rows that `spark.read` returns; `filters` are pushed into the reader."""
    data_source = source(options)
    schema = from_arrow_schema(columns) if isinstance(columns, pa.Schema) else columns
    reader: Any = data_source.reader(schema or data_source.schema())
    if filters is not None:
        reader = FilteringReader(reader.options, reader.schema)
        assert list(reader.pushFilters(filters)) == [], "what it leaves to Spark is not filtered here"
    parts, expected = reader.partitions(), arrow_schema(reader.schema)
    read: list[dict[str, Any]] = []
    for number, part in enumerate(parts):
        with task(number):
            mine, its = carried((reader, part))
            for batch in mine.read(its):
                assert batch.schema == expected
                read += batch.to_pylist()
    return read


# --- what is left ---------------------------------------------------------------------------------


def found(url: str, queue: str) -> list[Any]:
    """Return the messages of a queue."""
    with open_store(url) as store:
        return [one for batch in store.peek(queue) for one in messages(batch)]


def payloads(url: str, queue: str) -> list[Any]:
    """Return the payloads of the messages of a queue."""
    return [one.payload for one in found(url, queue)]


def left_behind(url: str, name: str) -> list[Any]:
    """Return what is still staged for queues with a name that begins so."""
    with open_store(url) as store:
        return [one for one in store.staged() if one.queue.startswith(name)]


def forget_ledger(url: str, sink: str) -> None:
    """Remove the ledger of a sink, as if the database had lost it."""
    with open_store(url) as store:
        note = store.note(f"ledger/{sink}")
        assert note is not None
        store.set_note(f"ledger/{sink}", None, note.version)


def change_ledger(url: str, sink: str, **facts: Any) -> None:
    """Change what the ledger of a sink says."""
    with open_store(url) as store:
        note = store.note(f"ledger/{sink}")
        assert note is not None
        store.set_note(f"ledger/{sink}", note.value | facts, note.version)


def batch_in_ledger(url: str, sink: str) -> int | None:
    """Return the last batch of which the ledger of a sink knows."""
    with open_store(url) as store:
        ledger = ledger_of(store, sink)
        return ledger.batch if ledger else None
