"""Fetch the messages of a task: those under a tag, or those of several inputs side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import chain

import pyarrow as pa
from pyspark import TaskContext

from spark_queue.errors import FencedError, plural
from spark_queue.options.inputs import QUEUE
from spark_queue.options.stream import StreamOptions
from spark_queue.options.values import AT_LEAST_ONCE
from spark_queue.spark.task_context import batch_id_of, query_id_of, run_id_of
from spark_queue.stores import open_database, open_store
from spark_queue.stores.base import Store
from spark_queue.stores.services.dead_letters import add_settled, settled_count
from spark_queue.stores.services.option_policy import stream_policy
from spark_queue.stores.services.poison import note_run
from spark_queue.stores.services.query_binding import QueryBinding, bind


@dataclass(frozen=True, slots=True)
class FetchRange:
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

    def slice(self, first: int, last: int) -> FetchRange:
        """Return the range of its messages from `first` to before `last`."""
        position = None if self.position is None else self.position + first
        return replace(self, rows=last - first, first=(self.first or 0) + first, position=position)


@dataclass(frozen=True, slots=True)
class ZippedRange:
    """Rows of several inputs: the messages of each (`ranges`), by binding, in order.

    Some inputs, or all, may have no messages in a batch. `delivery`: consumer and batch.
    """

    delivery: str
    ranges: Mapping[str, Sequence[FetchRange]]


def fetch_messages(options: StreamOptions, fetch_range: FetchRange) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a range in MESSAGES batches. Raises `FencedError` if some are gone."""
    queue, tag, rows = options.queue, fetch_range.tag, 0
    with open_database(options.database) as store:
        _note_query(store, options, fetch_range)
        if fetch_range.first is not None:
            yield from _fetch_slice(store, options, fetch_range)
            return
        settle = partial(add_settled, store, queue, tag.partition("/")[0])
        for batch in store.queue(queue, stream_policy(options)).read(tag, before_settle=settle):
            yield batch
            rows += batch.num_rows
        _check_fetched(store, options, fetch_range, rows)


def _fetch_slice(store: Store, options: StreamOptions, fetch_range: FetchRange) -> Iterator[pa.RecordBatch]:
    """Yield messages of a tag without the `first` ones. Raises `FencedError` if some are gone."""
    first, position, rows = fetch_range.first or 0, fetch_range.position, 0
    last = first + (fetch_range.rows or 0)
    # A damaged bucket is filled: it must not move the messages behind it.
    for batch in store.peek_reserved(options.queue, fetch_range.tag, fill=True):
        if rows + batch.num_rows > first:
            part = batch.slice(max(0, first - rows), last - max(first, rows))
            if position is not None:
                numbers = pa.array(range(position, position + part.num_rows), pa.int64())
                part, position = part.append_column("position", numbers), position + part.num_rows
            yield part
        rows += batch.num_rows
        if rows >= last:
            return
    raise lost_messages_error(options, last - rows, last, fetch_range.tag)


def fetch_zipped(options: StreamOptions, zipped_range: ZippedRange) -> Iterator[dict[str, pa.RecordBatch]]:
    """Return an iterator over MESSAGES batches by binding, each of the same length.

    Batches of logs have a column `position`. Raises `FencedError` if messages are missing.
    """

    def fetch_input(one: StreamOptions, shares: Sequence[FetchRange]) -> Iterator[pa.RecordBatch]:
        return chain.from_iterable(fetch_messages(one, share) for share in shares)

    _bind_empty_inputs(options, zipped_range)
    if not zipped_range.ranges:
        return iter(())
    return align_batches(
        {binding: fetch_input(options.for_input(binding), shares) for binding, shares in zipped_range.ranges.items()}
    )


