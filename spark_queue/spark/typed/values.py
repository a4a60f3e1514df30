"""The rules by which a JSON value becomes a value of each type, as Spark's JSON reader has them.

A parser takes a value of `documents.py` that is not null. It raises `ValueError` if the value is of
another type, and `PartlyRead` if a part of it is: a field of a struct is NULL then, and the others
are kept. A map or an array with a value of another type is not kept.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal, DecimalException
from functools import partial
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import types as spark_types
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DayTimeIntervalType,
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
    VariantType,
)
from pyspark.sql.variant_utils import VariantUtils

from spark_queue.errors import SchemaError
from spark_queue.messages.json_text import clean_json
from spark_queue.options.time_zones import Zone
from spark_queue.spark.json_types import check_names
from spark_queue.spark.typed import extended, moments
from spark_queue.spark.typed.documents import pairs_of, repeated_pairs
from spark_queue.spark.typed.intervals import interval_parser

#: Converts a value that is not null.
Parser = Callable[[Any], Any]

#: The lowest number that is too large for each type.
_LIMITS: dict[type[DataType], int] = {ByteType: 2**7, ShortType: 2**15, IntegerType: 2**31, LongType: 2**63}
_NUMBERS_IN_TEXT = {"NaN", "Infinity", "+Infinity", "-Infinity", "+INF", "-INF"}
_DECIMAL = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,9})?")
_EXACT = Context(prec=100, rounding=ROUND_HALF_UP)
_QUAD = re.compile(r"[\x00-\x20]*([A-Za-z0-9+/]{4}|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{2}==)")
_MICROS = 1_000_000

#: TIME, which Spark has since 4.1.
_TIME_TYPE: type | tuple[()] = getattr(spark_types, "TimeType", ())


class PartlyRead(ValueError):
    """A value, of which a part was of another type."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


@dataclass(frozen=True)
class TypeRules:
    """How values are read: `text_of` returns their text, `zone` is that of a time without one."""

    text_of: Callable[[Any], str]
    zone: Zone


def root_parser(kind: DataType, path: str, reading: TypeRules) -> Parser:
    """Return the parser of a payload: of an object for an array of structs, it is the only item.

    Raises `SchemaError` as `parser_of` does.
    """
    parse = parser_of(kind, path, reading)
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return parse
    return lambda value: parse([value] if isinstance(value, dict) else value)


def parser_of(kind: DataType, path: str, reading: TypeRules) -> Parser:
    """Return the parser of a type.

    Raises `SchemaError`, which names the `path`, if JSON cannot be parsed as that type.
    """
    match kind:
        case StructType():
            check_names(kind, path)
            fields = {one.name: parser_of(one.dataType, f"{path}.{one.name}", reading) for one in kind.fields}
            variants = frozenset(one.name for one in kind.fields if isinstance(one.dataType, VariantType))
            return partial(_parse_struct, fields, variants)
        case ArrayType():
            item = parser_of(kind.elementType, f"{path}[]", reading)
            return partial(_parse_array, item, isinstance(kind.elementType, VariantType))
        case MapType():
            if not isinstance(kind.keyType, StringType):
                raise SchemaError(
                    f"{path} cannot have keys of {kind.keyType.simpleString()}: JSON has text keys", column=path
                )
            item = parser_of(kind.valueType, f"{path}[]", reading)
            return partial(_parse_map, item, isinstance(kind.valueType, VariantType))
        case _:
            simple = _simple_parser(kind, reading)
    if simple is None:
        raise SchemaError(f"{path} cannot be {kind.simpleString()}: JSON cannot be parsed as that type", column=path)
    return simple


def _simple_parser(kind: DataType, reading: TypeRules) -> Parser | None:
    zone = reading.zone
    match kind:
        case StringType():
            other = extended.with_forms(str, partial(_parse_text, reading.text_of), extended.text_forms())
            return lambda value: value if type(value) is str else other(value)
        case BooleanType():
            return partial(_expect, kind=bool)
        case ByteType() | ShortType() | IntegerType() | LongType():
            return _integer_parser(_LIMITS[type(kind)])
        case FloatType() | DoubleType():
            other = extended.with_forms(float, _parse_number, extended.number_forms(float))
            return lambda value: value if type(value) is float else other(value)
        case DecimalType():
            parse = partial(_parse_decimal, kind, reading.text_of)
            return extended.with_forms(float, parse, extended.number_forms(parse))
        case DateType():
            return extended.with_forms(str, _from_text(moments.days_of), extended.day_forms())
        case TimestampType():
            return extended.with_forms(str, partial(_parse_timestamp, zone), extended.moment_forms())
        case TimestampNTZType():
            return _from_text(moments.local_micros_of)
        case BinaryType():
            return extended.with_forms(str, _from_text(_decode_base64), extended.bytes_forms())
        case DayTimeIntervalType():
            return _from_text(interval_parser(kind))
        case VariantType():
            return partial(_parse_variant, reading.text_of)
    return _from_text(moments.nanos_of) if _TIME_TYPE and isinstance(kind, _TIME_TYPE) else None


