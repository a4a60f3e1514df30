"""What the operations share: the store behind a URL, and what a user names is checked."""

from __future__ import annotations

from datetime import datetime, timedelta

from spark_queue.errors import OptionError
from spark_queue.messages.schema import EPOCH
from spark_queue.stores import open_store
from spark_queue.stores.base import Store

#: A moment, or how long ago.
Moment = datetime | timedelta

#: Messages that one step pushes, takes or moves.
STEP = 5_000


def opened(url: str) -> Store:
    """Return the store. Raises `OptionError` if it is a SQLite file that does not exist."""
    store = open_store(url, create=False)
    if sentence := store.missing_database():
        raise OptionError(sentence, option="url")
    return store


def moment_of(ms: int) -> datetime:
    """The moment of so many ms since 1970."""
    return EPOCH + timedelta(milliseconds=ms)


def absolute(store: Store, name: str, moment: Moment | None) -> datetime | None:
    """The moment, where it may be told by how long ago it was. Raises `OptionError` for one that is none."""
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


def checked_limit(limit: int | None) -> int | None:
    """The limit. Raises `OptionError` where it is less than 1."""
    if limit is not None and limit < 1:
        raise OptionError(f"limit must be 1 or more, not {limit}", option="limit")
    return limit
