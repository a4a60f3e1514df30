"""Read JSON texts as values, without a loss: numbers as they are written, names that repeat.

Spark's reader sees both, and takes more than JSON: text in single quotes, `NaN`, a byte order mark,
and anything after the first value. `orjson` reads texts that have none of these, many at once. Any
other text is read by `read_document`, which is slow.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

#: Spark's parser refuses longer numbers.
_LONGEST_NUMBER = 1000

_SPACES = b" \t\n\r"
_SPACE = re.compile(r"[ \t\n\r]*")
_IS_SPACE = np.isin(np.arange(256), np.frombuffer(_SPACES, np.uint8))
_TEXT = re.compile(
    r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt\']|u[0-9a-fA-F]{4}))*"'
    r"|'(?:[^'\\\x00-\x1f]|\\(?:[\"\\/bfnrt']|u[0-9a-fA-F]{4}))*'"
)
_NUMBER = re.compile(r"(-?(?:0|[1-9][0-9]*))(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_WORD = re.compile(r"true|false|null|NaN|[+-]?Infinity|[+-]INF")
_WORDS = {"true": True, "false": False, "null": None}
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
#: A value that no text has, between two of them.
_MARK = os.urandom(16).hex()
_BETWEEN = f',"{_MARK}",'.encode()

_ESCAPED = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


class WrittenInt(int):
    """An integer, and how it is written."""

    text: str


class WrittenFloat(float):
    """A number that is no integer, and how it is written."""

    text: str

    def __new__(cls, text: str) -> WrittenFloat:
        number = super().__new__(cls, text.replace("INF", "inf"))
        number.text = text
        return number


class WrittenList(list[Any]):
    """An array, and how it is written."""

    text: str


class WrittenDict(dict[str, Any]):
    """An object, how it is written, and all of its pairs if names repeat."""

    text: str
    pairs: Sequence[tuple[str, Any]] | None = None


class Written(Enum):
    """How texts are written, compared with `orjson`, which would write the values of them."""

    SAME = 0
    WITH_SPACES = 1
    OTHERWISE = 2  # numbers, or letters in texts


@dataclass(frozen=True)
class Loaded:
    """The values of texts: of all together, as one array in which something is between them."""

    values: list[Any]
    raw: bytes
    again: bytes

    @property
    def is_same(self) -> bool:
        """Whether `orjson` would write all texts the same."""
        return self.again == self.raw

    @cached_property
    def written(self) -> Written:
        """How the texts are written."""
        if self.is_same:
            return Written.SAME
        if self.again.translate(None, _SPACES) == self.raw.translate(None, _SPACES):
            return Written.WITH_SPACES
        return Written.OTHERWISE

    @cached_property
    def letters(self) -> npt.NDArray[np.int64]:
        """Where the letters of all texts are that are no spaces."""
        return np.flatnonzero(~_IS_SPACE[np.frombuffer(self.raw, np.uint8)])

    def starts(self, texts: list[bytes]) -> npt.NDArray[np.int64]:
        """Return where each text begins in `raw`."""
        sizes = [len(one) + len(_BETWEEN) for one in texts]
        return np.cumsum([1, *sizes[:-1]], dtype=np.int64)

    @cached_property
    def unsure(self) -> frozenset[type]:
        """The types of values that are perhaps written in another way than `orjson` writes them."""
        if self.written is not Written.OTHERWISE:
            return _WITH_SPACES
        return _WRITTEN_OTHERWISE if _MINUS_ZERO.search(self.raw) is None else _WRITTEN_OTHERWISE | {int}


_WITH_SPACES: frozenset[type] = frozenset((dict, list))
_WRITTEN_OTHERWISE: frozenset[type] = _WITH_SPACES | {float}


def load_all(texts: list[bytes]) -> Loaded | None:
    """Return the values of JSON texts.

    Returns `None` if one of them is not JSON, or has a name twice, or too long a number for Spark.
    """
    raw = b"[" + _BETWEEN.join(texts) + b"]"
    try:
        values: list[Any] = orjson.loads(raw)
    except ValueError:
        return None
    # A text that is no JSON may reach into the next, but not over what is between them.
    if len(values) != 2 * len(texts) - 1 or values[1::2].count(_MARK) != len(texts) - 1:
        return None
    try:
        again = orjson.dumps(values)
    except TypeError:  # deeper than orjson writes
        again = b'"' * _count_quotes(values)
    if again != raw:
        if _quotes(again) != _quotes(raw):  # a name that comes twice is lost
            return None
        if max(map(len, texts)) > _LONGEST_NUMBER and _has_long_number(raw):
            return None
    return Loaded(values[::2], raw, again)


def _count_quotes(value: Any) -> int:
    """Return the number of quotes around the texts and names of a value."""
    count, rest = 0, [value]
    while rest:
        one = rest.pop()
        if isinstance(one, dict):
            count += 2 * len(one)
            rest += one.values()
        elif isinstance(one, list):
            rest += one
        elif isinstance(one, str):
            count += 2
    return count


def _quotes(raw: bytes) -> int:
    """Return the number of quotes around texts and names."""
    if b"\\" in raw:
        raw = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    return int(np.count_nonzero(np.frombuffer(raw, np.uint8) == ord('"')))


#: An integer whose sign is lost.
_MINUS_ZERO = re.compile(rb"-0[\s,}\]]")
_NO_NUMBER = bytes(code if code in b"0123456789+-.eE" else 32 for code in range(256))


def _has_long_number(raw: bytes) -> bool:
    return max(map(len, raw.translate(_NO_NUMBER).split()), default=0) > _LONGEST_NUMBER


def read_document(text: str) -> Any:
    """Return the value at the start of a text. Numbers, objects and arrays are `Written…`.

    Raises `ValueError` if there is none, `EOFError` if the text is blank, and `RecursionError` if
    it is nested too deep.
    """
    start = _skip(text, 1 if text.startswith("\ufeff") else 0)
    if start == len(text):
        raise EOFError
    return _read_value(text, start)[0]


def compact_text(value: Any) -> str:
    """Return the text of a value as `orjson` writes it."""
    return orjson.dumps(value).decode()


def compact_texts(values: list[Any]) -> list[str]:
    """Return the texts of values as `orjson` writes them."""
    return _compact(values).decode().split(_BETWEEN.decode())


def count_letters(values: list[Any]) -> npt.NDArray[np.int64]:
    """Return the numbers of letters in the texts of values that are no spaces."""
    return np.array([*map(len, _compact(values).translate(None, _SPACES).split(_BETWEEN))])


def _compact(values: list[Any]) -> bytes:
    marked = [_MARK] * (2 * len(values) - 1)
    marked[::2] = values
    return orjson.dumps(marked)[1:-1]


def written_text(value: Any) -> str:
    """Return the text of a value of `read_document`."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    return str(value.text) if hasattr(value, "text") else json.dumps(value, ensure_ascii=False)


