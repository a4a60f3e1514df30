"""Read rows of SQLite's tables as pages of records, including rows that cannot be read."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import orjson
import pyarrow as pa

from spark_queue.messages.columns import build, build_alike, with_history
from spark_queue.stores.base import PAGE_BYTES
from spark_queue.stores.support.damaged import (
    UNREADABLE,
    Records,
    Row,
    Unreadable,
    best,
    bytes_of_text,
    check,
    check_types,
    digest_of,
    id_of,
    json_of,
    mature_of,
    quoted,
    read_each,
    text_of_bytes,
    tries_of,
)

#: The columns of a message in a SELECT. `others` is NULL for most messages: JSON without headers
#: that has not failed.
_READ = (
    "id, payload, mature, CASE WHEN kind <> 'json' OR headers IS NOT NULL OR tries <> 0 "
    "THEN json_array(kind, headers, tries) END AS others"
)
_COLUMNS = ("id", "payload", "mature", "kind", "headers", "tries")
_TOLD = ("processed", "consumer", "outcome")
_KINDS = {"json", "text", "binary"}

ROWS_STEP = 100  #: most rows of one fetch: only then their bytes are counted

#: Whether a message can be changed: its tries are an integer, its headers NULL or a JSON object.
SOUND_ROW = (
    "typeof(tries) = 'integer' AND (headers IS NULL OR "
    "CASE WHEN typeof(headers) = 'text' AND json_valid(headers) THEN json_type(headers) = 'object' ELSE 0 END)"
)

#: Adds to the tries. A value that is not an integer stays, and is reported when it is read.
MORE_TRIES = "CASE typeof(tries) WHEN 'integer' THEN tries + {} ELSE tries END"


class BrokenText(bytes):
    """Text that is not UTF-8."""


class RowPlace(NamedTuple):
    """The place of a record in the order of its queue: the raw values of its columns."""

    mature: Any
    id: Any


def place_of(after: RowPlace | None) -> tuple[str, tuple[Any, ...]]:
    """Return the WHERE clause of the records after a place, and its values. `None` matches all."""
    place = RowPlace(-(2**63), "") if after is None else after
    return f"(mature, id) > ({', '.join(map(_parameter, place))})", tuple(map(_plain, place))


def ids_among(ids: Sequence[str]) -> tuple[str, tuple[Any, ...]]:
    """Return the WHERE clause of the records with these ids, and its values."""
    named, values = "id IN (SELECT value FROM json_each(?))", (json.dumps(list(ids)),)
    odd = [(id, key) for id in ids if (key := bytes_of_text(id)) is not None]
    if not odd:
        return named, values
    # The id of UTF-8 text is that text, so these bytes match only a blob or broken text.
    blobs = ", ".join("?" * len(odd))
    which = f"{named} OR (CAST(id AS BLOB) IN ({blobs}) AND (typeof(id) = 'blob' OR id NOT IN ({blobs})))"
    return f"({which})", (*values, *(key for _, key in odd), *(id_of(key) for _, key in odd))


def read_records(
    db: sqlite3.Connection, queue: str, source: str, values: Sequence[Any], rows: int, *, history: bool = False
) -> Iterator[Records]:
    """Yield the records that a query finds, in pages of at most `rows` rows and about PAGE_BYTES.

    `source` is the SQL after the columns, `values` are its parameters. `history` adds the columns
    of the history.
    """
    given = 0
    try:
        more = f", {', '.join(_TOLD)}" if history else ""
        for part in _parts(db.execute(f"SELECT {_READ}{more} {source}", values), rows, itemgetter(1)):
            page = Records(_batch(queue, part), RowPlace(part[-1][2], part[-1][0]))
            given += len(part)
            yield page
        return
    except (sqlite3.OperationalError, *UNREADABLE) as error:
        if isinstance(error, sqlite3.OperationalError) and not _of_a_value(error):
            raise
    columns = (*_COLUMNS, *(_TOLD if history else ()))
    names = ", ".join(f"typeof({one}), CAST({one} AS BLOB)" for one in columns)
    found = db.execute(f"SELECT {names} {source}", values)
    for _ in range(given):
        found.fetchone()
    for part in _parts(found, rows, lambda row: row[3] or b""):
        plain = [tuple(map(_value, row[::2], row[1::2])) for row in part]
        yield read_each(queue, plain, _read, _raw)._replace(after=RowPlace(plain[-1][2], plain[-1][0]))


def _of_a_value(error: sqlite3.OperationalError) -> bool:
    """Return whether the error is about a value of a row: invalid JSON or UTF-8."""
    return any(one in str(error) for one in ("JSON", "UTF-8"))


def _parts(
    found: sqlite3.Cursor, rows: int, payload_of: Callable[[tuple[Any, ...]], Any]
) -> Iterator[list[tuple[Any, ...]]]:
    part: list[tuple[Any, ...]] = []
    size = 0
    while some := found.fetchmany(
        max(1, min(ROWS_STEP, rows - len(part), (PAGE_BYTES - size) * len(part) // (size + 1)))
    ):
        part += some  # the next fetch asks for as many as fit, if they have the average size
        size += sum(map(len, map(payload_of, some)))
        if len(part) >= rows or size >= PAGE_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


def _batch(queue: str, rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    """Return the rows as a batch, read by whole columns.

    Raises one of UNREADABLE for a value of a wrong type.
    """
    ids, payloads, mature, others, *told = zip(*rows, strict=True)
    check_types(ids, str)
    check_types(payloads, bytes)
    if any(others):
        read = [("json", None, 0) if one is None else orjson.loads(one) for one in others]
        kinds, headers, tries = zip(*read, strict=True)
        check(set(kinds) <= _KINDS, "a kind is unknown")
        parsed = [None if one is None else orjson.loads(one) for one in headers]
        batch = build(queue, ids, payloads, kinds, parsed, mature, tries)
    else:
        columns = pa.array(ids, pa.string()), pa.array(payloads, pa.binary())
        batch = build_alike(queue, *columns, None, pa.array(mature, pa.int64()), 0)
    return with_history(batch, *told) if told else batch


# --- row by row -----------------------------------------------------------------------------------------------------


def _value(kind: str, content: bytes | None) -> Any:
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


def _read(row: tuple[Any, ...]) -> Row:
    """Read one row. Raises `Unreadable` with the reason if it is damaged."""
    id, payload, mature, kind, headers, tries, *told = row
    check(type(id) is str, f"its id is {quoted(id)}, not text")
    check(type(payload) is bytes, f"its payload is {quoted(payload)}, not a blob")
    check(kind in _KINDS, f"its kind is {quoted(kind)}, not one of {', '.join(sorted(_KINDS))}")
    return Row(id, payload, kind, _headers(headers), mature_of(mature), tries_of(tries), _told(told))


def _headers(value: Any) -> dict[str, str] | None:
    if value is None:
        return None
    rule = f"its headers are {quoted(value)}, not a JSON object"
    check(type(value) is str, rule)
    try:
        found = orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise Unreadable(f"{rule}: {error}") from error
    check(isinstance(found, dict), rule)
    return {name: one if isinstance(one, str) else orjson.dumps(one).decode() for name, one in found.items()}


def _raw(row: tuple[Any, ...]) -> Row:
    """Return the row for one that cannot be read. Its payload is the raw row as JSON."""
    id, payload, mature, kind, headers, tries, *told = row
    shown = id if type(id) is str else text_of_bytes(bytes(id)) if isinstance(id, bytes) else str(id)
    values = (id, payload, mature, kind, headers, tries)
    whole = {name: _jsonable(one) for name, one in zip(_COLUMNS, values, strict=True)}
    stays = digest_of(json_of({name: one for name, one in whole.items() if name not in ("mature", "tries")}))
    return Row(shown, json_of(whole), "json", stays, best(mature_of, mature), best(tries_of, tries), _told(told))


def _jsonable(value: Any) -> Any:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return bytes(value)
    return value


def _told(told: Sequence[Any]) -> tuple[int, str | None, str] | None:
    if not told:
        return None
    processed, consumer, outcome = told
    return (
        best(mature_of, processed),
        consumer if isinstance(consumer, str) else None,
        outcome if isinstance(outcome, str) else "commit",
    )


def _parameter(value: Any) -> str:
    return "CAST(? AS TEXT)" if isinstance(value, BrokenText) else "?"


def _plain(value: Any) -> Any:
    return bytes(value) if isinstance(value, BrokenText) else value
