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
from functools import partial
from typing import Any

import orjson
import pyarrow as pa
from pyspark.errors import PySparkException
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

from spark_queue.errors import MessageError, SchemaError
from spark_queue.messages.json_text import dump_json, load_json
from spark_queue.messages.rules import is_utf8
from spark_queue.spark.far_moments import date_of, moment_of

#: Converts a value that is not null. A parser raises `ValueError` if the value does not fit.
Converter = Callable[[Any], Any]

#: The lowest number that is too large for each type.
_LIMITS: dict[type[DataType], int] = {ByteType: 2**7, ShortType: 2**15, IntegerType: 2**31, LongType: 2**63}
_NUMBERS_IN_TEXT = {"NaN", "Infinity", "+Infinity", "-Infinity", "INF", "+INF", "-INF"}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

#: The errors for values that Python or JSON cannot hold.
UNFIT_ERRORS = (ValueError, TypeError, ArithmeticError, RecursionError, LookupError, PySparkException)


def parse_json_column(texts: Sequence[str], kind: DataType, arrow: pa.DataType) -> tuple[pa.Array, pa.Array]:
    """Parse JSON texts as `kind`; return the values, and the texts that do not fit (else NULL).

    Raises `SchemaError` if JSON cannot be parsed as a type in `kind`.
    """
    parse = json_parser(kind, "payload")
    values: list[Any] = []
    corrupt: list[str | None] = []
    for text in texts:
        try:
            value = load_json(text.encode())
            values.append(None if value is None else parse(value))
            corrupt.append(None)
        except (*UNFIT_ERRORS, MessageError):
            values.append(None)
            corrupt.append(text)
    return pa.array(values, arrow), pa.array(corrupt, pa.string())


def json_parser(kind: DataType, path: str) -> Converter:
    """Return the parser of a type.

    Raises `SchemaError`, which names the `path`, if JSON cannot be parsed as that type.
    """
    match kind:
        case StructType():
            fields = {one.name: json_parser(one.dataType, f"{path}.{one.name}") for one in kind.fields}
            return partial(_parse_struct, fields)
        case ArrayType():
            return partial(_parse_array, json_parser(kind.elementType, f"{path}[]"))
        case MapType():
            if not isinstance(kind.keyType, StringType):
                raise SchemaError(
                    f"{path} cannot have keys of {kind.keyType.simpleString()}: JSON has text keys", column=path
                )
            return partial(_parse_map, json_parser(kind.valueType, f"{path}[]"))
        case ByteType() | ShortType() | IntegerType() | LongType():
            return partial(_parse_integer, _LIMITS[type(kind)])
        case DecimalType():
            return partial(_parse_decimal, kind)
    simple = _SIMPLE_PARSERS.get(type(kind))
    if simple is None:
        raise SchemaError(f"{path} cannot be {kind.simpleString()}: JSON cannot be parsed as that type", column=path)
    return simple


def _expect(value: Any, kind: type) -> Any:
    """Return the value. Raises `ValueError` if it is of another type."""
    if not isinstance(value, kind):
        raise ValueError
    return value


def _parse_struct(fields: dict[str, Converter], value: Any) -> dict[str, Any]:
    given = _expect(value, dict)
    return {name: None if (one := given.get(name)) is None else field(one) for name, field in fields.items()}


def _parse_array(item: Converter, value: Any) -> list[Any]:
    return [None if one is None else item(one) for one in _expect(value, list)]


def _parse_map(item: Converter, value: Any) -> list[tuple[str, Any]]:
    return [(key, None if one is None else item(one)) for key, one in _expect(value, dict).items()]


def _parse_integer(limit: int, value: Any) -> int:
    if type(value) is not int or not -limit <= value < limit:
        raise ValueError
    return value


def _parse_decimal(kind: DecimalType, value: Any) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError
    try:
        number = Decimal(str(value)).quantize(Decimal(1).scaleb(-kind.scale))
    except InvalidOperation:
        raise ValueError from None
    if not number.is_finite() or len(number.as_tuple().digits) > kind.precision:
        raise ValueError
    return number


def _parse_number(value: Any) -> float:
    if isinstance(value, str) and value in _NUMBERS_IN_TEXT:
        return math.nan if value == "NaN" else float(value.replace("INF", "inf"))
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError
    return float(value)


def _parse_text(value: Any) -> str:
    return value if isinstance(value, str) else dump_json(value).decode()


def _parse_date(value: Any) -> date:
    return date.fromisoformat(_expect(value, str))


def _parse_timestamp(value: Any) -> datetime:
    if type(value) is int:
        try:
            return _EPOCH + timedelta(seconds=value)
        except OverflowError:
            raise ValueError from None
    moment = datetime.fromisoformat(_expect(value, str))
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)


def _parse_local_timestamp(value: Any) -> datetime:
    return datetime.fromisoformat(_expect(value, str)).replace(tzinfo=None)


_SIMPLE_PARSERS: dict[type[DataType], Converter] = {
    StringType: _parse_text,
    BooleanType: partial(_expect, kind=bool),
    FloatType: _parse_number,
    DoubleType: _parse_number,
    DateType: _parse_date,
    TimestampType: _parse_timestamp,
    TimestampNTZType: _parse_local_timestamp,
}


# --- values to JSON -------------------------------------------------------------------------------


