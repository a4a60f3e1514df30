"""Reservations: which consumer holds which messages, and how to release them manually."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from spark_queue.admin.common import moment_of, opened
from spark_queue.errors import OptionError, UsageError, near, plural
from spark_queue.messages.schema import LATEST
from spark_queue.options.queue_names import source_queue
from spark_queue.stores.base import Store
from spark_queue.stores.services.existence import check_exists, known_queues
from spark_queue.stores.services.log.log import Retained, retained
from spark_queue.stores.services.log.segments import LOG_TAG
from spark_queue.stores.services.owner import Owner, consumers, revoke, standing_of
from spark_queue.stores.support.burial import ASIDE
from spark_queue.stores.types import Reservation, check_tag


@dataclass(frozen=True, slots=True)
class Held:
    """What one tag holds, and for whom.

    `until` is when its lease ends, `None` for never. `consumer` is the beginning of the tag that names who reserved:
    for a Spark query `name/epoch`, the name and the run of its checkpoint. `owner` is the process that runs this
    consumer just now, `None` where none is known to live; a client without Spark never tells. `parked`: the messages
    were set aside when their batch failed, and are tried after it. `log`: they are retained, as a segment of the
    queue's log. `damaged`: they cannot be read, and no dead-letter queue takes them.
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


def reservations(url: str, queue: str | None = None, tag: str = "") -> list[Held]:
    """What is reserved in a queue, in all queues where none is given; by `tag` and those below it, if given."""
    with opened(url) as store:
        owners = {(name, consumer): owner for name, consumer, owner in consumers(store, queue)}

        def held(name: str, one: Reservation) -> Held:
            consumer = _consumer(one.tag)
            owner = owners.get((name, consumer))
            return Held(
                queue=name,
                tag=one.tag,
                rows=one.rows,
                until=None if one.until is None else moment_of(one.until),
                consumer=consumer,
                owner=None if owner is None else str(owner),
                parked=one.tag.startswith(f"{consumer}/parked/"),
                log=belongs(one.tag, kept[name]),
                damaged=one.tag == ASIDE,
            )

        names = store.queues() if queue is None else [queue]
        kept = {name: retained(store, name) for name in names}
        return [held(name, one) for name in names for one in store.reservations(name, tag)]


def release(url: str, queue: str, tag: str, *, force: bool = False, failed: bool = False, delay: float = 0.0) -> int:
    """Give back what a tag and those below it hold, mature in `delay` seconds, and give the number of messages.

    `tag` is a consumer, one epoch of it, a batch, or a partition's tag. `failed` adds one to the tries of the
    messages. A consumer that a living process runs is refused with `UsageError`; with `force` it is taken away from
    that process first, whose query then fails with `FencedError`. A batch that was started, and is held without an
    end, may have been written already: without `force` it is refused, too, unless it is this batch that is named.
    Atomic for each message, and for all together where the database has transactions. 0 where nothing is held. What
    the queue's log retains is refused: `trim` removes it.
    """
    with opened(url) as store:
        store.check_queue(queue)
        check_tag(tag)
        if not 0 <= delay <= LATEST / 2000:
            raise OptionError(
                f"delay must be 0 or more seconds and end before the year 5000, not {delay}", option="delay"
            )
        check_exists(store, queue)
        _check_no_log(store, queue, tag)
        if not force:
            check_free(
                store,
                queue,
                tag,
                "; or use --force (force=True), and the running query fails",
            )
            _check_not_started(store, queue, tag)
        for consumer, _ in _living(store, queue, tag):
            revoke(store, queue, consumer)
        return store.rollback(queue, tag, delay=round(delay * 1000), failed=failed)


def _living(store: Store, queue: str, tag: str = "") -> list[tuple[str, Owner]]:
    """The consumers in the branch of a tag, of all tags where it is empty, that a living process runs."""
    found = [(one, owner) for _, one, owner in consumers(store, queue) if owner is not None]
    return [(one, owner) for one, owner in found if not tag or _same_branch(one, tag)]


def check_free(store: Store, queue: str, tag: str = "", otherwise: str = "") -> None:
    """Raise `UsageError` where a living process runs a consumer in the branch of a tag, or any where it is empty.

    Also where a log retains what the tag holds.
    """
    _check_no_log(store, queue, tag)
    for consumer, owner in _living(store, queue, tag):
        raise UsageError(
            f"consumer {consumer} of queue {queue!r} is run by {owner}: stop that query (started again, it goes on "
            f"with the messages that it holds), or name the tag of another run{otherwise}",
            queue=queue,
            tag=tag,
        )


def _check_not_started(store: Store, queue: str, tag: str) -> None:
    """Raise `UsageError` where the branch of a tag holds, for ever, a batch that was started."""
    for _, consumer, _ in consumers(store, queue):
        standing = standing_of(store, queue, consumer)
        if standing is None or standing.started is None:
            continue
        batch = f"{consumer}/{standing.started}"
        if not f"{batch}/".startswith(f"{tag}/") or tag == batch:
            continue
        rows = sum(one.rows for one in store.reservations(queue, batch) if one.until is None)
        if rows:
            raise UsageError(
                f"batch {batch} of queue {queue!r} was started, exactly once: its {plural(rows, 'message')} may have "
                f"been written already. To find out, and settle them: spark-queue recover URL {queue} {consumer} "
                f"--sink URL. To release them all the same, name the batch: spark-queue release URL {queue} {batch}",
                queue=queue,
                tag=tag,
            )


def _check_no_log(store: Store, queue: str, tag: str = "") -> None:
    """Raise `UsageError` where the log of the queue retains what is held in the branch of a tag, or any at all."""
    kept = None if tag and not _same_branch(LOG_TAG, tag) else retained(store, queue)
    if kept is not None and any(not tag or _same_branch(one, tag) for one in kept.tags):
        raise UsageError(
            f"queue {queue!r} is read as a log, and tag {tag or LOG_TAG} belongs to it: its readers would miss these "
            f"messages. To remove the oldest: spark-queue log trim URL {queue} --older-than 7d",
            queue=queue,
            tag=tag,
        )


def belongs(tag: str, kept: Retained | None) -> bool:
    """Whether a tag is one of a log, or a part of one that is being sealed."""
    return kept is not None and (tag in kept.tags or tag.rpartition("/")[0] in kept.tags)


def _consumer(tag: str) -> str:
    return "/".join(tag.split("/")[:2])


def _same_branch(one: str, other: str) -> bool:
    """Whether one of two tags lies in the other."""
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")


def suggest(url: str, queue: str, tag: str | None = None) -> str:
    """The tail of a message about a queue that does not exist, or a tag that holds nothing: names like it.

    Empty where there are none.
    """
    with opened(url) as store:
        if tag is None:
            known = known_queues(store)
            return "" if queue in known else near(queue, known | {source_queue(name) for name in known})
        paths = [one.tag.split("/") for one in store.reservations(queue)]
        return near(tag, {"/".join(path[:depth]) for path in paths for depth in range(1, len(path) + 1)})
