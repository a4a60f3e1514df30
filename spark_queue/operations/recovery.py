"""Settle what a query holds that never starts again: its checkpoint is lost, or was refused."""

from __future__ import annotations

from dataclasses import dataclass

from spark_queue.errors import OptionError, UsageError, near
from spark_queue.masking import mask
from spark_queue.operations.common import opened
from spark_queue.operations.held import check_free
from spark_queue.store.base import Store
from spark_queue.store.bound import Reading, readings
from spark_queue.store.existence import check_exists
from spark_queue.store.facts import check_tag
from spark_queue.store.ledger import PREFIX, Ledger
from spark_queue.store.owner import Batch, consumers, revoke, standing_of
from spark_queue.store.policy import history_of
from spark_queue.words import plural


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
    url: str, queue: str, consumer: str, *, sink: str | None = None, written: bool | None = None
) -> Settled:
    """Commit what the query of a consumer has written, and release the rest; for a query that never starts again.

    `consumer` is `name/epoch`. The batch that was started last may have been written. If its query wrote to queues,
    exactly once, `sink` is the URL of their database. The ledger there says whether it was, and is completed first.
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
        return Settled(None if batch is None else str(batch), committed, released)


def _oldest(store: Store, queue: str, consumer: str) -> Batch | None:
    """Return the first batch that a consumer of version 1 holds; one reserved ahead comes after it."""
    held = [one.tag.removeprefix(f"{consumer}/").partition("/")[0] for one in store.reservations(queue, consumer)]
    return min((Batch(int(one)) for one in held if one.isdigit()), default=None)


def _written(store: Store, queue: str, consumer: str, batch: Batch, sink: str | None) -> bool:
    """Return whether the sink has written this batch; publish what its ledger has decided.

    Raises `UsageError` if that is not known.
    """
    found = readings(store, queue, consumer)
    if len(found) == 1 and found[0].number is None:
        return False  # at least once
    if sink is None or len(found) != 1:
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
    return _published(sink, reading)


def _published(url: str, reading: Reading) -> bool:
    """Return whether the ledger of a query has decided its last batch; then publish it."""
    assert reading.number is not None
    with opened(url) as store:
        notes = {key.removeprefix(PREFIX): note for key, note in store.notes(PREFIX).items()}
        ledgers = {
            name: Ledger.read(name, note)
            for name, note in notes.items()
            if name == reading.query or name.endswith(f":{reading.query}")
        }
        if not ledgers and reading.number > 0:
            raise UsageError(
                f"query {reading.query} has no ledger in {mask(store.url)}: it wrote elsewhere, or not exactly "
                f"once. Name the database of its sink, or say whether batch {reading.number} was written, with "
                "--written or --not-written",
                sink=reading.query,
            )
        decided = {one.batch >= reading.number for one in ledgers.values() if one is not None}
        if len(decided) > 1:
            raise UsageError(
                f"query {reading.query} writes to several sinks ({', '.join(sorted(ledgers))}), and only some "
                f"have batch {reading.number}: say whether it was written, with --written or --not-written",
                sink=reading.query,
            )
        for one in ledgers.values():
            if one is not None:
                store.publish(one.stages)
        return decided == {True}
