"""The errors of the package: one tree, whose root is `QueueError`.

    QueueError
    ├── UsageError            a mistake of the caller: fix the call (exit code 2).
    │   ├── OptionError       an option, a URL or a queue name is wrong.
    │   │   └── NotAQueue     the name is that of data of another program.
    │   ├── SchemaError       the columns of a DataFrame are wrong.
    │   ├── UnreadError       a query has not read all messages of a batch.
    │   ├── GraphError        a graph or another file has `mistakes`.
    │   └── DriverMissing     a database driver is not installed.
    ├── MessageError          rows cannot become messages: `rows` says which and why.
    ├── StoreError            the database refused the operation or failed.
    │   ├── AccessDenied      the database user lacks a permission.
    │   └── StoreUnavailable  the database cannot be reached now: try again.
    │       └── PoolExhausted all connections of this client are in use.
    ├── CheckpointError       the checkpoint does not match the query or the database.
    └── FencedError           another client has taken over the consumer, reservation or batch.

Every error can be pickled from a Spark worker to the driver, with its facts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, cast


class QueueError(Exception):
    """Something about a queue went wrong."""

    def __init__(self, message: str = "", **facts: object) -> None:
        super().__init__(message or (self.__doc__ or "").strip())
        self.facts = facts

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), **cast("dict[str, Any]", self.facts)), self.args


class UsageError(QueueError):
    """The call cannot work as it was made."""


class OptionError(UsageError):
    """An option, a URL or a queue name is wrong."""


class NotAQueue(OptionError):
    """Data of another program has the name of the queue. It was not changed."""


class SchemaError(UsageError):
    """The columns of a DataFrame are not those of a queue."""


class UnreadError(UsageError):
    """A query has not read all messages of a batch, and `onUnread` is fail. None was removed."""


class GraphError(UsageError):
    """A graph of exchanges, or another file of declarations, has mistakes.

    `mistakes` has the text of each, with its place.
    """

    def __init__(self, message: str = "", mistakes: Sequence[str] = (), **facts: object) -> None:
        super().__init__(message, mistakes=list(mistakes), **facts)
        self.mistakes = list(mistakes)


class DriverMissing(UsageError):
    """The Python driver of a database is not installed."""


class MessageError(QueueError):
    """Rows cannot become messages.

    `rows` maps the position of a row in the pushed batch to the rule that it breaks. No row of the
    batch was pushed.
    """

    def __init__(self, message: str = "", rows: Mapping[int, str] | None = None, **facts: object) -> None:
        super().__init__(message, rows=dict(rows or {}), **facts)
        self.rows: dict[int, str] = dict(rows or {})


class StoreError(QueueError):
    """The database refused the operation."""


class AccessDenied(StoreError):
    """The database refused the operation: the user of the URL lacks a permission."""


class StoreUnavailable(StoreError):
    """The database cannot be reached."""


class PoolExhausted(StoreUnavailable):
    """All connections of this client to the database are in use."""


class SparkUnavailable(QueueError):
    """Spark's process has died, and is started again."""


class CheckpointError(QueueError):
    """The checkpoint does not match this version, the query, or the contents of the database."""


class FencedError(QueueError):
    """Another client or query has taken over a consumer, a reservation or a batch.

    The operation changed nothing of it.
    """


#: Longer names have no similar ones.
MAX_NAME = 200


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """Return the end of an error that suggests names similar to `name`; empty if there are none."""
    if len(name) > MAX_NAME:  # no name of ours; to compare it would take long
        return ""
    by_lower_case = {candidate.lower(): candidate for candidate in candidates}
    similar = [by_lower_case[match] for match in get_close_matches(name.lower(), by_lower_case, n=3)]
    return f"; did you mean {' or '.join(repr(one) for one in similar)}?" if similar else ""


def unreadable_file(error: OSError, file: object = "") -> UsageError:
    """Return the error for a file that cannot be read: its name, the reason, and similar names."""
    name = str(file or error.filename)
    if re.search(r":.*@|^[a-z][a-z0-9+.-]*:/", name, re.DOTALL):  # there may be a password in it
        name = "(a URL, which is not shown)"
    siblings = [str(one) for one in Path(name).parent.glob("*")]
    return UsageError(f"{name}: {(error.strerror or str(error)).lower()}{did_you_mean(name, siblings)}", file=name)


def plural(number: int, noun: str, plural_noun: str | None = None) -> str:
    """Return `1 message` or `2,000 messages`. `plural_noun`: if it is not `noun` with an s."""
    return f"{number:,} {noun if number == 1 else plural_noun or noun + 's'}"
