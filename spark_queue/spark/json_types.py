"""The types of Spark whose values JSON can hold: those that Spark's `to_json` writes."""

from __future__ import annotations

from typing import Any

from pyspark.sql import types as spark_types
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CalendarIntervalType,
    CharType,
    DataType,
    DateType,
    DayTimeIntervalType,
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
    UserDefinedType,
    VarcharType,
    VariantType,
    YearMonthIntervalType,
)

from spark_queue.errors import OptionError, SchemaError
from spark_queue.options.declaration import option_error

#: The levels of types below the payload that fit into Arrow's streams, in which Spark passes rows.
MAX_LEVELS = 60

TimeType: Any = getattr(spark_types, "TimeType", ())  # Spark 4.1 and later
INTEGERS = (BooleanType, ByteType, ShortType, IntegerType, LongType)
FLOATS = (FloatType, DoubleType)
TEXTS = (StringType, CharType, VarcharType)
MOMENTS = (DateType, TimestampType, TimestampNTZType)
INTERVALS = (YearMonthIntervalType, DayTimeIntervalType)
NESTED_TYPES = (StructType, MapType, ArrayType)
#: A payload of one of these types becomes JSON.
WRITTEN_AS_JSON = (*NESTED_TYPES, VariantType)
_LEAVES = (*INTEGERS, DecimalType, *FLOATS, *TEXTS, *MOMENTS, *INTERVALS, NullType, BinaryType, VariantType)


def check_json_type(kind: DataType, path: str, level: int = 0) -> None:
    """Raise `SchemaError`, which names the `path`, if values of a type cannot become JSON."""
    if level > MAX_LEVELS:
        shown = f"{path[:60]}…"
        raise SchemaError(f"{shown} is nested more than {MAX_LEVELS} levels deep: write it with to_json", column=path)
    match kind:
        case UserDefinedType():
            check_json_type(kind.sqlType(), path, level)
        case StructType():
            check_names(kind, path)
            for one in kind.fields:
                check_json_type(one.dataType, f"{path}.{one.name}", level + 1)
        case ArrayType():
            check_json_type(kind.elementType, f"{path}[]", level + 1)
        case MapType():
            check_json_type(kind.keyType, f"{path}[]", level + 1)
            check_json_type(kind.valueType, f"{path}[]", level + 1)
        case CalendarIntervalType():
            raise SchemaError(
                f"{path} cannot be an interval of make_interval, which Spark writes to no table: cast it to STRING, "
                "or use make_dt_interval or make_ym_interval",
                column=path,
            )
        case _:
            if not isinstance(kind, _LEAVES) and not isinstance(kind, TimeType):
                raise SchemaError(f"{path} cannot be {kind.simpleString()}: to_json has no form for it", column=path)


def format_error(form: str, kind: DataType, path: str, how: str) -> OptionError:
    """Return the error for a `payloadFormat` beside a payload that is JSON by its type."""
    why = f"column {path!r} is of type {kind.typeName()}, which is {how} JSON"
    return option_error("payloadFormat", f"is {form!r}, but {why}: leave the option out")


def check_names(kind: StructType, path: str) -> None:
    """Raise `SchemaError` if two fields have one name: Spark passes no such rows to Python."""
    for number, name in enumerate(kind.names):
        if name in kind.names[:number]:
            raise SchemaError(f"{path} has two fields {name!r}: rename or drop one", column=name)
