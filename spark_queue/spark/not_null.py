"""Read fields that a schema calls NOT NULL, and that a message lacks, as NULL.

Spark's own readers make the schema of a user nullable. It does not for a source in Python, and
then its JVM reads a NULL in such a field as an error, at every start. So this module makes
`spark.read.schema(…)` and `spark.readStream.schema(…)` do it for `format("queue")`, or if that is
the default of the session: when it is imported for Spark in this process, and for Spark Connect in
`register`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrameReader, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from spark_queue.errors import SchemaError

_FORMAT = "queue"
_DEFAULT_SOURCE = "spark.sql.sources.default"
_NOT_NULL = re.compile(r"\bNOT\s+NULL\b", re.IGNORECASE)

#: The attributes of a reader that keep its format, and its schema as it was given.
_GIVEN_FORMAT, _GIVEN_SCHEMA = "_spark_queue_format", "_spark_queue_schema"


def nullable(kind: DataType) -> DataType:
    """Return a type all of whose fields, items and values may be NULL."""
    match kind:
        case StructType():
            fields = [StructField(one.name, nullable(one.dataType), True, one.metadata) for one in kind.fields]
            return StructType(fields)
        case ArrayType():
            return ArrayType(nullable(kind.elementType), True)
        case MapType():
            return MapType(kind.keyType, nullable(kind.valueType), True)
    return kind


def read_as_nullable(spark: SparkSession) -> None:
    """Make the readers of this session read all columns of queues as nullable ones."""
    _extend(type(spark.read), type(spark.readStream))


def _extend(*readers: type) -> None:
    for kind in readers:
        if not hasattr(kind, _GIVEN_FORMAT):
            setattr(kind, _GIVEN_FORMAT, None)
            setattr(kind, _GIVEN_SCHEMA, None)
            for name, make in (("format", _keep_format), ("schema", _keep_schema), ("load", _load)):
                setattr(kind, name, make(getattr(kind, name)))


def _keep_format(inner: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(inner)
    def set_format(self: Any, source: Any) -> Any:
        setattr(self, _GIVEN_FORMAT, source)
        return inner(self, source)

    return set_format


def _keep_schema(inner: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(inner)
    def set_schema(self: Any, schema: Any) -> Any:
        setattr(self, _GIVEN_SCHEMA, schema)
        return inner(self, schema)

    return set_schema


def _load(inner: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(inner)
    def load(self: Any, path: Any = None, format: Any = None, schema: Any = None, **options: Any) -> Any:
        if format is not None:
            self.format(format)
        if schema is not None:
            self.schema(schema)
        given = getattr(self, _GIVEN_SCHEMA)
        if _may_have_not_null(given) and _source_of(self) == _FORMAT:
            self.schema(nullable(StructType.fromDDL(given) if isinstance(given, str) else given))
        return inner(self, path, **options)

    return load


def _may_have_not_null(schema: Any) -> bool:
    return isinstance(schema, StructType) or (isinstance(schema, str) and _NOT_NULL.search(schema) is not None)


def _source_of(reader: Any) -> str:
    """Return the format that a reader was given, else the default one of its session."""
    source = getattr(reader, _GIVEN_FORMAT)
    if source is None:
        session = reader._client if hasattr(reader, "_client") else reader._spark  # Spark Connect, or not
        source = session.conf.get(_DEFAULT_SOURCE)
    return str(source).lower()


def check_not_null(batch: pa.RecordBatch, ids: pa.Array) -> None:
    """Raise `SchemaError` if a column, or a field in one, is NULL and may not be.

    It names the message. `ids`: those of the rows. A program that has not called `register`, and a
    table of SQL, have such a schema.
    """
    for values, field in zip(batch.columns, batch.schema, strict=True):
        if not _has_not_null(field):
            continue
        if (fault := _find_null(values, field, pa.array(range(len(values)), pa.int64()))) is not None:
            path, row = fault
            raise SchemaError(
                f"column {path!r} is NOT NULL, but it is NULL in the message {ids[row].as_py()!r}: leave out NOT "
                "NULL, or call spark_queue.register(spark) before the query is made",
                column=path,
            )


def _find_null(values: pa.Array, field: pa.Field, rows: pa.Array) -> tuple[str, int] | None:
    """Return the path and the row of the first NULL that may not be. `rows`: that of each value."""
    if not field.nullable and values.null_count:
        return field.name, pc.filter(rows, values.is_null())[0].as_py()
    parts = _parts(field.type)
    if not any(map(_has_not_null, parts)):
        return None
    valid = values.is_valid()
    given, rows = values.filter(valid), rows.filter(valid)
    if pa.types.is_struct(field.type):
        columns = [given.field(number) for number in range(len(parts))]
    else:
        ends = given.offsets.to_pylist()
        items = given.items if pa.types.is_map(field.type) else given.values
        columns = [items[ends[0] : ends[-1]]]
        counts = [end - start for start, end in pairwise(ends)]
        rows = pa.array([row for row, count in zip(rows.to_pylist(), counts, strict=True) for _ in range(count)])
    for column, part in zip(columns, parts, strict=True):
        if (fault := _find_null(column, part, rows)) is not None:
            return f"{field.name}.{fault[0]}", fault[1]
    return None


def _parts(kind: pa.DataType) -> list[pa.Field]:
    """Return the fields of a struct, the items of a list, or the values of a map."""
    if pa.types.is_struct(kind):
        return list(kind)
    if pa.types.is_map(kind):
        return [kind.item_field]
    return [kind.value_field] if pa.types.is_list(kind) else []


def _has_not_null(field: pa.Field) -> bool:
    return not field.nullable or any(map(_has_not_null, _parts(field.type)))


_extend(DataFrameReader, DataStreamReader)
