"""Settle what a query holds that never starts again: its checkpoint is lost, or was refused."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from operator import attrgetter

from spark_queue.admin.common import opened
from spark_queue.admin.reservations import check_free
from spark_queue.errors import OptionError, UsageError, near, plural
from spark_queue.options.masking import mask
from spark_queue.stores.base import Store
from spark_queue.stores.services.bound import Reading, readings
from spark_queue.stores.services.dead_letters import history_of
from spark_queue.stores.services.existence import check_exists
from spark_queue.stores.services.ledger import LEDGER_PREFIX, Ledger, Writer, ledger_of, publish
from spark_queue.stores.services.owner import Batch, consumers, revoke, standing_of
from spark_queue.stores.types import check_tag


@dataclass(frozen=True, slots=True)
class Settled:
    """What `recover_consumer` did.

    `batch`: the batch that was started last, `SEQ.BY`; `None` if none was. `committed`, `released`: numbers of
    messages. All committed messages are of this batch.
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
) -> Settled:
    """Commit what the query of a consumer has written, and release the rest; for a query that never starts again.

    `consumer` is `name/epoch`. The batch that was started last may have been written. If its query wrote to queues,
    exactly once, `sink` is the URL of their database, or the URLs if there are several. The ledger there says whether
    it was, and is completed first; what is staged there beside it is dropped.
    For another sink, find out yourself and set `written`. Messages held with `delivery=at-least-once` are released
    without either.

    May be repeated. Raises `UsageError`, before anything is changed, if a living process runs the consumer, or if it
    is not known whether the batch was written; `OptionError` if there is no such consumer or sink.
    """
    with opened(url) as store:
        store.check_queue(queue)
        check_tag(consumer)
        check_exists(store, queue)
        standing = standing_of(store, queue, consumer)
        if standing is None:
            known = [one for _, one, _ in consumers(store, queue)]
            raise OptionError(
                f"queue {queue!r} has no consumer {consumer!r}{near(consumer, known)}", queue=queue, consumer=consumer
            )
        check_free(store, queue, consumer)
        batch = standing.started or _oldest(store, queue, consumer)
        done = False
        if batch is not None and store.reservations(queue, f"{consumer}/{batch}"):
            done = _written(store, queue, consumer, batch, sink) if written is None else written
        revoke(store, queue, consumer)
        name = consumer.partition("/")[0]
        committed = 0
        if done:
            committed = store.commit(queue, f"{consumer}/{batch}", history=history_of(store, queue, name))
        released = store.rollback(queue, consumer, delay=None, failed=False)
        if sink:
            for one in readings(store, queue, consumer):
                _discard([sink] if isinstance(sink, str) else sink, one.query)
        return Settled(None if batch is None else str(batch), committed, released)


def _oldest(store: Store, queue: str, consumer: str) -> Batch | None:
    """Return the first batch that a consumer of version 1 holds; one reserved ahead comes after it."""
    held = [one.tag.removeprefix(f"{consumer}/").partition("/")[0] for one in store.reservations(queue, consumer)]
    return min((Batch(int(one)) for one in held if one.isdigit()), default=None)


def _written(store: Store, queue: str, consumer: str, batch: Batch, sink: str | Sequence[str] | None) -> bool:
    """Return whether the sink has written this batch; publish what its ledger has decided.

    Raises `UsageError` if that is not known.
    """
    found = readings(store, queue, consumer)
    if len(found) == 1 and found[0].number is None:
        return False  # at least once
    if not sink or len(found) != 1:
        held = sum(one.rows for one in store.reservations(queue, f"{consumer}/{batch}"))
        why = "name its database with --sink URL (sink=URL)" if found else "which query reads it is not known"
        raise UsageError(
            f"consumer {consumer} of queue {queue!r} has started batch {batch}: whether its "
            f"{plural(held, 'message')} have been written, its sink must tell. If that is a queue, written exactly "
            f"once, {why}. Else look yourself: --written (written=True) commits them, --not-written (written=False) "
            "releases them",
            queue=queue,
            consumer=consumer,
        )
    (reading,) = found
    if reading.batch != str(batch):
        return False  # no task has read it
    return _published([sink] if isinstance(sink, str) else sink, reading)


def _published(urls: Sequence[str], reading: Reading) -> bool:
    """Return whether the ledgers of a query have decided its last batch; then publish it.

    A sink of several databases has a ledger in each. If one has decided the batch, it counts as written, and the
    others follow.
    """
    assert reading.number is not None
    with ExitStack() as stack:
        stores = [stack.enter_context(opened(url)) for url in urls]
        sinks = _sinks(stores, reading)
        decided = {name: max((one for _, one in found), key=attrgetter("batch")) for name, found in sinks.items()}
        if len({one.batch >= reading.number for one in decided.values()}) > 1:
            raise UsageError(
                f"query {reading.query} writes to several sinks ({', '.join(sorted(sinks))}), and only some "
                f"have batch {reading.number}: say whether it was written, with --written or --not-written",
                sink=reading.query,
            )
        for name, ledgers in sinks.items():
            for store, ledger in ledgers:
                if ledger.batch < reading.number <= decided[name].batch:
                    _follow(store, decided[name])
                else:
                    store.publish(ledger.stages)
        return any(one.batch >= reading.number for one in decided.values())


def _discard(urls: Sequence[str], query: str) -> None:
    """Drop what a query has staged and its ledgers have not decided: what they have decided is published before."""
    for url in urls:
        with opened(url) as store:
            staged = {one.stage.partition("/")[0] for one in store.staged()}
            for sink in (one for one in staged if one == query or one.endswith(f":{query}")):
                if ledger := ledger_of(store, sink):
                    store.publish(ledger.stages)
                store.unstage(sink)


def _sinks(stores: Sequence[Store], reading: Reading) -> dict[str, list[tuple[Store, Ledger]]]:
    """Return the ledgers of a query by sink. Raises `UsageError` unless all of them are known."""
    found: dict[str, list[tuple[Store, Ledger]]] = {}
    for store in stores:
        for key, note in store.notes(LEDGER_PREFIX).items():
            name = key.removeprefix(LEDGER_PREFIX)
            ledger = Ledger.read(name, note)
            if ledger is not None and (name == reading.query or name.endswith(f":{reading.query}")):
                found.setdefault(name, []).append((store, ledger))
    if not found and reading.number:
        raise UsageError(
            f"query {reading.query} has no ledger in {' or '.join(mask(one.url) for one in stores)}: it wrote "
            "elsewhere, or not exactly once. Name the database of its sink, or say whether batch "
            f"{reading.number} was written, with --written or --not-written",
            sink=reading.query,
        )
    for name, ledgers in found.items():
        members = sorted({one for _, ledger in ledgers for one in ledger.members})
        if len(ledgers) < len(members):
            raise UsageError(
                f"sink {name} writes to {len(members)} databases, {', '.join(map(repr, members))} in its option "
                f"'urls', and {len(ledgers)} of them are named here: name each, with a --sink URL for each "
                "(sink=[URL, …])",
                sink=name,
            )
    return found


def _follow(store: Store, decided: Ledger) -> None:
    """Publish in one database what a sink has decided in another: its ledger there names the stages of both."""
    rows = sum(one.rows for one in store.staged(decided.sink) if one.stage in decided.stages)
    publish(store, decided.sink, decided.batch, decided.stages, rows, Writer.JOINING, members=decided.members)
