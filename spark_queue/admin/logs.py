"""Queues that are read as logs (`mode=log`): what they retain, and how it is removed manually."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from spark_queue.admin.common import moment_of, opened
from spark_queue.admin.reservations import belongs
from spark_queue.errors import OptionError, UsageError, near
from spark_queue.stores.base import Store
from spark_queue.stores.services.existence import known_queues
from spark_queue.stores.services.log.log import Log, retained
from spark_queue.stores.services.log.segments import LOG_TAG


@dataclass(frozen=True, slots=True)
class RetainedLog:
    """What the log of a queue retains: `messages`, from position `first` to `end`, in so many segments.

    `oldest`: when the first segment got its last message, `None` where nothing is retained. `strays`: tags that
    belong to no segment, of a process that stood still and then was killed; `release` gives back what they hold.
    """

    queue: str
    messages: int
    first: int
    end: int
    segments: int
    oldest: datetime | None
    strays: list[str]


def logs(url: str, queue: str | None = None) -> list[RetainedLog]:
    """The queues that are read as logs, or just this one, and what each retains."""
    with opened(url) as store:
        return [one for name in (store.queues() if queue is None else [queue]) for one in kept(store, name)]


def kept(store: Store, queue: str) -> Iterator[RetainedLog]:
    """What a queue retains, where it is read as a log."""
    held = store.reservations(queue, LOG_TAG)  # first: a tag is in the note before it holds anything
    found = retained(store, queue)
    if found is not None:
        oldest = None if found.oldest is None else moment_of(found.oldest)
        strays = [one.tag for one in held if not belongs(one.tag, found)]
        yield RetainedLog(queue, found.end - found.first, found.first, found.end, found.segments, oldest, strays)


def trim(url: str, queue: str, older_than: timedelta) -> int:
    """Remove what has been in the log of a queue for longer, whoever has not read it; give the number of messages.

    It goes by segments, each when its last message is old enough. Raises `UsageError` for a queue that is no log.
    """
    if older_than < timedelta():
        raise OptionError(f"older_than must be 0 or more, not {older_than}", option="older_than")
    with opened(url) as store:
        if retained(store, queue) is None:
            raise UsageError(
                f"queue {queue!r} is not read as a log (mode=log){near(queue, known_queues(store) - {queue})}",
                queue=queue,
            )
        return Log(store, queue).trim(round(older_than.total_seconds() * 1000))
