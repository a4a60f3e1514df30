"""What a task fetches: the messages under a tag, or those of several inputs side by side."""

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
    """Messages that a tag holds.

    `rows`: how many it must hold, `None` for a batch that comes again. `suspect`: they have failed before.
    `first`: of several inputs, how many of the tag's come before; then it is `rows` that are meant, and none of them
    may be missing. `position`: of a log, how many come before the first of these.
    """

    tag: str
    rows: int | None = None
    suspect: bool = False
    first: int | None = None
    position: int | None = None

    def part(self, first: int, last: int) -> Share:
        """Of its messages those from `first` to before `last`."""
        position = None if self.position is None else self.position + first
        return replace(self, rows=last - first, first=(self.first or 0) + first, position=position)


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of several inputs: of each, by binding, messages one after the other. `delivery`: consumer and batch.

    Of some inputs, or of all, a batch may have none.
    """

    delivery: str
    of: Mapping[str, Sequence[Share]]


def fetched(options: QueueOptions, share: Share) -> Iterator[pa.RecordBatch]:
    """The messages of a share, as MESSAGES batches. Raises `FencedError` where some are missing."""
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
            else store.look(queue, share.tag, fill=True)  # each message has a place, which no other may take
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
    """The rows of several inputs: MESSAGES batches of one length, by binding; those of logs have a `position`."""

    def flow(one: QueueOptions, shares: Sequence[Share]) -> Iterator[pa.RecordBatch]:
        return chain.from_iterable(fetched(one, share) for share in shares)

    _bind_others(options, share)
    if not share.of:
        return iter(())
    return aligned({binding: flow(options.of(binding), shares) for binding, shares in share.of.items()})


def _bind_others(options: QueueOptions, share: Rows) -> None:
    """Note which query reads the inputs of which this batch has no messages: a later one may have theirs alone."""
    if (query := query_of(TaskContext.get())) is None:
        return
    reading = Reading(query, share.delivery.rpartition("/")[0])
    for binding, one in (options.inputs or {}).items():
        if binding not in share.of and one.mode == QUEUE:
            alone = options.of(binding)
            _bind_once(alone.url, one.queue, alone.consumer, alone.retry_timeout / 1000, reading)


@lru_cache(maxsize=1024)
def _bind_once(url: str, queue: str, consumer: str | None, patience: float, reading: Reading) -> None:
    """Bind, unless this worker has done so: it comes here with each batch, and the note does not change."""
    with open_store(url, patience=patience) as store:
        bind(store, queue, consumer, reading)


def aligned(flows: Mapping[str, Iterator[pa.RecordBatch]]) -> Iterator[dict[str, pa.RecordBatch]]:
    """Cut batches of several flows, which have as many rows in all, so that the n-th rows of each come together."""
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
    """The error for messages that others have taken, or released, while a query worked on them."""
    why = "somebody released them"
    if options.delivery == AT_LEAST_ONCE:
        why += ", or their lease ended since this query stood still or the database could not be reached"
    return FencedError(
        f"{missing:,} of {plural(rows, 'message')} of queue {options.queue!r} are no longer held under {tag}: {why}. "
        "They come again, here or elsewhere; started again, the query goes on with what it still holds",
        queue=options.queue,
        tag=tag,
    )


def _check_fetched(store: Store, options: QueueOptions, share: Share, rows: int) -> None:
    """Raise `FencedError` where a task has fetched fewer rows than were reserved for it, and nobody settled them."""
    if share.rows is None or rows >= share.rows:
        return
    name = share.tag.partition("/")[0]
    if not settled(store, options.queue or "", name):
        raise lost(options, share.rows - rows, share.rows, share.tag)


def _tell_query(store: Store, options: QueueOptions, share: Share) -> None:
    """Note which query reads this: only tasks know. Raises `CheckpointError` where it has read another epoch.

    For messages that have failed before, the run of the query is noted, so that a dead letter can carry its error.
    """
    task = TaskContext.get()
    query = query_of(task)
    if task is None or query is None or share.position is not None:  # nothing of a log is held for a query
        return
    queue, (consumer, batch, _) = options.queue or "", share.tag.rsplit("/", 2)
    reading = Reading(query, consumer)
    if options.delivery == EXACTLY_ONCE and (number := batch_of(task)) is not None:
        reading = replace(reading, number=number, batch=batch)
    bind(store, queue, options.consumer, reading)
    if share.suspect and (run := run_of(task)) is not None:
        note_run(store, queue, consumer, query, run)
