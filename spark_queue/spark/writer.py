"""Writes: rows become messages of a queue, or settle those that a query has reserved."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    MapType,
    Row,
    StringType,
    StructField,
    StructType,
    VariantType,
)
from pyspark.sql.variant_utils import VariantUtils

from spark_queue import message
from spark_queue.errors import FencedError, MessageError, QueueError, SchemaError, near
from spark_queue.options import QueueOptions
from spark_queue.spark.schema import PUSH, SETTLE, arrow_schema, check_write_schema
from spark_queue.spark.typed import json_texts
from spark_queue.store import open_store
from spark_queue.store.base import Store
from spark_queue.store.facts import Death
from spark_queue.store.ledger import (
    NOTHING,
    ONE_WRITE,
    Ledger,
    apart,
    begin,
    decided,
    forget,
    ledger_of,
    members,
    publish,
    stage_of,
)
from spark_queue.store.policy import give_back, note_settled

#: Rows of a batch that is made of single rows (Spark 4.0 gives a streaming writer nothing else).
ROWS = 10_000

#: Bytes kept of a payload that is too large for its queue and goes to the dead-letter queue.
KEPT = 1 << 20


@dataclass
class Written(WriterCommitMessage):
    """What one task did: `rows` as asked, `dead` of bad rows to the dead-letter queue.

    Exactly once, they lie in `stage`, for batch `batch` of `sink`: so many in each of these databases (`staged`).
    """

    rows: int = 0
    dead: int = 0
    sink: str = ""
    batch: int = 0
    stage: str = ""
    staged: dict[str, int] = field(default_factory=dict)


class _Stores(AbstractContextManager["_Stores"]):
    """The databases that a write reaches, by name, each opened when it is first needed. A single one has no name.

    Of several names with the same URL the first one is that of the database.
    """

    def __init__(self, options: QueueOptions) -> None:
        self._urls = options.urls or {"": options.url}
        self._layout = options.record_layout
        self._patience = options.retry_timeout / 1000
        self._open: dict[str, Store] = {}

    def home(self, name: str) -> str:
        """The name of the database that is called so."""
        return next(one for one, url in self._urls.items() if url == self._urls[name])

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(map(self.home, self._urls)))

    def __getitem__(self, name: str) -> Store:
        if name not in self._open:
            self._open[name] = open_store(self._urls[name], patience=self._patience)
            self._open[name].layout = self._layout
        return self._open[name]

    def __exit__(self, *_: object) -> None:
        for store in self._open.values():
            store.close()


class _Work:
    """What a write does with a batch, whatever kind of write Spark asked for.

    Facts only: it travels to the executors.
    """

    def __init__(self, options: QueueOptions, schema: StructType) -> None:
        self.options = options
        self.schema = schema

    def run(self, batches: Iterable[pa.RecordBatch]) -> Written:
        done = Written()
        with _Stores(self.options) as stores:
            for batch in batches:
                if batch.num_rows:
                    self.write(stores, batch, done)
        return done

    def write(self, stores: _Stores, batch: pa.RecordBatch, done: Written) -> None:
        raise NotImplementedError

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """All tasks have succeeded."""

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Some have not."""


#: Puts rows into a queue of a database, by its name: pushes them, or stages them.
Put = Callable[[str, str, pa.RecordBatch], object]

#: Makes so many ids.
NewIds = Callable[[int], pa.Array]


