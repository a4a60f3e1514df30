"""Make whole columns of JSON values that orjson has read, for the values that are as usual.

The usual values of a type become an Arrow array at once. The others go to the type's parser, one by
one: see `values.py`. It knows all rules; the values of both are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any, ClassVar, Protocol

import pyarrow as pa
import pyarrow.compute as pc
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
    VariantType,
)

from spark_queue.spark.typed.documents import compact_texts
from spark_queue.spark.typed.extended import text_forms
from spark_queue.spark.typed.moment_columns import DayColumn, LocalColumn, ZonedColumn
from spark_queue.spark.typed.values import Parser, PartlyRead, TypeRules, parser_of

_NONE = type(None)
_JSON: frozenset[type] = frozenset((str, int, float, bool, dict, list, _NONE))

#: Numbers of rows.
Rows = set[int]


class Column(Protocol):
    """Makes an array of the values of one type."""

    @property
    def types(self) -> frozenset[type]:
        """The Python types of the values that it may take."""

    def make(self, values: list[Any]) -> tuple[pa.Array, Rows]:
        """Return the array, and the rows of which a part is of another type.

        Raises `ValueError`, `TypeError` or `OverflowError` if a value is not as usual.
        """


#: What `Column.make` raises. Errors of Arrow are such errors, too.
UNUSUAL = (ValueError, TypeError, OverflowError)


@dataclass(frozen=True)
class Field:
    """Makes the column of a field: also of values that are not as usual."""

    column: Column | None
    parse: Parser
    arrow: pa.DataType

    @classmethod
    def create(cls, kind: DataType, path: str, rules: TypeRules, arrow: pa.DataType, parse: Parser) -> Field:
        """Return the field of a type. Raises `SchemaError` if JSON has no values of that type."""
        return cls(_column_of(kind, path, rules, arrow), parse, arrow)

    def make(self, values: list[Any]) -> tuple[pa.Array, Rows]:
        """Return the array, and the rows with a value, or a part of one, of another type."""
        if self.column is not None:
            try:
                return self.column.make(values)
            except UNUSUAL:
                pass
            if (made := self._without_misfits(self.column, values)) is not None:
                return made
        return self._parse_each(values)

    def _without_misfits(self, column: Column, values: list[Any]) -> tuple[pa.Array, Rows] | None:
        """Return the column if all values of other Python types are NULL in it, else `None`."""
        values, bad = list(values), set()
        for row, value in enumerate(values):
            if type(value) not in column.types:
                try:
                    self.parse(value)
                except PartlyRead:
                    return None
                except ValueError:
                    values[row] = None
                    bad.add(row)
                else:
                    return None
        if not bad:
            return None
        try:
            array, partly = column.make(values)
        except UNUSUAL:
            return None
        return array, bad | partly

    def _parse_each(self, values: list[Any]) -> tuple[pa.Array, Rows]:
        found: list[Any] = []
        bad: Rows = set()
        for row, value in enumerate(values):
            try:
                found.append(None if value is None else self.parse(value))
            except PartlyRead as part:
                found.append(part.value)
                bad.add(row)
            except ValueError:
                found.append(None)
                bad.add(row)
        return pa.array(found, self.arrow), bad


def _column_of(kind: DataType, path: str, rules: TypeRules, arrow: pa.DataType) -> Column | None:
    """Return the column of a type, or `None` if all of its values are parsed one by one."""
    match kind:
        case StructType() if kind.fields and not any(isinstance(one.dataType, VariantType) for one in kind.fields):
            fields = {}
            for one, field in zip(kind.fields, arrow, strict=True):
                inner = f"{path}.{one.name}"
                parse = parser_of(one.dataType, inner, rules)
                fields[one.name] = Field.create(one.dataType, inner, rules, field.type, parse)
            return _StructColumn(fields, arrow)
        case ArrayType():
            item = _column_of(kind.elementType, f"{path}[]", rules, arrow.value_type)
            return None if item is None else _ListColumn(item, arrow)
        case MapType():
            item = _column_of(kind.valueType, f"{path}[]", rules, arrow.item_type)
            return None if item is None else _MapColumn(item, arrow)
        case StringType():
            return _TextColumn()
        case DecimalType():
            return _DecimalColumn(arrow)
        case DateType():
            return DayColumn(arrow)
        case TimestampNTZType():
            return LocalColumn(arrow)
        case TimestampType():
            return ZonedColumn(arrow, rules.zone)
    types = _TYPES.get(type(kind))
    return None if types is None else _PlainColumn(types, arrow)


_INTEGERS: frozenset[type] = frozenset((int, _NONE))
_FLOATS: frozenset[type] = frozenset((int, float, _NONE))
_TYPES: dict[type[DataType], frozenset[type]] = {
    BooleanType: frozenset((bool, _NONE)),
    **dict.fromkeys((ByteType, ShortType, IntegerType, LongType), _INTEGERS),
    **dict.fromkeys((FloatType, DoubleType), _FLOATS),
}


@dataclass(frozen=True)
class _PlainColumn:
    """Values that Arrow takes as they are."""

    types: frozenset[type]
    arrow: pa.DataType

    def make(self, values: list[Any]) -> tuple[pa.Array, Rows]:
        if not self.types.issuperset(map(type, values)):
            raise ValueError
        return pa.array(values, self.arrow), set()


@dataclass(frozen=True)
class _TextColumn:
    """Any value: one that is no text is its own text."""

    types: ClassVar[frozenset[type]] = _JSON

    def make(self, values: list[Any]) -> tuple[pa.Array, Rows]:
        if not _TEXTS.issuperset(map(type, values)):
            values = list(values)
            others = [row for row, value in enumerate(values) if type(value) is not str and value is not None]
            given = [values[row] for row in others]
            if any(type(one) is dict and len(one) == 1 and not _FORMS.isdisjoint(one) for one in given):
                raise ValueError
            for row, text in zip(others, compact_texts(given), strict=True):
                values[row] = text
        return pa.array(values, pa.string()), set()


_TEXTS = frozenset((str, _NONE))
#: The names of objects of Extended JSON.
_FORMS = frozenset(text_forms())


@dataclass(frozen=True)
class _DecimalColumn:
    """Numbers, or texts of numbers, that need no rounding."""

    arrow: pa.DataType
    types: ClassVar[frozenset[type]] = frozenset((int, float, str, _NONE))

    def make(self, values: list[Any]) -> tuple[pa.Array, Rows]:
        if not self.types.issuperset(map(type, values)):
            raise ValueError
        texts = [value if type(value) is str else None if value is None else repr(value) for value in values]
        found = pa.array(texts, pa.string())
        # Arrow checks no number that is too large after it has got its scale.
        whole, scale = self.arrow.precision - self.arrow.scale, self.arrow.scale
        fitting = rf"^-?0*[0-9]{{0,{whole}}}(?:\.[0-9]{{0,{scale}}})?$"
        if pc.all(pc.match_substring_regex(found, fitting)).as_py() is False:
            raise ValueError
        return found.cast(self.arrow), set()


@dataclass(frozen=True)
class _StructColumn:
    fields: dict[str, Field]
    arrow: pa.DataType
    types: ClassVar[frozenset[type]] = frozenset((dict, _NONE))

    def make(self, values: list[Any]) -> tuple[pa.Array, Rows]:
        nulls, given = _nulls(values, dict, {})
        columns, bad = [], set()
        for name, field in self.fields.items():
            column, rows = field.make([value.get(name) for value in given])
            columns.append(column)
            bad |= rows
        return pa.StructArray.from_arrays(columns, fields=list(self.arrow), mask=nulls), bad


@dataclass(frozen=True)
class _ListColumn:
    item: Column
    arrow: pa.DataType
    types: ClassVar[frozenset[type]] = frozenset((list, _NONE))

    def make(self, values: list[Any]) -> tuple[pa.Array, Rows]:
        nulls, given = _nulls(values, list, [])
        items = _whole(self.item, list(chain.from_iterable(given)))
        return pa.ListArray.from_arrays(_offsets(given, nulls), items, type=self.arrow), set()


@dataclass(frozen=True)
class _MapColumn:
    item: Column
    arrow: pa.DataType
    types: ClassVar[frozenset[type]] = frozenset((dict, _NONE))

    def make(self, values: list[Any]) -> tuple[pa.Array, Rows]:
        nulls, given = _nulls(values, dict, {})
        keys = pa.array(list(chain.from_iterable(given)), pa.string())
        items = _whole(self.item, list(chain.from_iterable(map(dict.values, given))))
        return pa.MapArray.from_arrays(_offsets(given, nulls), keys, items, type=self.arrow), set()


def _whole(item: Column, values: list[Any]) -> pa.Array:
    """Return the array of items. Raises `ValueError` if one is, in part, of another type."""
    array, bad = item.make(values)
    if bad:
        raise ValueError
    return array


def _nulls(values: list[Any], kind: type, empty: Any) -> tuple[pa.Array | None, list[Any]]:
    """Return which values are NULL, or `None` if none is; and the values, `empty` in place of NULL.

    Raises `ValueError` if a value is neither of this type nor NULL.
    """
    kinds = set(map(type, values))
    if kinds <= {kind}:
        return None, values
    if kinds <= {kind, _NONE}:
        return pa.array([value is None for value in values]), [empty if value is None else value for value in values]
    raise ValueError


def _offsets(values: Sequence[Any], nulls: pa.Array | None) -> pa.Array:
    """Return where the items of each value begin, NULL if the value is, and where the last end."""
    offsets = pa.array(accumulate(map(len, values), initial=0), pa.int32())
    if nulls is None:
        return offsets
    return pc.if_else(pa.concat_arrays([nulls, pa.array([False])]), pa.scalar(None, pa.int32()), offsets)
