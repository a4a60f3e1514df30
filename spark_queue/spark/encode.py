"""Convert rows of Spark to messages to push."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    BinaryType,
    DataType,
    StringType,
    StructField,
    StructType,
)

from spark_queue.messages.batching import batch_by_size
from spark_queue.messages.columns import columns_by_name, header_dicts, no_headers
from spark_queue.messages.dead_letter import ERROR_HEADER, FROM_HEADER, MAX_REASON_BYTES, NewDeadLetter, cut_text
from spark_queue.messages.ids import new_id_array, new_ids
from spark_queue.messages.payload import from_json, text_or_bytes
from spark_queue.messages.rules import id_rules, replace_invalid_utf8
from spark_queue.messages.schema import PUSHES
from spark_queue.messages.times import MAX_DURATION_MS
from spark_queue.spark.json_types import WRITTEN_AS_JSON
from spark_queue.spark.json_write import JsonStyle, encode_json_column

#: Rows per batch, if Spark passes single rows: to streaming writers on Spark 4.0.
ROWS_PER_BATCH = 10_000

#: The rows and bytes that are written to the database at once. Spark passes 10,000 rows at a time.
#: Writing each such batch alone means more waiting, and buckets that are not full.
COALESCED_ROWS, COALESCED_BYTES = 40_000, 8 << 20

#: A delay (s) that no queue accepts. It stands for all that are longer, some of which 64 bits in ms
#: do not hold: they would begin again at 0.
TOO_LONG = 2 * MAX_DURATION_MS // 1000

#: The most tries that a message can have.
MAX_TRIES = 2**31 - 1

#: Returns the given number of ids.
NewIds = Callable[[int], pa.Array]


def encode_pushes(
    batch: pa.RecordBatch,
    schema: StructType,
    payload_format: str | None,
    new_ids: NewIds,
    style: JsonStyle | None = None,
) -> tuple[pa.RecordBatch, dict[int, str]]:
    """Return a batch of Spark as a PUSHES batch, and the rows that no such batch can hold.

    The latter have the rule that they break, and other values that can be held. A NULL id gets a
    new one, NULL tries are 0.
    """
    n = batch.num_rows
    has = set(batch.schema.names)
    payload, kinds, faults = _payloads(batch.column("payload"), schema["payload"].dataType, payload_format, style)
    ids = batch.column("id") if "id" in has else pa.nulls(n, pa.string())
    if ids.null_count:
        ids = new_ids(n) if ids.null_count == n else pc.coalesce(ids, new_ids(n))
    tries = pa.repeat(0, n)
    if "tries" in has:
        tries = batch.column("tries").cast(pa.int64()).fill_null(0)
        tries = pc.max_element_wise(tries, -1)  # each negative number breaks the same rule
        too_many = pc.greater(tries, MAX_TRIES)
        for row in pc.indices_nonzero(too_many).to_pylist():
            faults.setdefault(row, f"its tries is beyond {MAX_TRIES}")
        tries = pc.if_else(too_many, 0, tries)
    columns = {
        "id": ids,
        "payload": payload,
        "payload_kind": kinds,
        "headers": batch.column("headers") if "headers" in has else no_headers(n),
        "mature": batch.column("mature") if "mature" in has else pa.nulls(n),
        "delay": delays_ms(batch.column("delay")) if "delay" in has else pa.nulls(n),
        "tries": tries,
    }
    return pa.RecordBatch.from_pydict(columns, schema=PUSHES), faults


def encode_changes(
    batch: pa.RecordBatch, schema: StructType, payload_format: str | None, style: JsonStyle | None = None
) -> tuple[pa.RecordBatch, dict[int, str]]:
    """Return a batch of Spark as a PUSHES batch that changes stored messages, as `encode_pushes`.

    A field whose column is NULL or missing does not change.
    """
    if "payload" not in batch.schema.names:
        batch = batch.append_column("payload", pa.nulls(batch.num_rows, pa.string()))
        schema = StructType([*schema.fields, StructField("payload", StringType())])
    rows, faults = encode_pushes(batch, schema, payload_format, new_id_array, style)
    if "headers" in batch.schema.names:
        return rows, faults
    columns = columns_by_name(rows) | {"headers": pa.nulls(len(rows), PUSHES.field("headers").type)}
    return pa.RecordBatch.from_pydict(columns, schema=PUSHES), faults


def filter_encoded(
    rows: pa.RecordBatch, faults: Mapping[int, str], mask: pa.Array
) -> tuple[pa.RecordBatch, dict[int, str]]:
    """Return some of the rows that were encoded, with those of them that are bad."""
    places = pc.indices_nonzero(mask).to_pylist() if faults else ()
    return rows.filter(mask), {row: faults[place] for row, place in enumerate(places) if place in faults}


def _payloads(
    column: pa.Array, kind: DataType, payload_format: str | None, style: JsonStyle | None
) -> tuple[pa.Array, pa.Array, dict[int, str]]:
    """Return the payloads, the kind of each, and the rows whose payload cannot be written."""
    if isinstance(kind, WRITTEN_AS_JSON):
        texts, faults = encode_json_column(column, kind, style)
        return *from_json(texts), faults
    payload = column.cast(pa.binary())
    if payload_format is None:
        payload_format = "binary" if isinstance(kind, BinaryType) else "json"
    if payload_format in ("json", "variant"):
        return *from_json(payload), {}
    return payload, pa.repeat(payload_format, len(payload)), {}


def delays_ms(column: pa.Array) -> pa.Array:
    """Return intervals, or numbers of seconds, in ms.

    Infinity, NaN and numbers that are too large become a delay that is too long.
    """
    if pa.types.is_duration(column.type):
        return pc.divide(column.cast(pa.duration("us")).cast(pa.int64()), 1000)
    seconds = column.cast(pa.int64() if pa.types.is_integer(column.type) else pa.float64())
    fits = pc.and_(pc.greater(seconds, -TOO_LONG), pc.less(seconds, TOO_LONG))
    bounded = pc.if_else(fits, seconds, pc.if_else(pc.less(seconds, 0), -TOO_LONG, TOO_LONG))
    return pc.round(pc.multiply(bounded, 1000)).cast(pa.int64())


def dead_letters_of(queue: str | None, rows: pa.RecordBatch, rules: Sequence[str]) -> list[NewDeadLetter]:
    """Return the dead letters of rows that cannot become messages of `queue`, with the `rules`.

    `None`: the rows name no queue that can be.
    """
    ids, rows = rows.column("id"), replace_invalid_utf8(rows)
    changed = pc.not_equal(ids.cast(pa.binary()), rows.column("id").cast(pa.binary()))
    id_errors = [*id_rules(rows.column("id")), (changed, "it is not UTF-8")]
    bad_ids = {number for bad, _ in id_errors for number in pc.indices_nonzero(bad).to_pylist()}
    columns = (rows.column(name).to_pylist() for name in ("id", "payload", "payload_kind"))
    headers = header_dicts(rows)
    spare_ids = new_ids(len(rows))
    letters: list[NewDeadLetter] = []
    for number, (id, payload, kind) in enumerate(zip(*columns, strict=True)):
        if payload is None:
            payload, kind = b"", "text"
        if kind != "binary":  # it may be no JSON
            payload, kind = text_or_bytes(payload)
        reasons = {ERROR_HEADER: cut_text(rules[number], MAX_REASON_BYTES)}
        if queue is not None:
            reasons[FROM_HEADER] = queue
        spare, bad = spare_ids[number], number in bad_ids
        letters.append(NewDeadLetter(id or "", payload, kind, headers[number], reasons, spare, needs_spare=bad))
    return letters


def coalesce_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in fewer batches, of up to COALESCED_ROWS rows and COALESCED_BYTES bytes.

    A batch that is larger stays whole.
    """
    non_empty = (batch for batch in batches if batch.num_rows)
    limits = COALESCED_ROWS, COALESCED_BYTES
    for group in batch_by_size(non_empty, limits, lambda batch: (batch.num_rows, batch.nbytes)):
        yield from pa.Table.from_batches(group).combine_chunks().to_batches()
