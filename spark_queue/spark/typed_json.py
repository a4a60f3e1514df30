"""Parse JSON payloads as struct, map or array columns, and write such columns as JSON.

The rules for each type are those of Spark's JSON reader in its permissive mode, row by row.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

import orjson
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)
from pyspark.sql.variant_utils import VariantUtils

from spark_queue.errors import SchemaError
from spark_queue.messages.json_text import dump_json, load_json
from spark_queue.messages.rules import is_utf8

#: Converts a value that is not null. A parser raises `ValueError` if the value does not fit.
Parser = Callable[[Any], Any]

_BITS: dict[type[DataType], int] = {ByteType: 8, ShortType: 16, IntegerType: 32, LongType: 64}
_NUMBERS_IN_TEXT = {"NaN", "Infinity", "+Infinity", "-Infinity", "INF", "+INF", "-INF"}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def typed(texts: Sequence[str], kind: DataType, arrow: pa.DataType) -> tuple[pa.Array, pa.Array]:
    """Parse JSON texts as `kind`; return the values, and the texts that do not fit (else NULL).

    Raises `SchemaError` if JSON cannot be parsed as a type in `kind`.
    """
    parse = parser(kind, "payload")
    values: list[Any] = []
    corrupt: list[str | None] = []
    for text in texts:
        try:
            value = load_json(text.encode())
            values.append(None if value is None else parse(value))
            corrupt.append(None)
        except ValueError:
            values.append(None)
            corrupt.append(text)
    return pa.array(values, arrow), pa.array(corrupt, pa.string())


def parser(kind: DataType, path: str) -> Parser:
    """Return the parser of a type.

    Raises `SchemaError`, which names the `path`, if JSON cannot be parsed as that type.
    """
    match kind:
        case StructType():
            return _struct({one.name: parser(one.dataType, f"{path}.{one.name}") for one in kind.fields})
        case ArrayType():
            return _array(parser(kind.elementType, f"{path}[]"))
        case MapType():
            if not isinstance(kind.keyType, StringType):
                raise SchemaError(
                    f"{path} cannot have keys of {kind.keyType.simpleString()}: JSON has text keys", column=path
                )
            return _map(parser(kind.valueType, f"{path}[]"))
        case ByteType() | ShortType() | IntegerType() | LongType():
            return _whole(_BITS[type(kind)])
        case DecimalType():
            return _decimal(kind.precision, kind.scale)
    simple = _SIMPLE.get(type(kind))
    if simple is None:
        raise SchemaError(f"{path} cannot be {kind.simpleString()}: JSON cannot be parsed as that type", column=path)
    return simple


def _struct(fields: dict[str, Parser]) -> Parser:
    def parse(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise ValueError
        return {name: None if (one := value.get(name)) is None else field(one) for name, field in fields.items()}

    return parse


def _array(item: Parser) -> Parser:
    def parse(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise ValueError
        return [None if one is None else item(one) for one in value]

    return parse


def _map(item: Parser) -> Parser:
    def parse(value: Any) -> list[tuple[str, Any]]:
        if not isinstance(value, dict):
            raise ValueError
        return [(key, None if one is None else item(one)) for key, one in value.items()]

    return parse


def _whole(bits: int) -> Parser:
    least, most = -(1 << bits - 1), (1 << bits - 1) - 1

    def parse(value: Any) -> int:
        if type(value) is not int or not least <= value <= most:
            raise ValueError
        return value

    return parse


def _decimal(precision: int, scale: int) -> Parser:
    def parse(value: Any) -> Decimal:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError
        try:
            number = Decimal(str(value)).quantize(Decimal(1).scaleb(-scale))
        except InvalidOperation:
            raise ValueError from None
        if not number.is_finite() or len(number.as_tuple().digits) > precision:
            raise ValueError
        return number

    return parse


def _number(value: Any) -> float:
    if isinstance(value, str) and value in _NUMBERS_IN_TEXT:
        return math.nan if value == "NaN" else float(value.replace("INF", "inf"))
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError
    return float(value)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else dump_json(value).decode()


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


def _date(value: Any) -> date:
    if not isinstance(value, str):
        raise ValueError
    return date.fromisoformat(value)


def _timestamp(value: Any) -> datetime:
    if type(value) is int:
        try:
            return _EPOCH + timedelta(seconds=value)
        except OverflowError:
            raise ValueError from None
    if not isinstance(value, str):
        raise ValueError
    moment = datetime.fromisoformat(value)
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)


def _local_timestamp(value: Any) -> datetime:
    if not isinstance(value, str):
        raise ValueError
    return datetime.fromisoformat(value).replace(tzinfo=None)


_SIMPLE: dict[type[DataType], Parser] = {
    StringType: _text,
    BooleanType: _boolean,
    FloatType: _number,
    DoubleType: _number,
    DateType: _date,
    TimestampType: _timestamp,
    TimestampNTZType: _local_timestamp,
}


# --- values to JSON -------------------------------------------------------------------------------


def json_texts(column: pa.Array, kind: DataType) -> pa.Array:
    """Return a struct, map or array column as JSON texts, in the format of Spark's `to_json`.

    Omits fields that are NULL. Raises `SchemaError` if JSON cannot hold a type in `kind`.
    """
    plain = writer_of(kind, "payload")
    if not is_utf8(column):  # Spark does not check it: keep the bytes, so that only such rows are refused later
        column = column.cast(_with_bytes(column.type))
    return pa.array(
        [None if one is None else orjson.dumps(plain(one), option=orjson.OPT_UTC_Z) for one in column.to_pylist()],
        pa.binary(),
    )


def _with_bytes(kind: pa.DataType) -> pa.DataType:
    """Return the type with binary in place of text."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_with_bytes(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_with_bytes(kind.key_type), _with_bytes(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(_with_bytes(kind.value_type))
    return pa.binary() if pa.types.is_string(kind) or pa.types.is_large_string(kind) else kind


