"""The columns of a queue's DataFrames, and the conversion of messages to batches of them."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VariantType,
)

from spark_queue.errors import SchemaError, did_you_mean
from spark_queue.messages.payload import as_json, as_text
from spark_queue.options.inputs import DELIVERY_HASH, LOG, InputOptions
from spark_queue.options.parts import Content
from spark_queue.options.roles import ReadOptions
from spark_queue.options.snapshot import SnapshotOptions
from spark_queue.options.stream import StreamOptions
from spark_queue.spark.json_types import NESTED_TYPES, check_names, format_error
from spark_queue.spark.not_null import check_not_null
from spark_queue.spark.payload_zone import payload_zone
from spark_queue.spark.read.arrival import ARRIVED
from spark_queue.spark.read.offsets import delivery_of_tag
from spark_queue.spark.typed.values import variant_of
from spark_queue.spark.typed_json import json_parser, parse_json_column

CORRUPT_COLUMN = "_corrupt_payload"

#: Columns that only a read fills. A push ignores them, so you can write a DataFrame that was read.
IGNORED_COLUMNS = ("pushed", "delivery_hash", "position", "processed", "consumer", "outcome", "tag", ARRIVED)

HEADERS = MapType(StringType(), StringType())

#: The columns of a read without `payload`, in order.
READ_COLUMNS: dict[str, DataType] = {
    "id": StringType(),
    "queue": StringType(),
    "headers": HEADERS,
    "mature": TimestampType(),
    "tries": IntegerType(),
    "pushed": TimestampType(),
    DELIVERY_HASH: StringType(),
}
#: Columns of a read that only your own schema adds: when the batch was reserved, and the tag of a
#: message's reservation. A new column without that would end queries that write all columns to a
#: table, or keep them in a state.
LOG_OPTIONAL_COLUMNS: dict[str, DataType] = {ARRIVED: TimestampType()}
OPTIONAL_COLUMNS: dict[str, DataType] = LOG_OPTIONAL_COLUMNS | {"tag": StringType()}
LOG_READ_COLUMNS: dict[str, DataType] = READ_COLUMNS | {"position": LongType()}
HISTORY_READ_COLUMNS: dict[str, DataType] = READ_COLUMNS | {
    "processed": TimestampType(),
    "consumer": StringType(),
    "outcome": StringType(),
}

_PAYLOAD_TYPES: dict[str, DataType] = {
    "json": StringType(),
    "text": StringType(),
    "binary": BinaryType(),
    "variant": VariantType(),
}

#: Converts a batch of stored messages to a batch of the DataFrame. Takes the tag of the messages,
#: the position of the first one in a log, and when they were reserved.
BatchConverter = Callable[..., pa.RecordBatch]

#: Joins batches of several inputs, by binding, into one. Takes their consumer and sequence too, and
#: when they were reserved.
BatchJoiner = Callable[..., pa.RecordBatch]


def read_schema(options: ReadOptions) -> StructType:
    """Return the columns of a DataFrame that is read without a schema of the user."""
    inputs = _inputs_of(options)
    if inputs is None:
        return _struct_type(_read_columns(options), options.content)
    columns = {binding: _struct_type(_input_columns(one), options.content) for binding, one in inputs.items()}
    return StructType([StructField(name, kind) for name, kind in (columns | {DELIVERY_HASH: StringType()}).items()])


def _struct_type(columns: Mapping[str, DataType], content: Content) -> StructType:
    fields = [StructField(name, kind) for name, kind in columns.items()]
    fields.insert(2, StructField("payload", _PAYLOAD_TYPES[content.read_format]))
    return StructType(fields)


def _inputs_of(options: ReadOptions) -> Mapping[str, InputOptions] | None:
    return options.inputs if isinstance(options, StreamOptions) else None


def _read_columns(options: ReadOptions) -> dict[str, DataType]:
    """Return the columns of a read without `payload`."""
    if options.reading.mode == LOG:
        return LOG_READ_COLUMNS
    is_history = isinstance(options, SnapshotOptions) and options.view == "history"
    return HISTORY_READ_COLUMNS if is_history else READ_COLUMNS


def _input_columns(one: InputOptions) -> dict[str, DataType]:
    """Return the columns in the struct of one of several inputs, without `payload`."""
    columns = LOG_READ_COLUMNS if one.mode == LOG else READ_COLUMNS
    return {name: kind for name, kind in columns.items() if name != DELIVERY_HASH}


def check_read_schema(schema: StructType, options: ReadOptions) -> None:
    """Raise `SchemaError` if a queue cannot be read as `schema`."""
    check_names(schema, "the schema")
    inputs, content = _inputs_of(options), options.content
    _check_format(schema, inputs, content)
    if inputs is None:
        optional = LOG_OPTIONAL_COLUMNS if options.reading.mode == LOG else OPTIONAL_COLUMNS
        _check_columns(schema, _read_columns(options) | optional, content, "a queue")
        return
    for field in schema.fields:
        name, kind = field.name, field.dataType
        known = [*inputs, DELIVERY_HASH, ARRIVED]
        if name not in known:
            hint = did_you_mean(name, known) or f"; the columns are {', '.join(known)}"
            raise SchemaError(f"option 'inputs' names no {name!r}{hint}", column=name)
        if name not in inputs:  # an input may have the name of a column that came later
            _check_columns(StructType([field]), READ_COLUMNS | OPTIONAL_COLUMNS, content, "a queue")
        elif isinstance(kind, StructType):
            check_names(kind, name)
            _check_columns(kind, _input_columns(inputs[name]), content, f"the input {name!r}")
        else:
            names = ", ".join(_struct_type(_input_columns(inputs[name]), content).names)
            raise SchemaError(
                f"column {name!r} is an input, so a struct of {names}, not {kind.simpleString()}", column=name
            )


def _check_format(schema: StructType, inputs: Mapping[str, InputOptions] | None, content: Content) -> None:
    """Raise `OptionError` if all payloads are typed JSON and `payloadFormat` is another one."""
    form, payloads = content.read_format, _payload_types(schema, inputs)
    if form != "json" and payloads and all(isinstance(kind, NESTED_TYPES) for kind in payloads.values()):
        path, kind = next(iter(payloads.items()))
        raise format_error(form, kind, path, "read from")


def _payload_types(schema: StructType, inputs: Mapping[str, InputOptions] | None) -> dict[str, DataType]:
    """Return the type of each payload by its path: that of a queue, or of each input."""
    if inputs is None:
        return {one.name: one.dataType for one in schema.fields if one.name == "payload"}
    columns = {one.name: one.dataType for one in schema.fields if one.name in inputs}
    return {
        f"{binding}.{one.name}": one.dataType
        for binding, kind in columns.items()
        if isinstance(kind, StructType)
        for one in kind.fields
        if one.name == "payload"
    }


def _check_columns(schema: StructType, columns: Mapping[str, DataType], content: Content, source: str) -> None:
    known = {**columns, "payload": StringType(), CORRUPT_COLUMN: StringType()}
    for field in schema.fields:
        name, kind = field.name, field.dataType
        if name not in known:
            hint = did_you_mean(name, known) or f"; it has {', '.join(known)}"
            raise SchemaError(f"{source} has no column {name!r}{hint}", column=name)
        if name == "payload" and isinstance(kind, NESTED_TYPES):
            json_parser(kind, "payload")
        elif name == "payload":
            form = content.read_format
            expected = _PAYLOAD_TYPES[form]
            if kind != expected:
                raise SchemaError(
                    f"column 'payload' cannot be {kind.simpleString()}: with payloadFormat={form} it is "
                    f"{expected.simpleString()}, or a struct, map or array for typed JSON",
                    column=name,
                )
        elif kind != known[name]:
            expected = known[name]
            raise SchemaError(f"column {name!r} is {expected.simpleString()}, not {kind.simpleString()}", column=name)


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the exact Arrow schema that Spark expects of batches of this schema."""
    # Spark 4.2 and later take a time zone; before, it is always UTC.
    takes_timezone = "timezone" in inspect.signature(to_arrow_schema).parameters
    utc: dict[str, Any] = {"timezone": "UTC"} if takes_timezone else {}
    return to_arrow_schema(schema, **utc)


