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

from bson import DBRef, Decimal128, MaxKey, MinKey, ObjectId, Timestamp, json_util
from bson.code import Code
from bson.codec_options import DatetimeConversion
from bson.datetime_ms import DatetimeMS
from bson.errors import BSONError
from bson.regex import Regex

from spark_queue.messages.buckets import is_bucket
from spark_queue.messages.ids import OBJECT_ID

_CANONICAL = json_util.JSONOptions(
    json_mode=json_util.JSONMode.CANONICAL, datetime_conversion=DatetimeConversion.DATETIME_MS
)

#: The beginning of an id that stands for an `_id` of another type than ObjectId.
_FOREIGN_ID_PREFIX = '{"_id":'

#: The BSON types, as `$type` names them, in the order in which the server sorts their values.
_TYPE_ORDER = (
    ("minKey",), ("null", "undefined"), ("number",), ("string", "symbol"), ("object",), ("array",), ("binData",),
    ("objectId",), ("bool",), ("date",), ("timestamp",), ("regex",), ("dbPointer",), ("javascript",),
    ("javascriptWithScope",), ("maxKey",),
)  # fmt: skip
_RANKS = {name: rank for rank, names in enumerate(_TYPE_ORDER) for name in names}


def json_text(value: object) -> str:
    """Return canonical Extended JSON, which distinguishes all BSON types."""
    text: str = json_util.dumps(value, json_options=_CANONICAL, separators=(",", ":"))
    return text


def id_of(key: Any) -> str:
    """Return the id of the record with this `_id`, if it has no `_sid`."""
    if isinstance(key, ObjectId):
        return str(key)
    return key if isinstance(key, str) and is_bucket_key(key) else json_text({"_id": key})


def key_of(id: str) -> Any:
    """Return the `_id` of the record with this id."""
    if OBJECT_ID.fullmatch(id):
        return ObjectId(bytes.fromhex(id))
    if is_bucket(id):
        return id
    if id.startswith(_FOREIGN_ID_PREFIX):
        try:
            (key,) = json_util.loads(id, json_options=_CANONICAL).values()
        except (ValueError, TypeError, ArithmeticError, AttributeError, RecursionError, BSONError):
            pass  # an id of the user's own that looks like one
        else:
            if id_of(key) == id and not isinstance(key, list | Regex):
                return key
    return ObjectId(hashlib.sha256(id.encode()).digest()[:12])


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
