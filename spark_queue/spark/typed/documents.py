"""Read a JSON text as a value, without a loss: numbers as they are written, names that repeat.

Spark's reader sees both, and takes more than JSON: text in single quotes, `NaN`, a byte order mark,
and anything after the first value. `orjson` reads a text that it would write the same, so nothing
is lost. Another text is read by the standard library, or by `read_document`, which is slow.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from typing import Any

import orjson

#: Spark's parser refuses longer numbers.
_LONGEST_NUMBER = 1000

_SPACES = b" \t\n\r"
_SPACE = re.compile(r"[ \t\n\r]*")
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

#: What the standard library would lose: the sign of a zero, and `?` for half a surrogate pair.
_MINUS_ZERO = re.compile(r"-0[\s,}\]]")
_HALF_PAIR = re.compile(r"\\u[dD][89a-fA-F]")
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


def load_lossless(raw: bytes) -> tuple[Any, bool]:
    """Return the value of a text that orjson writes the same, but for spaces; and if they are, too.

    Raises `ValueError` for another text.
    """
    value = orjson.loads(raw)
    try:
        again = orjson.dumps(value)
    except TypeError:  # deeper than orjson writes
        raise ValueError from None
    if again == raw:
        return value, True
    if again.translate(None, _SPACES) != raw.translate(None, _SPACES):
        raise ValueError
    return value, False


def load_all_compact(texts: list[bytes]) -> list[Any] | None:
    """Return the values of texts if orjson writes all of them the same, else `None`."""
    raw = b"[" + _BETWEEN.join(texts) + b"]"
    try:
        values: list[Any] = orjson.loads(raw)
        if orjson.dumps(values) != raw:
            return None
    except (ValueError, TypeError):
        return None
    # A text that is no JSON may reach into the next, but not over what is between them.
    if len(values) != 2 * len(texts) - 1 or values[1::2].count(_MARK) != len(texts) - 1:
        return None
    return values[::2]


def load_loose(text: str) -> Any:
    """Return the value of a JSON text: numbers are `Written…`, objects and arrays are not.

    Raises `ValueError` if the text is not JSON.
    """
    if _MINUS_ZERO.search(text) or ("\\u" in text and _HALF_PAIR.search(text)):
        raise ValueError
    return _LOOSE.decode(text)


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
    """Return the text of a value that `load_lossless` has read as compact."""
    return orjson.dumps(value).decode()


def spaced_text(value: Any) -> str:
    """Return the text of a value of `load_lossless`.

    Raises `KeyError` for an object or an array, whose spaces are unknown.
    """
    if isinstance(value, dict | list):
        raise KeyError
    return compact_text(value)


def python_text(value: Any) -> str:
    """Return the text of a value as Python's standard library writes it, with spaces."""
    return json.dumps(value, ensure_ascii=False)


def loose_text(value: Any) -> str:
    """Return the text of a value of `load_loose`. Raises `KeyError` if it is not known."""
    if isinstance(value, dict | list):
        raise KeyError
    return written_text(value)


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


# --- the standard library -------------------------------------------------------------------------


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) == len(pairs):
        return value
    repeated = WrittenDict(value)
    repeated.pairs = pairs
    return repeated


def _float(text: str) -> float:
    if len(text) > _LONGEST_NUMBER:
        raise ValueError
    return WrittenFloat(text)


def _no_constant(text: str) -> Any:
    raise ValueError(text)


_LOOSE = json.JSONDecoder(object_pairs_hook=_pairs, parse_float=_float, parse_constant=_no_constant)


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
