"""Pages of records, with damaged ones among their rows.

The page names the rows of records that cannot be read. Such a row has an id by which the record can
be settled, the raw record as payload, and the reason in the header `x-error`. It keeps its due time
and tries if they can be read; else it is due since 1970, with 0 tries.

A store reads whole columns at a time. If that fails, or if a value has a wrong type, it reads
record by record.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import groupby
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from spark_queue.messages.buckets import CONVERTED_SUFFIX, DamagedBucket, are_buckets, open_bucket, rows_of
from spark_queue.messages.columns import build_messages, header_dicts, headers_array, with_history
from spark_queue.messages.dead_letter import DIGEST_HEADER, ERROR_HEADER
from spark_queue.messages.json_text import load_foreign_json
from spark_queue.messages.payload import text_or_bytes, to_jsonable
from spark_queue.messages.rules import NOT_JSON, NOT_TEXT, all_json
from spark_queue.messages.schema import NO_MESSAGES
from spark_queue.messages.times import MAX_TIME_MS, MIN_TIME_MS
from spark_queue.stores.types import Condition, filter_rows

T = TypeVar("T")

#: Errors that reading a damaged record can raise.
READ_ERRORS = (ValueError, TypeError, KeyError, AttributeError, IndexError, ArithmeticError, RecursionError)

#: How many characters of a value a reason quotes.
MAX_QUOTED = 80

#: How many records that are never due `Store.never_due` returns.
MAX_NEVER_DUE = 1_000

_NO_DAMAGE: Mapping[int, str] = MappingProxyType({})


class Unreadable(ValueError):
    """A record that cannot be read; its text says why."""


class Records(NamedTuple):
    """A page of records in the order of their store.

    `after`: the cursor of the last one, in the store's own form. `damaged`: the reasons by row, for
    records that cannot be read. `payloads_valid`: all payloads are known to be of their kind.
    """

    batch: pa.RecordBatch
    after: Any = None
    damaged: Mapping[int, str] = _NO_DAMAGE
    payloads_valid: bool = False

    def readable(self) -> pa.RecordBatch:
        """Return the rows without damaged records."""
        if not self.damaged:
            return self.batch
        kept = [row for row in range(self.batch.num_rows) if row not in self.damaged]
        return self.batch.take(pa.array(kept, pa.int64()))


#: The page after the last one.
EMPTY_PAGE = Records(NO_MESSAGES)


@dataclass(frozen=True, slots=True)
class Row:
    """One message as plain values; `mature` and `pushed` in ms.

    `history`: when it was processed (ms), by which consumer, and its outcome.
    """

    id: str
    payload: bytes
    kind: str
    headers: Mapping[str, str] | None = None
    mature: int = 0
    tries: int = 0
    history: tuple[int, str | None, str] | None = None
    pushed: int | None = None


def require(holds: object, rule: str) -> None:
    """Raise `Unreadable` with this rule unless it holds."""
    if not holds:
        raise Unreadable(rule)


def check_types(values: Sequence[Any], *types: type) -> None:
    """Raise `Unreadable` unless each value has exactly one of these types (no subclass)."""
    require(set(map(type, values)) <= set(types), "a value has a wrong type")


def parse_integer(name: str, value: object, minimum: int, maximum: int) -> int:
    """Return an `int`. Raises `Unreadable` if it is no number from `minimum` to `maximum`."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not minimum <= value <= maximum:  # type: ignore[operator]  # NaN fails too
        raise Unreadable(f"its {name} is {describe_value(value)}, not a number from {minimum} to {maximum}")
    return int(value)  # type: ignore[call-overload,no-any-return]


def parse_tries(value: object) -> int:
    """Return the tries of a message. Raises `Unreadable` if they are no 32-bit number."""
    return parse_integer("tries", value, -(2**31), 2**31 - 1)


def parse_mature(value: object) -> int:
    """Return when a message is due (ms). Raises `Unreadable` if it is no valid moment."""
    return parse_integer("mature", value, MIN_TIME_MS, MAX_TIME_MS)


def parse_pushed(value: object) -> int | None:
    """Return when a message was pushed (ms), `None` if the value is no valid moment.

    Nothing depends on it, so a wrong value does not make the record a damaged one.
    """
    try:
        return parse_integer("pushed", value, MIN_TIME_MS, MAX_TIME_MS)
    except Unreadable:
        return None


