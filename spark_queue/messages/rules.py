"""The rules for pushed messages. Every store refuses rows that break one."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from spark_queue.messages.columns import columns_by_name, milliseconds
from spark_queue.messages.headers import find_unfit
from spark_queue.messages.ids import FOREIGN_ID_PREFIX, MAX_ID_BYTES, PLAIN_ID, SMALL_BATCH, has_operator
from spark_queue.messages.schema import BUCKET_PREFIX
from spark_queue.messages.times import MAX_DURATION_MS, MAX_TIME_MS


def id_rules(ids: pa.Array) -> list[tuple[pa.Array, str]]:
    """Return the rules for ids: for each rule, which ids break it (or NULL), and its text."""
    size = pc.binary_length(ids.cast(pa.binary()))
    return [
        (ids.is_null(), "its id is NULL"),
        (pc.equal(size, 0), "its id is empty"),
        (pc.greater(size, MAX_ID_BYTES), f"its id is longer than {MAX_ID_BYTES} bytes"),
        (pc.match_substring(ids, "\0"), "its id has the character NUL"),
        (pc.starts_with(ids, BUCKET_PREFIX), "its id begins with the character U+007F, which marks buckets"),
        (_have_operators(ids), OPERATOR_RULE),
    ]


def delay_rules(delays: pa.Array) -> list[tuple[pa.Array, str]]:
    """Return the rules for delays (ms) in the same form."""
    return [
        (pc.less(delays, 0), "its delay is negative"),
        (pc.greater(delays, MAX_DURATION_MS), "its delay reaches beyond the year 5000"),
    ]


OPERATOR_RULE = (
    "its id has the form of an _id of MongoDB, with a name that begins with $, and is no type of Extended JSON"
)


def _have_operators(ids: pa.Array) -> pa.Array:
    """Return whether each id stands for an `_id` of MongoDB that no document can have."""
    foreign = pc.starts_with(ids, FOREIGN_ID_PREFIX)
    if not foreign.true_count:
        return foreign
    raw = ids.cast(pa.binary()).to_pylist()
    return pa.array([bool(one) and has_operator(id) for id, one in zip(raw, foreign.to_pylist(), strict=True)])


def _are_plain(ids: pa.Array) -> bool:
    """Return whether these are few ids of only letters, digits and `-_.:/`, which break no rule."""
    return len(ids) <= SMALL_BATCH and not ids.null_count and all(map(PLAIN_ID.fullmatch, ids.to_pylist()))


#: Number of payloads that are Python objects at the same time. They fit into the processor's cache.
_PARSED_TOGETHER = 1000


#: How the texts of the rules begin for a payload that is not JSON, or not text.
NOT_JSON, NOT_TEXT = "its payload is not JSON", "its payload is not UTF-8 text"


def validate_rows(batch: pa.RecordBatch, max_payload: int | None) -> dict[int, str]:
    """Return the rows of a PUSHES batch that break a rule, with the rule; empty if all are valid.

    `max_payload` is the maximum number of bytes of a payload; with `None`, the bounds of payloads
    and headers do not count: an older version has stored these rows. Whole columns are checked
    first, so a valid batch costs one parse of its JSON and little else.
    """
    ids, payload, kind = batch.column("id"), batch.column("payload"), batch.column("payload_kind")
    broken = _find_invalid_utf8(ids, batch.column("headers"))
    if broken or not _are_plain(ids):
        kept = (rule for rule in id_rules(ids) if max_payload is not None or rule[1] is not OPERATOR_RULE)
        _mark(broken, kept)
    if payload.null_count:
        _mark(broken, [(payload.is_null(), "its payload is NULL")])
    if max_payload is not None:
        broken = find_unfit(batch.column("headers")) | broken
        if payload.nbytes > max_payload:
            rule = f"its payload is larger than {max_payload:,} bytes"
            _mark(broken, [(pc.greater(pc.binary_length(payload), max_payload), rule)])
    _mark(broken, _time_rules(batch.column("mature"), batch.column("delay")))
    _mark(broken, _tries_rules(batch.column("tries")))
    if not broken and set(kind.unique().to_pylist()) <= {"json"} and all_json(payload):
        return {}
    _find_bad_payloads(payload, kind, broken)
    return dict(sorted(broken.items()))


def _mark(broken: dict[int, str], rules: Iterable[tuple[pa.Array, str]]) -> None:
    """Add the rows that break one of these rules, unless they have broken another one."""
    for bad, rule in rules:
        if bad.true_count:
            for row in pc.indices_nonzero(bad.fill_null(False)).to_pylist():
                broken.setdefault(row, rule)


def _time_rules(mature: pa.Array, delay: pa.Array) -> Iterator[tuple[pa.Array, str]]:
    if mature.null_count < len(mature):
        yield pc.and_(mature.is_valid(), delay.is_valid()), "it has both mature and delay: set only one"
        yield pc.less(mature.cast(pa.int64()), 0), "its mature is before 1970-01-01"
        yield pc.greater(milliseconds(mature), MAX_TIME_MS), "its mature is after 9999-12-31"
    if delay.null_count < len(delay):
        yield from delay_rules(delay)


def _tries_rules(tries: pa.Array) -> Iterator[tuple[pa.Array, str]]:
    if len(tries) > SMALL_BATCH or any((one or 0) < 0 for one in tries.to_pylist()):  # faster than an Arrow kernel
        yield pc.less(tries, 0), "its tries is negative"
    if tries.null_count:
        yield tries.is_null(), "its tries is NULL"


def _find_bad_payloads(payload: pa.Array, kind: pa.Array, broken: dict[int, str]) -> None:
    """Add the rows whose payload is not what its kind says, unless they break another rule."""
    for row, (text, payload_kind) in enumerate(zip(payload.to_pylist(), kind.to_pylist(), strict=True)):
        if payload_kind == "binary" or text is None or row in broken:
            continue
        try:
            text.decode()
            if payload_kind == "json":
                orjson.loads(text)
        except UnicodeDecodeError as error:
            broken[row] = f"{NOT_TEXT} ({error.reason} at byte {error.start})"
        except orjson.JSONDecodeError as error:
            broken[row] = f"{NOT_JSON} ({error})"


def is_utf8(column: pa.Array) -> bool:
    """Return whether all text of a column is UTF-8, which Spark does not check."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _find_invalid_utf8(ids: pa.Array, headers: pa.MapArray) -> dict[int, str]:
    """Return the rows whose id or headers are not UTF-8, with the rule."""
    broken: dict[int, str] = {}
    for column, rule in ((headers, "its headers are not UTF-8 text"), (ids, "its id is not UTF-8 text")):
        if not is_utf8(column):
            bad = (row for row in range(len(column)) if not is_utf8(column.take([row])))
            broken |= dict.fromkeys(bad, rule)
    return broken


