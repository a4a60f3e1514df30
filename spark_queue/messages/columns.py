"""Columns of Arrow batches: headers and due times. Also builds batches of plain columns."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from spark_queue.messages.ids import SMALL_BATCH
from spark_queue.messages.schema import HISTORY, MESSAGES, PUSHES, WRITTEN
from spark_queue.messages.times import MAX_TIME_MS, MIN_TIME_MS


def headers_array(headers: Sequence[Mapping[str, str] | None]) -> pa.MapArray:
    """Return a headers column.

    It costs nothing if no row has headers, as in almost every batch.
    """
    if not any(headers):
        return no_headers(len(headers))
    return pa.array([list((one or {}).items()) for one in headers], PUSHES.field("headers").type)


def no_headers(rows: int) -> pa.MapArray:
    """Return a headers column of `rows` empty maps."""
    nothing = pa.array([], pa.string())
    return pa.MapArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), rows + 1), nothing, nothing)


def columns_by_name(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """Return the columns of a batch by name."""
    return dict(zip(batch.schema.names, batch.columns, strict=True))


def fill_null_payloads(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a PUSHES batch with the JSON `0` in place of each payload that is NULL."""
    columns = columns_by_name(batch)
    missing = columns["payload"].is_null()
    columns["payload"] = pc.if_else(missing, pa.scalar(b"0", pa.binary()), columns["payload"])
    columns["payload_kind"] = pc.if_else(missing, "json", columns["payload_kind"])
    return pa.RecordBatch.from_pydict(columns, schema=batch.schema)


def header_dicts(batch: pa.RecordBatch) -> list[dict[str, str]]:
    """Return the headers of each row as a dict, without those whose value is NULL."""
    column = batch.column("headers")
    if not len(column.items):
        return [{}] * batch.num_rows
    # One pass over all entries is many times faster than `to_pylist` of the map.
    pairs = list(zip(column.keys.to_pylist(), column.items.to_pylist(), strict=True))
    spans = zip(itertools.pairwise(column.offsets.to_pylist()), column.is_valid().to_pylist(), strict=True)
    return [
        {key: value for key, value in pairs[start:end] if there and value is not None}
        for (start, end), there in spans
    ]


def milliseconds(column: pa.Array) -> pa.Array:
    """Return a timestamp column as int64 ms since 1970; finer parts are cut off."""
    return pc.divide(column.cast(pa.int64()), 1000)


def due_ms(batch: pa.RecordBatch, now: int) -> list[int]:
    """Return when each row of a PUSHES batch matures (ms). `now` is the database's time (ms)."""
    if _all_due_now(batch):
        return [now] * batch.num_rows
    delayed = pc.add(batch.column("delay").fill_null(0), now)
    moments: list[int] = pc.coalesce(milliseconds(batch.column("mature")), delayed).to_pylist()
    return moments


def pushed_ms(batch: pa.RecordBatch, now: int | None) -> list[int | None]:
    """Return when each row of a PUSHES or WRITTEN batch was pushed (ms), `None` if that is unknown.

    `now` is the database's time (ms) if the rows of a PUSHES batch are pushed now.
    """
    if "pushed" not in batch.schema.names:
        return [now] * batch.num_rows
    moments: list[int | None] = milliseconds(batch.column("pushed")).to_pylist()
    return moments


def earliest_due(batch: pa.RecordBatch) -> int:
    """Return when the first row of a PUSHES batch is due, by the clock of this machine (ms).

    It is 0 if a row is due already.
    """
    if _all_due_now(batch):
        return 0
    now = round(time.time() * 1000)
    first = min(due_ms(batch, now))
    return first if first > now else 0


def _all_due_now(batch: pa.RecordBatch) -> bool:
    return bool(batch.column("mature").null_count == batch.column("delay").null_count == batch.num_rows)


def with_due_time(batch: pa.RecordBatch, now: int) -> pa.RecordBatch:
    """Return a WRITTEN batch in which every row has its `mature`. `now` is the database's time.

    Rows of a PUSHES batch are pushed now. `now` is in ms. Raises `ValueError` for a moment outside
    of the years 1 to 9999.
    """
    at_once = pa.repeat(pa.scalar(now * 1000, PUSHES.field("mature").type), batch.num_rows)
    due_at = at_once if _all_due_now(batch) else timestamps(due_ms(batch, now))
    due = {"mature": due_at, "delay": pa.nulls(batch.num_rows, pa.int64())}
    return pa.RecordBatch.from_pydict({"pushed": at_once} | columns_by_name(batch) | due, schema=WRITTEN)


