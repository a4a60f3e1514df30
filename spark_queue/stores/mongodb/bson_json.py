"""Payloads and headers between JSON, which a message carries, and BSON, which a MongoDB document holds.

Types that JSON lacks (dates, ObjectId, Decimal128, …) are relaxed Extended JSON on our side, in both directions. An
object of a payload becomes such a type only if reading that type returns the same JSON. Any other object stays what
it is, whatever its names: `{"$oid":null}` is an object, and so is `{"$date":true}`.
Numbers keep their value, 64-bit integers exactly. JavaScript writes integers beyond 32 bits as doubles: a double of
that size without a fraction is given as the integer that it stands for.
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

from spark_queue.messages.json_text import load_json
from spark_queue.messages.schema import PayloadKind

#: Dates as milliseconds: BSON has years that `datetime` has not. Strings that others wrote may not be UTF-8.
CODEC: CodecOptions[dict[str, Any]] = CodecOptions(
    datetime_conversion=DatetimeConversion.DATETIME_MS, unicode_decode_error_handler="replace"
)

#: Most bytes of a document: the server's 16 MiB less what a reservation adds to it.
LARGEST_BSON = (16 << 20) - (16 << 10)

#: Most levels of nesting that MongoDB documents.
DEEPEST = 100

_EXTENDED = json_util.JSONOptions(
    json_mode=json_util.JSONMode.RELAXED, datetime_conversion=DatetimeConversion.DATETIME_MS
)
_TO_JSON = orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATETIME

#: What orjson writes for NaN (and for null), and for doubles that may be meant as integers.
_DOUBTFUL = re.compile(rb"null|\d{10}\.0(?!\d)")

#: The beginning of a name with a $, or of a text.
_DOLLAR = re.compile(rb'"(?:\$|\\u0024)')

#: JSON that plain parsing may change or BSON refuse: $ names, long integers, the character NUL.
_DIFFICULT = rf"{_DOLLAR.pattern.decode()}|[0-9]{{19}}|\\u0000"

#: What reading and writing raise of an object that only looks like Extended JSON.
_NOT_EXTENDED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, BSONError, struct.error)

#: Bytes of JSON that cannot become too large a document: an element of an array takes 2 in JSON, at most 12 in BSON.
_SMALL = 1 << 20


def difficult(payloads: pa.Array) -> list[bool]:
    """For each payload whether it needs a closer look. Almost none does, and columns are looked through fast."""
    found: list[bool] = pc.or_(
        pc.match_substring_regex(payloads, _DIFFICULT), pc.greater(pc.binary_length(payloads), _SMALL)
    ).to_pylist()
    return found


def check_document(document: Mapping[str, Any]) -> None:
    """Raises `ValueError` with the rule that a whole document breaks."""
    if len(_encoded(document)) > LARGEST_BSON:
        raise ValueError(f"its document is larger than {LARGEST_BSON:,} bytes")


def _encoded(document: Mapping[str, Any]) -> bytes:
    try:
        return bson.encode(document, codec_options=CODEC)
    except OverflowError as error:
        raise ValueError("it holds an integer beyond 64 bits, which MongoDB cannot keep") from error
    except BSONError as error:
        raise ValueError(f"MongoDB cannot keep it ({error})") from error


def to_bson(payload: bytes, kind: str, difficult: bool) -> Any:
    """The value that a document holds for a payload. Raises `ValueError` with the rule that it breaks."""
    if kind == "json":
        if len(payload) > 2 * DEEPEST:
            difficult = difficult or payload.count(b"[") + payload.count(b"{") > DEEPEST
        value = _careful(payload) if difficult else orjson.loads(payload)
        if value is None:
            raise ValueError("its payload is JSON null, which would end other consumers of a MongoDB queue")
        return value
    return payload.decode() if kind == "text" else payload


def from_bson(value: Any) -> tuple[bytes, PayloadKind]:
    """The payload and its kind that a value in a document stands for. The inverse of `to_bson`."""
    if type(value) is str:
        return value.encode(), "text"
    if isinstance(value, bytes):
        return bytes(value), "binary"
    return _json(value), "json"


def all_from_bson(values: Iterable[Any]) -> tuple[list[bytes], list[PayloadKind]]:
    """The same of many, as payloads and their kinds: faster where all of them are JSON."""
    values = list(values)
    if any(one is str or issubclass(one, bytes) for one in set(map(type, values))):
        payloads, kinds = zip(*map(from_bson, values), strict=True)
        return list(payloads), list(kinds)
    texts = [orjson.dumps(one, _extended, _TO_JSON) for one in values]
    if _may_be_doubtful(b"\n".join(texts)):  # one look for all of them
        texts = list(map(_json, values))
    return texts, ["json"] * len(texts)


def header_text(hdrs: Mapping[str, Any] | None) -> dict[str, str]:
    """Headers as text: numbers and booleans, which other writers may use, become their JSON."""
    if not hdrs:
        return {}
    return {
        name: value if type(value) is str else _json(value).decode()
        for name, value in hdrs.items()
        if value is not None
    }


def _careful(text: bytes) -> Any:
    try:
        value = load_json(text)
        if _depth(value) > DEEPEST:
            raise RecursionError
    except RecursionError as error:
        raise ValueError(f"its payload is nested deeper than {DEEPEST} levels") from error
    if not (isinstance(value, dict | list) and _DOLLAR.search(text)):
        return value
    read = _extended_json(value)
    return value if isinstance(read, bytes) else read  # bytes alone would be read as a payload of bytes


def _extended_json(value: Any) -> Any:
    """The value with Extended JSON replaced by what it stands for, the innermost first.

    Raises `ValueError` for an object that drivers would read as a reference, with its names in another order.
    """
    if isinstance(value, list):
        return [_extended_json(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    plain = {name: _extended_json(inner) for name, inner in value.items()}
    if not any(name.startswith("$") for name in plain):
        return plain
    if "$ref" in plain and "$id" in plain and not _comes_back(plain, plain):
        raise ValueError(
            "MongoDB's drivers would change it: in an object with $ref and $id these two come first, in this order, "
            "and then $db, if there is one"
        )
    try:
        # Numbers in Extended JSON are JSON numbers again when they are read, so they stay objects, but in a date.
        parts = {name: _hooked(inner) if type(inner) is dict else inner for name, inner in plain.items()}
        meant = _hooked(parts)
        same = isinstance(meant, dict | DBRef)  # a DBRef is an object in BSON, too
        return meant if not same and _comes_back(meant, plain) else plain
    except _NOT_EXTENDED:  # it is the user's own object
        return plain


def _comes_back(meant: Any, plain: Any) -> bool:
    """Whether the JSON of a value, once it was stored, is that of another."""
    stored = bson.decode(_encoded({"": meant}), CODEC)[""]
    return _json(stored) == _json(plain)


def _hooked(value: dict[str, Any]) -> Any:
    """What one object stands for in Extended JSON."""
    return json_util.object_hook({**value}, _EXTENDED)  # a copy, which it may change


def _json(value: Any) -> bytes:
    text = orjson.dumps(value, _extended, _TO_JSON)
    if _may_be_doubtful(text) and _DOUBTFUL.search(text):
        text = orjson.dumps(_plain(value), _extended, _TO_JSON)
    return text


def _may_be_doubtful(text: bytes) -> bool:
    """A quick look before that for _DOUBTFUL."""
    return b"null" in text or b".0" in text


def _extended(value: Any) -> Any:
    """What orjson is to write for a value of a BSON type."""
    if isinstance(value, int):
        return int(value)
    shown = _opened(value)
    return json_util.default(value, _EXTENDED) if shown is value else shown


def _opened(value: Any) -> Any:
    """The object that a value of a BSON type with other values in it is in JSON; anything else as it is."""
    if isinstance(value, DBRef):
        return {**value.as_doc()}
    if isinstance(value, Code) and value.scope is not None:
        return {"$code": str(value), "$scope": value.scope}
    return value


def _plain(value: Any) -> Any:
    """The value with the doubles replaced that orjson would not write as they are meant."""
    value = _opened(value)
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if isinstance(value, float):
        if not math.isfinite(value):
            return {"$numberDouble": "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"}
        if value.is_integer() and 2**31 <= abs(value) <= 2**53:
            return int(value)
    return value


def _depth(value: Any) -> int:
    """The levels of nesting of a JSON value."""
    deepest, left = 0, [(value, 1)]
    while left:
        one, level = left.pop()
        if isinstance(one, dict | list):
            deepest = max(deepest, level)
            left += [(inner, level + 1) for inner in (one.values() if isinstance(one, dict) else one)]
    return deepest
