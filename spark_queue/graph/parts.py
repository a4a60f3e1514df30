"""What the steps of a graph have in common: where queues are, how they are read, and how such things are written."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from spark_queue.options.parsers import duration, name_of_consumer

_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")

#: How the declarations of a graph are read.
FORBID = ConfigDict(extra="forbid", revalidate_instances="always", coerce_numbers_to_str=True)


def place_of(value: Any) -> Any:
    """`ns/queue`, or a queue of the namespace that goes without saying."""
    if not isinstance(value, str):
        return value
    ns, slash, queue = value.partition("/")
    return {"ns": ns, "queue": queue} if slash else {"queue": value}


def _namespace(value: Any) -> Any:
    return {"url": value} if isinstance(value, str) else value


def _expression(value: Any) -> Any:
    """SQL text, a Column, or a callable that makes one. Numbers and truth values of a file are SQL, too."""
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    if isinstance(value, str) and not value.strip():
        raise ValueError("not empty")
    if isinstance(value, str) or type(value).__name__ == "Column" or callable(value):
        return value
    raise ValueError("SQL text, a Column, or a callable that returns a Column")


def _entry(value: Any) -> Any:
    return "NULL" if value is None else _expression(value)


def inside(what: Any, key: str) -> Any:
    """Return what stands below a key, in a file or in a declaration; `None` where there is nothing."""
    return what.get(key) if isinstance(what, dict) else getattr(what, key, None)


def listed(value: Any) -> Any:
    """A list of what may also be given alone."""
    return value if isinstance(value, list | tuple) else [value]


def function_of(value: Any) -> Any:
    """A function, or where it is: `module:function`."""
    if value is None or callable(value) or (isinstance(value, str) and _FUNCTION.fullmatch(value)):
        return value
    raise ValueError("a function, or module:function")


def _pause(value: Any) -> Any:
    return value if isinstance(value, int) else duration(str(value))


def _folder(text: str) -> str:
    """A name that is a consumer's, and a folder's on any file system of Spark's."""
    with suppress(ValueError):
        if ":" not in text and text.strip("."):
            return name_of_consumer(text)
    raise ValueError("1 to 100 letters, digits and _ . @ -, since it also names a folder")


Expression = Annotated[Any, BeforeValidator(_expression)]
Entries = dict[str, Annotated[Any, BeforeValidator(_entry)]]
Name = Annotated[str, BeforeValidator(lambda value: name_of_consumer(str(value)))]
NameOfStep = Annotated[str, BeforeValidator(lambda value: _folder(str(value)))]

#: A function of Python, or where it is.
Function = Annotated[Any, BeforeValidator(function_of)]

#: ms from the start of a batch to that of the next.
Every = Annotated[int, BeforeValidator(_pause)]

Delivery = Literal["exactly-once", "at-least-once", "at-most-once"]


@dataclass(frozen=True)
class Namespace:
    """A store by a name.

    `options` are those of `format("queue")`, for the steps that read here; `retryTimeout` and `allowEviction`
    hold for what these write, too.
    """

    __pydantic_config__ = FORBID

    url: str = field(repr=False)
    options: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Place:
    """A queue in a namespace; where that is not told, in the one that goes without saying."""

    __pydantic_config__ = FORBID

    queue: Annotated[str, Field(min_length=1)]
    ns: str = ""

    @property
    def place(self) -> Place:
        """Itself, as of a `Destination`."""
        return self

    def __str__(self) -> str:
        return f"{self.ns}/{self.queue}"


#: A place, also as `ns/queue`.
AtPlace = Annotated[Place, BeforeValidator(place_of)]

#: A namespace, also as its URL.
OfStore = Annotated[Namespace, BeforeValidator(_namespace)]


@dataclass(frozen=True)
class ConsumerSettings:
    """How a step reads: `parallel` tasks, at most `wsize` messages at a time, with or without a reservation."""

    __pydantic_config__ = FORBID

    parallel: Annotated[int, Field(ge=1, le=1024)] | None = None
    wsize: Annotated[int, Field(ge=1, lt=2**31)] = 10_000
    reserve: bool = True


#: Where something stands in a graph: ("exchanges", "by_delay", "dst", 0, "selector").
Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Origin:
    """The file that a graph comes from, and the line of each part of it, from 1."""

    file: str = ""
    lines: Mapping[Path, int] = field(default_factory=dict)
