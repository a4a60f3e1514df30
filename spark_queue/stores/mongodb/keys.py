"""The `_id` of a document, of any BSON type: the id of its message, and how the server sorts it.

A message of ours has an ObjectId, a bucket its id. Other programs may use any `_id`. The id of such
a message is canonical Extended JSON: `{"_id":{"$numberInt":"5"}}` or `{"_id":"order-7"}`. Such a
text always stands for this `_id`, even if a message is pushed under it. So each id is looked up in
one place only.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from bson import DBRef, Decimal128, Int64, MaxKey, MinKey, ObjectId, Timestamp, json_util
from bson.code import Code
from bson.codec_options import DatetimeConversion
from bson.datetime_ms import DatetimeMS
from bson.errors import BSONError
from bson.regex import Regex

from spark_queue.messages.buckets import is_bucket
from spark_queue.messages.ids import FOREIGN_ID_PREFIX, OBJECT_ID

#: How values are written in canonical Extended JSON.
CANONICAL = json_util.JSONOptions(
    json_mode=json_util.JSONMode.CANONICAL, datetime_conversion=DatetimeConversion.DATETIME_MS
)

#: Most levels of an `_id` that an id stands for.
_MAX_LEVELS = 50

#: The BSON types, as `$type` names them, in the order in which the server sorts their values.
_TYPE_ORDER = (
    ("minKey",), ("null", "undefined"), ("number",), ("string", "symbol"), ("object",), ("array",), ("binData",),
    ("objectId",), ("bool",), ("date",), ("timestamp",), ("regex",), ("dbPointer",), ("javascript",),
    ("javascriptWithScope",), ("maxKey",),
)  # fmt: skip
_RANKS = {name: rank for rank, names in enumerate(_TYPE_ORDER) for name in names}


def json_text(value: object) -> str:
    """Return canonical Extended JSON, which distinguishes all BSON types."""
    text: str = json_util.dumps(value, json_options=CANONICAL, separators=(",", ":"))
    return text


def id_of(key: Any) -> str:
    """Return the id of the record with this `_id`, if it has no `_sid`."""
    if isinstance(key, ObjectId):
        return str(key)
    return key if isinstance(key, str) and is_bucket_key(key) else json_text({"_id": key})


def key_of(id: str) -> Any:
    """Return the `_id` of the record with this id.

    It is one that a document can have: it may be sent to the server in any query.
    """
    if OBJECT_ID.fullmatch(id):
        return ObjectId(bytes.fromhex(id))
    if is_bucket(id):
        return id
    if id.startswith(FOREIGN_ID_PREFIX):
        try:
            (key,) = json_util.loads(id, json_options=CANONICAL).values()
        except (ValueError, TypeError, ArithmeticError, AttributeError, RecursionError, BSONError):
            pass  # an id of the user's own that looks like one
        else:
            if id_of(key) == id and not isinstance(key, list) and _can_be_key(key):
                return key
    return ObjectId(hashlib.sha256(id.encode()).digest()[:12])


def _can_be_key(value: Any, level: int = 0) -> bool:
    """Return whether a document can have this `_id`, or a part of it, and returns it unchanged."""
    if isinstance(value, DBRef):
        return all(_can_be_key(one, level + 1) for one in value.as_doc().values())
    if isinstance(value, Mapping):
        return level < _MAX_LEVELS and all(
            not name.startswith("$") and "\0" not in name and _can_be_key(one, level + 1)
            for name, one in value.items()
        )
    if isinstance(value, list):
        return level < _MAX_LEVELS and all(_can_be_key(one, level + 1) for one in value)
    if isinstance(value, Code):
        return value.scope is None
    return isinstance(value, _KEY_TYPES)


#: The types of values in an `_id`, besides objects, lists and code.
_KEY_TYPES = (
    type(None), bool, int, float, Decimal128, str, bytes, ObjectId, DatetimeMS, Timestamp, MinKey, MaxKey,
)  # fmt: skip


def identity_of(key: Any) -> str:
    """Return the id of an `_id`, which is the same for all that the server takes for equal.

    It compares numbers by their value, whatever their types are.
    """
    return id_of(_with_plain_numbers(key))


def find_other_texts(ids: pa.Array) -> dict[int, str]:
    """Return the rows whose id has a number in another type than its first, with the rule.

    The server would take it for the same `_id` as that of another id, and skip one of two messages.
    """
    foreign = pc.starts_with(ids, FOREIGN_ID_PREFIX)
    if not foreign.true_count:
        return {}
    found: dict[int, str] = {}
    for row in pc.indices_nonzero(foreign).to_pylist():
        id = ids[row].as_py()
        key = key_of(id)
        if not isinstance(key, ObjectId) and (other := identity_of(key)) != id:
            found[row] = f"MongoDB takes its id for the same as {other}: use that one"
    return found


def _with_plain_numbers(value: Any) -> Any:
    """Return the value with each number in the first type that holds it: int, double, decimal."""
    match value:
        case bool() | Code() | str() | bytes():
            return value
        case int():
            return int(value) if -(2**31) <= value < 2**31 else Int64(value)
        case float() | Decimal128():
            return _plain_number(value)
        case DBRef():
            return _with_plain_numbers(value.as_doc())
        case Mapping():
            return {name: _with_plain_numbers(one) for name, one in value.items()}
        case list():
            return list(map(_with_plain_numbers, value))
    return value


def _plain_number(value: float | Decimal128) -> Any:
    number = value.to_decimal() if isinstance(value, Decimal128) else Decimal(value)
    if number.is_nan():
        return math.nan
    if number.is_finite() and -(2**63) <= number < 2**63 and number == int(number):
        return _with_plain_numbers(int(number))
    if isinstance(value, float) or number.is_infinite() or Decimal(float(number)) == number:
        return float(number)
    sign, digits, exponent = number.as_tuple()
    while digits and not digits[-1]:
        digits, exponent = digits[:-1], int(exponent) + 1
    return Decimal128(Decimal((sign, digits, int(exponent))))


def is_bucket_key(key: object) -> bool:
    """Return whether a record with this `_id` is a bucket. One MARK at its beginning is not enough.

    Other programs may begin an `_id` with the same character.
    """
    return isinstance(key, str) and is_bucket(key) and key.count(key[0]) >= 3


# --- the order of the server ----------------------------------------------------------------------


def rank_of(value: Any) -> int:
    """Return the rank of a value's type in the order of the server."""
    for types, name in _TYPES:
        if isinstance(value, types):
            return _RANKS[name]
    return _RANKS["object"]


