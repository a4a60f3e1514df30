"""Fetch the messages of a task: those under a tag, or those of several inputs side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain

import pyarrow as pa
from pyspark import TaskContext

from spark_queue.errors import FencedError, plural
from spark_queue.options.inputs import QUEUE
from spark_queue.options.queue_options import QueueOptions
from spark_queue.options.values import AT_LEAST_ONCE, EXACTLY_ONCE
from spark_queue.spark.running import batch_of, query_of, run_of
from spark_queue.stores import open_store
from spark_queue.stores.base import Store
from spark_queue.stores.services.bound import Reading, bind
from spark_queue.stores.services.dead_letters import note_settled, settled
from spark_queue.stores.services.poison import note_run


@dataclass(frozen=True, slots=True)
class Share:
    """Messages under a tag.

    `rows`: how many the tag must hold; `None` for a replayed batch. `suspect`: they have failed
    before. `first`: with several inputs, how many messages of the tag to skip; then all of the next
    `rows` messages must be there. `position`: the number of messages before them in a log.
    """

    tag: str
    rows: int | None = None
    suspect: bool = False
    first: int | None = None
    position: int | None = None

    def part(self, first: int, last: int) -> Share:
        """Return the range of its messages from `first` to before `last`."""
        position = None if self.position is None else self.position + first
        return replace(self, rows=last - first, first=(self.first or 0) + first, position=position)


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of several inputs: the messages of each (`ranges`), by binding, in order.

    Some inputs, or all, may have no messages in a batch. `delivery`: consumer and batch.
    """

    delivery: str
    of: Mapping[str, Sequence[Share]]


def fetched(options: QueueOptions, share: Share) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a range in MESSAGES batches. Raises `FencedError` if some are gone."""
    queue, rows, first = options.queue or "", 0, share.first or 0
    position = share.position
    left = first + (share.rows or 0)
    with open_store(options.url, patience=options.retry_timeout / 1000) as store:
        _tell_query(store, options, share)
        name = share.tag.partition("/")[0]
        pages = (
            store.fetch(
                queue,
                share.tag,
                dead=options.dead(queue),
                history=options.history_ms,
                settling=lambda messages: note_settled(store, queue, name, messages),
            )
            if share.first is None
            else store.look(queue, share.tag, fill=True)  # a damaged bucket must not move the messages behind it
        )
        for batch in pages:
            if share.first is None:
                yield batch
            elif rows + batch.num_rows > first:
                some = batch.slice(max(0, first - rows), left - max(first, rows))
                if position is not None:
                    numbers = pa.array(range(position, position + some.num_rows), pa.int64())
                    some, position = some.append_column("position", numbers), position + some.num_rows
                yield some
            rows += batch.num_rows
            if share.first is not None and rows >= left:
                return
        if share.first is not None:
            raise lost(options, left - rows, left, share.tag)
        _check_fetched(store, options, share, rows)


def side_by_side(options: QueueOptions, share: Rows) -> Iterator[dict[str, pa.RecordBatch]]:
    """Return an iterator over MESSAGES batches by binding, each of the same length.

    Batches of logs have a column `position`. Raises `FencedError` if messages are missing.
    """

    def flow(one: QueueOptions, shares: Sequence[Share]) -> Iterator[pa.RecordBatch]:
        return chain.from_iterable(fetched(one, share) for share in shares)

    _bind_others(options, share)
    if not share.of:
        return iter(())
    return aligned({binding: flow(options.of(binding), shares) for binding, shares in share.of.items()})


def _bind_others(options: QueueOptions, share: Rows) -> None:
    """Note which query reads the inputs that have no messages in this batch.

    A later batch may have only messages of them.
    """
    if (query := query_of(TaskContext.get())) is None:
        return
    reading = Reading(query, share.delivery.rpartition("/")[0])
    for binding, one in (options.inputs or {}).items():
        if binding not in share.of and one.mode == QUEUE:
            alone = options.of(binding)
            _bind_once(alone.url, one.queue, alone.consumer, alone.retry_timeout / 1000, reading)


@lru_cache(maxsize=1024)
def _bind_once(url: str, queue: str, consumer: str | None, patience: float, reading: Reading) -> None:
    """Bind once per worker: each batch calls this, and the note does not change."""
    with open_store(url, patience=patience) as store:
        bind(store, queue, consumer, reading)


def aligned(flows: Mapping[str, Iterator[pa.RecordBatch]]) -> Iterator[dict[str, pa.RecordBatch]]:
    """Yield batches of equal length from several streams, so that their n-th rows are together.

    The streams must have the same number of rows in total.
    """
    heads: dict[str, pa.RecordBatch] = {}
    while True:
        for name, flow in flows.items():
            while name not in heads or not heads[name].num_rows:
                head = next(flow, None)
                if head is None:
                    return
                heads[name] = head
        rows = min(head.num_rows for head in heads.values())
        yield {name: head.slice(0, rows) for name, head in heads.items()}
        heads = {name: head.slice(rows) for name, head in heads.items()}


def lost(options: QueueOptions, missing: int, rows: int, tag: str) -> FencedError:
    """Return the error for messages that were taken or released while a query worked on them."""
    why = "they were released manually or by another process"
    if options.delivery == AT_LEAST_ONCE:
        why += ", or their lease ended while this query was suspended or the database was unreachable"
    return FencedError(
        f"{missing:,} of {plural(rows, 'message')} of queue {options.queue!r} are no longer held under {tag}: {why}. "
        "They are delivered again, here or elsewhere. Restart the query: it continues with the messages "
        "that it still holds",
        queue=options.queue,
        tag=tag,
    )


def _check_fetched(store: Store, options: QueueOptions, share: Share, rows: int) -> None:
    """Raise `FencedError` if a task fetched too few rows, and none were settled one by one."""
    if share.rows is None or rows >= share.rows:
        return
    name = share.tag.partition("/")[0]
    if not settled(store, options.queue or "", name):
        raise lost(options, share.rows - rows, share.rows, share.tag)


def _tell_query(store: Store, options: QueueOptions, share: Share) -> None:
    """Note which query reads the messages: only tasks know it.

    If the messages have failed before, also note the run of the query, so that a dead letter can
    have its error. Raises `CheckpointError` if the query has read another epoch.
    """
    task = TaskContext.get()
    query = query_of(task)
    if task is None or query is None or share.position is not None:  # messages of a log are not reserved
        return
    queue, (consumer, batch, _) = options.queue or "", share.tag.rsplit("/", 2)
    reading = Reading(query, consumer)
    if options.delivery == EXACTLY_ONCE and (number := batch_of(task)) is not None:
        reading = replace(reading, number=number, batch=batch)
    bind(store, queue, options.consumer, reading)
    if share.suspect and (run := run_of(task)) is not None:
        note_run(store, queue, consumer, query, run)
