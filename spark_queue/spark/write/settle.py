"""Writes with `operation=settle`: each row settles a message of the batch that a query works on.

The batch is looked up once, when the write is planned. Spark may run a task twice, and an attempt
may still run when its batch has ended. By then the consumer may have reserved the same messages
again. A task settles only under the tag of its own batch, so such an attempt changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from spark_queue.errors import MessageError, OptionError, did_you_mean
from spark_queue.messages.rules import delay_rules
from spark_queue.options.queue_options import QueueOptions
from spark_queue.spark.encode import delays_ms, encode_changes, filter_encoded
from spark_queue.spark.schema import SETTLE_COLUMN_TYPES, check_write_schema
from spark_queue.spark.write.data_writers import WriteOperation, WriteResult
from spark_queue.stores import open_store
from spark_queue.stores.base import Store, rejected_rows_error
from spark_queue.stores.named import NamedStores
from spark_queue.stores.services.dead_letters import add_settled, history_of, roll_back_or_dead_letter
from spark_queue.stores.services.owner import consumers, started_batches
from spark_queue.stores.types import DeadLetterInfo

SETTLE_OUTCOMES = ("commit", "rollback", "dead", "move")


class Settle(WriteOperation):
    """Settles messages of the batch, one per row: `commit`, `rollback`, `dead` or `move`.

    Raises `SchemaError` if the columns do not fit. Raises `OptionError` if the layout cannot move
    messages as column `to` says, or if no query of this consumer works on a batch.
    """

    def __init__(self, options: QueueOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        check_write_schema(schema, SETTLE_COLUMN_TYPES, required=["id", "outcome"])
        self._queue, self._consumer = options.queue or "", options.consumer or ""
        with open_store(options.url, retry_timeout=options.retry_timeout) as store:
            if "to" in schema.names:  # only a move needs it; what the rows do is not known before the tasks run
                store.check_forward()
            self._tags = started_batches(store, self._queue, self._consumer)
            if not self._tags:
                raise self._no_batch_error(store)

    def _no_batch_error(self, store: Store) -> OptionError:
        """Return the error for a write outside of a batch."""
        names = {consumer.partition("/")[0] for _, consumer, owner in consumers(store, self._queue) if owner}
        return OptionError(
            f"option 'consumer': no query that reads queue {self._queue!r} as consumer {self._consumer!r} works on a "
            f"batch{did_you_mean(self._consumer, names)}. Set the same option 'consumer' where the query reads it, "
            "and settle in its foreachBatch or with its writeStream. Outside of a query, settle with spark-queue "
            "commit or rollback, or with Queue",
            option="consumer",
        )

    def write(self, stores: NamedStores, batch: pa.RecordBatch, done: WriteResult) -> None:
        store, options, queue = stores[""], self.options, self._queue
        groups = self._group_ids(batch)
        history = history_of(store, queue, self._consumer) if options.history is None else options.history
        add_settled(store, queue, self._consumer, batch.num_rows)
        moving = batch.filter(pc.equal(batch.column("outcome"), "move"))
        dead = options.dead_letter_queue_of(queue)
        retry: dict[str, Any] = {"max_tries": options.max_tries, "dead": dead, "history": history}
        buried = 0
        for tag in self._tags:
            if moving.num_rows:
                buried += self._move(store, tag, moving, history)
            for (outcome, delay, reason), ids in groups.items():
                if outcome == "commit":
                    store.commit(queue, tag, ids, history=history)
                elif outcome == "dead":
                    store.move(queue, dead, tag=tag, ids=ids, dead_letter=DeadLetterInfo(reason, 1, history))
                else:
                    roll_back_or_dead_letter(store, queue, tag, ids, delay=delay, reason=reason, **retry)
        done.rows += batch.num_rows - buried
        done.dead_letters += buried

    def _group_ids(self, batch: pa.RecordBatch) -> dict[tuple[str, int, str | None], list[str]]:
        """Return the ids by outcome, delay (ms) and reason, without the outcome `move`.

        Raises `MessageError` if an outcome is unknown, or a delay negative or too long.
        """
        n, queue = batch.num_rows, self._queue
        delay = delays_ms(batch.column("delay")).fill_null(0) if "delay" in batch.schema.names else pa.array([0] * n)
        reason = batch.column("reason") if "reason" in batch.schema.names else pa.nulls(n, pa.string())
        settled = pc.not_equal(batch.column("outcome"), "move")  # the delay of a move is that of its new message
        for wrong, rule in delay_rules(delay):
            row = pc.index(pc.and_(wrong, settled), True).as_py()
            if row >= 0:
                id = batch.column("id")[row].as_py()
                raise MessageError(f"queue {queue!r}, row with id {id!r}: {rule}", queue=queue)
        groups: dict[tuple[str, int, str | None], list[str]] = {}
        columns = (batch.column("id"), batch.column("outcome"), delay, reason)
        for id, outcome, delay_ms, why in zip(*(one.to_pylist() for one in columns), strict=True):
            if outcome not in SETTLE_OUTCOMES:
                rule = f"outcome {outcome!r} must be one of {', '.join(SETTLE_OUTCOMES)}"
                raise MessageError(f"queue {queue!r}, row with id {id!r}: {rule}", queue=queue)
            if outcome == "move":
                continue
            groups.setdefault((outcome, delay_ms, why), []).append(id)
        return groups

    def _move(self, store: Store, tag: str, batch: pa.RecordBatch, history: int) -> int:
        """Move messages to the queues in column `to`; change the fields whose columns are not NULL.

        Return the number of messages that became dead letters, since they cannot be moved. Raises
        `MessageError` instead with `onBadRow=fail`, and if `to` is missing or NULL.
        """
        queue, dead = self._queue, 0
        if "to" not in batch.schema.names or batch.column("to").null_count:
            raise MessageError(f"queue {queue!r}: the outcome 'move' needs the column 'to', which names the queue")
        rows, faults = encode_changes(batch, self.schema, self.options.payload_format)
        for to in batch.column("to").unique().to_pylist():
            part, wrong = filter_encoded(rows, faults, pc.equal(batch.column("to"), to))
            if fault := self._fault_of_target(store, to):
                wrong = dict.fromkeys(range(len(part)), fault)
            while part.num_rows:
                try:
                    if wrong:
                        raise rejected_rows_error(queue, part, wrong)
                    store.forward(queue, to, tag, part)
                except MessageError as error:  # may repeat: a store checks its own rules after the common ones
                    if self.options.on_bad_row == "fail" or not error.rows:
                        raise
                    self._bury(store, tag, part, error.rows, history)
                    bad = pa.array(list(error.rows))
                    part, wrong = part.filter(pc.invert(pc.is_in(pa.array(range(len(part))), bad))), {}
                    dead += len(bad)
                else:
                    break
        return dead

    def _fault_of_target(self, store: Store, to: str) -> str:
        """Return why no message can move to the queue `to`; empty if it can."""
        if to == self._queue:
            return "its 'to' is the queue that it comes from"
        try:
            store.check_queue(to)
        except OptionError as error:
            return f"its 'to' is no queue: {error}"
        return ""

    def _bury(self, store: Store, tag: str, rows: pa.RecordBatch, wrong: Mapping[int, str], history: int) -> None:
        """Move the messages of bad rows to the dead-letter queue, with the rule that it breaks."""
        reasons: dict[str, list[str]] = {}
        for row, reason in wrong.items():
            reasons.setdefault(reason, []).append(rows.column("id")[row].as_py())
        for reason, ids in reasons.items():
            death = DeadLetterInfo(reason, history=history)
            dead = self.options.dead_letter_queue_of(self._queue)
            store.move(self._queue, dead, tag=tag, ids=ids, dead_letter=death)
