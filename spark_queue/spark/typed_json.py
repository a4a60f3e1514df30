"""Parse JSON payloads as struct, map or array columns.

The rules for each type are those of Spark's JSON reader in its permissive mode, row by row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.types import (
    ArrayType,
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
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from spark_queue.errors import MessageError, SchemaError
from spark_queue.messages.json_text import dump_json, load_json

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