def replace_invalid_utf8(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a PUSHES batch with U+FFFD in place of invalid UTF-8 in its ids and headers."""
    ids, headers = batch.column("id"), batch.column("headers")
    if is_utf8(ids) and is_utf8(headers):
        return batch
    keys, items = map(_replace_invalid, (headers.keys, headers.items))
    valid = {"id": _replace_invalid(ids), "headers": pa.MapArray.from_arrays(headers.offsets, keys, items)}
    return pa.RecordBatch.from_pydict(columns_by_name(batch) | valid, schema=batch.schema)


def _replace_invalid(texts: pa.Array) -> pa.Array:
    values = texts.cast(pa.binary()).to_pylist()
    return pa.array([None if one is None else one.decode(errors="replace") for one in values], pa.string())


@functools.cache
def _simdjson_parser() -> Any:
    """Return the parser class of simdjson, `None` if it is not installed (the extra `fast`).

    It checks JSON in half the time.
    """
    try:
        from simdjson import Parser
    except ImportError:
        return None
    return Parser


def all_json(texts: pa.Array) -> bool:
    """Return whether all texts are certainly JSON; many times as fast as finding one that is not.

    orjson accepts all that simdjson accepts, except for a byte order mark, which simdjson ignores.
    Texts with one are left to orjson. simdjson refuses some JSON, such as long integers and 1,024
    nested levels. This is harmless: `False` only means that the texts must be checked one by one.
    """
    parse: Callable[[bytes], object] = orjson.loads
    parser = _simdjson_parser() if len(texts) > SMALL_BATCH else None
    if parser and not pc.any(pc.starts_with(texts, "\ufeff")).as_py():
        parse = parser().parse
    try:
        for start in range(0, len(texts), _PARSED_TOGETHER):
            deque(map(parse, texts.slice(start, _PARSED_TOGETHER).to_pylist()), maxlen=0)
    except (ValueError, RuntimeError):  # RuntimeError: simdjson raises it for an integer beyond 64 bits
        return False
    return True