def digest_header(content: bytes) -> dict[str, str]:
    """Return the header with the digest, which distinguishes raw records of the same id."""
    return {DIGEST_HEADER: sha256(content).hexdigest()}


def describe_value(value: object) -> str:
    """Return the beginning of a value, to quote it in a reason."""
    text = f"{type(value).__name__} {value!r}" if isinstance(value, str | bytes | list | dict) else repr(value)
    return text if len(text) <= MAX_QUOTED else f"{text[:MAX_QUOTED]}…"


def read_each(queue: str, records: Sequence[T], read: Callable[[T], Row], raw: Callable[[T], Row]) -> Records:
    """Read a page record by record; `raw` returns the row of a record that `read` cannot read."""
    rows: list[Row] = []
    damaged: dict[int, str] = {}
    for number, record in enumerate(records):
        try:
            row = read(record)
            _build_batch(queue, [row])
        except READ_ERRORS as error:
            damaged[number] = str(error) if isinstance(error, Unreadable) else f"it cannot be read ({error})"
            row = raw(record)
            row = replace(
                row, headers={**digest_header(row.payload), **(row.headers or {}), ERROR_HEADER: damaged[number]}
            )
        rows.append(row)
    return Records(_build_batch(queue, rows), None, damaged)


def first_readable(read: Callable[[object], int], *values: object) -> int:
    """Return the first value that `read` can read, or 0."""
    for value in values:
        with suppress(Unreadable):
            return read(value)
    return 0


def _build_batch(queue: str, rows: Sequence[Row]) -> pa.RecordBatch:
    facts = ((one.id, one.payload, one.kind, one.headers, one.mature, one.tries, one.pushed) for one in rows)
    batch = build_messages(queue, *zip(*facts, strict=True))
    processed = [one.history for one in rows if one.history is not None]
    return with_history(batch, *zip(*processed, strict=True)) if processed else batch


# --- buckets and payloads -------------------------------------------------------------------------


def slice_records(page: Records, start: int, stop: int) -> Records:
    """Return the rows of a page from `start` to before `stop`."""
    damaged = {row - start: why for row, why in page.damaged.items() if start <= row < stop}
    return Records(page.batch.slice(start, stop - start), None, damaged)


def join_records(first: Records, second: Records) -> Records:
    """Return the rows of two pages as one."""
    if not first.batch.num_rows:
        return second
    (batch,) = pa.Table.from_batches([first.batch, second.batch]).combine_chunks().to_batches()
    damaged = {row + first.batch.num_rows: why for row, why in second.damaged.items()}
    return Records(batch, second.after, {**first.damaged, **damaged})


def open_buckets(records: Records, *, fill: bool = False) -> Iterator[Records]:
    """Yield the messages of records, in order; a bucket that cannot be opened is one damaged row.

    With `fill`, it is as many rows as its id says, so the messages after it keep their positions.
    """
    batch = records.batch
    marked = are_buckets(batch.column("id"))
    if not pc.any(marked).as_py():
        yield records
        return
    start = 0
    for is_bucket, run in groupby(marked.to_pylist()):
        stop = start + len(list(run))
        if is_bucket:
            for row in range(start, stop):
                yield _open_one(batch.slice(row, 1), records.damaged.get(row), fill)
        else:
            yield slice_records(records, start, stop)
        start = stop


def _open_one(record: pa.RecordBatch, reason: str | None, fill: bool) -> Records:
    if reason is None:
        try:
            made_now = record.column("id")[0].as_py().endswith(CONVERTED_SUFFIX)
            return Records(open_bucket(record), payloads_valid=not made_now)  # a push checked the payloads
        except DamagedBucket as error:
            reason = f"the bucket is damaged: {error}"
            record = _with_column(_with_error(record, reason), "payload_kind", pa.array(["binary"]))
    if not fill:
        return Records(record, None, {0: reason})
    (id,) = record.column("id").to_pylist()
    rest = _with_column(record, "payload", pa.array([b""], pa.binary()))  # no copy of its bytes
    (rows,) = pa.Table.from_batches([record, *[rest] * (rows_of(id) - 1)]).combine_chunks().to_batches()
    return Records(rows, None, dict.fromkeys(range(rows.num_rows), reason))


def _with_column(batch: pa.RecordBatch, name: str, column: pa.Array) -> pa.RecordBatch:
    place = batch.schema.get_field_index(name)
    return batch.set_column(place, batch.schema.field(place), column)