_TYPES: tuple[tuple[Any, str], ...] = (
    (MinKey, "minKey"),
    (type(None), "null"),
    (bool, "bool"),
    (int | float | Decimal128, "number"),
    (Code, "javascript"),
    (str, "string"),
    (Mapping | DBRef, "object"),
    (list, "array"),
    (bytes, "binData"),
    (ObjectId, "objectId"),
    (DatetimeMS, "date"),
    (Timestamp, "timestamp"),
    (Regex, "regex"),
    (MaxKey, "maxKey"),
)


def sort_key(value: Any) -> tuple[int, Any]:
    """Return a key that sorts values of any types as the server does."""
    return rank_of(value), _sort_key_in_type(value)


def _sort_key_in_type(value: Any) -> Any:
    """Return a key that sorts a value among those of its type."""
    match value:
        case bool():
            return value
        case int() | float() | Decimal128():
            number = value.to_decimal() if isinstance(value, Decimal128) else Decimal(value)
            return (0, 0) if number.is_nan() else (1, number)
        case Code() | str():
            return str(value).encode("utf-8", "surrogatepass")
        case bytes():
            return len(value), getattr(value, "subtype", 0), bytes(value)
        case DBRef():
            return _sort_key_in_type(value.as_doc())
        case Mapping():
            return [(rank_of(one), name, _sort_key_in_type(one)) for name, one in value.items()]
        case list():
            return [sort_key(one) for one in value]
        case DatetimeMS():
            return int(value)
        case Timestamp():
            return value.time, value.inc
        case ObjectId():
            return value.binary
        case Regex():
            return str(value.pattern), value.flags
    return 0


def filters_greater(field: str, value: Any) -> list[dict[str, Any]]:
    """Return filters for the values of a field that sort after this one, for `$or`.

    Values of other types are included.
    """
    least = -math.inf if isinstance(value, float) and math.isnan(value) else value
    op = "$gte" if least is not value else "$gt"
    later_types = [name for names in _TYPE_ORDER[rank_of(value) + 1 :] for name in names]
    return [{field: {op: least}}, *([{field: {"$type": later_types}}] if later_types else [])]
