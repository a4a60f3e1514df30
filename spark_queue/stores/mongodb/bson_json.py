"""Convert payloads and headers between the JSON of messages and the BSON of MongoDB documents.

Types that JSON lacks (dates, ObjectId, Decimal128, …) are relaxed Extended JSON in messages, in
both directions. An object of a payload becomes such a type only if reading that type returns the
same JSON. Any other object stays as it is, whatever its names: `{"$oid":null}` and `{"$date":true}`
are objects.

Numbers keep their value, 64-bit integers exactly. JavaScript writes integers beyond 32 bits as
doubles: a double of that size without a fraction is read as an integer.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterable, Mapping
from typing import Any

import bson
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from bson import json_util
from bson.code import Code
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.dbref import DBRef
from bson.errors import BSONError
from bson.timestamp import Timestamp

from spark_queue.messages.json_text import load_json
from spark_queue.messages.schema import PayloadKind

#: Dates are milliseconds, since BSON has years that `datetime` lacks. Strings of other programs may
#: not be UTF-8.
CODEC: CodecOptions[dict[str, Any]] = CodecOptions(
    datetime_conversion=DatetimeConversion.DATETIME_MS, unicode_decode_error_handler="replace"
)

#: Most bytes of a document: the server's 16 MiB less the fields that a reservation adds.
MAX_DOCUMENT_BYTES = (16 << 20) - (16 << 10)

#: Most levels of nesting: the limit in MongoDB's documentation.
MAX_DEPTH = 100

_EXTENDED_JSON = json_util.JSONOptions(
    json_mode=json_util.JSONMode.RELAXED, datetime_conversion=DatetimeConversion.DATETIME_MS
)
_ORJSON_OPTIONS = orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATETIME

#: JSON that orjson writes for NaN (and null), and for doubles that may stand for integers.
_AMBIGUOUS = re.compile(rb"null|\d{10}\.0(?!\d)")

#: A name or a text that begins with $.
_DOLLAR = re.compile(rb'"(?:\$|\\u0024)')

#: JSON that plain parsing may change or BSON may refuse: $ names, long integers, the character NUL.
_NEEDS_CHECK = rf"{_DOLLAR.pattern.decode()}|[0-9]{{19}}|\\u0000"

#: The server writes its own time in its place, if a field of a document has it.
_NOW = Timestamp(0, 0)

#: Errors of reading and writing an object that only looks like Extended JSON.
_CONVERSION_ERRORS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, BSONError, struct.error)

#: Up to this size (bytes), JSON cannot become too large a document. An element of an array takes 2
#: bytes in JSON, at most 12 in BSON.
_MAX_UNCHECKED_BYTES = 1 << 20


def need_checks(payloads: pa.Array) -> list[bool]:
    """Return for each payload whether `to_bson` must check it: a fast pass that selects few."""
    found: list[bool] = pc.or_(
        pc.match_substring_regex(payloads, _NEEDS_CHECK), pc.greater(pc.binary_length(payloads), _MAX_UNCHECKED_BYTES)
    ).to_pylist()
    return found


def check_document(document: Mapping[str, Any]) -> None:
    """Raise `ValueError` with the rule that a document breaks."""
    if len(_encode(document)) > MAX_DOCUMENT_BYTES:
        raise ValueError(f"its document is larger than {MAX_DOCUMENT_BYTES:,} bytes")


def _encode(document: Mapping[str, Any]) -> bytes:
    try:
        return bson.encode(document, codec_options=CODEC)
    except OverflowError as error:
        raise ValueError("its payload has an integer beyond 64 bits, which MongoDB cannot keep") from error
    except BSONError as error:
        raise ValueError(f"its payload is no document: MongoDB cannot keep it ({error})") from error


def to_bson(payload: bytes, kind: str, needs_check: bool) -> Any:
    """Return the value that a document holds for a payload.

    Raises `ValueError` with the rule that the payload breaks.
    """
    if kind == "json":
        if len(payload) > 2 * MAX_DEPTH:
            needs_check = needs_check or payload.count(b"[") + payload.count(b"{") > MAX_DEPTH
        value = _parse_checked(payload) if needs_check else orjson.loads(payload)
        if value is None:
            raise ValueError("its payload is JSON null, which would end other consumers of a MongoDB queue")
        return value
    return payload.decode() if kind == "text" else payload


def from_bson(value: Any) -> tuple[bytes, PayloadKind]:
    """Return the payload, and its kind, of a value in a document: the inverse of `to_bson`."""
    if type(value) is str:
        return value.encode(), "text"
    if isinstance(value, bytes):
        return bytes(value), "binary"
    return _to_json(value), "json"


def all_from_bson(values: Iterable[Any]) -> tuple[list[bytes], list[PayloadKind]]:
    """Return the payloads, and their kinds, of many values: fast if all of them are JSON."""
    values = list(values)
    if any(one is str or issubclass(one, bytes) for one in set(map(type, values))):
        payloads, kinds = zip(*map(from_bson, values), strict=True)
        return list(payloads), list(kinds)
    texts = [orjson.dumps(one, _json_default, _ORJSON_OPTIONS) for one in values]
    if _may_be_ambiguous(b"\n".join(texts)):  # one check for all of them
        texts = list(map(_to_json, values))
    return texts, ["json"] * len(texts)


def header_fields(hdrs: Any) -> Any:
    """Return headers as an object, also if they have the names of a DBRef."""
    return hdrs.as_doc() if isinstance(hdrs, DBRef) else hdrs


def header_text(hdrs: Mapping[str, Any] | DBRef | None) -> dict[str, str]:
    """Return headers as text. Numbers and booleans become their JSON; nulls are left out.

    Other writers may use such values.
    """
    if not hdrs:
        return {}
    return {
        name: value if type(value) is str else _to_json(value).decode()
        for name, value in header_fields(hdrs).items()
        if value is not None
    }


def _parse_checked(text: bytes) -> Any:
    try:
        value = load_json(text)
        if _depth(value) > MAX_DEPTH:
            raise RecursionError
    except RecursionError as error:
        raise ValueError(f"its payload is nested deeper than {MAX_DEPTH} levels") from error
    if not (isinstance(value, dict | list) and _DOLLAR.search(text)):
        return value
    converted = _convert_extended_json(value)
    if isinstance(converted, bytes) or converted == _NOW:  # bytes would become a binary payload
        return value
    return converted


def _convert_extended_json(value: Any) -> Any:
    """Return the value with Extended JSON replaced by BSON types, the innermost first.

    Raises `ValueError` for an object that drivers would read as a DBRef, with its names in another
    order.
    """
    if isinstance(value, list):
        return [_convert_extended_json(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    plain = {name: _convert_extended_json(inner) for name, inner in value.items()}
    if not any(name.startswith("$") for name in plain):
        return plain
    if "$ref" in plain and "$id" in plain and not _round_trips(plain, plain):
        raise ValueError(
            "its payload would be changed by MongoDB's drivers: write an object with $ref and $id so that these two "
            "come first, in this order, and then $db, if it has one"
        )
    try:
        # An Extended JSON number would be read as a plain number, so it stays an object, except in
        # a date.
        parts = {
            name: _convert_extended_object(inner) if type(inner) is dict else inner for name, inner in plain.items()
        }
        converted = _convert_extended_object(parts)
        is_object = isinstance(converted, dict | DBRef)  # a DBRef is an object in BSON, too
        return converted if not is_object and _round_trips(converted, plain) else plain
    except _CONVERSION_ERRORS:  # an object of the user's own
        return plain


def _round_trips(value: Any, expected: Any) -> bool:
    """Return whether a value, once stored and read again, has the same JSON as another one.

    Raises `ValueError` if MongoDB cannot keep it.
    """
    stored = bson.decode(_encode({"": value}), CODEC)[""]
    return _to_json(stored) == _to_json(expected)


def _convert_extended_object(value: dict[str, Any]) -> Any:
    """Return the BSON type that an Extended JSON object stands for; else the object."""
    return json_util.object_hook({**value}, _EXTENDED_JSON)  # a copy: object_hook may change it


def _to_json(value: Any) -> bytes:
    text = orjson.dumps(value, _json_default, _ORJSON_OPTIONS)
    if _may_be_ambiguous(text) and _AMBIGUOUS.search(text):
        text = orjson.dumps(_replace_doubles(value), _json_default, _ORJSON_OPTIONS)
    return text


def _may_be_ambiguous(text: bytes) -> bool:
    """Return whether the text may match _AMBIGUOUS: a fast first check."""
    return b"null" in text or b".0" in text


def _json_default(value: Any) -> Any:
    """Return what orjson writes for a BSON type: its `default` hook."""
    if isinstance(value, int):
        return int(value)
    unwrapped = _unwrap(value)
    return json_util.default(value, _EXTENDED_JSON) if unwrapped is value else unwrapped


def _unwrap(value: Any) -> Any:
    """Return a DBRef, or code with a scope, as an object; any other value as it is."""
    if isinstance(value, DBRef):
        return {**value.as_doc()}
    if isinstance(value, Code) and value.scope is not None:
        return {"$code": str(value), "$scope": value.scope}
    return value


def _replace_doubles(value: Any) -> Any:
    """Return the value without the doubles that orjson would write wrong.

    NaN and infinities become Extended JSON, doubles that stand for integers become integers.
    """
    value = _unwrap(value)
    if isinstance(value, dict):
        return {name: _replace_doubles(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_replace_doubles(inner) for inner in value]
    if isinstance(value, float):
        if not math.isfinite(value):
            return {"$numberDouble": "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"}
        if value.is_integer() and 2**31 <= abs(value) <= 2**53:
            return int(value)
    return value


def _depth(value: Any) -> int:
    """Return the levels of nesting of a JSON value."""
    deepest, left = 0, [(value, 1)]
    while left:
        one, level = left.pop()
        if isinstance(one, dict | list):
            deepest = max(deepest, level)
            left += [(inner, level + 1) for inner in (one.values() if isinstance(one, dict) else one)]
    return deepest
