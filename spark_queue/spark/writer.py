"""Writes: rows become messages of a queue, or settle those that a query has reserved."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import Row, StructType

from spark_queue import message
from spark_queue.errors import FencedError, MessageError, QueueError, SchemaError, near
from spark_queue.options import QueueOptions
from spark_queue.spark.carried import Carried
from spark_queue.spark.rows import NewIds, batches_of, changes, delays, named, obituary, pushes, together
from spark_queue.spark.schema import PUSH, SETTLE, check_write_schema
from spark_queue.spark.sentence import sentence_first
from spark_queue.spark.worker import Behind
from spark_queue.store import open_store
from spark_queue.store.base import Store
from spark_queue.store.facts import Death
from spark_queue.store.ledger import (
    NOTHING,
    ONE_WRITE,
    Ledger,
    Writer,
    apart,
    begin,
    decided,
    forget,
    inherit,
    ledger_of,
    members,
    publish,
    sink_of,
    stage_of,
)
from spark_queue.store.policy import give_back, history_of, note_settled

log = logging.getLogger(__name__)


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


def _each(batches: Iterable[pa.RecordBatch], write: Callable[[pa.RecordBatch], None]) -> None:
    """Write one batch after the other; while one is written the next is received from Spark."""
    with Behind() as behind:
        for batch in together(batches):
            behind.do(partial(write, batch))


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
            _each(batches, lambda batch: self.write(stores, batch, done))
        return done

    def write(self, stores: _Stores, batch: pa.RecordBatch, done: Written) -> None:
        raise NotImplementedError

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """All tasks have succeeded."""

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Some have not."""


#: Puts rows into a queue of a database, by its name: pushes them, or stages them.
Put = Callable[[str, str, pa.RecordBatch], object]


