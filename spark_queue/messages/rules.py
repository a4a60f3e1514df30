"""What every store refuses: the rows of a batch that break a rule, with the rule."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from spark_queue.messages.columns import milliseconds
from spark_queue.messages.ids import FEW, LONGEST_ID, PLAIN_ID
from spark_queue.messages.schema import LATEST, MARK


def broken_by_ids(ids: pa.Array) -> list[tuple[pa.Array, str]]:
    """The rules for ids, each with whether an id breaks it (or NULL)."""
    size = pc.binary_length(ids.cast(pa.binary()))
    return [
        (ids.is_null(), "its id is NULL"),
        (pc.equal(size, 0), "its id is empty"),
        (pc.greater(size, LONGEST_ID), f"its id is longer than {LONGEST_ID} bytes"),
        (pc.match_substring(ids, "\0"), "its id has the character NUL"),
        (pc.starts_with(ids, MARK), "its id begins with the character U+007F, which marks buckets"),
    ]


def _are_plain(ids: pa.Array) -> bool:
    """Whether these are a few ids that break no rule: letters, digits, and what stands between them."""
    return len(ids) <= FEW and not ids.null_count and all(map(PLAIN_ID.fullmatch, ids.to_pylist()))


#: Payloads that are Python objects at once: few enough for the processor's own memory.
_AT_ONCE = 1000


#: How the rule begins that a payload breaks which is not JSON.
NOT_JSON, NOT_TEXT = "its payload is not JSON", "its payload is not UTF-8 text"


def faults(batch: pa.RecordBatch, largest: int) -> dict[int, str]:
    """The rows of a PUSHES batch that break a rule of every store, with the rule; empty where all is well.

    `largest` is the most bytes a payload may have. Whole columns are looked at first: a sound batch costs one parse
    of its JSON and little else.
    """
    ids = batch.column("id")
    wrong = _no_text(ids, batch.column("headers"))

    def mark(bad: pa.Array, rule: str) -> None:
        if bad.true_count:
            for row in pc.indices_nonzero(bad.fill_null(False)).to_pylist():
                wrong.setdefault(row, rule)

    payload, kind = batch.column("payload"), batch.column("payload_kind")
    mature, delay, tries = batch.column("mature"), batch.column("delay"), batch.column("tries")
    if wrong or not _are_plain(ids):
        for bad, rule in broken_by_ids(ids):
            mark(bad, rule)
    if payload.null_count:
        mark(payload.is_null(), "its payload is NULL")
    if payload.nbytes > largest:
        mark(pc.greater(pc.binary_length(payload), largest), f"its payload is larger than {largest:,} bytes")
    if mature.null_count < len(mature):
        mark(pc.and_(mature.is_valid(), delay.is_valid()), "it has both mature and delay: give one")
        mark(pc.less(mature.cast(pa.int64()), 0), "its mature is before 1970-01-01")
        mark(pc.greater(milliseconds(mature), LATEST), "its mature is after 9999-12-31")
    if delay.null_count < len(delay):
        mark(pc.less(delay, 0), "its delay is negative")
        mark(pc.greater(delay, LATEST // 2), "its delay reaches beyond the year 5000")
    if len(tries) > FEW or any((one or 0) < 0 for one in tries.to_pylist()):  # sooner than to start a kernel
        mark(pc.less(tries, 0), "its tries is negative")
    if tries.null_count:
        mark(tries.is_null(), "its tries is NULL")
    if not wrong and set(kind.unique().to_pylist()) <= {"json"} and all_json(payload):
        return {}
    for row, (text, form) in enumerate(zip(payload.to_pylist(), kind.to_pylist(), strict=True)):
        if form != "binary" and text is not None and row not in wrong:
            try:
                text.decode()
                if form == "json":
                    orjson.loads(text)
            except UnicodeDecodeError as error:
                wrong[row] = f"{NOT_TEXT} ({error.reason} at byte {error.start})"
            except orjson.JSONDecodeError as error:
                wrong[row] = f"{NOT_JSON} ({error})"
    return dict(sorted(wrong.items()))


def is_utf8(column: pa.Array) -> bool:
    """Return whether all text of a column is UTF-8, which Spark does not check."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _no_text(ids: pa.Array, headers: pa.MapArray) -> dict[int, str]:
    """The rows whose id or headers are not UTF-8, with the rule."""
    wrong: dict[int, str] = {}
    for column, rule in ((headers, "its headers are not UTF-8 text"), (ids, "its id is not UTF-8 text")):
        if not is_utf8(column):
            bad = (row for row in range(len(column)) if not is_utf8(column.take([row])))
            wrong |= dict.fromkeys(bad, rule)
    return wrong


def legible(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a PUSHES batch with U+FFFD for what is not UTF-8 in its ids and headers."""
    ids, headers = batch.column("id"), batch.column("headers")
    if is_utf8(ids) and is_utf8(headers):
        return batch
    keys, items = map(_legible, (headers.keys, headers.items))
    columns = {
        "id": _legible(ids),
        "headers": pa.MapArray.from_arrays(headers.offsets, keys, items),
    }
    for name, column in columns.items():
        place = batch.schema.get_field_index(name)
        batch = batch.set_column(place, batch.schema.field(name), column)
    return batch


def _legible(texts: pa.Array) -> pa.Array:
    values = texts.cast(pa.binary()).to_pylist()
    return pa.array([None if one is None else one.decode(errors="replace") for one in values], pa.string())


@functools.cache
def _simdjson() -> Any:
    """Makes parsers that check JSON in half the time, if they are installed (the extra `fast`)."""
    try:
        from simdjson import Parser
    except ImportError:
        return None
    return Parser


def all_json(texts: pa.Array) -> bool:
    """Whether each of them surely is JSON: many times as fast as to look for the one that is not.

    Where simdjson says so, orjson would; but for a byte order mark, which the former passes over. Of the other way
    round, long integers and what is nested 1,024 deep are known, and anything else does no harm.
    """
    parse: Callable[[bytes], object] = orjson.loads
    if len(texts) > FEW and (parser := _simdjson()) and not pc.any(pc.starts_with(texts, "\ufeff")).as_py():
        parse = parser().parse
    try:
        for start in range(0, len(texts), _AT_ONCE):
            deque(map(parse, texts.slice(start, _AT_ONCE).to_pylist()), maxlen=0)
    except (ValueError, RuntimeError):  # RuntimeError: simdjson, of an integer beyond 64 bits
        return False
    return True
