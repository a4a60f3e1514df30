"""Write struct, map, array and VARIANT columns as JSON: the texts of Spark's `to_json`.

Whole columns are written with Arrow, from the inside out: the texts of the values of a column, then
those of the objects and arrays that they are in. docs/struct-payloads.md has the differences that
stay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc
from pyspark.errors import PySparkException
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    MapType,
    NullType,
    StructType,
    TimestampNTZType,
    TimestampType,
    UserDefinedType,
    VariantType,
    YearMonthIntervalType,
)

from spark_queue.spark.json_intervals import day_time_text, time_text, year_month_text
from spark_queue.spark.json_moments import MomentStyle, date_texts, timestamp_texts
from spark_queue.spark.json_texts import base64_texts, escape, escape_texts, float_texts, quote_not_finite
from spark_queue.spark.json_types import INTEGERS, TEXTS
from spark_queue.spark.json_variant import variant_text

#: The errors for values that no JSON can hold.
_UNFIT_ERRORS = (
    ValueError,
    TypeError,
    ArithmeticError,
    RecursionError,
    LookupError,
    PySparkException,
    pa.ArrowException,
)


@dataclass(frozen=True)
class JsonStyle:
    """The options of `to_json`: how moments are written, and whether NULL fields are left out."""

    moments: MomentStyle = field(default_factory=MomentStyle)
    ignore_nulls: bool = True


def encode_json_column(
    column: pa.Array, kind: DataType, style: JsonStyle | None = None
) -> tuple[pa.Array, dict[int, str]]:
    """Return a struct, map, array or VARIANT column as JSON texts.

    Also return the rows that cannot be written, with the reason: their text is NULL.
    """
    style, faults = style or JsonStyle(), dict[int, str]()
    if "month_interval" in str(column.type):
        column = _readable(column)

    def encode(part: pa.Array, first: int) -> list[pa.Array]:
        try:
            return [_json(part, kind, style)]
        except _UNFIT_ERRORS as error:
            if len(part) == 1:
                faults[first] = f"its payload cannot be written as JSON ({type(error).__name__}: {error})"
                return [pa.nulls(1, pa.binary())]
        middle = len(part) // 2
        return [*encode(part.slice(0, middle), first), *encode(part.slice(middle), first + middle)]

    parts = encode(column, 0)
    return pa.concat_arrays(parts) if len(parts) > 1 else parts[0], faults


def _readable(column: pa.Array) -> pa.Array:
    """Return a column with numbers in place of intervals of months: pyarrow has no such arrays.

    Both have the same form in Arrow's streams. `Array.view` loses arrays of NULL.
    """
    message = pa.record_batch([column], names=["payload"]).serialize()
    return pa.ipc.read_record_batch(message, pa.schema({"payload": _readable_type(column.type)})).column(0)


def _readable_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_readable_type(field.type)) for field in kind])
    if pa.types.is_map(kind):
        key, item = kind.key_field, kind.item_field
        return pa.map_(key.with_type(_readable_type(key.type)), item.with_type(_readable_type(item.type)))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_readable_type(kind.value_type)))
    return pa.int32() if str(kind) == "month_interval" else kind


@dataclass(frozen=True)
class _Texts:
    """The texts of a column, NULL where its values are. `quoted`: they become strings of JSON."""

    column: pa.Array
    quoted: bool = False

    @property
    def quote(self) -> bytes:
        return b'"' if self.quoted else b""


def _join(*parts: pa.Array | bytes) -> pa.Array:
    """Return columns and texts, one after the other; NULL where a column is."""
    return pc.binary_join_element_wise(
        *(_scalar(one) if isinstance(one, bytes) else one for one in parts), _scalar(b"")
    )


def _scalar(text: bytes) -> pa.Scalar:
    return pa.scalar(text, pa.binary())


def _json(column: pa.Array, kind: DataType, style: JsonStyle) -> pa.Array:
    """Return a column as JSON. A NULL stays NULL."""
    texts = _texts(column, kind, style)
    return _join(texts.quote, texts.column, texts.quote) if texts.quoted else texts.column


def _json_or_null(column: pa.Array, kind: DataType, style: JsonStyle) -> pa.Array:
    texts = _json(column, kind, style)
    return texts.fill_null(b"null") if texts.null_count else texts


def _texts(column: pa.Array, kind: DataType, style: JsonStyle) -> _Texts:
    match kind:
        case UserDefinedType():
            return _texts(column, kind.sqlType(), style)
        case StructType():
            return _Texts(_where_valid(column, _object(column, kind, style)))
        case ArrayType():
            items = _inner(column, column.values)
            return _Texts(_list(column, _json_or_null(items, kind.elementType, style), b"[", b"]"))
        case MapType():
            return _Texts(_list(column, _members(column, kind, style), b"{", b"}"))
        case VariantType():
            value, metadata = (column.field(name).to_pylist() for name in ("value", "metadata"))
            pairs = zip(value, metadata, column.is_valid().to_pylist(), strict=True)
            texts = [variant_text(one, names, style.moments) if valid else None for one, names, valid in pairs]
            return _Texts(pa.array(texts, pa.binary()))
        case NullType():
            return _Texts(pa.nulls(len(column), pa.binary()))
        case FloatType() | DoubleType():
            return _Texts(_binary(quote_not_finite(float_texts(column))))
        case _ if isinstance(kind, (*INTEGERS, DecimalType)):
            return _Texts(_binary(column.cast(pa.string())))
        case _ if isinstance(kind, TEXTS):
            return _Texts(escape_texts(_binary(column)), quoted=True)
        case BinaryType():
            return _Texts(base64_texts(column), quoted=True)
        case DateType():
            return _Texts(
                _pattern_texts(date_texts(_integers(column), style.moments), style.moments.date), quoted=True
            )
        case TimestampType() | TimestampNTZType():
            local = isinstance(kind, TimestampNTZType)
            pattern = style.moments.timestamp_ntz if local else style.moments.timestamp
            texts = timestamp_texts(_integers(column), style.moments, local=local)
            return _Texts(_pattern_texts(texts, pattern), quoted=True)
    return _Texts(_each(column, _writer(kind)), quoted=True)


def _writer(kind: DataType) -> Callable[[int], str]:
    """Return how the values of a rare type are written, each by itself."""
    match kind:
        case YearMonthIntervalType():
            return lambda value: year_month_text(value, kind)
        case DayTimeIntervalType():
            return lambda value: day_time_text(value, kind)
    return time_text


def _object(column: pa.StructArray, kind: StructType, style: JsonStyle) -> pa.Array:
    """Return structs as objects."""
    names = [b'"' + escape(one.name.encode()) + b'":' for one in kind.fields]
    if not names:
        return pa.repeat(_scalar(b"{}"), len(column))
    columns = [_texts(values, inner, style) for values, inner in _fields(column, kind)]
    if not any(one.column.null_count for one in columns):  # faster, with less copies
        parts: list[pa.Array | bytes] = []
        before = b"{"
        for name, texts in zip(names, columns, strict=True):
            parts += [before + name + texts.quote, texts.column]
            before = texts.quote + b","
        return _join(*parts, before[:-1] + b"}")
    members = [_member(b"," + name, texts, style) for name, texts in zip(names, columns, strict=True)]
    return _join(b"{", pc.binary_replace_slice(_join(*members), 0, 1, b""), b"}")


def _member(name: bytes, texts: _Texts, style: JsonStyle) -> pa.Array:
    """Return members of objects, each after `name`. One that is NULL is empty, or has null."""
    members = _join(name + texts.quote, texts.column, texts.quote)
    return members.fill_null(b"" if style.ignore_nulls else name + b"null") if members.null_count else members


def _members(column: pa.MapArray, kind: MapType, style: JsonStyle) -> pa.Array:
    """Return the entries of all maps of a column, as members of objects."""
    keys = escape_texts(_key_texts(_inner(column, column.keys), kind.keyType))
    values = _json_or_null(_inner(column, column.items), kind.valueType, style)
    return _join(b'"', keys, b'":', values)


def _key_texts(column: pa.Array, kind: DataType) -> pa.Array:
    """Return keys of maps as texts: as `to_json`, which writes the values that Spark keeps.

    So a date is a number of days, a timestamp or an interval one of microseconds.
    """
    match kind:
        case UserDefinedType():
            return _key_texts(column, kind.sqlType())
        case StructType():
            parts = [_key_texts(values, inner).fill_null(b"null") for values, inner in _fields(column, kind)]
            inner = (
                pc.binary_join_element_wise(*parts, _scalar(b",")) if parts else pa.repeat(_scalar(b""), len(column))
            )
            return _where_valid(column, _join(b"[", inner, b"]"))
        case ArrayType():
            items = _key_texts(_inner(column, column.values), kind.elementType).fill_null(b"null")
            return _list(column, items, b"[", b"]")
        case BinaryType():
            return base64_texts(column)
        case FloatType() | DoubleType():
            return _binary(float_texts(column))
        case NullType():
            return pa.nulls(len(column), pa.binary())
        case _ if isinstance(kind, TEXTS):
            return _binary(column)
        case _ if isinstance(kind, (*INTEGERS, DecimalType)):
            return _binary(column.cast(pa.string()))
    return _binary(_integers(column).cast(pa.string()))


def _fields(column: pa.StructArray, kind: StructType) -> list[tuple[pa.Array, DataType]]:
    """Return the fields of a struct, with their types. They are NULL where the struct is."""
    return list(zip(column.flatten(), [one.dataType for one in kind.fields], strict=True))


def _inner(column: pa.ListArray, values: pa.Array) -> pa.Array:
    """Return those of the values in lists that are in this part of a column."""
    first, last = column.offsets[0].as_py(), column.offsets[-1].as_py()
    return values.slice(first, last - first)


def _list(column: pa.ListArray, items: pa.Array, begin: bytes, end: bytes) -> pa.Array:
    """Return lists of these items, with commas between them."""
    offsets = pc.subtract(column.offsets, column.offsets[0])
    inner = pc.binary_join(pa.ListArray.from_arrays(offsets.cast(pa.int32()), items), _scalar(b","))
    return _where_valid(column, _join(begin, inner, end))


def _where_valid(column: pa.Array, texts: pa.Array) -> pa.Array:
    """Return the texts, NULL where the column is."""
    return pc.if_else(column.is_valid(), texts, pa.scalar(None, pa.binary())) if column.null_count else texts


def _binary(texts: pa.Array) -> pa.Array:
    """Return texts as bytes: Spark does not check that they are UTF-8."""
    return texts if pa.types.is_binary(texts.type) else texts.cast(pa.binary())


def _pattern_texts(texts: pa.Array, pattern: object) -> pa.Array:
    """Return texts of moments; those of a pattern of the user may have letters to escape."""
    return _binary(texts) if pattern is None else escape_texts(_binary(texts))


def _each(column: pa.Array, write: Callable[[int], str]) -> pa.Array:
    texts: Sequence[str | None] = [None if one is None else write(one) for one in _integers(column).to_pylist()]
    return _binary(pa.array(texts, pa.string()))


def _integers(column: pa.Array) -> pa.Array:
    """Return the numbers in which a column keeps dates, times or intervals."""
    kind = pa.int32() if column.type.bit_width == 32 else pa.int64()
    return pa.Array.from_buffers(kind, len(column), column.buffers(), column.null_count, column.offset)