class Push(_Work):
    """Rows become messages, visible as soon as their batch is pushed."""

    def __init__(self, options: QueueOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        needed = ["payload", *(["ns"] if options.urls else []), *([] if options.queue else ["queue"])]
        check_write_schema(schema, PUSH, needed)
        if "ns" in schema.names and not options.urls:
            raise SchemaError("column 'ns' names one of several databases: set them in option 'urls'", column="ns")

    def write(self, stores: _Stores, batch: pa.RecordBatch, done: Written) -> None:
        self._put(
            batch, lambda ns, queue, rows: stores[ns].push(queue, rows), self._ids(stores, message.new_id_array), done
        )

    def _ids(self, stores: _Stores, made: NewIds) -> NewIds:
        """Makes ids in the form of the database, where there is just one."""
        return made if self.options.urls else lambda n: stores[""].own_ids(made(n))

    def _put(self, batch: pa.RecordBatch, put: Put, new_ids: NewIds, done: Written) -> None:
        rows = pushes(batch, self.schema, self.options.payload_format, new_ids)
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
                    raise _with_remedy(error) from error
                bad = pa.array(list(error.rows))
                reasons = list(error.rows.values())
                put(ns, self.options.dead(queue), obituary(queue, rows.take(bad), reasons))
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
        ns = named(batch, rows, "ns") if urls else pa.scalar("")
        queue = pa.scalar(fixed) if fixed is not None else named(batch, rows, "queue")
        places = pc.binary_join_element_wise(ns, queue, "\0")
        found = places.unique().to_pylist()
        for place in found:
            part = rows if len(found) == 1 else rows.filter(pc.equal(places, place))
            name, _, own = place.partition("\0")
            if urls and name not in urls:
                id = part.column("id")[0].as_py()
                raise MessageError(f"row with id {id!r}: option 'urls' has no database {name!r}{near(name, urls)}")
            yield (name, own), part


def _with_remedy(error: MessageError) -> MessageError:
    """Return the error for rows that cannot become messages; if a payload is not JSON, with what to do about that."""
    if not any(rule.startswith(message.NOT_JSON) for rule in error.rows.values()):
        return error
    remedy = "for plain text set payloadFormat=text; to write columns as JSON, to_json(struct(*)) AS payload"
    return MessageError(f"{error}; {remedy}", **cast("dict[str, Any]", error.facts))


class Publish(Push):
    """Rows become messages exactly once, those of a whole batch together.

    Tasks stage them, each attempt under a stage of its own; on the driver `commit` publishes the stages of the
    attempts that won, by the ledger of the sink. The sink of a streaming query is the query, whose id is the same
    after a restart. That of a batch write is `txnAppId`, in `foreachBatch` with the id of the query, or made for this
    write. Spark may abort a write while some of its
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
        query, batch = task.getLocalProperty("sql.streaming.queryId"), task.getLocalProperty("streaming.sql.batchId")
        if self._once:
            return self._sink, 0
        if not self._streaming:
            return sink_of(self._sink, query), self.options.txn_version or 0
        if query is None or batch is None:
            raise QueueError(
                "exactly-once writes need the ids of the query and the batch, which this version of Spark does not "
                "pass to its tasks: set delivery=at-least-once"
            )
        return query, int(batch)

    def _ledger(self, store: Store, sink: str) -> Ledger | None:
        found = ledger_of(store, sink)
        if found is None and not self._streaming and sink != self._sink:
            inherit(store, self._sink, sink)
            found = ledger_of(store, sink)
        return found

    def _warn_if_skipped(self, store: Store, sink: str, number: int, writer: Writer) -> None:
        """Warn of a batch write that changes nothing, since its number is an older one."""
        if self._once or self._streaming or writer is not Writer.JOB:
            return
        known = ledger_of(store, sink)
        if known is not None and number < known.batch:
            log.warning(
                "txnVersion %d of txnAppId %s is below %d, the last one that was written: nothing was written",
                number, sink, known.batch,
            )  # fmt: skip

    def _members(self, ledgers: Mapping[str, Ledger | None], number: int) -> dict[str, int]:
        """Since which batch each database takes part, where there are several."""
        return members(ledgers.values(), ledgers, number) if self.options.urls else {}

    def _writer(self, sink: str, since: int | None, number: int) -> Writer:
        """Return what a number means: in a database that takes part for the first time there is a gap."""
        if self._streaming and since != number:
            return Writer.STREAM
        return Writer.JOB if self._streaming or sink == self._sink else Writer.FOREACH_BATCH

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
            ledgers = {ns: self._ledger(stores[ns], sink) for ns in stores}
            since = self._members(ledgers, number)
            written = {
                ns: decided(ledger, sink, number, self._writer(sink, since.get(ns), number))
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

            new_ids = self._ids(stores, ids.take)
            _each(batches, lambda batch: self._put(batch, put, new_ids, done))
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
                rows, writer = sum(stages.values()), self._writer(sink, since.get(ns), number)
                self._warn_if_skipped(stores[ns], sink, number, writer)
                publish(stores[ns], sink, number, list(stages), rows, writer, members=since)
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
        delay = delays(batch.column("delay")).fill_null(0) if "delay" in batch.schema.names else pa.array([0] * n)
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
        history = history_of(store, queue, consumer) if options.history is None else options.history
        note_settled(store, queue, consumer, n)
        moving = pc.equal(batch.column("outcome"), "move")
        if moving.true_count:
            self._move(store, batch.filter(moving), done, history)
        for (outcome, later, why), ids in groups.items():
            if outcome == "commit":
                store.commit(queue, consumer, ids, history=history)
            elif outcome == "dead":
                store.move(queue, dead, tag=consumer, ids=ids, death=Death(why, 1, history))
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
                    history=history,
                )
            done.rows += len(ids)

    def _move(self, store: Store, batch: pa.RecordBatch, done: Written, history: int) -> None:
        """Let messages go on to the queues in column `to`, with what other columns say of them that is not NULL."""
        queue, consumer = self.options.queue or "", self.options.consumer or ""
        if "to" not in batch.schema.names or batch.column("to").null_count:
            raise MessageError(f"queue {queue!r}: the outcome 'move' needs the column 'to', which names the queue")
        rows = changes(batch, self.schema, self.options.payload_format)
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
                    death = Death(reason, history=history)
                    store.move(queue, self.options.dead(queue), tag=consumer, ids=ids, death=death)
                bad = pa.array(list(error.rows))
                store.forward(queue, to, consumer, part.filter(pc.invert(pc.is_in(pa.array(range(len(part))), bad))))
                done.dead += len(bad)
                done.rows -= len(bad)
            done.rows += part.num_rows


@sentence_first
class BatchWriter(Carried, DataSourceArrowWriter):
    """`df.write`."""

    def __init__(self, work: _Work) -> None:
        self.work = work

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return self.work.run(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self.work.commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self.work.abort(messages)


@sentence_first
class RowWriter(Carried, DataSourceStreamWriter):
    """`df.writeStream` on Spark 4.0, which gives rows."""

    def __init__(self, work: _Work) -> None:
        self.work = work

    def write(self, iterator: Iterator[Row]) -> Written:
        return self.work.run(batches_of(iterator, self.work.schema))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        self.work.commit(messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        self.work.abort(messages)


try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter

    @sentence_first
    class StreamWriter(DataSourceStreamArrowWriter, RowWriter):
        """`df.writeStream`, which gives Arrow batches."""

        def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
            return self.work.run(iterator)

except ImportError:  # Spark 4.0
    StreamWriter = RowWriter  # type: ignore[misc, assignment]
