"""Find the texts of parts of a JSON document: a STRING has an object or a number as it is written.

`orjson` reads a document fast, but not how its parts are written. So for those parts that are read
as text their place in the document is found, and they become texts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from pyspark.sql.types import ArrayType, DataType, DecimalType, MapType, StringType, StructType, VariantType

from spark_queue.spark.typed.extended import form_value, text_forms

_raw_decode = json.JSONDecoder().raw_decode
_SPACE = r"[ \t\n\r]*"
_SPACES = re.compile(_SPACE)
_NEXT = re.compile(rf"[{{\[,]{_SPACE}")
_MEMBER = re.compile(rf'[{{,]{_SPACE}"([^"\\]*)"{_SPACE}:{_SPACE}')
_COLON = re.compile(rf"{_SPACE}:{_SPACE}")
_SEARCHED = re.compile(r"\w[\w .-]*", re.ASCII)
#: A letter of such a name, if it is written as an escape.
_ESCAPED_LETTER = re.compile(r"\\u00[0-7]")


class Part(Protocol):
    """Replaces, in a value of one type, what is read as text by its text."""

    def is_needed(self, value: Any) -> bool:
        """Return whether a value has such parts."""

    def replace(self, value: Any, text: str, at: int, end: int | None = None) -> Any:
        """Return the value with texts in it. It begins at this place of the document.

        Raises `ValueError` if its texts cannot be found, or `RecursionError`.
        """


def part_of(kind: DataType, *, numbers: bool) -> Part | None:
    """Return the parts of a type that are read as text, or `None` if none is.

    `numbers`: also numbers, which `orjson` would not write the same.
    """
    match kind:
        case StringType():
            return _Text(frozenset((dict, list, float) if numbers else (dict, list)))
        case DecimalType() if numbers:
            return _Text(frozenset((float,)))
        case VariantType() if numbers:
            return _Unknown()
        case StructType():
            parts = {one.name: part_of(one.dataType, numbers=numbers) for one in kind.fields}
            fields = {name: part for name, part in parts.items() if part is not None}
            return _Fields(fields, {name: _pattern_of(name) for name in fields}) if fields else None
        case ArrayType():
            item = part_of(kind.elementType, numbers=numbers)
            return item and _Items(item)
        case MapType():
            item = part_of(kind.valueType, numbers=numbers)
            return item and _Values(item)
    return None


def _pattern_of(name: str) -> re.Pattern[str] | None:
    if _SEARCHED.fullmatch(name) is None:
        return None
    return re.compile(rf'(?<!\\)"{re.escape(name)}"{_SPACE}:{_SPACE}')


@dataclass(frozen=True)
class _Text:
    types: frozenset[type]

    def is_needed(self, value: Any) -> bool:
        return type(value) in self.types

    def replace(self, value: Any, text: str, at: int, end: int | None = None) -> Any:
        found = form_value(value, _FORMS)
        return text[at : end or _raw_decode(text, at)[1]] if found is None else found


_FORMS = text_forms()


class _Unknown:
    """A VARIANT keeps each number as it is written: such a document is read by itself."""

    def is_needed(self, value: Any) -> bool:
        return isinstance(value, dict | list | float)

    def replace(self, value: Any, text: str, at: int, end: int | None = None) -> Any:
        raise ValueError


@dataclass(frozen=True)
class _Fields:
    fields: dict[str, Part]
    patterns: dict[str, re.Pattern[str] | None]

    def is_needed(self, value: Any) -> bool:
        return type(value) is dict and any(part.is_needed(value.get(name)) for name, part in self.fields.items())

    def replace(self, value: Any, text: str, at: int, end: int | None = None) -> Any:
        places: dict[str, int] = {}
        for name, part in self.fields.items():
            one = value.get(name)
            if part.is_needed(one):
                place = places.get(name) or self._search(name, text, at, len(text) if end is None else end)
                if place is None:
                    places = {member: start for member, start, _ in _members(text, at)}
                    place = places[name]
                value[name] = part.replace(one, text, place)
        return value

    def _search(self, name: str, text: str, at: int, end: int) -> int | None:
        """Return where the value of a name begins, or `None` if the name may come twice in the text."""
        pattern = self.patterns[name]
        if pattern is None or ("\\u00" in text and _ESCAPED_LETTER.search(text)):
            return None
        found = pattern.search(text, at, end)
        return None if found is None or pattern.search(text, found.end(), end) else found.end()


@dataclass(frozen=True)
class _Items:
    item: Part

    def is_needed(self, value: Any) -> bool:
        return type(value) is list and any(map(self.item.is_needed, value))

    def replace(self, value: Any, text: str, at: int, end: int | None = None) -> Any:
        for number, one in enumerate(value):
            at = _skip(_NEXT, text, at)
            last = _raw_decode(text, at)[1]
            if self.item.is_needed(one):
                value[number] = self.item.replace(one, text, at, last)
            at = _skip(_SPACES, text, last)
        return value


@dataclass(frozen=True)
class _Values:
    item: Part

    def is_needed(self, value: Any) -> bool:
        return type(value) is dict and any(map(self.item.is_needed, value.values()))

    def replace(self, value: Any, text: str, at: int, end: int | None = None) -> Any:
        for name, start, last in _members(text, at):
            if self.item.is_needed(value[name]):
                value[name] = self.item.replace(value[name], text, start, last)
        return value


def _members(text: str, at: int) -> Iterator[tuple[str, int, int]]:
    """Return the names of the object that begins at a place, and where each value begins and ends."""
    while text[at] != "}":
        if found := _MEMBER.match(text, at):
            name, at = found[1], found.end()
        else:  # a name with escapes
            name, at = _raw_decode(text, _skip(_NEXT, text, at))
            at = _skip(_COLON, text, at)
        end = _raw_decode(text, at)[1]
        yield name, at, end
        at = _skip(_SPACES, text, end)


def _skip(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Return where what a pattern matches at a place ends."""
    found = pattern.match(text, at)
    assert found is not None
    return found.end()