def _quoted(text: bytes) -> bytes:
    """Return text as a JSON string; bytes that are not UTF-8 stay as they are."""
    return json.dumps(text.decode(errors="surrogateescape"), ensure_ascii=False).encode(errors="surrogateescape")


def _map_of_bytes(items: list[tuple[bytes, Any]]) -> orjson.Fragment:
    texts = (_quoted(key) + b":" + orjson.dumps(one, option=orjson.OPT_UTC_Z) for key, one in items)
    return orjson.Fragment(b"{" + b",".join(texts) + b"}")


def writer_of(kind: DataType, path: str) -> Parser:
    """Return the function that converts values of a type to values that JSON can hold.

    Raises `SchemaError`, which names the `path`, if JSON cannot hold the type.
    """
    match kind:
        case StructType():
            fields = {one.name: writer_of(one.dataType, f"{path}.{one.name}") for one in kind.fields}
            return lambda value: {
                name: field(one) for name, field in fields.items() if (one := value[name]) is not None
            }
        case ArrayType():
            item = writer_of(kind.elementType, f"{path}[]")
            return lambda value: [None if one is None else item(one) for one in value]
        case MapType():
            item = writer_of(kind.valueType, f"{path}[]")

            texts = isinstance(kind.keyType, StringType)

            def of_map(value: list[tuple[Any, Any]]) -> Any:
                items = [(key, None if one is None else item(one)) for key, one in value]
                if texts and items and isinstance(items[0][0], bytes):
                    return _map_of_bytes(items)
                return {str(key): one for key, one in items}

            return of_map
        case FloatType() | DoubleType():
            return lambda value: value if math.isfinite(value) else _INFINITE.get(value, "NaN")
        case DecimalType():
            return lambda value: orjson.Fragment(str(value))
        case BinaryType():
            return lambda value: base64.b64encode(value).decode()
        case VariantType():
            return lambda value: orjson.Fragment(VariantUtils.to_json(value["value"], value["metadata"]))
        case StringType():
            return lambda value: value if isinstance(value, str) else orjson.Fragment(_quoted(value))
        case _ if isinstance(kind, _AS_IT_IS):
            return lambda value: value
    raise SchemaError(f"{path} cannot be {kind.simpleString()}: JSON has no form for it", column=path)


_INFINITE = {math.inf: "Infinity", -math.inf: "-Infinity"}
_AS_IT_IS = (
    NullType,
    BooleanType, ByteType, ShortType, IntegerType, LongType, DateType, TimestampType, TimestampNTZType,
)  # fmt: skip