def batch_converter(schema: StructType, content: Content) -> BatchConverter:
    """Return the function that converts batches of stored messages to batches of `schema`.

    It is for the task that calls this: times without a time zone have that of its session.
    """
    return partial(_convert_batch, arrow_schema(schema), schema, _Form.create(schema, content))


def batch_joiner(schema: StructType, content: Content) -> BatchJoiner:
    """Return the function that joins batches of several inputs into batches of `schema`.

    The column of an input that has no batch is NULL.
    """
    return partial(_join_batches, arrow_schema(schema), schema, _Form.create(schema, content))


@dataclass(frozen=True)
class _Form:
    """How payloads are converted. `zone`: of times in typed ones that name none; `None` is UTC."""

    payload_format: str
    zone: str | None

    @classmethod
    def create(cls, schema: StructType, content: Content) -> _Form:
        zone = payload_zone(content) if _has_typed_payload(schema) else None
        return cls(content.read_format, zone)


def _has_typed_payload(schema: StructType) -> bool:
    """Return whether a payload is read as columns: that of a queue, or of an input."""
    for one in schema.fields:
        if one.name == "payload" and isinstance(one.dataType, NESTED_TYPES):
            return True
        if isinstance(one.dataType, StructType) and _has_typed_payload(one.dataType):
            return True
    return False


