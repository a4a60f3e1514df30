"""The error tree: one root, and the two questions a caller asks of it.

    QueueError
    ├── UsageError            the caller's mistake: fix the call and try again (exit code 2)
    │   ├── OptionError       an option, a URL, a queue name
    │   ├── SchemaError       columns of a DataFrame
    │   ├── GraphError        a graph of exchanges, or another file; `mistakes` tells each
    │   └── DriverMissing     a database driver that is not installed
    ├── MessageError          rows that cannot become messages; `rows` tells which and why
    ├── StoreError            the database refused or failed
    │   └── StoreUnavailable  it cannot be reached just now: worth another try
    │       └── PoolExhausted all connections of this client are in use
    ├── CheckpointError       a checkpoint that does not fit to the query or to the database
    └── FencedError           somebody else has what was ours

Every error survives the pickle from a Spark worker to the driver, facts included.
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


class SchemaError(UsageError):
    """The columns of a DataFrame are not those of a queue."""


class GraphError(UsageError):
    """A graph of exchanges, or another file of declarations, has mistakes.

    `mistakes` tells each, with its place.
    """

    def __init__(self, message: str = "", mistakes: Sequence[str] = (), **facts: object) -> None:
        super().__init__(message, mistakes=list(mistakes), **facts)
        self.mistakes = list(mistakes)


class DriverMissing(UsageError):
    """The Python driver of a database is not installed."""


class MessageError(QueueError):
    """Rows that cannot become messages.

    `rows` maps the row's position in the pushed batch to the rule it breaks. Nothing of that batch was pushed.
    """

    def __init__(self, message: str = "", rows: Mapping[int, str] | None = None, **facts: object) -> None:
        super().__init__(message, rows=dict(rows or {}), **facts)
        self.rows: dict[int, str] = dict(rows or {})


class StoreError(QueueError):
    """The database refused the operation."""


class AccessDenied(StoreError):
    """The database knows the user of the URL, who may not do this."""


class StoreUnavailable(StoreError):
    """The database cannot be reached."""


class PoolExhausted(StoreUnavailable):
    """All connections of this client to the database are in use."""


class CheckpointError(QueueError):
    """The checkpoint does not fit: to this version, to the query, or to what the database has of it."""


class FencedError(QueueError):
    """Somebody else has what was ours: a consumer, a reservation, a batch.

    Nothing was done to what is no longer ours.
    """


def near(name: str, known: Iterable[str]) -> str:
    """The tail of an error message that offers the names like `name`; empty where none is alike."""
    spelled = {candidate.lower(): candidate for candidate in known}
    alike = [spelled[match] for match in get_close_matches(name.lower(), spelled, n=3)]
    return f"; did you mean {' or '.join(repr(one) for one in alike)}?" if alike else ""


def unreadable(error: OSError, file: object = "") -> UsageError:
    """Return the error for a file that cannot be read: its name, the reason, and similar names beside it."""
    name = str(file or error.filename)
    if re.search(r":.*@|^[a-z][a-z0-9+.-]*:/", name, re.DOTALL):  # there may be a password in it
        name = "(a URL, which is not shown)"
    beside = [str(one) for one in Path(name).parent.glob("*")]
    return UsageError(f"{name}: {(error.strerror or str(error)).lower()}{near(name, beside)}", file=name)


def plural(number: int, one: str, more: str | None = None) -> str:
    """Return `1 message`, `2,000 messages`; `more` is the plural if it is not `one` with an s."""
    return f"{number:,} {one if number == 1 else more or one + 's'}"
