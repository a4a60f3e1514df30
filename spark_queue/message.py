"""What a message is: its fields, its two Arrow schemas, its identity, its payload in every form.

A message crosses every interface of this package as a row of a pyarrow RecordBatch. `Message` is the view of one
row for programs that work message by message.

Time is milliseconds since 1970-01-01 UTC wherever it is an `int`, and the database's clock wherever it is "now".
"""

from __future__ import annotations

import base64
import functools
import itertools
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, is_dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Literal, get_args

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from spark_queue.call_mistakes import unfit
from spark_queue.errors import MessageError
from spark_queue.json_text import HALF, dump_json, load_foreign_json

Kind = Literal["json", "text", "binary"]
Json = dict[str, Any] | list[Any] | str | int | float | bool | None

#: What stores give: one row per message.
MESSAGES = pa.schema(
    [
        ("id", pa.string()),
        ("queue", pa.string()),
        ("payload", pa.binary()),
        ("payload_kind", pa.string()),
        ("headers", pa.map_(pa.string(), pa.string())),
        ("mature", pa.timestamp("us", tz="UTC")),
        ("tries", pa.int32()),
    ]
)

#: What stores give of messages that have left a queue: `processed` is when, `consumer` who had it (the first part of
#: the tag; NULL where that is not known), `outcome` how it went.
TOLD = pa.schema([("processed", pa.timestamp("us", tz="UTC")), ("consumer", pa.string()), ("outcome", pa.string())])
HISTORY = pa.schema([*MESSAGES, *TOLD])

#: How a message leaves a queue: committed, moved to the dead-letter queue; and, by keuss' own programs, processed, or
#: removed unseen.
Outcome = Literal["commit", "dead", "pop", "remove"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)

#: What stores take. `mature` (a moment) and `delay` (ms from the database's now) exclude each other; neither
#: means now.
PUSHES = pa.schema(
    [
        ("id", pa.string()),
        ("payload", pa.binary()),
        ("payload_kind", pa.string()),
        ("headers", pa.map_(pa.string(), pa.string())),
        ("mature", pa.timestamp("us", tz="UTC")),
        ("delay", pa.int64()),
        ("tries", pa.int32()),
    ]
)

#: No messages. Made of nulls, for the first `pa.array` of a process imports pandas, if there is one, which takes as
#: long as Spark and we together; and what plans batches needs none.
NOTHING = pa.RecordBatch.from_arrays([pa.nulls(0, one.type) for one in MESSAGES], schema=MESSAGES)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LATEST = 253_402_300_799_999  #: 9999-12-31T23:59:59.999Z in ms: the last moment a message may mature at.
EARLIEST = -62_135_596_800_000  #: 0001-01-01 in ms: the first moment that Python knows.
LONGEST_ID = 200  #: bytes of UTF-8
PLAIN_ID = re.compile(f"[-_.:/A-Za-z0-9]{{1,{LONGEST_ID}}}")  #: what most of them are

#: An id as we make them: see `_Ids`.
OBJECT_ID = re.compile("[0-9a-f]{24}")

#: No id begins so: records that hold many messages do (`buckets.py`).
MARK = "\x7f"


@dataclass(frozen=True, slots=True)
class Message:
    """One message as a program sees it.

    `payload` is `bytes` for a binary message, `str` for a text, and what `json.loads` gives for anything else.
    `mature` is the moment (UTC) from which it may be reserved; `tries` counts its failed attempts so far.
    """

    id: str
    queue: str
    payload: Json | bytes
    headers: dict[str, str] = field(default_factory=dict)
    mature: datetime = EPOCH
    tries: int = 0


def messages(batch: pa.RecordBatch) -> list[Message]:
    """The rows of a MESSAGES batch as `Message` objects, in order."""
    names = ("id", "queue", "payload", "payload_kind", "headers", "mature", "tries")
    columns = (batch.column(name).to_pylist() for name in names)
    return [
        Message(id, queue, decode(payload, kind), dict(headers or ()), mature, tries)
        for id, queue, payload, kind, headers, mature, tries in zip(*columns, strict=True)
    ]


def pushes(
    payloads: Sequence[Json | bytes],
    *,
    ids: Sequence[str] | None = None,
    headers: Sequence[Mapping[str, str]] | Mapping[str, str] | None = None,
    mature: Sequence[datetime | None] | datetime | None = None,
    delay: Sequence[int | None] | int | None = None,
    tries: Sequence[int] | int = 0,
    queue: str = "",
) -> pa.RecordBatch:
    """A PUSHES batch of Python values.

    `headers`, `mature`, `delay` (ms) and `tries` are one for all, or a sequence with one for each. Ids are made where
    not given. Raises `MessageError` for values that cannot become messages; its `rows` tells which. `queue`: the name
    that it has in the error.
    """
    try:
        return _pushes(payloads, ids, headers, mature, delay, tries)
    except (MessageError, TypeError, ValueError, AttributeError, OverflowError) as error:
        columns = {"ids": ids, "headers": headers, "mature": mature, "tries": tries}
        raise unfit(queue, payloads, columns, error) from error