class Push(_Work):
    """Rows become messages, visible as soon as their batch is pushed."""

    def __init__(self, options: QueueOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        needed = ["payload", *(["ns"] if options.urls else []), *([] if options.queue else ["queue"])]
        check_write_schema(schema, PUSH, needed)
        if "ns" in schema.names and not options.urls:
            raise SchemaError("column 'ns' names one of several databases: give them in option 'urls'", column="ns")

    def write(self, stores: _Stores, batch: pa.RecordBatch, done: Written) -> None:
        self._put(
            batch, lambda ns, queue, rows: stores[ns].push(queue, rows), self._ids(stores, message.new_id_array), done
        )

    def _ids(self, stores: _Stores, made: NewIds) -> NewIds:
        """Makes ids in the form of the database, where there is just one."""
        return made if self.options.urls else lambda n: stores[""].own_ids(made(n))

    def _put(self, batch: pa.RecordBatch, put: Put, new_ids: NewIds, done: Written) -> None:
        rows = _pushes(batch, self.schema, self.options.payload_format, new_ids)
        for (ns, queue), part in self._by_queue(batch, rows):
            dead = self._put_sound(put, ns, queue, part)
            done.rows += part.num_rows - dead
            done.dead += dead

    def _put_sound(self, put: Put, ns: str, queue: str, rows: pa.RecordBatch) -> int:
        """Put the rows, and bury those that cannot become messages, if that is wanted; give the number buried."""
        buried = 0
        while True:
            try:
                put(ns, queue, rows)
            except MessageError as error:  # a store may find more once the rules of all stores are kept
                if self.options.on_bad_row == "fail" or not error.rows:
                    raise
                bad = pa.array(list(error.rows))
                reasons = list(error.rows.values())
                put(ns, self.options.dead(queue), _obituary(queue, rows.take(bad), reasons))
                rows = rows.filter(pc.invert(pc.is_in(pa.array(range(rows.num_rows)), bad)))
                buried += len(bad)
            else:
                return buried

    def _by_queue(
        self, batch: pa.RecordBatch, rows: pa.RecordBatch
    ) -> Iterator[tuple[tuple[str, str], pa.RecordBatch]]:
        """The rows of each queue, by the name of its database and its own."""
        fixed, urls = self.options.queue, self.options.urls
        if fixed is not None and urls is None:
            yield ("", fixed), rows
            return
        ns = _named(batch, rows, "ns") if urls else pa.scalar("")
        queue = pa.scalar(fixed) if fixed is not None else _named(batch, rows, "queue")
        places = pc.binary_join_element_wise(ns, queue, "\0")
        found = places.unique().to_pylist()
        for place in found:
            part = rows if len(found) == 1 else rows.filter(pc.equal(places, place))
            name, _, own = place.partition("\0")
            if urls and name not in urls:
                id = part.column("id")[0].as_py()
                raise MessageError(f"row with id {id!r}: option 'urls' has no database {name!r}{near(name, urls)}")
            yield (name, own), part


class Publish(Push):
    """Rows become messages exactly once, those of a whole batch together.

    Tasks stage them, each attempt under a stage of its own; on the driver `commit` publishes the stages of the
    attempts that won, by the ledger of the sink. The sink of a streaming query is the query (its id outlives
    restarts), that of a batch write is `txnAppId`, or made for this write. Spark may abort a write while some of its
    tasks still run: what they stage then for a sink that is no more, they drop themselves.
    """

    def __init__(self, options: QueueOptions, schema: StructType, *, streaming: bool) -> None:
        super().__init__(options, schema)
        self._streaming = streaming
        self._once = not streaming and options.txn_app_id is None
        self._sink = options.txn_app_id or f"{ONE_WRITE}{uuid.uuid4().hex}"
        if self._once:
            with _Stores(options) as stores:
                for ns in stores:
                    begin(stores[ns], self._sink)

    def _place(self, task: TaskContext) -> tuple[str, int]:
        """The sink and the number of the batch."""
        if not self._streaming:
            return self._sink, self.options.txn_version or 0
        query, batch = task.getLocalProperty("sql.streaming.queryId"), task.getLocalProperty("streaming.sql.batchId")
        if query is None or batch is None:
            raise QueueError(
                "Spark does not tell this task its query and batch, so it cannot be written exactly once"
            )
        return query, int(batch)

    def _members(self, ledgers: Mapping[str, Ledger | None], number: int) -> dict[str, int]:
        """Since which batch each database takes part, where there are several."""
        return members(ledgers.values(), ledgers, number) if self.options.urls else {}

    def _strict(self, since: int | None, number: int) -> bool:
        """Whether a database must know the batch before this one: not where it takes part for the first time."""
        return self._streaming and since != number

    def run(self, batches: Iterable[pa.RecordBatch]) -> Written:
        task = TaskContext.get()
        if task is None:
            raise QueueError("exactly-once writes run in Spark's tasks only")
        sink, number = self._place(task)
        part = f"{sink}/{number}/{task.partitionId()}"
        ids = message.DerivedIds(part)
        stage = stage_of(sink, number, f"{task.partitionId():06}-{uuid.uuid4().hex[:12]}")
        done = Written(sink=sink, batch=number, stage=stage)
        with _Stores(self.options) as stores:
            ledgers = {ns: ledger_of(stores[ns], sink) for ns in stores}
            since = self._members(ledgers, number)
            written = {
                ns: decided(ledger, sink, number, strict=self._strict(since.get(ns), number))
                for ns, ledger in ledgers.items()
            }
            if all(written.values()):
                return done

            def put(ns: str, queue: str, rows: pa.RecordBatch) -> None:
                ns = stores.home(ns)
                store = stores[ns]
                if written[ns]:
                    return
                store.stage(queue, stage, rows)
                done.staged[ns] = done.staged.get(ns, 0) + rows.num_rows
                if self._once and ledger_of(store, sink) is None:
                    store.unstage(stage)
                    raise FencedError(f"sink {sink!r}: its write has ended without this task", sink=sink)

            for batch in batches:
                if batch.num_rows:
                    self._put(batch, put, self._ids(stores, ids.take), done)
        return done

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        told = [one for one in messages if isinstance(one, Written)]
        if not told:
            return
        sink, number = told[0].sink, told[0].batch
        with _Stores(self.options) as stores:
            ledgers = apart({ns: stores[ns] for ns in stores}, sink) if self.options.urls else {}
            since = self._members(ledgers, number)
            for ns in stores:
                stages = {one.stage: one.staged[ns] for one in told if ns in one.staged}
                rows, strict = sum(stages.values()), self._strict(since.get(ns), number)
                publish(stores[ns], sink, number, list(stages), rows, strict=strict, members=since)
            if self._once:
                for ns in stores:
                    forget(stores[ns], sink)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        told = [one for one in messages if isinstance(one, Written)]
        sink = told[0].sink if told else self._sink
        with _Stores(self.options) as stores:
            for ns in stores:
                self._abort(stores[ns], sink, [one.stage for one in told if ns in one.staged])

    def _abort(self, store: Store, sink: str, stages: Sequence[str]) -> None:
        ledger = ledger_of(store, sink)
        if self._once and (ledger is None or ledger.batch == NOTHING):
            forget(store, sink)
            return
        for stage in stages:
            # Only what is known as this run's: another run of the query may stage the same batch just now. And what
            # the ledger names is still to be published.
            if ledger is None or stage not in ledger.stages:
                store.unstage(stage)


class Settle(_Work):
    """Rows say what becomes of messages that the consumer holds: `commit`, `rollback`, `dead`, `move`."""

    OUTCOMES = ("commit", "rollback", "dead", "move")

    def __init__(self, options: QueueOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        check_write_schema(schema, SETTLE, needed=["id", "outcome"])

    def write(self, stores: _Stores, batch: pa.RecordBatch, done: Written) -> None:
        store, options = stores[""], self.options
        queue, consumer = options.queue or "", options.consumer or ""
        n = batch.num_rows
        delay = _delay(batch.column("delay")).fill_null(0) if "delay" in batch.schema.names else pa.array([0] * n)
        reason = batch.column("reason") if "reason" in batch.schema.names else pa.nulls(n, pa.string())
        groups: dict[tuple[Any, ...], list[str]] = {}
        columns = (batch.column("id"), batch.column("outcome"), delay, reason)
        for id, outcome, later, why in zip(*(one.to_pylist() for one in columns), strict=True):
            if outcome not in self.OUTCOMES:
                raise MessageError(
                    f"queue {queue!r}, row with id {id!r}: outcome {outcome!r} must be one of "
                    f"{', '.join(self.OUTCOMES)}",
                    queue=queue,
                )
            if outcome == "move":  # all of them together, and checked as messages are
                continue
            if later < 0:
                raise MessageError(f"queue {queue!r}, row with id {id!r}: its delay is negative", queue=queue)
            groups.setdefault((outcome, later, why), []).append(id)
        dead = options.dead(queue)
        note_settled(store, queue, consumer, n)
        moving = pc.equal(batch.column("outcome"), "move")
        if moving.true_count:
            self._move(store, batch.filter(moving), done)
        for (outcome, later, why), ids in groups.items():
            if outcome == "commit":
                store.commit(queue, consumer, ids, history=options.history)
            elif outcome == "dead":
                store.move(queue, dead, tag=consumer, ids=ids, death=Death(why, 1, options.history))
            else:
                give_back(
                    store,
                    queue,
                    consumer,
                    ids,
                    delay=later,
                    max_tries=options.max_tries,
                    dead=dead,
                    reason=why,
                    history=options.history,
                )
            done.rows += len(ids)

    def _move(self, store: Store, batch: pa.RecordBatch, done: Written) -> None:
        """Let messages go on to the queues in column `to`, with what other columns say of them that is not NULL."""
        queue, consumer = self.options.queue or "", self.options.consumer or ""
        if "to" not in batch.schema.names or batch.column("to").null_count:
            raise MessageError(f"queue {queue!r}: the outcome 'move' needs the column 'to', which tells the queue")
        rows = _changes(batch, self.schema, self.options.payload_format)
        for to in batch.column("to").unique().to_pylist():
            part = rows.filter(pc.equal(batch.column("to"), to))
            try:
                store.forward(queue, to, consumer, part)
            except MessageError as error:
                if self.options.on_bad_row == "fail" or not error.rows:
                    raise
                reasons: dict[str, list[str]] = {}
                for row, reason in error.rows.items():
                    reasons.setdefault(reason, []).append(part.column("id")[row].as_py())
                for reason, ids in reasons.items():
                    death = Death(reason, history=self.options.history)
                    store.move(queue, self.options.dead(queue), tag=consumer, ids=ids, death=death)
                bad = pa.array(list(error.rows))
                store.forward(queue, to, consumer, part.filter(pc.invert(pc.is_in(pa.array(range(len(part))), bad))))
                done.dead += len(bad)
                done.rows -= len(bad)
            done.rows += part.num_rows


class BatchWriter(DataSourceArrowWriter):
    """`df.write`."""

    def __init__(self, work: _Work) -> None:
        self.work = work

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return self.work.run(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self.work.commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self.work.abort(messages)


class RowWriter(DataSourceStreamWriter):
    """`df.writeStream` on Spark 4.0, which gives rows."""

    def __init__(self, work: _Work) -> None:
        self.work = work

    def write(self, iterator: Iterator[Row]) -> Written:
        return self.work.run(_batches(iterator, self.work.schema))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        self.work.commit(messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        self.work.abort(messages)


try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter

    class StreamWriter(DataSourceStreamArrowWriter, RowWriter):
        """`df.writeStream`, which gives Arrow batches."""

        def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
            return self.work.run(iterator)

except ImportError:  # Spark 4.0
    StreamWriter = RowWriter  # type: ignore[misc, assignment]


# --- rows into messages -----------------------------------------------------------------------------------------


def _pushes(batch: pa.RecordBatch, schema: StructType, form: str | None, new_ids: NewIds) -> pa.RecordBatch:
    """A batch of Spark's as a PUSHES batch.

    A NULL id gets a new one, NULL tries are 0.
    """
    n = batch.num_rows
    has = set(batch.schema.names)
    payload, kinds = _payload(batch.column("payload"), schema["payload"].dataType, form)
    ids = batch.column("id") if "id" in has else pa.nulls(n, pa.string())
    if ids.null_count:
        ids = new_ids(n) if ids.null_count == n else pc.coalesce(ids, new_ids(n))
    tries = batch.column("tries").cast(pa.int64()).fill_null(0) if "tries" in has else pa.array([0] * n, pa.int64())
    if pc.any(pc.greater(tries, 2**31 - 1)).as_py():
        row = pc.index(pc.greater(tries, 2**31 - 1), True).as_py()
        raise MessageError(f"row with id {ids[row].as_py()!r}: its tries is beyond 2147483647", rows={row: "tries"})
    return pa.RecordBatch.from_arrays(
        [
            ids,
            payload,
            kinds,
            _headers(batch.column("headers")) if "headers" in has else message.no_headers(n),
            batch.column("mature") if "mature" in has else pa.nulls(n, pa.timestamp("us", tz="UTC")),
            _delay(batch.column("delay")) if "delay" in has else pa.nulls(n, pa.int64()),
            tries.cast(pa.int32()),
        ],
        schema=message.PUSHES,
    )


def _changes(batch: pa.RecordBatch, schema: StructType, form: str | None) -> pa.RecordBatch:
    """A batch of Spark's as a PUSHES batch of messages that are there: what is NULL or missing stays what it is."""
    if "payload" not in batch.schema.names:
        batch = batch.append_column("payload", pa.nulls(batch.num_rows, pa.string()))
        schema = StructType([*schema.fields, StructField("payload", StringType())])
    rows = _pushes(batch, schema, form, message.new_id_array)
    if "headers" in batch.schema.names:
        return rows
    place = message.PUSHES.get_field_index("headers")
    return rows.set_column(place, message.PUSHES.field(place), pa.nulls(len(rows), message.PUSHES.field(place).type))


def _named(batch: pa.RecordBatch, rows: pa.RecordBatch, column: str) -> pa.Array:
    """The column that names where rows go. Raises `MessageError` where it does not."""
    names = batch.column(column)
    if names.null_count:
        id = rows.column("id")[pc.index(names.is_null(), True).as_py()].as_py()
        hint = ", and the option 'queue' is not set" if column == "queue" else ""
        raise MessageError(f"row with id {id!r}: its {column} is NULL{hint}")
    return names


def _payload(column: pa.Array, kind: DataType, form: str | None) -> tuple[pa.Array, pa.Array]:
    """Payloads, and the kind of each."""
    if isinstance(kind, StructType | MapType | ArrayType):
        return message.of_json(json_texts(column, kind))
    if isinstance(kind, VariantType):
        texts = [
            None if one is None else VariantUtils.to_json(one["value"], one["metadata"]).encode()
            for one in column.to_pylist()
        ]
        return message.of_json(pa.array(texts, pa.binary()))
    payload = column.cast(pa.binary())
    if form is None:
        form = "json" if isinstance(kind, StringType) else "binary"
    if form in ("json", "variant"):
        return message.of_json(payload)
    return payload, pa.repeat(form, len(payload))


def _headers(column: pa.Array) -> pa.Array:
    return column.cast(message.PUSHES.field("headers").type)


def _delay(column: pa.Array) -> pa.Array:
    """An interval, or a number of seconds, in ms."""
    if pa.types.is_duration(column.type):
        return pc.divide(column.cast(pa.duration("us")).cast(pa.int64()), 1000)
    if pa.types.is_integer(column.type):
        return pc.multiply(column.cast(pa.int64()), 1000)
    seconds = column.cast(pa.float64())
    ms = pc.multiply(seconds, 1000)
    # What no integer holds (infinity, not a number, too large) is beyond every bound, and refused as such.
    bounded = pc.if_else(pc.less(pc.abs(ms), 1e15), ms, pc.if_else(pc.less(ms, 0), -1e15, 1e15))
    return pc.round(bounded).cast(pa.int64())


def _obituary(queue: str, rows: pa.RecordBatch, reasons: Sequence[str]) -> pa.RecordBatch:
    """Rows that could not become messages of `queue`, in a form that any queue takes."""
    made: list[dict[str, Any]] = []
    broken = message.broken_by_ids(rows.column("id"))
    no_ids = {number for bad, _ in broken for number in pc.indices_nonzero(bad).to_pylist()}
    for number, (row, reason) in enumerate(zip(rows.to_pylist(), reasons, strict=True)):
        payload, kind = row["payload"], row["payload_kind"]
        headers = {key: value for key, value in row["headers"] or () if value is not None}
        headers |= {"x-error": reason, "x-dl-from-queue": queue}
        if payload is None:
            payload, kind = b"", "text"
        if len(payload) > KEPT:
            headers["x-dl-size"] = str(len(payload))
            payload, kind = payload[:KEPT], "binary"
        if kind != "binary":
            try:
                payload.decode()
                kind = "text"
            except UnicodeDecodeError:
                kind = "binary"
        id = row["id"]
        if number in no_ids:
            headers["x-dl-id"], (id,) = id or "", message.new_ids(1)
        made.append(
            {"id": id, "payload": payload, "payload_kind": kind, "headers": list(headers.items()), "tries": 0}
        )
    return pa.RecordBatch.from_pylist(made, schema=message.PUSHES)


def _batches(rows: Iterator[Row], schema: StructType) -> Iterator[pa.RecordBatch]:
    target = arrow_schema(schema)
    while part := list(islice(rows, ROWS)):
        columns = [
            pa.array([_arrow_value(row[i], field.dataType) for row in part], target.field(i).type)
            for i, field in enumerate(schema.fields)
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=target)


def _arrow_value(value: Any, kind: DataType) -> Any:
    """What Arrow makes a value of a Spark row of."""
    if value is None:
        return None
    match kind:
        case StructType():
            return {one.name: _arrow_value(value[one.name], one.dataType) for one in kind.fields}
        case ArrayType():
            return [_arrow_value(one, kind.elementType) for one in value]
        case MapType():
            return [
                (_arrow_value(key, kind.keyType), _arrow_value(one, kind.valueType)) for key, one in value.items()
            ]
        case VariantType():
            return {"value": value.value, "metadata": value.metadata}
        case BinaryType():
            return bytes(value)
    return value
