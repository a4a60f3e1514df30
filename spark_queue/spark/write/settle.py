"""Writes with `operation=settle`: each row settles a message of the batch that a query works on.

The batch is looked up once, when the write is planned. Spark may run a task twice, and an attempt
may still run when its batch has ended. By then the consumer may have reserved the same messages
again. A task settles only under the tag of its own batch, so such an attempt changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StringType, StructField, StructType

from spark_queue.errors import MessageError, OptionError, did_you_mean, plural
from spark_queue.messages.dead_letter import put_letters
from spark_queue.messages.rules import delay_rules, is_utf8
from spark_queue.options.queue_options import QueueOptions
from spark_queue.spark.encode import dead_letters_of, delays_ms, encode_changes, filter_encoded
from spark_queue.spark.write.columns import SETTLE_COLUMN_TYPES, check_write_schema
from spark_queue.spark.write.data_writers import WriteOperation, WriteResult
from spark_queue.stores import open_store
from spark_queue.stores.base import Store, rejected_rows_error
from spark_queue.stores.named import NamedStores
from spark_queue.stores.services.dead_letters import add_settled, history_of, roll_back_or_dead_letter
from spark_queue.stores.services.owner import consumers, started_batches
from spark_queue.stores.types import DeadLetterInfo

SETTLE_OUTCOMES = ("commit", "rollback", "dead", "move")

#: How the rules begin for a row that names no message.
BAD_ID = "its id is"


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
        history = history_of(store, queue, self._consumer) if options.history is None else options.history
        rows = batch.num_rows
        batch, buried = self._without_bad_rows(store, batch, history)
        groups = _group_ids(batch)
        add_settled(store, queue, self._consumer, batch.num_rows)
        moving = batch.filter(pc.equal(batch.column("outcome"), "move"))
        dead = options.dead_letter_queue_of(queue)
        retry: dict[str, Any] = {"max_tries": options.max_tries, "dead": dead, "history": history}
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
        done.rows += rows - buried
        done.dead_letters += buried

    def _without_bad_rows(self, store: Store, batch: pa.RecordBatch, history: int) -> tuple[pa.RecordBatch, int]:
        """Return the rows that say what happens to a message, and how many became dead letters.

        A bad row moves its message to the dead-letter queue; one without an id becomes a message
        there. Raises `MessageError` instead with `onBadRow=fail`.
        """
        queue, wrong = self._queue, find_bad_rows(batch)
        if not wrong:
            return batch, 0
        ids = [(one or b"").decode(errors="replace") for one in batch.column("id").cast(pa.binary()).to_pylist()]
        if self.options.on_bad_row == "fail":
            row, rule = next(iter(wrong.items()))
            rest = f" (and {plural(len(wrong) - 1, 'more row')})" if len(wrong) > 1 else ""
            place = f"queue {queue!r}, row with id {ids[row]!r}"
            raise MessageError(f"{place}: {rule}{rest}; nothing of this batch was settled", rows=wrong, queue=queue)
        nameless = {row: rule for row, rule in wrong.items() if rule.startswith(BAD_ID)}
        for tag in self._tags:
            named = {row: rule for row, rule in wrong.items() if row not in nameless}
            self._bury(store, tag, ids, named, history)
        if nameless:
            names = pa.record_batch({"id": pa.array([ids[row] for row in nameless], pa.string())})
            rows, _ = encode_changes(names, StructType([StructField("id", StringType())]), "text")
            letters = dead_letters_of(queue, rows, list(nameless.values()))
            put_letters(partial(store.push, self.options.dead_letter_queue_of(queue)), letters)
        bad = pa.array(list(wrong))
        return batch.filter(pc.invert(pc.is_in(pa.array(range(batch.num_rows)), bad))), len(wrong)

    def _move(self, store: Store, tag: str, batch: pa.RecordBatch, history: int) -> int:
        """Move messages to the queues in column `to`; change the fields whose columns are not NULL.

        Return the number of messages that became dead letters, since they cannot be moved. Raises
        `MessageError` instead with `onBadRow=fail`.
        """
        queue, dead = self._queue, 0
        rows, faults = encode_changes(batch, self.schema, self.options.payload_format, self.style)
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
                    self._bury(store, tag, part.column("id").to_pylist(), error.rows, history)
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

    def _bury(self, store: Store, tag: str, ids: Sequence[str], wrong: Mapping[int, str], history: int) -> None:
        """Move the messages of bad rows to the dead-letter queue, with the broken rules."""
        reasons: dict[str, list[str]] = {}
        for row, reason in wrong.items():
            reasons.setdefault(reason, []).append(ids[row])
        for reason, group in reasons.items():
            death = DeadLetterInfo(reason, history=history)
            dead = self.options.dead_letter_queue_of(self._queue)
            store.move(self._queue, dead, tag=tag, ids=group, dead_letter=death)


def _delays(batch: pa.RecordBatch) -> pa.Array:
    n = batch.num_rows
    return delays_ms(batch.column("delay")).fill_null(0) if "delay" in batch.schema.names else pa.array([0] * n)


def find_bad_rows(batch: pa.RecordBatch) -> dict[int, str]:
    """Return the rows that name no message, outcome or delay that can be, with the rule."""
    wrong: dict[int, str] = {}

    def mark(bad: pa.Array, rule: str) -> None:
        for row in pc.indices_nonzero(bad.fill_null(False)).to_pylist() if bad.true_count else ():
            wrong.setdefault(row, rule)

    ids, outcome = batch.column("id"), batch.column("outcome")
    mark(ids.is_null(), f"{BAD_ID} NULL")
    mark(_invalid(ids), f"{BAD_ID} not UTF-8 text")
    mark(pc.equal(pc.binary_length(ids.cast(pa.binary())), 0), f"{BAD_ID} empty")
    unknown = pc.invert(pc.is_in(outcome.cast(pa.binary()), pa.array([one.encode() for one in SETTLE_OUTCOMES])))
    for row in pc.indices_nonzero(unknown).to_pylist() if unknown.true_count else ():
        given = outcome.cast(pa.binary())[row].as_py()
        shown = "NULL" if given is None else repr(given.decode(errors="replace"))
        wrong.setdefault(row, f"outcome {shown} must be one of {', '.join(SETTLE_OUTCOMES)}")
    moves = pc.equal(outcome, "move").fill_null(False)
    for bad, rule in delay_rules(_delays(batch)):
        mark(pc.and_(bad, pc.invert(moves)), rule)  # the delay of a move is that of its new message
    if moves.true_count:
        to = batch.column("to") if "to" in batch.schema.names else pa.nulls(batch.num_rows, pa.string())
        needs = "the outcome 'move' needs the column 'to', which names the queue"
        mark(pc.and_(moves, to.is_null()), f"its to is NULL: {needs}")
        mark(pc.and_(moves, _invalid(to)), "its to is not UTF-8 text")
    return dict(sorted(wrong.items()))


def _invalid(texts: pa.Array) -> pa.Array:
    """Return which texts are not UTF-8."""
    if is_utf8(texts):
        return pa.repeat(pa.scalar(False), len(texts))
    return pa.array([not is_utf8(texts.slice(row, 1).take([0])) for row in range(len(texts))])


def _group_ids(batch: pa.RecordBatch) -> dict[tuple[str, int, str | None], list[str]]:
    """Return the ids by outcome, delay (ms) and reason, without the outcome `move`."""
    if "reason" in batch.schema.names:
        raw = batch.column("reason").cast(pa.binary()).to_pylist()
        reasons = [None if one is None else one.decode(errors="replace") for one in raw]
    else:
        reasons = [None] * batch.num_rows
    groups: dict[tuple[str, int, str | None], list[str]] = {}
    columns = (
        batch.column("id").to_pylist(),
        batch.column("outcome").to_pylist(),
        _delays(batch).to_pylist(),
        reasons,
    )
    for id, outcome, delay_ms, why in zip(*columns, strict=True):
        if outcome != "move":
            groups.setdefault((outcome, delay_ms, why), []).append(id)
    return groups