def _pushes(
    payloads: Sequence[Json | bytes],
    ids: Sequence[str] | None,
    headers: Sequence[Mapping[str, str]] | Mapping[str, str] | None,
    mature: Sequence[datetime | None] | datetime | None,
    delay: Sequence[int | None] | int | None,
    tries: Sequence[int] | int,
) -> pa.RecordBatch:
    n = len(payloads)

    def spread(value: Any, scalar: type | tuple[type, ...]) -> list[Any]:
        return [value] * n if value is None or isinstance(value, scalar) else list(value)

    encoded = [encode(payload) for payload in payloads]
    return pa.RecordBatch.from_arrays(
        [
            pa.array(new_ids(n) if ids is None else list(ids), pa.string()),
            pa.array([payload for payload, _ in encoded], pa.binary()),
            pa.array([kind for _, kind in encoded], pa.string()),
            headers_array(spread(headers, Mapping)),
            pa.array(spread(mature, datetime), pa.timestamp("us", tz="UTC")),
            pa.array(spread(delay, int), pa.int64()),
            pa.array(spread(tries, int), pa.int32()),
        ],
        schema=PUSHES,
    )


#: Rows that are sooner done one by one: to work on whole columns costs some tenths of a millisecond to begin with.
FEW = 16


# --- identity ---------------------------------------------------------------------------------------------------


