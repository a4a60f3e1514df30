"""Parse JSON payloads as struct, map or array columns, and write such columns as JSON.

The rules for each type are those of Spark's JSON reader in its permissive mode, row by row: see
`typed/values.py`.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
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

from spark_queue.errors import SchemaError
from spark_queue.messages.rules import is_utf8
from spark_queue.options.time_zones import UTC_ZONE, Zone, zone_of
from spark_queue.spark.far_moments import date_of, moment_of
from spark_queue.spark.typed.columns import ColumnReader
from spark_queue.spark.typed.documents import (
    compact_text,
    load_all_compact,
    load_loose,
    load_lossless,
    loose_text,
    python_text,
    read_document,
    spaced_text,
    written_text,
)
from spark_queue.spark.typed.values import Parser, PartlyRead, TypeRules, root_parser

#: Converts a value that is not null.
Converter = Callable[[Any], Any]

#: The errors for values that Python or JSON cannot hold.
UNFIT_ERRORS = (ValueError, TypeError, ArithmeticError, RecursionError, LookupError, PySparkException)

#: Rows that are read at once, or one by one if one of them is unusual.
_AT_ONCE = 1024

#: Failures in a row after which it is tried no less often: once in 2^7 times.
_MOST_FAILURES = 7


def parse_json_column(
    texts: Sequence[str] | pa.Array, kind: DataType, arrow: pa.DataType, zone: str | None = None
) -> tuple[pa.Array, pa.Array]:
    """Parse JSON texts as `kind`; return the values, and the texts that do not fit (else NULL).

    A text fits partly if a field in it is of another type: that field is NULL. `zone`: the time
    zone of timestamps that name none, UTC by default. Raises `SchemaError` if JSON cannot be parsed
    as a type in `kind`.
    """
    column = texts if isinstance(texts, pa.Array) else pa.array(texts, pa.string())
    return _reader(kind, arrow, zone).read(column)


@lru_cache(maxsize=16)
def _reader(kind: DataType, arrow: pa.DataType, zone: str | None) -> _TypedReader:
    return _TypedReader(kind, arrow, UTC_ZONE if zone is None else zone_of(zone))


def json_parser(kind: DataType, path: str) -> Parser:
    """Return the parser of a type, of values that `orjson` has read.

    Raises `SchemaError`, which names the `path`, if JSON cannot be parsed as that type.
    """
    return root_parser(kind, path, TypeRules(compact_text, UTC_ZONE))


class _TypedReader:
    """Reads texts as a type: many at once if they are as usual, else one by one."""

    def __init__(self, kind: DataType, arrow: pa.DataType, zone: Zone) -> None:
        self._arrow = arrow
        self._columns = ColumnReader.create(kind, arrow, zone)
        self._failures = self._skipped = 0

        def parser(text_of: Callable[[Any], str]) -> Parser:
            return root_parser(kind, "payload", TypeRules(text_of, zone))

        self._compact, self._spaced, self._python = map(parser, (compact_text, spaced_text, python_text))
        self._loose, self._exact = map(parser, (loose_text, written_text))

    def read(self, texts: pa.Array) -> tuple[pa.Array, pa.Array]:
        """Return the values of texts, and the texts that do not fit."""
        parts: list[pa.Array] = []
        corrupt: list[str | None] = []
        for start in range(0, len(texts), _AT_ONCE):
            some = texts.slice(start, _AT_ONCE)
            part, bad = self._read_at_once(some), [None] * len(some)
            if part is None:
                values, bad = self._read_each(some.cast(pa.binary()).to_pylist())
                part = pa.array(values, self._arrow)
            parts.append(part)
            corrupt += bad
        return pa.concat_arrays(parts) if parts else pa.array([], self._arrow), pa.array(corrupt, pa.string())

    def _read_at_once(self, texts: pa.Array) -> pa.Array | None:
        """Return the values of texts, or `None` if they need to be read one by one.

        After failures it tries less often: then most texts are unusual.
        """
        if self._columns is None:
            return None
        if self._skipped < 2**self._failures - 1:
            self._skipped += 1
            return None
        part = self._columns.read(texts)
        self._skipped, self._failures = 0, 0 if part is not None else min(self._failures + 1, _MOST_FAILURES)
        return part

    def _read_each(self, texts: list[bytes]) -> tuple[list[Any], list[str | None]]:
        values: list[Any] = []
        corrupt: list[str | None] = []
        together = load_all_compact(texts)
        for number, text in enumerate(texts):
            try:
                if together is None:
                    values.append(self._read_one(text))
                else:
                    value = together[number]
                    values.append(None if value is None else self._compact(value))
            except PartlyRead as part:
                values.append(part.value)
            except (ValueError, RecursionError):
                values.append(None)
            else:
                corrupt.append(None)
                continue
            corrupt.append(text.decode())
        return values, corrupt

    def _read_one(self, raw: bytes) -> Any:
        """Return the value of a text. Raises `PartlyRead` or `ValueError` if it does not fit."""
        try:
            value, compact = load_lossless(raw)
        except ValueError:
            return self._read_written(raw.decode())
        if value is None:
            return None
        if compact:
            return self._compact(value)
        with suppress(KeyError):  # the spaces in a part count
            return self._spaced(value)
        if python_text(value).encode() == raw:
            return self._python(value)
        return self._exact(read_document(raw.decode()))

    def _read_written(self, text: str) -> Any:
        try:
            loose = load_loose(text)
        except (ValueError, RecursionError):
            pass  # Spark takes more than JSON
        else:
            with suppress(KeyError):
                return None if loose is None else self._loose(loose)
        try:
            value = read_document(text)
        except EOFError:
            return None
        return None if value is None else self._exact(value)


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
