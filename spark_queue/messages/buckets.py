"""Buckets: many messages in one record of a store.

To its store a bucket is a record like any other, with an id, bytes, and a moment from which it may be reserved. Its
id tells that it is a bucket and how many messages it holds; its bytes are an Arrow IPC stream of one batch of them.
So a store reserves, commits, rolls back, moves, stages and publishes buckets as it does messages, thousands at a
time, and takes one apart only where something is done to some of its messages: see `Store`.

    id       MARK first id MARK rows MARK digest     `first id`: that of its first message, so that buckets of the
                                                     same moment keep the order in which they were pushed
    bytes    id, payload, payload_kind, headers, and mature, where its messages did not mature together

A message counts the tries of its bucket, has its headers besides its own, and matures with it. The digest is that of
the bytes, which are verified before they are read (`arrow_bytes.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from itertools import groupby
from typing import Literal, NamedTuple, TypeVar, get_args

import pyarrow as pa
import pyarrow.compute as pc

from spark_queue.errors import OptionError, near
from spark_queue.messages.arrow_bytes import DamagedBytes, from_bytes, to_bytes
from spark_queue.messages.columns import header_dicts, headers_array, no_headers
from spark_queue.messages.rules import faults
from spark_queue.messages.schema import MARK, MESSAGES, PUSHES, PayloadKind

T = TypeVar("T")

#: Most bytes of messages in one bucket, before they are compressed; a message that is larger is alone in its own.
MOST_BYTES = 4 << 20

ROWS = pa.schema([MESSAGES.field(name) for name in ("id", "payload", "payload_kind", "headers")])
_DATED = ROWS.append(MESSAGES.field("mature"))


#: Most messages in one bucket: a worker has one open as a whole.
LARGEST = 100_000

#: How many digits the number of messages of a record may have: no document of keuss holds a million.
DIGITS = 6

#: How many hex digits of the digest are in the id.
DIGEST_DIGITS = 16

#: How the id ends of a bucket that a store made of a document just now: it needs no digest, and may be empty.
READ_MARK = f"{MARK}id"


class DamagedBucket(ValueError):
    """A bucket that cannot be read; its text says why."""


@dataclass(frozen=True, slots=True)
class Buckets:
    """How messages are put into buckets: up to `size` in one, compressed by `lz4` or `zstd`.

    Raises `OptionError` for what cannot be meant.
    """

    size: int = 4096
    compression: str = "lz4"

    def __post_init__(self) -> None:
        if not 0 < self.size <= LARGEST:
            raise OptionError(f"a bucket holds 1 to {LARGEST} messages, not {self.size}", option="bucketSize")
        if self.compression not in ("lz4", "zstd"):
            hint = near(self.compression, ("lz4", "zstd"))
            raise OptionError(
                f"buckets are compressed by lz4 or zstd, not by {self.compression!r}{hint}", option="compression"
            )


#: Whether messages are put into buckets; `None` leaves that to the setting of their queue.
Layout = Buckets | Literal["single"] | None


class Record(NamedTuple):
    """One record of a store: a message or a bucket. `mature`: when it is due (ms)."""

    id: str
    mature: int


def is_bucket(id: str) -> bool:
    """Whether the record with this id is a bucket."""
    return id.startswith(MARK)


def are_buckets(ids: pa.Array) -> pa.Array:
    """The same of each of these ids, which may be binary."""
    return pc.starts_with(ids, MARK)


def rows_of(id: str) -> int:
    """How many messages the record with this id holds; 1 if the id is damaged, for so it becomes one dead letter."""
    rows = _rows_named(id) if is_bucket(id) else 1
    return 1 if rows is None else rows


def _rows_named(id: str) -> int | None:
    """The number in the id of a bucket, `None` if there is none, or none that can be."""
    digits = id.rsplit(MARK, 2)[-2]
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= DIGITS):
        return None
    rows = int(digits)
    return rows if rows or id.endswith(READ_MARK) else None


def weigh(ids: pa.Array) -> int:
    """How many messages the records with these ids hold together."""
    buckets = ids.filter(are_buckets(ids))
    return len(ids) - len(buckets) + sum(map(rows_of, buckets.cast(pa.string()).to_pylist()))


def fitting(found: Iterable[tuple[T, str]], limit: int, enough: int) -> tuple[list[T], int, str | None]:
    """The first records that hold `enough` messages together, never over `limit`.

    Of each its id is told, and what it is known by. Gives these, the number of messages, and the id of the bucket
    that comes next and is too large, if that is what ended it.
    """
    taken: list[T] = []
    rows = 0
    for known, id in found:
        if rows >= enough:
            break
        more = rows_of(id)
        if rows + more > limit:
            return taken, rows, id
        taken.append(known)
        rows += more
    return taken, rows, None


# --- messages into buckets ------------------------------------------------------------------------------------------


def packed(batch: pa.RecordBatch, how: Buckets) -> pa.RecordBatch:
    """The rows of a PUSHES batch, all of which have their moment, as a PUSHES batch of buckets.

    Those of a bucket mature together and have failed equally often; they are in the order of their ids. Of an id that
    comes twice the first stays.
    """
    moments, tries = batch.column("mature").cast(pa.int64()), batch.column("tries")
    if all(len(set(pc.min_max(column).as_py().values())) == 1 for column in (moments, tries)):
        groups = [batch]
    else:
        keys = list(zip(moments.to_pylist(), tries.to_pylist(), strict=True))
        order = sorted(range(len(keys)), key=lambda row: (keys[row], row))
        groups = [batch.take(pa.array(list(rows))) for _, rows in groupby(order, lambda row: keys[row])]
    made = [bucket(part, how) for group in groups for part in _parts(_in_order(group), how.size)]
    return pa.Table.from_batches(made, PUSHES).combine_chunks().to_batches()[0]


def bucket(rows: pa.RecordBatch, how: Buckets) -> pa.RecordBatch:
    """One bucket of these PUSHES or MESSAGES rows, which have failed equally often, as a PUSHES batch of one row.

    It matures when the last of them does.
    """
    moments = rows.column("mature")
    last = pc.max(moments)
    schema = ROWS if pc.all(pc.equal(moments, last)).as_py() else _DATED
    content = pa.RecordBatch.from_arrays([rows.column(name) for name in schema.names], schema=schema)
    # What is alone and large would gain little, and might grow beyond what a database takes.
    packed = to_bytes(content, how.compression if len(rows) > 1 or content.nbytes < 1 << 20 else None)
    digest = sha256(packed).hexdigest()[:DIGEST_DIGITS]
    id = f"{MARK}{rows.column('id')[0].as_py()}{MARK}{rows.num_rows}{MARK}{digest}"
    return pa.RecordBatch.from_arrays(
        [
            pa.array([id], pa.string()),
            pa.array([packed], pa.binary()),
            pa.array(["binary"], pa.string()),
            no_headers(1),
            pa.array([last.as_py()], PUSHES.field("mature").type),
            pa.nulls(1, pa.int64()),
            pa.array([rows.column("tries")[0].as_py()], pa.int32()),
        ],
        schema=PUSHES,
    )


def _in_order(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows in the order of their ids, each once."""
    ids = rows.column("id")
    if pc.all(pc.less(ids.slice(0, len(ids) - 1), ids.slice(1))).as_py() is not False:
        return rows
    order = sorted(range(len(ids)), key=ids.to_pylist().__getitem__)  # stable: the first of an id comes first
    rows = rows.take(pa.array(order))
    ids = rows.column("id")
    again = pc.equal(ids.slice(1), ids.slice(0, len(ids) - 1))
    return rows.filter(pa.concat_arrays([pa.array([True]), pc.invert(again)]))


