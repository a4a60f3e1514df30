"""Read rows of SQLite's tables as pages of records, including rows that cannot be read."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import orjson
import pyarrow as pa

from spark_queue.messages.columns import build_json_messages, build_messages, with_history
from spark_queue.stores.base import PAGE_BYTES
from spark_queue.stores.support.budget import spend
from spark_queue.stores.support.damaged import (
    READ_ERRORS,
    Records,
    Row,
    Unreadable,
    bytes_of_text,
    check_types,
    describe_value,
    digest_header,
    first_readable,
    id_of,
    parse_mature,
    parse_pushed,
    parse_tries,
    read_each,
    require,
    text_of_bytes,
    to_json,
)

#: The columns of a message in a SELECT. `others` is NULL for most messages: JSON without headers
#: that has not failed.
_READ_COLUMNS = (
    "id, payload, mature, pushed, CASE WHEN kind <> 'json' OR headers IS NOT NULL OR tries <> 0 "
    "THEN json_array(kind, headers, tries) END AS others"
)
_RAW_COLUMNS = ("id", "payload", "mature", "kind", "headers", "tries", "pushed")
_HISTORY_COLUMNS = ("processed", "consumer", "outcome")
_KINDS = {"json", "text", "binary"}

MAX_FETCH_ROWS = 100  #: most rows of one fetch: only then their bytes are counted

#: Whether a message can be changed: its tries are an integer, its headers NULL or a JSON object.
SOUND_ROW = (
    "typeof(tries) = 'integer' AND (headers IS NULL OR "
    "CASE WHEN typeof(headers) = 'text' AND json_valid(headers) THEN json_type(headers) = 'object' ELSE 0 END)"
)

#: Adds to the tries. A value that is not an integer stays, and is reported when it is read.
ADD_TRIES = "CASE typeof(tries) WHEN 'integer' THEN tries + {} ELSE tries END"


class BrokenText(bytes):
    """Text that is not UTF-8."""


class RowPlace(NamedTuple):
    """The place of a record in the order of its queue: the raw value of its due time, its rowid."""

    mature: Any
    rowid: int


def after_clause(after: RowPlace | None) -> tuple[str, tuple[Any, ...]]:
    """Return the WHERE clause of the records after a place, and its values. `None` matches all."""
    place = RowPlace(-(2**63), -(2**63)) if after is None else after
    mature = "CAST(? AS TEXT)" if isinstance(place.mature, BrokenText) else "?"
    return f"(mature, rowid) > ({mature}, ?)", place


def ids_clause(ids: Sequence[str] | None) -> tuple[str, tuple[Any, ...]]:
    """Return the WHERE clause of the records with these ids, and its values. `None` matches all."""
    if ids is None:
        return "1", ()
    by_text, values = "id IN (SELECT value FROM json_each(?))", (json.dumps(list(ids)),)
    if len(ids) == 1 and ids[0].isascii():  # others may be no UTF-8
        by_text, values = "id = ?", (ids[0],)
    binary_ids = [(id, key) for id in ids if (key := bytes_of_text(id)) is not None]
    if not binary_ids:
        return by_text, values
    # The id of UTF-8 text is that text, so these bytes match only a blob or broken text.
    blobs = ", ".join("?" * len(binary_ids))
    where = f"{by_text} OR (CAST(id AS BLOB) IN ({blobs}) AND (typeof(id) = 'blob' OR id NOT IN ({blobs})))"
    return f"({where})", (*values, *(key for _, key in binary_ids), *(id_of(key) for _, key in binary_ids))


def read_records(
    db: sqlite3.Connection, queue: str, source: str, values: Sequence[Any], rows: int, *, history: bool = False
) -> Iterator[Records]:
    """Yield the records that a query finds, in pages of at most `rows` rows and about PAGE_BYTES.

    `source` is the SQL after the columns, `values` are its parameters. `history` adds the columns
    of the history.
    """
    yielded = 0
    history_columns = _HISTORY_COLUMNS if history else ()
    try:
        cursor = db.execute(f"SELECT {', '.join((_READ_COLUMNS, *history_columns))}, rowid {source}", values)
        for part in _fetch_parts(cursor, rows, itemgetter(1)):
            page = Records(_to_batch(queue, part), RowPlace(part[-1][2], part[-1][-1]))
            yielded += len(part)
            yield page
        return
    except READ_ERRORS:
        pass
    except sqlite3.OperationalError as error:  # invalid JSON or UTF-8 is an error of a row
        if not any(one in str(error) for one in ("JSON", "UTF-8")):
            raise
    names = ", ".join(f"typeof({one}), CAST({one} AS BLOB)" for one in (*_RAW_COLUMNS, *history_columns))
    cursor = db.execute(f"SELECT {names}, rowid {source}", values)
    for _ in range(yielded):
        cursor.fetchone()
    for part in _fetch_parts(cursor, rows, lambda row: row[3] or b""):
        raw_rows = [tuple(map(_parse_value, row[:-1:2], row[1::2])) for row in part]
        yield read_each(queue, raw_rows, _read_row, _raw_row)._replace(after=RowPlace(raw_rows[-1][2], part[-1][-1]))


def _fetch_parts(
    cursor: sqlite3.Cursor, rows: int, payload_of: Callable[[tuple[Any, ...]], Any]
) -> Iterator[list[tuple[Any, ...]]]:
    part: list[tuple[Any, ...]] = []
    size = 0
    while fetched := cursor.fetchmany(
        max(1, min(MAX_FETCH_ROWS, rows - len(part), (PAGE_BYTES - size) * len(part) // (size + 1)))
    ):
        part += fetched  # the next fetch asks for as many as fit, if they have the average size
        got = sum(map(len, map(payload_of, fetched)))
        spend(len(fetched), got)
        size += got
        if len(part) >= rows or size >= PAGE_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


def _to_batch(queue: str, rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    """Return the rows as a batch, read by whole columns.

    Raises one of UNREADABLE for a value of a wrong type.
    """
    ids, payloads, mature, pushed, others, *history, _ = zip(*rows, strict=True)
    check_types(ids, str)
    check_types(payloads, bytes)
    if any(others):
        parsed_others = [("json", None, 0) if one is None else orjson.loads(one) for one in others]
        kinds, headers, tries = zip(*parsed_others, strict=True)
        require(set(kinds) <= _KINDS, "a kind is unknown")
        parsed_headers = [None if one is None else orjson.loads(one) for one in headers]
        batch = build_messages(queue, ids, payloads, kinds, parsed_headers, mature, tries, pushed)
    else:
        columns = pa.array(ids, pa.string()), pa.array(payloads, pa.binary())
        batch = build_json_messages(queue, *columns, None, pa.array(mature, pa.int64()), 0, pushed)
    return with_history(batch, *history) if history else batch


# --- row by row -----------------------------------------------------------------------------------


def _parse_value(kind: str, content: bytes | None) -> Any:
    """Return the value of a column, from its type and its bytes."""
    if content is None:
        return None
    if kind == "integer":
        return int(content)
    if kind == "real":
        return float(content)
    if kind == "blob":
        return content
    try:
        return content.decode()
    except UnicodeDecodeError:
        return BrokenText(content)


def _read_row(row: tuple[Any, ...]) -> Row:
    """Read one row. Raises `Unreadable` with the reason if it is damaged."""
    id, payload, mature, kind, headers, tries, pushed, *history = row
    require(type(id) is str, f"its id is {describe_value(id)}, not text")
    require(type(payload) is bytes, f"its payload is {describe_value(payload)}, not a blob")
    require(kind in _KINDS, f"its kind is {describe_value(kind)}, not one of {', '.join(sorted(_KINDS))}")
    return Row(
        id, payload, kind, _parse_headers(headers), parse_mature(mature), parse_tries(tries), _history_entry(history),
        parse_pushed(pushed),
    )  # fmt: skip


def _parse_headers(value: Any) -> dict[str, str] | None:
    if value is None:
        return None
    rule = f"its headers are {describe_value(value)}, not a JSON object"
    require(type(value) is str, rule)
    try:
        found = orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise Unreadable(f"{rule}: {error}") from error
    require(isinstance(found, dict), rule)
    return {name: one if isinstance(one, str) else orjson.dumps(one).decode() for name, one in found.items()}


def _raw_row(row: tuple[Any, ...]) -> Row:
    """Return the row for one that cannot be read. Its payload is the raw row as JSON."""
    id, _, mature, _, _, tries, pushed, *history = row
    shown_id = id if type(id) is str else text_of_bytes(id) if isinstance(id, bytes) else str(id)
    raw = {name: _jsonable(one) for name, one in zip(_RAW_COLUMNS, row, strict=False)}
    if pushed is None:
        del raw["pushed"]  # so that the digest is that of older versions
    digest = digest_header(to_json({name: one for name, one in raw.items() if name not in ("mature", "tries")}))
    due, failed = first_readable(parse_mature, mature), first_readable(parse_tries, tries)
    return Row(shown_id, to_json(raw), "json", digest, due, failed, _history_entry(history), parse_pushed(pushed))


def _jsonable(value: Any) -> Any:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    return value


def _history_entry(values: Sequence[Any]) -> tuple[int, str | None, str] | None:
    if not values:
        return None
    processed, consumer, outcome = values
    return (
        first_readable(parse_mature, processed),
        consumer if isinstance(consumer, str) else None,
        outcome if isinstance(outcome, str) else "commit",
    )