def _join_batches(
    target: pa.Schema,
    schema: StructType,
    form: _Form,
    batches: Mapping[str, pa.RecordBatch],
    delivery: str,
    arrived: int | None = None,
) -> pa.RecordBatch:
    rows = next(iter(batches.values())).num_rows
    columns: dict[str, pa.Array] = {}
    for field in schema.fields:
        kind = target.field(field.name).type
        if field.name == DELIVERY_HASH:
            ids = [batches[binding].column("id").to_pylist() for binding in sorted(batches)]
            columns[field.name] = _hashes(delivery, ids)
        elif field.name in batches:
            assert isinstance(field.dataType, StructType)
            shaped = _convert_batch(pa.schema(list(kind)), field.dataType, form, batches[field.name])
            columns[field.name] = pa.StructArray.from_arrays(shaped.columns, fields=list(kind))
        elif field.name == ARRIVED and isinstance(field.dataType, TimestampType):  # not an empty input
            columns[field.name] = _arrivals(arrived, rows)
        else:
            columns[field.name] = pa.nulls(rows, kind)
    joined = pa.RecordBatch.from_pydict(columns, schema=target)
    check_not_null(joined, next(iter(batches.values())).column("id"))
    return joined


def _convert_batch(
    target: pa.Schema,
    schema: StructType,
    form: _Form,
    batch: pa.RecordBatch,
    tag: str | None = None,
    position: int = 0,
    arrived: int | None = None,
) -> pa.RecordBatch:
    rows = batch.num_rows
    columns = {CORRUPT_COLUMN: pa.nulls(rows), DELIVERY_HASH: pa.nulls(rows)}
    for name, field in zip(schema.names, schema.fields, strict=True):
        if name == "payload" and isinstance(field.dataType, NESTED_TYPES):
            parsed, corrupt = parse_json_column(
                _json_payloads(batch), field.dataType, target.field(name).type, form.zone
            )
            columns[name], columns[CORRUPT_COLUMN] = parsed, corrupt
        elif name == "payload" and form.payload_format == "variant":
            columns[name], columns[CORRUPT_COLUMN] = _variant_payloads(batch)
        elif name == "payload":
            columns[name] = _PAYLOAD_CONVERTERS[form.payload_format](batch)
        elif name == DELIVERY_HASH and tag is not None:  # messages without a tag are not delivered
            columns[name] = _hashes(delivery_of_tag(tag), [batch.column("id").to_pylist()])
        elif name == "tag":
            columns[name] = pa.repeat(pa.scalar(tag, pa.string()), rows)
        elif name == ARRIVED:
            columns[name] = _arrivals(arrived, rows)
        elif name == "position" and name not in batch.schema.names:
            columns[name] = pa.array(range(position, position + rows), pa.int64())
        elif name not in columns:
            columns[name] = batch.column(name)
    shaped = pa.RecordBatch.from_pydict(columns, schema=target)
    check_not_null(shaped, batch.column("id"))
    return shaped


# --- payloads -------------------------------------------------------------------------------------


def _convert_payloads(batch: pa.RecordBatch, convert: Callable[[bytes, str], bytes], unchanged: set[str]) -> pa.Array:
    """Return the payloads as text. `convert` does not change those of the kinds `unchanged`."""
    payload, kind = batch.column("payload"), batch.column("payload_kind")
    if set(kind.unique().to_pylist()) <= unchanged:
        return payload.cast(pa.string())
    pairs = zip(payload.to_pylist(), kind.to_pylist(), strict=True)
    return pa.array([convert(text, form) for text, form in pairs], pa.binary()).cast(pa.string())


def _json_payloads(batch: pa.RecordBatch) -> pa.Array:
    return _convert_payloads(batch, as_json, {"json"})


def _text_payloads(batch: pa.RecordBatch) -> pa.Array:
    return _convert_payloads(batch, as_text, {"json", "text"})


def _binary_payloads(batch: pa.RecordBatch) -> pa.Array:
    return batch.column("payload")


def _variant_payloads(batch: pa.RecordBatch) -> tuple[pa.Array, pa.Array]:
    """Return the payloads, NULL for one that no VARIANT holds; and the texts of these."""
    values: list[dict[str, bytes] | None] = []
    unfit: list[str | None] = []
    for text in _json_payloads(batch).to_pylist():
        try:
            values.append(variant_of(text))
            unfit.append(None)
        except ValueError:
            values.append(None)
            unfit.append(text)
    kind = arrow_schema(StructType([StructField("v", VariantType())])).field("v").type
    return pa.array(values, kind), pa.array(unfit, pa.string())


_PAYLOAD_CONVERTERS: dict[str, Callable[[pa.RecordBatch], pa.Array]] = {
    "json": _json_payloads,
    "text": _text_payloads,
    "binary": _binary_payloads,
}


# --- when they were reserved ----------------------------------------------------------------------


def _arrivals(arrived: int | None, rows: int) -> pa.Array:
    """Return the column `arrived`: that moment (ms) in each row, NULL if there is none."""
    micros = None if arrived is None else 1000 * arrived
    return pa.repeat(pa.scalar(micros, pa.timestamp("us", "UTC")), rows)


# --- delivery hash --------------------------------------------------------------------------------


def _hashes(delivery: str, ids: Sequence[Sequence[str]]) -> pa.Array:
    """Return the SHA-256 (hex) of `delivery` (consumer, sequence) and the ids of each row."""
    prefix = hashlib.sha256(delivery.encode() + b"\0")
    hashes = []
    for row in zip(*ids, strict=True):
        one = prefix.copy()
        one.update("\0".join(row).encode())
        hashes.append(one.hexdigest())
    return pa.array(hashes, pa.string())