def encode_json_column(column: pa.Array, kind: DataType) -> tuple[pa.Array, dict[int, str]]:
    """Return a struct, map or array column as JSON texts, in the format of Spark's `to_json`.

    Omits fields that are NULL. Also return the rows that cannot be written, with the reason: their
    text is NULL. Raises `SchemaError` if JSON cannot hold a type in `kind`.
    """
    convert = json_writer(kind, "payload")
    if not is_utf8(column):  # Spark does not check it: keep the bytes, so that only such rows are refused later
        column = column.cast(_raw_type(column.type, far=False))

    def encode(value: Any) -> bytes | None:
        return None if value is None else orjson.dumps(convert(value), option=orjson.OPT_UTC_Z)

    try:
        return pa.array([encode(one) for one in column.to_pylist()], pa.binary()), {}
    except UNFIT_ERRORS:
        raw = column.cast(_raw_type(column.type, far=True))
    texts: list[bytes | None] = []
    faults: dict[int, str] = {}
    for row in range(len(column)):
        try:
            texts.append(_encode_first(encode, column[row], raw[row]))
        except UNFIT_ERRORS as error:
            texts.append(None)
            faults[row] = unfit_text(error)
    return pa.array(texts, pa.binary()), faults


def encode_variants(column: pa.Array) -> tuple[pa.Array, dict[int, str]]:
    """Return a VARIANT column as JSON texts, and the rows that cannot be written, and why."""
    texts: list[bytes | None] = []
    faults: dict[int, str] = {}
    for row, one in enumerate(column.to_pylist()):
        try:
            text = None if one is None else VariantUtils.to_json(one["value"], one["metadata"]).encode()
        except UNFIT_ERRORS as error:
            text, faults[row] = None, unfit_text(error)
        texts.append(text)
    return pa.array(texts, pa.binary()), faults


def _encode_first(encode: Callable[[Any], bytes | None], value: pa.Scalar, raw: pa.Scalar) -> bytes | None:
    """Return the text of a value, from numbers if Python cannot hold its dates or timestamps."""
    try:
        return encode(value.as_py())
    except UNFIT_ERRORS:
        return encode(raw.as_py())


def unfit_text(error: Exception) -> str:
    """Return the rule that a payload breaks which cannot be written as JSON."""
    return f"its payload cannot be written as JSON ({type(error).__name__}: {error})"


def _raw_type(kind: pa.DataType, *, far: bool) -> pa.DataType:
    """Return the type with binary in place of text, and if `far` numbers in place of moments."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_raw_type(field.type, far=far)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_raw_type(kind.key_type, far=far), _raw_type(kind.item_type, far=far))
    if pa.types.is_list(kind):
        return pa.list_(_raw_type(kind.value_type, far=far))
    if far:
        is_date, is_moment = pa.types.is_date32(kind), pa.types.is_timestamp(kind)
        return pa.int32() if is_date else pa.int64() if is_moment else kind
    return pa.binary() if pa.types.is_string(kind) or pa.types.is_large_string(kind) else kind


def _quote(text: bytes) -> bytes:
    """Return text as a JSON string; bytes that are not UTF-8 stay as they are."""
    return json.dumps(text.decode(errors="surrogateescape"), ensure_ascii=False).encode(errors="surrogateescape")


def _write_bytes_map(items: list[tuple[bytes, Any]]) -> orjson.Fragment:
    texts = (_quote(key) + b":" + orjson.dumps(one, option=orjson.OPT_UTC_Z) for key, one in items)
    return orjson.Fragment(b"{" + b",".join(texts) + b"}")


def json_writer(kind: DataType, path: str) -> Converter:
    """Return the function that converts values of a type to values that JSON can hold.

    Raises `SchemaError`, which names the `path`, if JSON cannot hold the type.
    """
    match kind:
        case StructType():
            fields = {one.name: json_writer(one.dataType, f"{path}.{one.name}") for one in kind.fields}
            return lambda value: {
                name: field(one) for name, field in fields.items() if (one := value[name]) is not None
            }
        case ArrayType():
            item = json_writer(kind.elementType, f"{path}[]")
            return lambda value: [None if one is None else item(one) for one in value]
        case MapType():
            item = json_writer(kind.valueType, f"{path}[]")

            texts = isinstance(kind.keyType, StringType)
            key_writer = json_writer(kind.keyType, f"{path}[]") if isinstance(kind.keyType, _MOMENTS) else None

            def write_map(value: list[tuple[Any, Any]]) -> Any:
                items = [(key, None if one is None else item(one)) for key, one in value]
                if key_writer is not None:
                    items = [(key_writer(key), one) for key, one in items]
                if texts and items and isinstance(items[0][0], bytes):
                    return _write_bytes_map(items)
                return {str(key): one for key, one in items}

            return write_map
        case FloatType() | DoubleType():
            return lambda value: value if math.isfinite(value) else _INFINITE.get(value, "NaN")
        case DecimalType():
            return lambda value: orjson.Fragment(str(value))
        case BinaryType():
            return lambda value: base64.b64encode(value).decode()
        case VariantType():
            return lambda value: orjson.Fragment(VariantUtils.to_json(value["value"], value["metadata"]))
        case StringType():
            return lambda value: value if isinstance(value, str) else orjson.Fragment(_quote(value))
        case DateType():
            return lambda value: date_of(value) if isinstance(value, int) else value
        case TimestampType() | TimestampNTZType():
            local = isinstance(kind, TimestampNTZType)
            return lambda value: moment_of(value, local=local) if isinstance(value, int) else value
        case _ if isinstance(kind, _UNCHANGED_TYPES):
            return lambda value: value
    raise SchemaError(f"{path} cannot be {kind.simpleString()}: JSON has no form for it", column=path)


_INFINITE = {math.inf: "Infinity", -math.inf: "-Infinity"}
_UNCHANGED_TYPES = (NullType, BooleanType, ByteType, ShortType, IntegerType, LongType)
_MOMENTS = (DateType, TimestampType, TimestampNTZType)