class _Ids:
    """Makes ids of 24 hex digits that sort in the order they were made in, within one process.

    The form is that of a MongoDB ObjectId (4 bytes of seconds, 5 of the process, 3 of a counter), so that every
    store and every client of the layouts we share can keep them; the counter starts anew each second.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = 0
        self._renew()

    def _renew(self) -> None:
        self._pid, self._process = os.getpid(), os.urandom(5).hex()
        self._second, self._counter = 0, 0

    def take(self, n: int) -> pa.Array:
        made: list[pa.Array] = []
        left = n
        with self._lock:
            if self._pid != os.getpid():  # a fork must not go on with its parent's numbers
                self._renew()
            while left:
                second = int(time.time())
                if second > self._second:
                    self._second, self._counter = second, 0
                elif self._counter >= 1 << 24:
                    self._second, self._counter = self._second + 1, 0
                stop = min(self._counter + left, 1 << 24)
                made.append(_numbered(f"{self._second:08x}{self._process}", self._counter, stop))
                left -= stop - self._counter
                self._counter = stop
        if len(made) == 1:
            return made[0]
        return pa.concat_arrays(made) if made else pa.array([], pa.string())


_ids = _Ids()


def new_ids(n: int) -> list[str]:
    """`n` new ids, each greater than all before it in this process."""
    made: list[str] = new_id_array(n).to_pylist()
    return made


def new_id_array(n: int) -> pa.Array:
    """The same as an Arrow array, which is made many times as fast."""
    return _ids.take(n)


class DerivedIds:
    """Makes the ids of the rows of one part of a batch: the same whenever it is written again.

    24 hex digits: SHA-256 over the part's name (and the number of each 16,777,216 rows), 9 bytes of it, and 3 of a
    counter, so that they sort in the order of the rows.
    """

    def __init__(self, part: str) -> None:
        self._part = part
        self._made = 0

    def take(self, n: int) -> pa.Array:
        """The ids of the next `n` rows."""
        made: list[pa.Array] = []
        end = self._made + n
        while self._made < end:
            block, counter = divmod(self._made, 1 << 24)
            stop = min(counter + end - self._made, 1 << 24)
            made.append(_numbered(sha256(f"{self._part}\0{block}".encode()).hexdigest()[:18], counter, stop))
            self._made += stop - counter
        return pa.concat_arrays(made) if made else pa.array([], pa.string())


@functools.cache
def _hex() -> list[bytes]:
    """All numbers of three hex digits."""
    return [b"%03x" % i for i in range(1 << 12)]


def _numbered(prefix: str, start: int, stop: int) -> pa.Array:
    """The prefix with each number of the range, in six hex digits."""
    n = stop - start
    if n <= FEW:
        return pa.array([f"{prefix}{number:06x}" for number in range(start, stop)], pa.string())
    runs: list[bytes] = []  # of ids that differ in their last three digits only, which then join them
    while start < stop:
        high, low = divmod(start, 1 << 12)
        end = min(1 << 12, low + stop - start)
        runs.append((b"%b%03x" % (prefix.encode(), high)).join([b"", *_hex()[low:end]]))
        start += end - low
    same_size = pa.binary(len(prefix) + 6)
    return (
        pa.Array.from_buffers(same_size, n, [None, pa.py_buffer(b"".join(runs))]).cast(pa.binary()).cast(pa.string())
    )


# --- payloads ---------------------------------------------------------------------------------------------------


def encode(payload: Json | bytes) -> tuple[bytes, Kind]:
    """Return the bytes and the kind that a Python value is kept as.

    Raises `MessageError` for a value that JSON or UTF-8 cannot hold.
    """
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload), "binary"
    if isinstance(payload, str):
        try:
            return payload.encode(), "text"
        except UnicodeEncodeError as error:
            raise MessageError(f"payload: {HALF}") from error
    return dump_json(payload), "json"


def decode(payload: bytes, kind: str) -> Json | bytes:
    """Return the Python value of a payload: the inverse of `encode`."""
    if kind == "binary":
        return payload
    if kind == "text":
        return payload.decode()
    value: Json = load_foreign_json(payload)
    return value


def as_json(payload: bytes, kind: str) -> bytes:
    """A payload as JSON text: a text becomes a JSON string, bytes become Extended JSON `{"$binary": …}`."""
    if kind == "json":
        return payload
    if kind == "text":
        return orjson.dumps(payload.decode())
    return orjson.dumps({"$binary": {"base64": base64.b64encode(payload).decode(), "subType": "00"}})


def jsonable(value: object) -> object:
    """What JSON has for a value that it has not: moments in ISO format (UTC), bytes in Extended JSON.

    Raises `TypeError` where that is nothing.
    """
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(value, bytes):
        return orjson.loads(as_json(value, "binary"))
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise TypeError(f"no JSON for {type(value).__name__}")


def of_json(texts: pa.Array) -> tuple[pa.Array, pa.Array]:
    """The payloads that are meant by JSON texts, and their kinds: the inverse of `as_json`."""
    strings = pc.starts_with(texts, '"')
    marked = pc.fill_null(pc.or_(strings, pc.starts_with(texts, '{"$binary":')), False)
    if not pc.any(marked).as_py():
        return texts, pa.repeat("json", len(texts))
    found = [
        _no_json_in(text) if is_marked else (text, "json")
        for text, is_marked in zip(texts.to_pylist(), marked.to_pylist(), strict=True)
    ]
    payloads, kinds = zip(*found, strict=True)
    return pa.array(payloads, pa.binary()), pa.array(kinds, pa.string())


def _no_json_in(text: bytes) -> tuple[bytes, Kind]:
    """The text in a JSON string, the bytes in Extended JSON; what it is where it is something else."""
    with suppress(ValueError):
        match orjson.loads(text):
            case str(plain):
                return plain.encode(), "text"
            case {"$binary": {"base64": str(coded)}} as found:
                content = base64.b64decode(coded, validate=True)
                if as_json(content, "binary") == orjson.dumps(found):
                    return content, "binary"
    return text, "json"


def as_text(payload: bytes, kind: str) -> bytes:
    """A payload as text: JSON as it is, bytes as they are where they are UTF-8, else in base64."""
    if kind != "binary":
        return payload
    try:
        payload.decode()
    except UnicodeDecodeError:
        return base64.b64encode(payload)
    return payload


# --- columns ----------------------------------------------------------------------------------------------------


def headers_array(headers: Sequence[Mapping[str, str] | None]) -> pa.MapArray:
    """A headers column.

    Almost every batch has none, which costs nothing.
    """
    if not any(headers):
        return no_headers(len(headers))
    return pa.array([list((one or {}).items()) for one in headers], PUSHES.field("headers").type)


def no_headers(rows: int) -> pa.MapArray:
    """A headers column of `rows` empty maps."""
    nothing = pa.array([], pa.string())
    return pa.MapArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), rows + 1), nothing, nothing)


def filled(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A PUSHES batch in which a 0 stands for each payload that is NULL."""
    missing = batch.column("payload").is_null()
    for name, instead in (("payload", b"0"), ("payload_kind", "json")):
        place = batch.schema.get_field_index(name)
        column = pc.if_else(missing, pa.scalar(instead, batch.schema.field(name).type), batch.column(name))
        batch = batch.set_column(place, batch.schema.field(name), column)
    return batch


def header_dicts(batch: pa.RecordBatch) -> list[dict[str, str]]:
    """The headers of each row; those with a NULL value are left out."""
    column = batch.column("headers")
    if not len(column.items):
        return [{}] * batch.num_rows
    # In one sweep over all entries, which is many times faster than `to_pylist` of the map itself.
    pairs = list(zip(column.keys.to_pylist(), column.items.to_pylist(), strict=True))
    spans = zip(itertools.pairwise(column.offsets.to_pylist()), column.is_valid().to_pylist(), strict=True)
    return [
        {key: value for key, value in pairs[start:end] if there and value is not None}
        for (start, end), there in spans
    ]