def _with_error(batch: pa.RecordBatch, reason: str) -> pa.RecordBatch:
    """Return the rows with the reason in their headers."""
    headers = [one | {ERROR_HEADER: reason} for one in header_dicts(batch)]
    return _with_column(batch, "headers", headers_array(headers))


def check_payloads(records: Records, *, check_json: bool) -> Records:
    """Return the page, with rows whose payload is not of its kind as damaged.

    Texts and JSON must be UTF-8. With `check_json`, JSON must be valid.
    """
    payloads, kinds = records.batch.column("payload"), records.batch.column("payload_kind")
    if records.payloads_valid or _all_valid(payloads, kinds, check_json):
        return records
    damaged = dict(records.damaged)
    parts: list[pa.RecordBatch] = []
    for row, (payload, kind) in enumerate(zip(payloads.to_pylist(), kinds.to_pylist(), strict=True)):
        one = records.batch.slice(row, 1)
        if row not in damaged and (reason := _payload_fault(payload, kind, check_json)):
            damaged[row] = reason
            one = _with_column(_with_error(one, reason), "payload_kind", pa.array([text_or_bytes(payload)[1]]))
        parts.append(one)
    (batch,) = pa.Table.from_batches(parts).combine_chunks().to_batches()
    return Records(batch, records.after, damaged)


def _all_valid(payloads: pa.Array, kinds: pa.Array, check_json: bool) -> bool:
    """Return whether all payloads are certainly of their kind; checks whole columns at a time."""
    known = set(kinds.unique().to_pylist())
    texts = payloads.filter(pc.not_equal(kinds, "binary")) if "binary" in known else payloads
    try:
        texts.cast(pa.string())
    except pa.ArrowInvalid:
        return False
    if not check_json or "json" not in known:
        return True
    return all_json(payloads if len(known) == 1 else payloads.filter(pc.equal(kinds, "json")))


def _payload_fault(payload: bytes, kind: str, check_json: bool) -> str | None:
    try:
        if kind != "binary":
            payload.decode()
        if kind == "json" and check_json:
            load_foreign_json(payload)
    except UnicodeDecodeError as error:
        return f"{NOT_TEXT} ({error.reason} at byte {error.start})"
    except (ValueError, RecursionError) as error:
        return f"{NOT_JSON} ({error})"
    return None


# --- ids that are not text ------------------------------------------------------------------------

_BINARY = re.compile(r'\{"_id":\{"\$binary":\{"base64":"([A-Za-z0-9+/]*={0,2})","subType":"00"\}\}\}')


def text_of_bytes(id: bytes) -> str:
    """Return the id for a key that is not UTF-8: Extended JSON, as MongoDB writes it."""
    return f'{{"_id":{{"$binary":{{"base64":"{base64.b64encode(id).decode()}","subType":"00"}}}}}}'


def bytes_of_text(id: str) -> bytes | None:
    """Return the key of such an id, or `None` for any other id."""
    found = _BINARY.fullmatch(id)
    return base64.b64decode(found[1]) if found else None


def id_of(key: bytes) -> str:
    """Return the id of the message with this key."""
    try:
        return key.decode()
    except UnicodeDecodeError:
        return text_of_bytes(key)


def keys_of(id: str) -> list[bytes]:
    """Return the keys that the message with this id may have."""
    odd = bytes_of_text(id)
    return [id.encode()] if odd is None else [id.encode(), odd]


def to_json(value: Mapping[str, object]) -> bytes:
    """Return a raw record as JSON; bytes as Extended JSON."""
    return orjson.dumps(value, default=to_jsonable)


# --- choosing records -----------------------------------------------------------------------------


def filter_records(page: Records, where: Sequence[Condition], limit: int | None = None) -> Records:
    """Return the first `limit` records that are buckets or meet the conditions."""
    if not (page.damaged and where):
        return page._replace(batch=filter_rows(page.batch, where, or_buckets=True).slice(0, limit))
    numbers = pa.array(range(page.batch.num_rows), pa.int64())
    numbered = page.batch.append_column("number", numbers)
    kept = filter_rows(numbered, where, or_buckets=True).slice(0, limit)
    damaged = {
        row: page.damaged[old] for row, old in enumerate(kept.column("number").to_pylist()) if old in page.damaged
    }
    return Records(kept.drop_columns(["number"]), page.after, damaged)