def _bind_empty_inputs(options: StreamOptions, zipped_range: ZippedRange) -> None:
    """Note which query reads the inputs that have no messages in this batch.

    A later batch may have only messages of them.
    """
    if (query := query_id_of(TaskContext.get())) is None:
        return
    reading = QueryBinding(query, zipped_range.delivery.rpartition("/")[0])
    for binding, one in (options.inputs or {}).items():
        if binding not in zipped_range.ranges and one.mode == QUEUE:
            database = options.for_input(binding).database
            _bind_once(database.url, one.queue, options.consumer, database.retry_timeout, reading)


@lru_cache(maxsize=1024)
def _bind_once(url: str, queue: str, consumer: str | None, retry_timeout: int, reading: QueryBinding) -> None:
    """Bind once per worker: each batch calls this, and the note does not change."""
    with open_store(url, retry_timeout=retry_timeout) as store:
        bind(store, queue, consumer, reading)


def align_batches(streams: Mapping[str, Iterator[pa.RecordBatch]]) -> Iterator[dict[str, pa.RecordBatch]]:
    """Yield batches of equal length from several streams, so that their n-th rows are together.

    The streams must have the same number of rows in total.
    """
    heads: dict[str, pa.RecordBatch] = {}
    while True:
        for name, stream in streams.items():
            while name not in heads or not heads[name].num_rows:
                head = next(stream, None)
                if head is None:
                    return
                heads[name] = head
        rows = min(head.num_rows for head in heads.values())
        yield {name: head.slice(0, rows) for name, head in heads.items()}
        heads = {name: head.slice(rows) for name, head in heads.items()}


def lost_messages_error(options: StreamOptions, missing: int, rows: int, tag: str) -> FencedError:
    """Return the error for messages that a query reserved, and that its tag no longer holds.

    It is not known what became of them: so the error names what may have.
    """
    reasons = ["they were released manually or by another process"]
    if options.guarantee.delivery == AT_LEAST_ONCE:
        reasons.append("their lease ended while this query was suspended or the database was unreachable")
    reasons.append(
        "or the database has lost acknowledged writes, as a Redis does that fails over before its replica has them"
    )
    return FencedError(
        f"{missing:,} of {plural(rows, 'message')} of queue {options.queue!r} are no longer held under {tag}: it "
        f"reserved {rows:,} and found {max(rows - missing, 0):,}. Possible reasons: {'; '.join(reasons)}. Restart "
        "the query: it continues with the messages that it still holds. Released messages are delivered again, here "
        f"or elsewhere; lost ones are not. After a failover, compare 'spark-queue size URL {options.queue}' with "
        "what was pushed, and push again what is missing",
        queue=options.queue,
        tag=tag,
    )


def _check_fetched(store: Store, options: StreamOptions, fetch_range: FetchRange, rows: int) -> None:
    """Raise `FencedError` if a task fetched too few rows, and none were settled one by one."""
    if fetch_range.rows is None or rows >= fetch_range.rows:
        return
    name = fetch_range.tag.partition("/")[0]
    if not settled_count(store, options.queue, name):
        raise lost_messages_error(options, fetch_range.rows - rows, fetch_range.rows, fetch_range.tag)


def _note_query(store: Store, options: StreamOptions, fetch_range: FetchRange) -> None:
    """Note which query reads the messages: only tasks know it.

    If the messages have failed before, also note the run of the query, so that a dead letter can
    have its error. Raises `CheckpointError` if the query has read another epoch.
    """
    task = TaskContext.get()
    query = query_id_of(task)
    if task is None or query is None or fetch_range.position is not None:  # messages of a log are not reserved
        return
    queue, (consumer, batch, _) = options.queue, fetch_range.tag.rsplit("/", 2)
    reading = QueryBinding(query, consumer)
    if options.guarantee.exactly_once and (number := batch_id_of(task)) is not None:
        reading = replace(reading, number=number, batch=batch)
    bind(store, queue, options.consumer, reading)
    if fetch_range.suspect and (run := run_id_of(task)) is not None:
        note_run(store, queue, consumer, query, run)
