"""Exactly-once writes: a batch becomes visible as a whole, and once, even if it is replayed."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from functools import partial

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from spark_queue.errors import FencedError, QueueError
from spark_queue.messages.ids import DerivedIds
from spark_queue.options.queue_options import QueueOptions
from spark_queue.spark.task_context import batch_id_of, is_batch_job, query_id_of
from spark_queue.spark.write.data_writers import Push, WriteResult, stores_of, write_each
from spark_queue.stores.named import NamedStores
from spark_queue.stores.services.ageing import remove_old_notes
from spark_queue.stores.services.ledger import (
    NO_BATCH,
    ONE_WRITE_PREFIX,
    Writer,
    create_ledger,
    delete_sink,
    inherit_ledger,
    ledger_of,
    sink_of,
    stage_of,
)
from spark_queue.stores.services.publishing import Publisher
from spark_queue.stores.services.row_hashes import hash_rows
from spark_queue.stores.services.sink_ledgers import Ledgers, read_ledgers


class Publish(Push):
    """Publishes the rows of a batch as messages: all at once, and exactly once.

    Each attempt of a task stages its rows under its own stage. On the driver, `commit` publishes
    the stages of the attempts that won, using the ledger of the sink.

    The sink of a streaming query is the id of the query, which a restart keeps. The sink of a batch
    write is `txnAppId`; in `foreachBatch` the id of the query is added. Without `txnAppId`, a batch
    write gets a sink of its own. Spark may abort a write while some of its tasks still run. A task
    that stages rows for a removed sink drops them itself.

    A batch that was written is not staged again. With `replayCheck=rows`, its tasks return the
    hashes of its rows, and `commit` compares them with those that were written.
    """

    def __init__(self, options: QueueOptions, schema: StructType, *, streaming: bool) -> None:
        super().__init__(options, schema)
        self._streaming = streaming
        self._single_write = not streaming and options.txn_app_id is None
        self._compares_rows = options.replay_check == "rows" and not self._single_write
        self._sink = options.txn_app_id or f"{ONE_WRITE_PREFIX}{uuid.uuid4().hex}"
        if self._single_write:
            with stores_of(options) as stores:
                for ns in stores.primary_names:
                    create_ledger(stores[ns], self._sink)

    def run(self, batches: Iterable[pa.RecordBatch]) -> WriteResult:
        task = TaskContext.get()
        if task is None:
            raise QueueError("exactly-once writes run in Spark's tasks only")
        sink, number = self._sink_and_batch(task)
        ids = DerivedIds(f"{sink}/{number}/{task.partitionId()}")
        stage = stage_of(sink, number, f"{task.partitionId():06}-{uuid.uuid4().hex[:12]}")
        done = WriteResult(sink=sink, batch=number, stage=stage, batch_job=is_batch_job(task))
        with stores_of(self.options) as stores:
            ledgers = self._load_ledgers(stores, sink)
            decided = ledgers.is_decided(number, self._writer(done.batch_job))
            hashes: list[bytes] = []
            new_ids = self._make_new_ids(stores, ids.take)

            def write(batch: pa.RecordBatch) -> None:
                for part in self._split_by_queue(stores, batch, new_ids):
                    if self._compares_rows:
                        hashes.append(hash_rows(part.queue or "", part.rows))
                    if not decided:
                        self._put(partial(put, stores.primary_name(part.ns)), part, done)

            def put(ns: str, queue: str, rows: pa.RecordBatch) -> None:
                store = stores[ns]
                store.stage(queue, stage, rows)
                done.staged_rows[ns] = done.staged_rows.get(ns, 0) + rows.num_rows
                if self._single_write and ledger_of(store, sink) is None:
                    store.unstage(stage)
                    raise FencedError(f"sink {sink!r}: its write has ended without this task", sink=sink)

            if self._compares_rows or not decided:
                write_each(batches, write)
            done.hashes = b"".join(hashes)
        return done

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        tasks = _task_results(messages)
        if not tasks:
            return
        sink, number, batch_job = tasks[0].sink, tasks[0].batch, tasks[0].batch_job
        with stores_of(self.options) as stores:
            primary = {ns: stores[ns] for ns in stores.primary_names}
            rows = {ns: sum(one.staged_rows.get(ns, 0) for one in tasks) for ns in primary}
            stages = [one.stage for one in tasks if one.staged_rows]
            hashes = b"".join(one.hashes for one in tasks) if self._compares_rows else None
            Publisher(primary, sink).publish_batch(number, stages, rows, self._writer(batch_job), hashes=hashes)
            for ns in stores.primary_names:
                if self._single_write:
                    delete_sink(stores[ns], sink)
                if number == 0:  # batch 0 made a new ledger, or one for this write alone
                    remove_old_notes(stores[ns])

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        tasks = _task_results(messages)
        sink = tasks[0].sink if tasks else self._sink
        with stores_of(self.options) as stores:
            ledgers = {ns: ledger_of(stores[ns], sink) for ns in stores.primary_names}  # all, before anything is lost
            if self._single_write and all(one is None or one.batch == NO_BATCH for one in ledgers.values()):
                for ns in ledgers:
                    delete_sink(stores[ns], sink)
                return
            # Only stages of this run: another run of the query may be staging the same batch.
            # Stages in a ledger are still to be published.
            decided = {stage for one in ledgers.values() if one for stage in one.stages}
            for one in tasks:
                for ns in one.staged_rows if one.stage not in decided else ():
                    stores[ns].unstage(one.stage)

    def _sink_and_batch(self, task: TaskContext) -> tuple[str, int]:
        """Return the sink and the number of the batch.

        Raises `QueueError` if Spark does not pass the ids of the query and the batch.
        """
        query, batch = query_id_of(task), batch_id_of(task)
        if self._single_write:
            return self._sink, 0
        if not self._streaming:
            return sink_of(self._sink, query), self.options.txn_version or 0
        if query is None or batch is None:
            raise QueueError(
                "exactly-once writes need the ids of the query and the batch, which this version of Spark does not "
                "pass to its tasks: set delivery=at-least-once"
            )
        return query, batch

    def _load_ledgers(self, stores: NamedStores, sink: str) -> Ledgers:
        primary = {ns: stores[ns] for ns in stores.primary_names}
        found = read_ledgers(primary, sink)
        if not self._streaming and sink != self._sink and None in found.found.values():
            for ns in primary:
                inherit_ledger(stores[ns], self._sink, sink)
            found = read_ledgers(primary, sink)
        return found

    def _writer(self, batch_job: bool) -> Writer:
        """Return the kind of writer."""
        if self._streaming:
            return Writer.STREAM
        return Writer.JOB if batch_job else Writer.FOREACH_BATCH


def _task_results(messages: Sequence[WriterCommitMessage | None]) -> list[WriteResult]:
    """Return the results of tasks; Spark passes `None` for a task that failed."""
    return [one for one in messages if isinstance(one, WriteResult)]
