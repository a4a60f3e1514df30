"""Reservations: which consumer holds which messages, and how to release them manually."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from spark_queue.admin.common import moment_of, open_existing
from spark_queue.errors import UsageError, did_you_mean, plural
from spark_queue.options.arguments import check_seconds
from spark_queue.options.queue_names import source_queue
from spark_queue.stores.base import Store
from spark_queue.stores.services.existence import check_exists, known_queues
from spark_queue.stores.services.log.log import RetainedRange, find_retained
from spark_queue.stores.services.log.segments import LOG_TAG
from spark_queue.stores.services.owner import Owner, consumers, load_consumer_state, revoke
from spark_queue.stores.support.dead_lettering import SET_ASIDE_TAG
from spark_queue.stores.types import check_tag


@dataclass(frozen=True, slots=True)
class ReservationInfo:
    """The messages under one tag, and their consumer.

    `until`: the end of the lease, `None` for never. `consumer`: the part of the tag that names the
    consumer; for a Spark query `name/epoch`, where each new checkpoint is a new epoch. `owner`: the
    process that runs this consumer now, `None` if none is known; clients without Spark have none.
    `parked`: the batch of the messages failed, so they are set aside and tried later. `log`: the
    log of the queue retains them. `damaged`: they cannot be read, and no dead-letter queue takes
    them.
    """

    queue: str
    tag: str
    rows: int
    until: datetime | None
    consumer: str
    owner: str | None
    parked: bool
    log: bool = False
    damaged: bool = False


def reservations(url: str, queue: str | None = None, tag: str = "") -> list[ReservationInfo]:
    """Return the reservations of a queue, or of all; with `tag`, only those at or below it."""
    with open_existing(url) as store:
        owners = {(name, consumer): owner for name, consumer, owner in consumers(store, queue)}
        found = []
        for name in _filled_queues(store) if queue is None else [queue]:
            held = store.reservations(name, tag)  # read first: a tag is in the note before it holds messages
            log = find_retained(store, name) if held else None
            for one in held:
                consumer = "/".join(one.tag.split("/")[:2])
                owner = owners.get((name, consumer))
                info = ReservationInfo(
                    queue=name,
                    tag=one.tag,
                    rows=one.rows,
                    until=None if one.until is None else moment_of(one.until),
                    consumer=consumer,
                    owner=None if owner is None else str(owner),
                    parked=one.tag.startswith(f"{consumer}/parked/"),
                    log=is_log_tag(one.tag, log),
                    damaged=one.tag == SET_ASIDE_TAG,
                )
                found.append(info)
        return found


def _filled_queues(store: Store) -> list[str]:
    """Return the queues with messages: one request finds those of many queues."""
    return [queue for queue, one in store.sizes_of(store.queues(), 1).items() if one.total or one.capped]


def release(url: str, queue: str, tag: str, *, force: bool = False, failed: bool = False, delay: float = 0.0) -> int:
    """Release the messages under a tag and the tags below it; return their number.

    `tag` is a consumer, one epoch of it, a batch or a partition. The messages are due in `delay`
    seconds; `failed` adds one to their tries. Atomic for each message, and for all together if the
    database has transactions.

    Raises `UsageError` if a process runs the consumer now. `force` takes the consumer away from
    that process, whose query then fails with `FencedError`. Raises `UsageError` also for a started
    batch whose lease never ends, since it may be written already: set `force`, or name this batch.
    Raises `UsageError` for messages that the log of the queue retains: `trim` removes them. Raises
    `OptionError` for an invalid delay.
    """
    check_seconds("delay", delay)
    with open_existing(url, queue) as store:
        check_tag(tag)
        check_exists(store, queue)
        _check_no_log(store, queue, tag)
        if not force:
            check_not_owned(store, queue, tag, "; or use --force (force=True), and the running query fails")
            _check_not_started(store, queue, tag)
        for consumer, _ in _running_consumers(store, queue, tag):
            revoke(store, queue, consumer)
        return store.rollback(queue, tag, delay=round(delay * 1000), failed=failed)


def _running_consumers(store: Store, queue: str, tag: str = "") -> list[tuple[str, Owner]]:
    """Return the consumers that a process runs now, with that process.

    With a tag, only those at, above or below it.
    """
    found = [(one, owner) for _, one, owner in consumers(store, queue) if owner is not None]
    return [(one, owner) for one, owner in found if not tag or _same_branch(one, tag)]


def check_not_owned(store: Store, queue: str, tag: str = "", remedy: str = "") -> None:
    """Raise `UsageError` if a process runs a consumer at, above or below a tag.

    Without a tag, if a process runs any consumer of the queue. Also if a log retains messages under
    the tag. `remedy`: the end of the error.
    """
    _check_no_log(store, queue, tag)
    for consumer, owner in _running_consumers(store, queue, tag):
        raise UsageError(
            f"consumer {consumer} of queue {queue!r} is run by {owner}: stop that query (started again, it goes on "
            f"with the messages that it holds), or name the tag of another run{remedy}",
            queue=queue,
            tag=tag,
        )


def _check_not_started(store: Store, queue: str, tag: str) -> None:
    """Raise `UsageError` if a batch below a tag was started and has a lease that never ends."""
    for _, consumer, _ in consumers(store, queue):
        standing = load_consumer_state(store, queue, consumer)
        if standing is None or standing.started is None:
            continue
        batch = f"{consumer}/{standing.started}"
        if not f"{batch}/".startswith(f"{tag}/") or tag == batch:
            continue
        rows = sum(one.rows for one in store.reservations(queue, batch) if one.until is None)
        if rows:
            raise UsageError(
                f"batch {batch} of queue {queue!r} was started, and its lease never ends: its "
                f"{plural(rows, 'message')} may have been written already. To check that and settle them: "
                f"spark-queue recover URL {queue} {consumer} --sink URL. To release them anyway, name the batch: "
                f"spark-queue release URL {queue} {batch}",
                queue=queue,
                tag=tag,
            )


def _check_no_log(store: Store, queue: str, tag: str = "") -> None:
    """Raise `UsageError` if the log of the queue retains messages at, above or below a tag.

    Without a tag, if the log retains any messages.
    """
    log = None if tag and not _same_branch(LOG_TAG, tag) else find_retained(store, queue)
    if log is not None and any(not tag or _same_branch(one, tag) for one in log.tags):
        raise UsageError(
            f"queue {queue!r} is read as a log, and tag {tag or LOG_TAG} belongs to it: its readers would miss these "
            f"messages. To remove the oldest: spark-queue log trim URL {queue} --older-than 7d",
            queue=queue,
            tag=tag,
        )


def is_log_tag(tag: str, log: RetainedRange | None) -> bool:
    """Return whether a tag belongs to a log: to a segment, or to one that is being sealed."""
    return log is not None and (tag in log.tags or tag.rpartition("/")[0] in log.tags)


def _same_branch(one: str, other: str) -> bool:
    """Return whether two tags are equal, or one is below the other."""
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")


def suggest(url: str, queue: str, tag: str | None = None) -> str:
    """Return the end of a message about an unknown queue, or a tag without messages: similar names.

    An empty text if there are none.
    """
    with open_existing(url) as store:
        if tag is None:
            known = known_queues(store)
            return "" if queue in known else did_you_mean(queue, known | {source_queue(name) for name in known})
        paths = [one.tag.split("/") for one in store.reservations(queue)]
        return did_you_mean(tag, {"/".join(path[:depth]) for path in paths for depth in range(1, len(path) + 1)})
