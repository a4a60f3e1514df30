"""JSON text of Python values, and the mistakes in values that have none."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import orjson

from spark_queue.errors import MessageError

#: The error for text that UTF-8 cannot hold.
HALF_SURROGATE = (
    "text with half a surrogate pair is not Unicode; in Python, clean it with .encode('utf-8', 'replace').decode()"
)

#: Types that JSON cannot hold, and what to do.
_REMEDIES = {
    "set": "use a list", "frozenset": "use a list", "generator": "use a list", "bytes": "encode it as text (base64)",
    "bytearray": "encode it as text (base64)", "Decimal": "use str(…) or float(…)",
    "timedelta": "use .total_seconds()", "ndarray": "use .tolist()", "Timestamp": "use .isoformat()",
    "DataFrame": "use .to_dict('records')", "complex": "use a list of two numbers",
}  # fmt: skip

#: Maximum depth of a payload. A deeper one is refused, and one that contains itself.
_MAX_DEPTH = 250

#: Errors that are raised for a value that has no JSON text.
_ENCODE_ERRORS = (TypeError, ValueError, RecursionError)

#: Translates each digit to `0`, and all else to NUL. This finds nineteen digits in a row in a tenth
#: of the time of a regular expression. Fewer digits always fit in 64 bits.
_DIGITS_TO_ZERO = bytes(ord("0") if one in b"0123456789" else 0 for one in range(256))
_LONG_INTEGER = b"0" * 19


def dump_json(value: object) -> bytes:
    """Return compact JSON text; integers of any size stay exact.

    Raises `MessageError` for a value that JSON cannot hold. It names the part: `payload.a[0]`.
    """
    try:
        return _encode(value)
    except _ENCODE_ERRORS as error:
        raise MessageError(next(find_json_faults(value), f"payload: {error}")) from error


def load_json(text: bytes) -> Any:
    """Return the value of JSON text.

    Integers beyond 64 bits stay exact; orjson alone would round them. Raises `ValueError` for other
    text, and for half a surrogate pair, which the standard library would accept.
    """
    value = orjson.loads(text)
    return json.loads(text) if _LONG_INTEGER in text.translate(_DIGITS_TO_ZERO) else value


def load_foreign_json(text: bytes) -> Any:
    """Return the value of JSON text of another program.

    Half a surrogate pair becomes `?`, and NaN is a number. Raises `ValueError` for other text.
    """
    try:
        return load_json(text)
    except ValueError:
        return json.loads(clean_json(text))


def clean_json(text: str | bytes) -> bytes:
    """Return JSON text of another program with `?` for each half of a surrogate pair.

    Raises `ValueError` for other text.
    """
    return json.dumps(json.loads(text), ensure_ascii=False).encode(errors="replace")


def is_text(value: object) -> bool:
    """Return whether this is text that UTF-8 can hold."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def clean_text(text: str) -> str:
    """Return text with `?` for each half of a surrogate pair."""
    return text.encode(errors="replace").decode()


def type_name(value: object) -> str:
    """Return the name of a value's type, for an error."""
    return type(value).__name__


def find_json_faults(value: Any, path: str = "payload", depth: int = _MAX_DEPTH) -> Iterator[str]:
    """Yield the parts of a value that JSON cannot hold, with their places."""
    with suppress(*_ENCODE_ERRORS):
        _encode(value)
        return
    if not depth:
        yield f"{path[:60]}…: is nested more than {_MAX_DEPTH} levels deep, or contains itself"
    elif isinstance(value, dict):
        for key, one in value.items():
            if not isinstance(key, str):
                yield f"{path}: the key {key!r} is {type_name(key)}, and keys of JSON are text; use str(…)"
            elif not is_text(key):
                yield f"{path}: the key {key!r}: {HALF_SURROGATE}"
            else:
                yield from find_json_faults(one, f"{path}.{key}", depth - 1)
    elif isinstance(value, list | tuple):
        for number, one in enumerate(value):
            yield from find_json_faults(one, f"{path}[{number}]", depth - 1)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from find_json_faults(getattr(value, field.name), f"{path}.{field.name}", depth - 1)
    elif isinstance(value, float):
        yield f"{path}: {value} has no form in JSON; use None or text"
    elif isinstance(value, str):
        yield f"{path}: {HALF_SURROGATE}"
    else:
        yield f"{path}: {type_name(value)} has no form in JSON; {_remedy(value)}"


def _encode(value: object) -> bytes:
    """Return the JSON text of a value. Raises one of `_ENCODE_ERRORS` if it has none."""
    try:
        text = orjson.dumps(value)
    except orjson.JSONEncodeError as error:
        if "Integer exceeds" not in str(error) or not _has_text_keys(value):
            raise
        text = b"null"
    if b"null" not in text:
        return text
    # orjson writes NaN as null and refuses long integers; the standard library does neither.
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=_to_plain).encode()


def _has_text_keys(value: object) -> bool:
    """Return whether all keys are text. The standard library would convert others to text."""
    if isinstance(value, dict):
        return all(isinstance(key, str) for key in value) and all(map(_has_text_keys, value.values()))
    return not isinstance(value, list | tuple) or all(map(_has_text_keys, value))


def _to_plain(value: Any) -> Any:
    """Convert a value that the standard library does not know, as orjson does.

    Raises `TypeError` if orjson does not know it either.
    """
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return orjson.loads(orjson.dumps(value))
    names = (one.name for one in dataclasses.fields(value) if not one.name.startswith("_"))
    fields = {name: getattr(value, name) for name in names}
    if not _has_text_keys(fields):
        raise TypeError("a key is not text")
    return fields


def _remedy(value: object) -> str:
    if remedy := _REMEDIES.get(type_name(value)):
        return remedy
    if hasattr(value, "item") and type(value).__module__ == "numpy":
        return "use .item()"
    return "use text, a number, a list or a dict"
