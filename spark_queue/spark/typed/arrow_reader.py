"""Read whole columns of JSON with Arrow's own reader, which takes the common types only.

It makes no Python object of a value. It refuses a column if one of its values is not what the type
says; so do names that come twice. All that it accepts, Spark reads the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as arrow_json
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from spark_queue.options.time_zones import Zone
from spark_queue.spark.typed.moment_columns import DayColumn, LocalColumn, ZonedColumn

_COLUMN = "v"
_UNCHANGED = (StringType, BooleanType, ByteType, ShortType, IntegerType, LongType, FloatType, DoubleType)
_MOMENTS = (DateType, TimestampType, TimestampNTZType)


@dataclass(frozen=True)
class ArrowReader:
    """Reads texts as a type. `target`: its Arrow type."""

    kind: DataType
    target: pa.DataType
    zone: Zone

    @classmethod
    def create(cls, kind: DataType, target: pa.DataType, zone: Zone) -> ArrowReader | None:
        """Return the reader of a type, or `None` if Arrow cannot read it."""
        return cls(kind, target, zone) if isinstance(kind, StructType) and _is_known(kind) else None

    def read(self, texts: pa.Array) -> pa.Array | None:
        """Return the values of texts, or `None` if one of them needs to be read by itself."""
        # One value a line. A line cannot reach into the next: that would begin within an object.
        lines = pc.binary_join_element_wise(pa.scalar(f'{{"{_COLUMN}":'), texts, pa.scalar("}\n"), pa.scalar(""))
        _, ends, content = lines.buffers()
        first, last = pa.Array.from_buffers(pa.int32(), len(lines) + 1, [None, ends])[:: len(lines)].to_pylist()
        schema = pa.schema({_COLUMN: _read_type(self.kind)})
        try:
            table = arrow_json.read_json(
                pa.BufferReader(content.slice(first, last - first)),
                read_options=arrow_json.ReadOptions(use_threads=False, block_size=last - first + 1),
                parse_options=arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
            )
            if table.num_rows != len(texts):
                return None
            return self._shape(table.column(_COLUMN).combine_chunks(), self.kind, self.target)
        except (pa.ArrowException, ValueError):
            return None

    def _shape(self, found: pa.Array, kind: DataType, target: pa.DataType) -> pa.Array:
        """Return values as Spark's type. Raises `ValueError` if one of them does not fit."""
        if isinstance(found, pa.ChunkedArray):
            found = pa.concat_arrays(found.chunks) if found.num_chunks else pa.array([], found.type)
        nulls = found.is_null() if found.null_count else None
        match kind:
            case StructType():
                parts = [
                    self._shape(found.field(number), one.dataType, field.type)
                    for number, (one, field) in enumerate(zip(kind.fields, target, strict=True))
                ]
                return pa.StructArray.from_arrays(parts, fields=list(target), mask=nulls)
            case ArrayType():
                items = self._shape(found.values, kind.elementType, target.value_type)
                return pa.ListArray.from_arrays(found.offsets, items, type=target, mask=nulls)
            case DateType():
                return DayColumn(target).read(found)
            case TimestampNTZType():
                return LocalColumn(target).read(found)
            case TimestampType():
                return ZonedColumn(target, self.zone).read(found)
        return found


def _is_known(kind: DataType) -> bool:
    """Return whether Arrow reads a type as Spark does."""
    if isinstance(kind, StructType):
        names = kind.names
        return len(set(names)) == len(names) > 0 and all(_is_known(one.dataType) for one in kind.fields)
    if isinstance(kind, ArrayType):
        return _is_known(kind.elementType)
    return isinstance(kind, (*_UNCHANGED, *_MOMENTS))  # it reads a DECIMAL that is too large as another number


def _read_type(kind: DataType) -> pa.DataType:
    """Return the type as which Arrow reads one of Spark's."""
    match kind:
        case StructType():
            return pa.struct([(one.name, _read_type(one.dataType)) for one in kind.fields])
        case ArrayType():
            return pa.list_(_read_type(kind.elementType))
    return pa.string() if isinstance(kind, _MOMENTS) else _ARROW_TYPES[type(kind)]


_ARROW_TYPES: dict[type[DataType], pa.DataType] = {
    StringType: pa.string(),
    BooleanType: pa.bool_(),
    ByteType: pa.int8(),
    ShortType: pa.int16(),
    IntegerType: pa.int32(),
    LongType: pa.int64(),
    FloatType: pa.float32(),
    DoubleType: pa.float64(),
}
