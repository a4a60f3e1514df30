"""Logs (queues with `mode=log`): show the messages that they retain, and remove old ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from spark_queue.admin.common import moment_of, open_existing
from spark_queue.admin.reservations import is_log_tag
from spark_queue.errors import UsageError, did_you_mean
from spark_queue.options.arguments import check_seconds
from spark_queue.stores.base import Store
from spark_queue.stores.services.existence import known_queues
from spark_queue.stores.services.log.log import Log, find_retained, load_logs
from spark_queue.stores.services.log.segments import LOG_TAG


@dataclass(frozen=True, slots=True)
class RetainedLog:
    """The messages that the log of a queue retains, from position `first` to before `end`.

    `segments`: their number. `oldest`: when the first segment got its last message, `None` if
    nothing is retained. `strays`: tags that belong to no segment, left by a process that hung and
    was then killed; `release` releases their messages.
    """

    queue: str
    messages: int
    first: int
    end: int
    segments: int
    oldest: datetime | None
    strays: list[str]


def logs(url: str, queue: str | None = None) -> list[RetainedLog]:
    """Return the log of a queue, or of all queues that are read as logs."""
    with open_existing(url) as store:
        return list(find_logs(store, store.queues() if queue is None else [queue]))


def find_logs(store: Store, queues: Sequence[str]) -> Iterator[RetainedLog]:
    """Yield the logs of those of these queues that are read as logs."""
    logs = load_logs(store, queues)  # with one request for many queues
    for queue in queues:
        if queue in logs:
            yield from _find_log(store, queue)


def _find_log(store: Store, queue: str) -> Iterator[RetainedLog]:
    held = store.reservations(queue, LOG_TAG)  # read first: a tag is in the note before it holds messages
    found = find_retained(store, queue)
    if found is not None:
        oldest = None if found.oldest is None else moment_of(found.oldest)
        strays = [one.tag for one in held if not is_log_tag(one.tag, found)]
        yield RetainedLog(queue, found.end - found.first, found.first, found.end, found.segments, oldest, strays)


def trim(url: str, queue: str, older_than: timedelta) -> int:
    """Remove messages that have been in the log of a queue for longer; return their number.

    It removes them even if a query has not read them. It removes whole segments, each once its last
    message is old enough. Raises `OptionError` for an invalid age, and `UsageError` if the queue is
    not read as a log.
    """
    check_seconds("older_than", older_than.total_seconds())
    with open_existing(url) as store:
        if find_retained(store, queue) is None:
            raise UsageError(
                f"queue {queue!r} is not read as a log "
                f"(mode=log){did_you_mean(queue, known_queues(store) - {queue})}",
                queue=queue,
            )
        return Log(store, queue).trim(round(older_than.total_seconds() * 1000))