def slice_by_size(batch: pa.RecordBatch, size: int) -> Iterator[pa.RecordBatch]:
    """Yield the batch in slices of about `size` bytes.

    A row larger than `size` may share its slice with rows of average size.
    """
    rows = max(1, batch.num_rows * size // max(1, batch.nbytes))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def timestamps(ms: Iterable[int]) -> pa.Array:
    """Return ms since 1970 as a timestamp[us, UTC] column.

    Raises `ValueError` for a moment outside of the years 1 to 9999, which Python cannot hold.
    """
    type_ = pa.timestamp("us", tz="UTC")
    if isinstance(ms, Sequence) and len(ms) <= SMALL_BATCH:
        _check_moments(min(ms, default=0), max(ms, default=0))
        return pa.array([one * 1000 for one in ms], type_)
    column = pa.array(ms, pa.int64())
    if len(column):
        _check_moments(*pc.min_max(column).as_py().values())
    return pc.multiply(column, 1000).cast(type_)


def pushed_column(ms: Sequence[int | None] | pa.Array | None, rows: int) -> pa.Array:
    """Return the column `pushed` from ms since 1970; without any, all rows are NULL.

    Raises `ValueError` for a moment outside of the years 1 to 9999.
    """
    if ms is None:
        return pa.nulls(rows, MESSAGES.field("pushed").type)
    column = ms if isinstance(ms, pa.Array) else pa.array(ms, pa.int64())
    if column.null_count < rows:
        _check_moments(*pc.min_max(column).as_py().values())
    return pc.multiply(column, 1000).cast(MESSAGES.field("pushed").type)


def _check_moments(first: int, last: int) -> None:
    if first < MIN_TIME_MS or last > MAX_TIME_MS:
        raise ValueError(
            f"a moment is not from {MIN_TIME_MS} to {MAX_TIME_MS} ms: {first if first < MIN_TIME_MS else last}"
        )


def build_messages(
    queue: str,
    ids: Sequence[str],
    payloads: Sequence[bytes],
    kinds: Sequence[str],
    headers: Sequence[Mapping[str, str] | None],
    mature: Sequence[int],
    tries: Sequence[int],
    pushed: Sequence[int | None] | None = None,
) -> pa.RecordBatch:
    """Return a MESSAGES batch of plain columns; `mature` and `pushed` in ms.

    Raises `ValueError` for a moment outside of the years 1 to 9999.
    """
    return pa.RecordBatch.from_arrays(
        [
            pa.array(ids, pa.string()),
            pa.array(itertools.repeat(queue, len(ids)), pa.string(), size=len(ids)),
            pa.array(payloads, pa.binary()),
            pa.array(kinds, pa.string()),
            headers_array(headers),
            timestamps(mature),
            pa.array(tries, pa.int32()),
            pushed_column(pushed, len(ids)),
        ],
        schema=MESSAGES,
    )


def build_json_messages(
    queue: str,
    ids: pa.Array,
    payloads: pa.Array,
    headers: Mapping[str, str] | None,
    mature: pa.Array,
    tries: int,
    pushed: Sequence[int | None] | pa.Array | None,
) -> pa.RecordBatch:
    """Return a MESSAGES batch of JSON messages that share their headers and tries.

    `mature` and `pushed` are in ms. Raises `ValueError` for a moment outside of the years 1 to
    9999.
    """
    n = len(ids)
    columns = {
        "id": ids,
        "queue": pa.repeat(queue, n),
        "payload": payloads,
        "payload_kind": pa.repeat("json", n),
        "headers": headers_array([headers] * n),
        "mature": timestamps(mature),
        "tries": pa.repeat(pa.scalar(tries, pa.int32()), n),
        "pushed": pushed_column(pushed, n),
    }
    return pa.RecordBatch.from_pydict(columns, schema=MESSAGES)


def with_history(
    batch: pa.RecordBatch, processed: Sequence[int], consumers: Sequence[str | None], outcomes: Sequence[str]
) -> pa.RecordBatch:
    """Return a HISTORY batch: a MESSAGES batch with the columns of the history; `processed` in ms.

    Raises `ValueError` for a moment outside of the years 1 to 9999.
    """
    columns = timestamps(processed), pa.array(consumers, pa.string()), pa.array(outcomes, pa.string())
    return pa.RecordBatch.from_arrays([*batch.columns, *columns], schema=HISTORY)
