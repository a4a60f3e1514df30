"""Parts that the steps of a graph share: queues, consumers, expressions, and their validators."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, ValidationInfo
from pydantic_core import PydanticKnownError

from spark_queue.graph.sql_functions import sql_mistake
from spark_queue.messages.times import MAX_DURATION_MS
from spark_queue.options.parsers import consumer_name, duration
from spark_queue.options.values import AUTO

_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")

#: The text of an expression that names a function; `payload:a` and `state:a` are fields.
_CALL = re.compile(rf"(?!(?:payload|state):){_FUNCTION.pattern}")

#: Where a declaration came from, as the context of pydantic. It has none if a program made it.
FROM_FILE, FROM_HTTP = "file", "http"

#: The pydantic configuration of the declarations of a graph.
DECLARATION_CONFIG = ConfigDict(extra="forbid", revalidate_instances="always", coerce_numbers_to_str=True)


class ForeignSql(str):
    """SQL text of a file or of a caller over HTTP, which is checked before Spark computes it.

    A text without this mark is of a program, which may do everything. `origin`: where it came from.
    """

    __slots__ = ("origin",)
    origin: str

    def __new__(cls, text: str, origin: str) -> ForeignSql:
        """Mark a text."""
        made = super().__new__(cls, text)
        made.origin = origin
        return made

    def __getnewargs__(self) -> tuple[str, str]:  # type: ignore[override]
        """Keep the mark in copies."""
        return str(self), self.origin


def parse_place(value: Any) -> Any:
    """Return the text `ns/queue` or `queue` as a mapping, and any other value as it is."""
    if not isinstance(value, str):
        return value
    ns, slash, queue = value.partition("/")
    return {"ns": ns, "queue": queue} if slash else {"queue": value}


def _parse_namespace(value: Any) -> Any:
    return {"url": value} if isinstance(value, str) else value


def names_function(text: str) -> bool:
    """Return whether an expression is the `module:function` of a Python function."""
    return _CALL.fullmatch(text.strip()) is not None


def _check_expression(value: Any, info: ValidationInfo) -> Any:
    """Return an expression: SQL text, a Column, or a callable that returns a Column.

    A number or a boolean becomes SQL text. Text of a file may use listed functions only, or name a
    function of Python; text that came over HTTP may not name one. Raises `PydanticKnownError` for a
    blank text, and `ValueError` for any other value. SQL text that is not of a program is marked.
    """
    if isinstance(value, ForeignSql):
        return value
    if isinstance(value, bool | int | float):
        value = json.dumps(value)
    if isinstance(value, str) and not value.strip():
        raise PydanticKnownError("string_too_short", {"min_length": 1})
    if isinstance(value, str):
        if (origin := info.context) is not None:
            if not names_function(value):
                if mistake := sql_mistake(value):
                    raise ValueError(mistake)
                return ForeignSql(value, origin)
            if origin == FROM_HTTP:
                raise ValueError("Spark SQL: a caller over HTTP may not name a function of Python")
        return value
    if type(value).__name__ == "Column" or callable(value):
        return value
    raise ValueError("SQL text, a Column, or a callable that returns a Column")


def _check_entry(value: Any, info: ValidationInfo) -> Any:
    return "NULL" if value is None else _check_expression(value, info)


def get_field(declaration: Any, key: str) -> Any:
    """Return the value of a key of a mapping or a declaration, or `None` if it is missing."""
    return declaration.get(key) if isinstance(declaration, dict) else getattr(declaration, key, None)


def as_list(value: Any) -> Any:
    """Return a list or a tuple as it is, and any other value in a list."""
    return value if isinstance(value, list | tuple) else [value]


def check_function(value: Any) -> Any:
    """Return a function, its `module:function`, or `None`. Raises `ValueError` for other values."""
    if value is None or callable(value) or (isinstance(value, str) and _FUNCTION.fullmatch(value)):
        return value
    raise ValueError("a function, or module:function")


def _parse_interval(value: Any) -> Any:
    return value if isinstance(value, int) else duration(str(value))


def _check_folder_name(text: str) -> str:
    """Return the name if it is valid for a consumer, and for a folder of any file system of Spark.

    Raises `ValueError`.
    """
    with suppress(ValueError):
        if ":" not in text and text.strip("."):
            return consumer_name(text)
    raise ValueError("1 to 100 letters, digits and _ . @ -, since it also names a folder")


Expression = Annotated[Any, BeforeValidator(_check_expression)]
ExpressionsByName = dict[str, Annotated[Any, BeforeValidator(_check_entry)]]
Name = Annotated[str, BeforeValidator(lambda value: consumer_name(str(value)))]
StepName = Annotated[str, BeforeValidator(lambda value: _check_folder_name(str(value)))]

#: A Python function, or its `module:function`.
Function = Annotated[Any, BeforeValidator(check_function)]

#: The ms from the start of a batch to the start of the next.
IntervalMs = Annotated[int, BeforeValidator(_parse_interval), Field(ge=0, le=MAX_DURATION_MS)]

Delivery = Literal["exactly-once", "at-least-once", "at-most-once"]


@dataclass(frozen=True)
class Namespace:
    """A store, under the name of the namespace.

    `options`: options of `format("queue")` for the steps that read here. `retryTimeout` and
    `allowEviction` also apply when these steps write.
    """

    __pydantic_config__ = DECLARATION_CONFIG

    url: str = field(repr=False)
    options: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Place:
    """A queue in a namespace. If `ns` is empty, it is in the default namespace."""

    __pydantic_config__ = DECLARATION_CONFIG

    queue: Annotated[str, Field(min_length=1)]
    ns: str = ""

    @property
    def place(self) -> Place:
        """The place itself, as `Destination.place`."""
        return self

    def __str__(self) -> str:
        return f"{self.ns}/{self.queue}"


#: A place, or its text `ns/queue`.
PlaceOrText = Annotated[Place, BeforeValidator(parse_place)]

#: A namespace, or its URL.
NamespaceOrUrl = Annotated[Namespace, BeforeValidator(_parse_namespace)]


def in_namespace(place: Any, ns: str) -> Any:
    """Return a place or a destination in the namespace that it names, or else in this one."""
    return replace(place, ns=place.ns or ns)


def _parse_rows(value: Any) -> Any:
    """Return `None` for `auto`, and any other value as it is."""
    return None if value == AUTO else value


@dataclass(frozen=True)
class ConsumerSettings:
    """How a step reads: in `parallel` tasks, at most `wsize` messages in a batch.

    Without `wsize`, or with `auto`, batches find their size, as with `maxRecordsPerTrigger=auto`.

    `reserve`: whether messages are reserved. Without a reservation they are delivered at most once.
    """

    __pydantic_config__ = DECLARATION_CONFIG

    parallel: Annotated[int, Field(ge=1, le=1024)] | None = None
    wsize: Annotated[Annotated[int, Field(ge=1, lt=2**31)] | None, BeforeValidator(_parse_rows)] = None
    reserve: bool = True


#: The path of a value in a graph: ("exchanges", "by_delay", "dst", 0, "selector").
FieldPath = tuple[str | int, ...]


@dataclass(frozen=True)
class SourceLocation:
    """The file of a graph, and the line of each part of it, from 1."""

    file: str = ""
    lines: Mapping[FieldPath, int] = field(default_factory=dict)
