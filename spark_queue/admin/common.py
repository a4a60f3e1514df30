"""Helpers of all operations: open the store of a URL, and check arguments."""

from __future__ import annotations

from datetime import datetime, timedelta

from spark_queue.errors import OptionError
from spark_queue.messages.schema import EPOCH
from spark_queue.stores import open_store
from spark_queue.stores.base import Store

#: A moment, or a duration: that long before now.
Moment = datetime | timedelta

#: Messages that one step pushes, reserves or moves.
STEP = 5_000


def open_existing(url: str, *queues: str, retry_timeout: int = 5_000) -> Store:
    """Open the store of a URL. `retry_timeout` (ms): as in `open_store`.

    Raises `OptionError` if it is a SQLite file that does not exist, or if the database forbids the
    name of one of `queues`.
    """
    store = open_store(url, retry_timeout=retry_timeout, create=False)
    if sentence := store.missing_database():
        raise OptionError(sentence, option="url")
    for queue in queues:
        store.check_queue(queue)
    return store


def moment_of(ms: int) -> datetime:
    """Convert ms since 1970 to a moment in UTC."""
    return EPOCH + timedelta(milliseconds=ms)


def to_moment(store: Store, name: str, moment: Moment | None) -> datetime | None:
    """Return a moment as it is, and a duration as the moment that long ago.

    "Now" is the time of the database. Raises `OptionError` if the moment has no time zone, or is
    before the year 1.
    """
    if isinstance(moment, timedelta):
        try:
            return moment_of(store.now()) - moment
        except OverflowError:
            raise OptionError(
                f"{name}: {moment.days:,} days ago is before the year 1; give a shorter time", option=name
            ) from None
    if moment is not None and moment.tzinfo is None:
        raise OptionError(f"{name}={moment.isoformat()} has no time zone: add one, such as +00:00", option=name)
    return moment