def _parts(rows: pa.RecordBatch, size: int) -> Iterator[pa.RecordBatch]:
    """The rows in parts of at most `size`, and of MOST_BYTES."""
    if rows.nbytes <= MOST_BYTES * max(1, rows.num_rows // size):
        longest = [min(size, rows.num_rows - start) for start in range(0, rows.num_rows, size)]
    else:
        longest, taken, weight = [], 0, 0
        for length in pc.binary_length(rows.column("payload")).to_pylist():
            if taken and (taken == size or weight + length > MOST_BYTES):
                longest.append(taken)
                taken = weight = 0
            taken, weight = taken + 1, weight + length
        longest.append(taken)
    start = 0
    for length in longest:
        yield rows.slice(start, length)
        start += length


# --- and out of them ------------------------------------------------------------------------------------------------


def open_bucket(record: pa.RecordBatch) -> pa.RecordBatch:
    """The messages of a MESSAGES or HISTORY batch that is one bucket, in order. Raises `DamagedBucket`."""
    rows = unsealed(record.column("id")[0].as_py(), record.column("payload")[0].as_buffer())
    n = rows.num_rows
    own = {name: rows.column(name) for name in rows.schema.names}
    if "mature" in own and pc.max(own["mature"]) != record.column("mature")[0]:
        del own["mature"]  # the bucket was given back: what it says holds for all
    if record.column("headers").values:
        (added,) = header_dicts(record)
        own["headers"] = headers_array([one | added for one in header_dicts(rows)])
    columns = [
        own[field.name] if field.name in own else pa.repeat(record.column(field.name)[0], n)
        for field in record.schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=record.schema)


def unsealed(id: str, packed: bytes | pa.Buffer | None) -> pa.RecordBatch:
    """The rows of the bucket with this id, which are verified first. Raises `DamagedBucket`."""
    expected, digest = _rows_named(id), id.rpartition(MARK)[2]
    if expected is None:
        raise DamagedBucket(f"its id does not say how many messages it holds, which is 1 to {10**DIGITS - 1:,}")
    made_now, has_digest = id.endswith(READ_MARK), len(digest) == DIGEST_DIGITS
    try:
        rows = from_bytes(packed, (ROWS, _DATED), digest if has_digest else None)
    except DamagedBytes as error:
        raise DamagedBucket(str(error)) from error
    # keuss may count a message of its own twice that two of its programs commit: then there are more.
    if rows.num_rows < expected or (rows.num_rows > expected and not made_now):
        raise DamagedBucket(f"it holds {rows.num_rows:,} messages, and {expected:,} by its id")
    if not (has_digest or made_now):
        _check_rows(rows)
    return rows


def _check_rows(rows: pa.RecordBatch) -> None:
    """Check the messages of a bucket without a digest. Raises `DamagedBucket`."""
    n = rows.num_rows
    own = dict(zip(rows.schema.names, rows.columns, strict=True))
    usual = {"mature": pa.nulls(n, PUSHES.field("mature").type), "delay": pa.nulls(n, pa.int64())}
    usual["tries"] = pa.repeat(pa.scalar(0, pa.int32()), n)
    batch = pa.RecordBatch.from_arrays([(usual | own)[name] for name in PUSHES.names], schema=PUSHES)
    for row, rule in faults(batch, batch.nbytes).items():
        raise DamagedBucket(f"message {row}: {rule}")
    if "mature" in own and own["mature"].null_count:
        raise DamagedBucket("one of its messages has no mature")
    if pc.count_distinct(own["id"]).as_py() < n:
        raise DamagedBucket("two of its messages have the same id")
    if odd := set(own["payload_kind"].unique().to_pylist()) - {*get_args(PayloadKind)}:
        raise DamagedBucket(f"no payload is of the kind {odd.pop()!r}")
