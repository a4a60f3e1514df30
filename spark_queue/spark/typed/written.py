"""Find the texts of parts of JSON documents: a STRING has an object or a number as it is written.

`orjson` reads documents fast, but not how their parts are written. So for those parts that are read
as text, their places in the documents are found, and they become texts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from pyspark.sql.types import ArrayType, DataType, DecimalType, MapType, StringType, StructType, VariantType

from spark_queue.spark.typed.documents import Loaded, Written, compact_texts, count_letters
from spark_queue.spark.typed.extended import form_value, text_forms

#: Returns the value that begins at a place of a text, and where it ends.
_scan = json.JSONDecoder().raw_decode

_SPACE = r"[ \t\n\r]*"
_ITEM = re.compile(rf"{_SPACE}[\[,]{_SPACE}")
_MEMBER = re.compile(rf'{_SPACE}[{{,]{_SPACE}"([^"\\]*)"{_SPACE}:{_SPACE}')
_NAME = re.compile(rf"{_SPACE}[{{,]{_SPACE}")
_COLON = re.compile(rf"{_SPACE}:{_SPACE}")
_NUMBER = re.compile(rb"[^\s,\]}]+")

#: Names that are searched for. One of their letters, or a bracket, may be written as an escape.
_SEARCHED = re.compile(r"\w[\w .-]*", re.ASCII)
_ESCAPED = re.compile(rb"\\u00[0-7]")

_FORMS = text_forms()


class TextPart(Protocol):
    """Replaces, in values of one type, what is read as text by its text."""

    def is_in(self, values: Iterable[Any], loaded: Loaded) -> bool:
        """Return whether one of the values has such parts."""

    def replace(self, value: Any, loaded: Loaded, text: str, start: int, end: int) -> Any:
        """Return such a value with texts in it. It is between these places of a text.

        Raises `ValueError` if a text of it cannot be found, or `RecursionError`.
        """


def part_of(kind: DataType) -> TextPart | None:
    """Return the parts of a type that are read as text, or `None` if none is."""
    match kind:
        case StringType():
            return _Text(frozenset((dict, list, float, int)))
        case DecimalType():
            return _Text(frozenset((float,)))
        case VariantType():
            return _Unknown(frozenset((dict, list, float, int)))
        case StructType():
            parts = {one.name: part_of(one.dataType) for one in kind.fields}
            fields = {name: part for name, part in parts.items() if part is not None}
            return _Fields(fields) if fields else None
        case ArrayType():
            item = part_of(kind.elementType)
            return item and _Items(item)
        case MapType():
            item = part_of(kind.valueType)
            return item and _Values(item)
    return None


def replace_all(part: TextPart, loaded: Loaded, documents: list[bytes]) -> list[int]:
    """Replace, in the values of documents, what is read as text. Return the rows that need more.

    They have to be read by themselves.
    """
    values, failed = loaded.values, []
    if isinstance(part, _Fields):
        rows = part.replace_most(loaded)
    elif _replace_spaced(part, values, loaded.starts(documents), loaded):
        rows = []
    else:
        rows = _rows(part, values, loaded)
    for row in rows:
        text = documents[row].decode()
        try:
            values[row] = part.replace(values[row], loaded, text, len(text) - len(text.lstrip()), len(text))
        except (ValueError, RecursionError):
            failed.append(row)
    return failed


def _rows(part: TextPart, values: list[Any], loaded: Loaded) -> list[int]:
    """Return which values have parts that are read as text."""
    if isinstance(part, _Text):
        types = part.types & loaded.unsure
        return [row for row, value in enumerate(values) if type(value) in types]
    if not part.is_in(values, loaded):
        return []
    return [row for row, value in enumerate(values) if part.is_in((value,), loaded)]


@dataclass(frozen=True)
class _Text:
    types: frozenset[type]

    def is_in(self, values: Iterable[Any], loaded: Loaded) -> bool:
        found = self.types.intersection(map(type, values))
        return bool(found) and not found.isdisjoint(loaded.unsure)

    def replace(self, value: Any, loaded: Loaded, text: str, start: int, end: int) -> Any:
        return self.as_text(value, text[start:end])

    def as_text(self, value: Any, text: str) -> str:
        """Return an object, an array or a number as text: identifiers are objects, too."""
        if type(value) is dict and len(value) == 1 and (found := form_value(value, _FORMS)) is not None:
            return str(found)
        return text


class _Unknown(_Text):
    """A VARIANT keeps each number as it is written: such a document is read by itself."""

    def replace(self, value: Any, loaded: Loaded, text: str, start: int, end: int) -> Any:
        raise ValueError


@dataclass(frozen=True)
class _Fields:
    fields: dict[str, TextPart]

    def is_in(self, values: Iterable[Any], loaded: Loaded) -> bool:
        given = [value for value in values if type(value) is dict]
        return any(part.is_in([value.get(name) for value in given], loaded) for name, part in self.fields.items())

    def replace(self, value: Any, loaded: Loaded, text: str, start: int, end: int) -> Any:
        for name, at, last in _members(text, start):
            part = self.fields.get(name)
            if part is not None and part.is_in((value[name],), loaded):
                value[name] = part.replace(value[name], loaded, text, at, last)
        return value

    def replace_most(self, loaded: Loaded) -> list[int]:
        """Replace the parts of fields whose names come once in each text. Return the other rows."""
        given = [value if type(value) is dict else {} for value in loaded.values]
        others: set[int] = set()
        for name, part in self.fields.items():
            column = [value.get(name) for value in given]
            rows = _rows(part, column, loaded)
            if rows:
                try:
                    named = [row for row, value in enumerate(given) if name in value]
                    found = dict(zip(named, _starts(name, loaded.raw), strict=True))
                    values, starts = [column[row] for row in rows], [found[row] for row in rows]
                    if _replace_spaced(part, values, starts, loaded):
                        continue
                    texts = _texts(values, starts, loaded.raw)
                    for row, value, text in zip(rows, values, texts, strict=True):
                        given[row][name] = part.replace(value, loaded, text, 0, len(text))
                except (ValueError, TypeError, RecursionError):
                    others.update(rows)
        return sorted(others)


@dataclass(frozen=True)
class _Items:
    item: TextPart

    def is_in(self, values: Iterable[Any], loaded: Loaded) -> bool:
        lists = [value for value in values if type(value) is list]
        return self.item.is_in(chain.from_iterable(lists), loaded)

    def replace(self, value: Any, loaded: Loaded, text: str, start: int, end: int) -> Any:
        rows = _rows(self.item, value, loaded)
        last = start
        for row in range(rows[-1] + 1):
            at = _skip(_ITEM, text, last)
            last = _scan(text, at)[1]
            if row in rows:
                value[row] = self.item.replace(value[row], loaded, text, at, last)
        return value


@dataclass(frozen=True)
class _Values:
    item: TextPart

    def is_in(self, values: Iterable[Any], loaded: Loaded) -> bool:
        maps = [value for value in values if type(value) is dict]
        return self.item.is_in(chain.from_iterable(map(dict.values, maps)), loaded)

    def replace(self, value: Any, loaded: Loaded, text: str, start: int, end: int) -> Any:
        names = [*value]
        wanted = {names[row] for row in _rows(self.item, [*value.values()], loaded)}
        for name, at, last in _members(text, start):
            if name in wanted:
                value[name] = self.item.replace(value[name], loaded, text, at, last)
        return value


def _replace_spaced(part: TextPart, values: list[Any], starts: npt.ArrayLike, loaded: Loaded) -> bool:
    """Replace the objects and arrays in maps or arrays of texts, if they differ only in spaces.

    Return whether it did. The values begin at these places. Each letter that is no space has the
    same number in the texts as in the compact ones.
    """
    text = part.item if isinstance(part, _Items | _Values) else None
    if type(text) is not _Text or loaded.written is not Written.WITH_SPACES:
        return False
    kind = list if isinstance(part, _Items) else dict
    rows = [row for row, value in enumerate(values) if type(value) is kind and value]
    if not rows:
        return True
    outer = [values[row] for row in rows]
    inner = [*chain.from_iterable(outer if kind is list else map(dict.values, outer))]
    try:
        sizes = count_letters(inner)
        names = 0 if kind is list else count_letters([*chain.from_iterable(outer)]) + 1  # and a colon
    except TypeError:  # deeper than orjson writes
        return False
    ends = np.cumsum(names + sizes + 1)  # and a comma, or the last bracket
    counts = np.array([*map(len, outer)])
    firsts = np.searchsorted(loaded.letters, np.asarray(starts)[rows]) + 1
    lasts = np.repeat(firsts - np.append(0, ends)[np.cumsum(counts) - counts], counts) + ends - 2
    spans = zip(loaded.letters[lasts - sizes + 1].tolist(), (loaded.letters[lasts] + 1).tolist(), strict=True)
    for value in outer:
        for key, one in enumerate(value) if kind is list else value.items():
            start, end = next(spans)
            if type(one) in loaded.unsure:
                value[key] = text.as_text(one, loaded.raw[start:end].decode())
    return True


# --- places in texts ------------------------------------------------------------------------------


def _starts(name: str, raw: bytes) -> list[int]:
    """Return where the values of this name begin, in all objects of a text.

    Raises `ValueError` if the name may be written in another way, or within a text.
    """
    within_a_text = rf'\"{name}"'.encode()
    if _SEARCHED.fullmatch(name) is None or (b"\\" in raw and (_ESCAPED.search(raw) or within_a_text in raw)):
        raise ValueError
    return [found.end() for found in re.finditer(rf'"{re.escape(name)}"{_SPACE}:{_SPACE}'.encode(), raw)]


def _texts(values: list[Any], starts: list[int], raw: bytes) -> list[str]:
    """Return the texts of values that begin at these places. Brackets in them are no escapes."""
    letters = np.frombuffer(raw, np.uint8)
    places = np.array(starts)
    ends = np.zeros(len(starts), np.int64)
    compact = compact_texts(values)
    for letter, kind in (("}", dict), ("]", list)):
        rows = [row for row, value in enumerate(values) if type(value) is kind]
        if rows:  # it ends at the bracket of the same number as in the compact text
            brackets = np.flatnonzero(letters == ord(letter))
            counts = [compact[row].count(letter) for row in rows]
            ends[rows] = brackets[np.searchsorted(brackets, places[rows]) + counts - 1] + 1
    texts = []
    for start, end in zip(starts, ends.tolist(), strict=True):
        if not end:
            number = _NUMBER.match(raw, start)
            assert number is not None
            end = number.end()
        texts.append(raw[start:end].decode())
    return texts


def _members(text: str, start: int) -> Iterator[tuple[str, int, int]]:
    """Return the names of an object, and where each value begins and ends."""
    end = start
    while True:
        if found := _MEMBER.match(text, end):
            name, at = found[1], found.end()
        elif (found := _NAME.match(text, end)) and text[found.end()] == '"':  # a name with escapes
            name, at = _scan(text, found.end())
            at = _skip(_COLON, text, at)
        else:
            return
        end = _scan(text, at)[1]
        yield name, at, end


def _skip(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    assert found is not None
    return found.end()