# --- parts ----------------------------------------------------------------------------------------


def _parse_struct(fields: dict[str, Parser], takes_null: frozenset[str], value: Any) -> dict[str, Any]:
    if type(value) is dict and not takes_null:
        try:
            return {name: None if (one := value.get(name)) is None else parse(one) for name, parse in fields.items()}
        except ValueError:
            pass  # see below which field it was
    if not isinstance(value, dict):
        raise ValueError
    partly, row = False, dict.fromkeys(fields)
    for name, one in pairs_of(value):
        if (parse := fields.get(name)) is None:
            continue
        try:
            row[name] = None if one is None and name not in takes_null else parse(one)
        except PartlyRead as part:
            row[name], partly = part.value, True
        except ValueError:
            partly = True
    if partly:
        raise PartlyRead(row)
    return row


def _parse_array(parse: Parser, takes_null: bool, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError
    try:
        return [None if one is None and not takes_null else parse(one) for one in value]
    except PartlyRead:
        raise PartlyRead(_read_parts(parse, takes_null, value)) from None


def _parse_map(parse: Parser, takes_null: bool, value: Any) -> list[tuple[str, Any]]:
    if not isinstance(value, dict):
        raise ValueError
    pairs = pairs_of(value)
    try:
        return [(name, None if one is None and not takes_null else parse(one)) for name, one in pairs]
    except PartlyRead:
        names, items = zip(*pairs, strict=True)
        raise PartlyRead(list(zip(names, _read_parts(parse, takes_null, items), strict=True))) from None


def _read_parts(parse: Parser, takes_null: bool, values: Iterable[Any]) -> list[Any]:
    """Return items of which some are read partly."""
    items: list[Any] = []
    for one in values:
        try:
            items.append(None if one is None and not takes_null else parse(one))
        except PartlyRead as part:
            items.append(part.value)
    return items


# --- simple values --------------------------------------------------------------------------------


def _expect(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise ValueError
    return value


def _from_text(parse: Callable[[str], Any]) -> Parser:
    return lambda value: parse(_expect(value, str))


def _parse_text(text_of: Callable[[Any], str], value: Any) -> str:
    return value if isinstance(value, str) else text_of(value)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _integer_parser(limit: int) -> Parser:
    def parse_any(value: Any) -> int:
        if not _is_integer(value) or not -limit <= value < limit:
            raise ValueError
        return int(value)

    def parse(value: Any) -> Any:
        return value if type(value) is int and -limit <= value < limit else other(value)

    other = extended.with_forms(int, parse_any, extended.integer_forms(parse_any))
    return parse


def _parse_decimal(kind: DecimalType, text_of: Callable[[Any], str], value: Any) -> Decimal:
    if isinstance(value, str):
        text = value.replace(",", "")
    elif isinstance(value, float) or _is_integer(value):
        text = text_of(value)
    else:
        raise ValueError
    if _DECIMAL.fullmatch(text) is None:
        raise ValueError
    try:
        number = Decimal(text).quantize(Decimal(1).scaleb(-kind.scale), context=_EXACT)
    except DecimalException:
        raise ValueError from None
    if len(number.as_tuple().digits) > kind.precision:
        raise ValueError
    return number


def _parse_number(value: Any) -> float:
    if isinstance(value, str) and value in _NUMBERS_IN_TEXT:
        return math.nan if value == "NaN" else float(value.replace("INF", "inf"))
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _parse_timestamp(zone: Zone, value: Any) -> int:
    if _is_integer(value):
        return moments.checked_micros(value * _MICROS)
    return moments.micros_of(_expect(value, str), zone)


def _decode_base64(text: str) -> bytes:
    parts, at = [], 0
    while found := _QUAD.match(text, at):
        parts.append(found[1])
        at = found.end()
    if text[at:].strip("".join(map(chr, range(33)))):
        raise ValueError
    if any("=" in one for one in parts[:-1]):
        return b"".join(map(base64.b64decode, parts))
    return base64.b64decode("".join(parts))


def _parse_variant(text_of: Callable[[Any], str], value: Any) -> dict[str, bytes]:
    if isinstance(value, dict | list):
        _check_names(value)
    return variant_of(json.dumps(value) if isinstance(value, str) else text_of(value))


def variant_of(text: str) -> dict[str, bytes]:
    """Return the VARIANT of a JSON text.

    Raises `ValueError` if it is too large, too deep, or no JSON.
    """
    try:
        try:
            value, metadata = VariantUtils.parse_json(text)
        except UnicodeEncodeError:  # half a surrogate pair: JSON of other programs may have one
            value, metadata = VariantUtils.parse_json(clean_json(text).decode())
    except (PySparkException, RecursionError):
        raise ValueError from None
    return {"value": value, "metadata": metadata}


def _check_names(value: Any) -> None:
    """Raise `ValueError` if names repeat in an object, which a VARIANT cannot hold."""
    if isinstance(value, dict):
        if repeated_pairs(value) is not None:
            raise ValueError
        value = value.values()
    elif not isinstance(value, list):
        return
    for one in value:
        _check_names(one)