def pairs_of(value: dict[str, Any]) -> Iterable[tuple[str, Any]]:
    """Return all pairs of an object, also if names repeat."""
    return value.items() if (pairs := repeated_pairs(value)) is None else pairs


def repeated_pairs(value: dict[str, Any]) -> Sequence[tuple[str, Any]] | None:
    """Return all pairs of an object if names repeat, else `None`."""
    return value.pairs if isinstance(value, WrittenDict) else None


# --- as Spark reads it ----------------------------------------------------------------------------


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None
    return found.end()


def _read_value(text: str, at: int) -> tuple[Any, int]:
    """Return the value that begins at a place, and where it ends.

    Raises `ValueError` if none does.
    """
    first = text[at : at + 1]
    if first == "{":
        return _read_object(text, at)
    if first == "[":
        return _read_array(text, at)
    if first in ('"', "'"):
        return _read_text(text, at)
    if found := _WORD.match(text, at):
        word = found[0]
        return (_WORDS[word] if word in _WORDS else WrittenFloat(word)), found.end()
    if (found := _NUMBER.match(text, at)) and len(found[0]) <= _LONGEST_NUMBER:
        return _number_of(found), found.end()
    raise ValueError


def _number_of(found: re.Match[str]) -> WrittenInt | WrittenFloat:
    if found[2] or found[3]:
        return WrittenFloat(found[0])
    number = WrittenInt(found[0])
    number.text = found[0]
    return number


def _read_text(text: str, at: int) -> tuple[str, int]:
    found = _TEXT.match(text, at)
    if found is None:
        raise ValueError
    inner = found[0][1:-1]
    if "\\" in inner:
        inner = _ESCAPE.sub(lambda one: chr(int(one[1], 16)) if one[1] else _ESCAPED.get(one[2], one[2]), inner)
        if not inner.isascii():  # join the halves of pairs; one half alone is `?`, as Java writes it
            inner = inner.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
            inner = inner.encode(errors="replace").decode()
    return inner, found.end()


def _read_array(text: str, start: int) -> tuple[WrittenList, int]:
    items = WrittenList()
    at = _skip(text, start + 1)
    if text[at : at + 1] != "]":
        while True:
            item, at = _read_value(text, at)
            items.append(item)
            at = _skip(text, at)
            if text[at : at + 1] != ",":
                break
            at = _skip(text, at + 1)
    if text[at : at + 1] != "]":
        raise ValueError
    items.text = text[start : at + 1]
    return items, at + 1


def _read_object(text: str, start: int) -> tuple[WrittenDict, int]:
    pairs = []
    at = _skip(text, start + 1)
    if text[at : at + 1] != "}":
        while True:
            name, at = _read_text(text, at)
            at = _skip(text, at)
            if text[at : at + 1] != ":":
                raise ValueError
            item, at = _read_value(text, _skip(text, at + 1))
            pairs.append((name, item))
            at = _skip(text, at)
            if text[at : at + 1] != ",":
                break
            at = _skip(text, at + 1)
    if text[at : at + 1] != "}":
        raise ValueError
    value = WrittenDict(pairs)
    value.text = text[start : at + 1]
    if len(value) != len(pairs):
        value.pairs = pairs
    return value, at + 1
