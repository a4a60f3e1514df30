"""Settle the messages of a query that cannot start again: its checkpoint is lost or refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from spark_queue.admin.common import open_existing
from spark_queue.admin.reservations import check_not_owned
from spark_queue.errors import OptionError, UnreadError, UsageError, did_you_mean, plural
from spark_queue.options.masking import mask
from spark_queue.stores.base import Store
from spark_queue.stores.services.dead_letters import history_of
from spark_queue.stores.services.existence import check_exists
from spark_queue.stores.services.ledger import LEDGER_PREFIX, Ledger
from spark_queue.stores.services.owner import Batch, consumers, load_consumer_state, revoke
from spark_queue.stores.services.publishing import Publisher
from spark_queue.stores.services.query_binding import QueryBinding, query_bindings
from spark_queue.stores.services.reading import Reading
from spark_queue.stores.types import check_tag


@dataclass(frozen=True, slots=True)
class RecoveredConsumer:
    """The result of `recover_consumer`.

    `batch`: the batch that was started last, `SEQ.BY`; `None` if there is none. `committed`,
    `released`: numbers of messages. All committed messages are from this batch.
    """

    batch: str | None
    committed: int
    released: int


def recover_consumer(
    url: str,
    queue: str,
    consumer: str,
    *,
    sink: str | Sequence[str] | None = None,
    written: bool | None = None,
) -> RecoveredConsumer:
    """Commit the messages that a query has written, and release the rest.

    For a query that cannot start again. `consumer` is `name/epoch`. Its last batch may have
    been written. If the query wrote to queues with exactly-once delivery, set `sink` to the URL of
    their database, or to a list of URLs. The ledger there decides, and its batch is published
    first; other staged rows of the query are dropped. For another sink, check it yourself and set
    `written`. Messages that were reserved with `delivery=at-least-once` are released without
    either.

    May be repeated. Raises `UsageError`, before anything is changed, if a process runs the
    consumer, or if it is unknown whether the batch was written. Raises `UnreadError` if the query
    has `onUnread=fail`, and has written the batch without reading all of it. Raises `OptionError`
    if there is no such consumer or sink.
    """
    sinks = [sink] if sink and isinstance(sink, str) else sink or ()
    with open_existing(url, queue) as store:
        check_tag(consumer)
        check_exists(store, queue)
        standing = load_consumer_state(store, queue, consumer)
        if standing is None:
            known = [one for _, one, _ in consumers(store, queue)]
            raise OptionError(
                f"queue {queue!r} has no consumer {consumer!r}{did_you_mean(consumer, known)}",
                queue=queue,
                consumer=consumer,
            )
        check_not_owned(store, queue, consumer)
        batch = standing.started or _oldest_batch(store, queue, consumer)
        was_written = False
        if batch is not None and store.reservations(queue, f"{consumer}/{batch}"):
            was_written = _publish_if_written(store, queue, consumer, batch, sinks) if written is None else written
            if was_written and written is None:
                _check_read(store, Reading(queue, consumer, batch))
        revoke(store, queue, consumer)
        name = consumer.partition("/")[0]
        committed = 0
        if was_written:
            committed = store.commit(queue, f"{consumer}/{batch}", history=history_of(store, queue, name))
        released = store.rollback(queue, consumer, delay=None, failed=False)
        if sinks:
            for one in query_bindings(store, queue, consumer):
                _drop_staged(sinks, one.query)
        return RecoveredConsumer(None if batch is None else str(batch), committed, released)


def _check_read(store: Store, reading: Reading) -> None:
    """Raise `UnreadError` if a batch was written by a query that did not read all of it.

    Only queries with `onUnread=fail` note that.
    """
    progress = reading.progress(store)
    if progress is not None and not progress.complete:
        raise UnreadError(
            f"batch {reading.batch} of consumer {reading.consumer} of queue {reading.queue!r} was written, but "
            f"{progress}: the others are in no sink. Nothing was changed. Commit all messages of the batch with "
            "--written (written=True), or release all with --not-written (written=False)",
            queue=reading.queue,
            consumer=reading.consumer,
        )


def _oldest_batch(store: Store, queue: str, consumer: str) -> Batch | None:
    """Return the first batch that a consumer of version 1 holds; prefetched ones come after it."""
    held = [one.tag.removeprefix(f"{consumer}/").partition("/")[0] for one in store.reservations(queue, consumer)]
    return min((Batch(int(one)) for one in held if one.isdigit()), default=None)


def _publish_if_written(store: Store, queue: str, consumer: str, batch: Batch, sinks: Sequence[str]) -> bool:
    """Return whether the sink has written this batch. If so, publish the rest of it.

    Raises `UsageError` if that is unknown.
    """
    found = query_bindings(store, queue, consumer)
    if len(found) == 1 and found[0].number is None:
        return False  # at least once
    if not sinks or len(found) != 1:
        held = sum(one.rows for one in store.reservations(queue, f"{consumer}/{batch}"))
        advice = (
            "If the sink is a queue, written with exactly-once delivery, name its database with --sink URL "
            "(sink=URL). Otherwise check the sink"
            if found
            else "The ledger of its sink cannot be found, since its query is unknown. Check the sink"
        )
        raise UsageError(
            f"consumer {consumer} of queue {queue!r} has started batch {batch}: it is unknown whether its "
            f"{plural(held, 'message')} were written. {advice}, then commit them with --written (written=True), or "
            "release them with --not-written (written=False)",
            queue=queue,
            consumer=consumer,
        )
    (reading,) = found
    if reading.batch != str(batch):
        return False  # no task has read it
    return _publish_if_decided(sinks, reading)


def _publish_if_decided(urls: Sequence[str], reading: QueryBinding) -> bool:
    """Return whether the ledgers of a query have decided its last batch. If so, publish it.

    A sink with several databases has a ledger in each. If one has decided the batch, it counts as
    written, and is published in the others too. Raises `UsageError` if a ledger is missing, or if
    only some sinks of the query have decided the batch.
    """
    assert reading.number is not None
    with _open_all(urls) as stores:
        sinks = _load_ledgers(stores, reading)
        decided = {name: max(one.batch for one in found.values()) >= reading.number for name, found in sinks.items()}
        if len(set(decided.values())) > 1:
            raise UsageError(
                f"query {reading.query} writes to several sinks ({', '.join(sorted(sinks))}), and only some "
                f"have batch {reading.number}: set --written or --not-written",
                sink=reading.query,
            )
        for name, ledgers in sinks.items():
            Publisher({one: stores[one] for one in ledgers}, name).complete(rest=True)
        return any(decided.values())


def _drop_staged(urls: Sequence[str], query: str) -> None:
    """Publish what the ledgers of a query have decided, then drop its other staged rows."""
    with _open_all(urls) as stores:
        staged = {one.stage.partition("/")[0] for store in stores.values() for one in store.staged()}
        for sink in sorted(one for one in staged if one == query or one.endswith(f":{query}")):
            Publisher(stores, sink).complete(rest=True)
            for store in stores.values():
                store.unstage(sink)


@contextmanager
def _open_all(urls: Sequence[str]) -> Iterator[dict[str, Store]]:
    """Yield the databases by their URLs, without passwords."""
    with ExitStack() as stack:
        yield {mask(url): stack.enter_context(open_existing(url)) for url in urls}


def _load_ledgers(stores: Mapping[str, Store], reading: QueryBinding) -> dict[str, dict[str, Ledger]]:
    """Return the ledgers of a query by sink and database. Raises `UsageError` if one is missing."""
    found: dict[str, dict[str, Ledger]] = {}
    for where, store in stores.items():
        for key, note in store.notes(LEDGER_PREFIX).items():
            name = key.removeprefix(LEDGER_PREFIX)
            ledger = Ledger.from_note(name, note)
            if ledger is not None and (name == reading.query or name.endswith(f":{reading.query}")):
                found.setdefault(name, {})[where] = ledger
    if not found and reading.number:
        raise UsageError(
            f"query {reading.query} has no ledger in {' or '.join(stores)}: it wrote "
            "elsewhere, or not exactly once. Name the database of its sink with --sink, or set --written or "
            f"--not-written for batch {reading.number}",
            sink=reading.query,
        )
    for name, ledgers in found.items():
        databases = sorted({one for ledger in ledgers.values() for one in ledger.databases})
        if len(ledgers) < len(databases):
            names, without = ", ".join(map(repr, databases)), [one for one in stores if one not in ledgers]
            advice = f"--sink names {len(ledgers)} of them: set one --sink URL for each (sink=[URL, …])"
            if len(stores) >= len(databases):
                last = max(one.batch for one in ledgers.values())
                advice = (
                    f"{' and '.join(without)} has no ledger of it. If that is the wrong database, set another --sink "
                    "URL. If it was restored from a copy, check which rows of the sink are there. To go on without "
                    f"those that are missing, run: spark-queue ledger set URL {name} {last}, with its URL"
                )
            raise UsageError(
                f"sink {name} writes to {len(databases)} databases, {names} in its option 'urls', but {advice}",
                sink=name,
            )
    return found