def milliseconds(column: pa.Array) -> pa.Array:
    """A timestamp column as int64 ms since 1970 (finer parts are cut off)."""
    return pc.divide(column.cast(pa.int64()), 1000)


def due(batch: pa.RecordBatch, now: int) -> list[int]:
    """When each row of a PUSHES batch matures, in ms, where the database's time is `now`."""
    if _all_at_once(batch):
        return [now] * batch.num_rows
    delayed = pc.add(batch.column("delay").fill_null(0), now)
    moments: list[int] = pc.coalesce(milliseconds(batch.column("mature")), delayed).to_pylist()
    return moments


def first_due(batch: pa.RecordBatch) -> int:
    """When the first of the rows of a PUSHES batch is due (ms), 0 for at once: by the clock of this machine."""
    if _all_at_once(batch):
        return 0
    now = round(time.time() * 1000)
    first = min(due(batch, now))
    return first if first > now else 0


def _all_at_once(batch: pa.RecordBatch) -> bool:
    return bool(batch.column("mature").null_count == batch.column("delay").null_count == batch.num_rows)


def dated(batch: pa.RecordBatch, now: int) -> pa.RecordBatch:
    """A PUSHES batch in which every row says when it matures, where the database's time is `now`."""
    if _all_at_once(batch):
        due_at = pa.repeat(pa.scalar(now * 1000, PUSHES.field("mature").type), batch.num_rows)
    else:
        due_at = timestamps(due(batch, now))
    no_delay = pa.nulls(batch.num_rows, pa.int64())
    columns = {**dict(zip(batch.schema.names, batch.columns, strict=True)), "mature": due_at, "delay": no_delay}
    return pa.RecordBatch.from_arrays([columns[name] for name in PUSHES.names], schema=PUSHES)


def slices(batch: pa.RecordBatch, size: int) -> Iterator[pa.RecordBatch]:
    """The batch in slices of about `size` bytes; a row that is larger has company of average size only."""
    rows = max(1, batch.num_rows * size // max(1, batch.nbytes))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def timestamps(ms: Iterable[int]) -> pa.Array:
    """Milliseconds since 1970 as a timestamp[us, UTC] column.

    Raises `ValueError` for a moment that Python does not know.
    """
    type_ = pa.timestamp("us", tz="UTC")
    if isinstance(ms, Sequence) and len(ms) <= FEW:
        _check_moments(min(ms, default=0), max(ms, default=0))
        return pa.array([one * 1000 for one in ms], type_)
    column = pa.array(ms, pa.int64())
    if len(column):
        _check_moments(*pc.min_max(column).as_py().values())
    return pc.multiply(column, 1000).cast(type_)


def _check_moments(first: int, last: int) -> None:
    if first < EARLIEST or last > LATEST:
        raise ValueError(f"a moment is not from {EARLIEST} to {LATEST} ms: {first if first < EARLIEST else last}")


def build(
    queue: str,
    ids: Sequence[str],
    payloads: Sequence[bytes],
    kinds: Sequence[str],
    headers: Sequence[Mapping[str, str] | None],
    mature: Sequence[int],
    tries: Sequence[int],
) -> pa.RecordBatch:
    """A MESSAGES batch out of plain columns; `mature` in ms."""
    return pa.RecordBatch.from_arrays(
        [
            pa.array(ids, pa.string()),
            pa.array(itertools.repeat(queue, len(ids)), pa.string(), size=len(ids)),
            pa.array(payloads, pa.binary()),
            pa.array(kinds, pa.string()),
            headers_array(headers),
            timestamps(mature),
            pa.array(tries, pa.int32()),
        ],
        schema=MESSAGES,
    )


def build_alike(
    queue: str, ids: pa.Array, payloads: pa.Array, headers: Mapping[str, str] | None, mature: pa.Array, tries: int
) -> pa.RecordBatch:
    """A MESSAGES batch of JSON messages with the same headers and tries; `mature` in ms."""
    n = len(ids)
    columns = {
        "id": ids.cast(pa.string()),
        "queue": pa.repeat(queue, n),
        "payload": payloads,
        "payload_kind": pa.repeat("json", n),
        "headers": headers_array([headers] * n),
        "mature": timestamps(mature),
        "tries": pa.repeat(pa.scalar(tries, pa.int32()), n),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in MESSAGES.names], schema=MESSAGES)


def told(
    batch: pa.RecordBatch, processed: Sequence[int], consumers: Sequence[str | None], outcomes: Sequence[str]
) -> pa.RecordBatch:
    """A MESSAGES batch and what became of them, as a HISTORY batch; `processed` in ms."""
    columns = timestamps(processed), pa.array(consumers, pa.string()), pa.array(outcomes, pa.string())
    return pa.RecordBatch.from_arrays([*batch.columns, *columns], schema=HISTORY)


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
