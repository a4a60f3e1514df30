"""JSON bodies: a list of messages, or an object with known fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fastapi import Request

from spark_queue.errors import OptionError, plural
from spark_queue.messages.payload import Json
from spark_queue.messages.times import MAX_DURATION_MS
from spark_queue.options.parsers import duration
from spark_queue.rest.bodies import media_type, parse_json
from spark_queue.rest.errors import UnsupportedMediaType
from spark_queue.rest.routes import check_names
from spark_queue.rest.service import Service

#: Types of a body that is JSON. The last is what `curl --data` says, without another header.
JSON_TYPES = ("", "application/json", "application/x-www-form-urlencoded")

#: Returns the value of a field. Raises `ValueError`, whose text continues the words "must be".
FieldParser = Callable[[Json], Any]


async def read_json(request: Request, service: Service) -> Json:
    """Return the JSON value of a body, or `None` if the body is empty.

    Raises `UnsupportedMediaType` for another type, and `OptionError` for other text.
    """
    media = media_type(request.headers.get("content-type", ""))
    if media not in JSON_TYPES and not media.endswith("+json"):
        raise UnsupportedMediaType(f"header Content-Type is {media[:60]!r} but must be application/json")
    body = await service.bodies.read(request)
    return await service.bodies.parse(parse_json, body) if body else None


async def read_fields(
    request: Request, service: Service, parsers: Mapping[str, FieldParser], *required: str
) -> dict[str, Any]:
    """Return the fields of the JSON object in a body. An empty body has none.

    Raises `UnsupportedMediaType`, and `OptionError` for unknown, missing and invalid fields.
    """
    value = await read_json(request, service)
    if value is None:
        value = {}
    if not isinstance(value, dict):
        raise OptionError(f"the body must be a JSON object with the fields {', '.join(parsers)}")
    check_names(value, list(parsers), "field", "this resource")
    for name in required:
        if name not in value:
            raise OptionError(f"field {name!r} is missing", option=name)
    found = {}
    for name, one in value.items():
        try:
            found[name] = parsers[name](one)
        except ValueError as error:
            raise OptionError(f"field {name!r} is {str(one)[:60]!r} but must be {error}", option=name) from None
    return found


def parse_duration(longest: int = MAX_DURATION_MS, shortest: int = 0) -> FieldParser:
    """Return a parser of a duration, which returns ms."""

    def parse(value: Json) -> int:
        if not isinstance(value, str):
            raise ValueError("text with a unit, such as 30s")
        found = duration(value)
        if not shortest <= found <= longest:
            raise ValueError(f"{shortest}ms to {longest}ms")
        return found

    return parse


def parse_count(most: int) -> FieldParser:
    """Return a parser of a whole number, 1 to `most`."""

    def parse(value: Json) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            raise ValueError(f"a whole number from 1 to {most}")
        return value

    return parse


def parse_texts(most: int) -> FieldParser:
    """Return a parser of a list of one or more texts."""

    def parse(value: Json) -> list[str]:
        if not isinstance(value, list) or not value or not all(isinstance(one, str) for one in value):
            raise ValueError("a list of one or more texts")
        if len(value) > most:
            raise ValueError(f"a list of at most {plural(most, 'text')}: send several requests")
        return value

    return parse


def parse_text(value: Json) -> str:
    """Return a text. Raises `ValueError` for another value."""
    if not isinstance(value, str):
        raise ValueError("text")
    return value
