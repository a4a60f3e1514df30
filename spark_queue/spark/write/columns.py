"""The columns that a write takes, and the check of a DataFrame's columns when it is planned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql.types import (
    BinaryType,
    ByteType,
    CharType,
    DataType,
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
    TimestampType,
    VarcharType,
    VariantType,
)

from spark_queue.errors import SchemaError, did_you_mean
from spark_queue.spark.json_types import NESTED_TYPES, TEXTS, check_json_type, check_names
from spark_queue.spark.schema import (
    HEADERS,
    HISTORY_READ_COLUMNS,
    IGNORED_COLUMNS,
    LOG_READ_COLUMNS,
    OPTIONAL_COLUMNS,
)

#: The types of each column of a write.
ColumnTypes = Mapping[str, tuple[type[DataType], ...]]

_INTEGER_TYPES = (ByteType, ShortType, IntegerType, LongType)
_DELAY_TYPES = (DayTimeIntervalType, *_INTEGER_TYPES, FloatType, DoubleType, DecimalType)

#: The columns of a push. A struct, map or array in `payload` becomes JSON.
PUSH_COLUMN_TYPES: ColumnTypes = {
    "payload": (*TEXTS, BinaryType, VariantType, *NESTED_TYPES),
    "id": TEXTS,
    "ns": TEXTS,
    "queue": TEXTS,
    "headers": (MapType,),
    "mature": (TimestampType,),
    "delay": _DELAY_TYPES,
    "tries": _INTEGER_TYPES,
    **{
        name: TEXTS if isinstance(kind, StringType) else (type(kind),)
        for name, kind in (LOG_READ_COLUMNS | HISTORY_READ_COLUMNS | OPTIONAL_COLUMNS).items()
        if name in IGNORED_COLUMNS
    },
}
SETTLE_COLUMN_TYPES: ColumnTypes = {
    "id": TEXTS,
    "outcome": TEXTS,
    "delay": _DELAY_TYPES,
    "reason": TEXTS,
    "to": TEXTS,
    **{name: kinds for name, kinds in PUSH_COLUMN_TYPES.items() if name in ("payload", "headers", "mature", "tries")},
}

#: What to do about missing columns.
_PAYLOAD_REMEDY = "put your columns into one, as to_json(struct(*)) AS payload"
_REMEDIES = {
    "payload": _PAYLOAD_REMEDY,
    "queue": 'name the queue in option("queue", …), or that of each row in a column',
}


def check_write_schema(schema: StructType, columns: ColumnTypes, required: Sequence[str]) -> None:
    """Raise `SchemaError` if a DataFrame of `schema` cannot be written to a queue.

    `columns`: the columns of the write, and the types of each. `required`: those that it needs.
    """
    for field in schema.fields:
        name, kind = field.name, field.dataType
        if name not in columns:
            hint = did_you_mean(name, columns)
            if "payload" in required and "payload" not in schema.names and "'payload'" not in hint:
                hint = f"; {_PAYLOAD_REMEDY}"
            hint = hint or f"; the columns are {', '.join(columns)}"
            raise SchemaError(f"column {name!r} cannot be written to a queue{hint}", column=name)
        if not isinstance(kind, columns[name]) or (name == "headers" and not _is_headers(kind)):
            expected = HEADERS.simpleString() if name == "headers" else _names(columns[name])
            raise SchemaError(f"column {name!r} is {kind.simpleString()} but must be {expected}", column=name)
        if name == "payload" and isinstance(kind, NESTED_TYPES):
            check_json_type(kind, name)
    check_names(schema, "the DataFrame")
    for name in required:
        if name not in schema.names:
            remedy = f": {_REMEDIES[name]}" if name in _REMEDIES else ""
            own = ", ".join(schema.names) or "no columns"
            raise SchemaError(f"column {name!r} is missing{remedy}; the DataFrame has {own}", column=name)


def _is_headers(kind: DataType) -> bool:
    """Return whether a type is that of headers. It does not matter whether values may be NULL."""
    return isinstance(kind, MapType) and isinstance(kind.keyType, TEXTS) and isinstance(kind.valueType, TEXTS)


def _names(kinds: Sequence[type[DataType]]) -> str:
    """Return the names of types. Those of texts have one: a CHAR or VARCHAR is a string too."""
    return " or ".join(one.typeName() for one in kinds if one not in (CharType, VarcharType))
