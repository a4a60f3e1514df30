"""Buckets: many messages in one record of a store.

A store treats a bucket like any other record: it has an id, bytes, and a moment from which it can
be reserved. The id says that it is a bucket, and how many messages it holds. The bytes are an Arrow
IPC stream with one batch of messages. So a store reserves, commits, rolls back, moves, stages and
publishes thousands of messages in one step. It splits a bucket only to change some of its messages:
see `Store`.

    id:      U+007F first-id U+007F rows U+007F digest+bytes.
    bytes:   id, payload, payload_kind, headers. Also mature and pushed, each only if it differs
             among the messages.

`first-id` is the id of the first message: if a store sorts by id, buckets that are due at the same
moment keep the order in which their ids were generated. It has the form of a generated id only if
all ids of the bucket have it, and grow. `digest` is that of the bytes, which are
verified before they are read (`arrow_bytes.py`). `bytes` is the size of its messages without
compression: a reserve with a limit of bytes needs it. Older buckets do not have it.

A message has the tries of its bucket, matures and was pushed with it, and has its headers in
addition to its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from itertools import groupby
from typing import Any, Literal, NamedTuple, get_args

import pyarrow as pa
import pyarrow.compute as pc

from spark_queue.errors import OptionError, did_you_mean
from spark_queue.messages.arrow_bytes import DamagedBytes, from_bytes, to_bytes
from spark_queue.messages.columns import columns_by_name, header_dicts, headers_array, no_headers
from spark_queue.messages.headers import row_sizes
from spark_queue.messages.ids import OBJECT_ID
from spark_queue.messages.rules import validate_rows
from spark_queue.messages.schema import BUCKET_PREFIX, MESSAGES, PUSHES, WRITTEN, PayloadKind

#: Maximum bytes of messages in one bucket, before compression. A larger message has its own bucket.
MAX_BUCKET_BYTES = 4 << 20

BUCKET_SCHEMA = pa.schema([MESSAGES.field(name) for name in ("id", "payload", "payload_kind", "headers")])

#: The columns that a bucket may have: those of each message only where they differ.
_BUCKET_SCHEMAS = tuple(
    pa.schema([*BUCKET_SCHEMA, *map(MESSAGES.field, more)])
    for more in ((), ("mature",), ("pushed",), ("mature", "pushed"))
)


#: Maximum number of messages in one bucket. A worker holds a whole bucket in memory.
MAX_BUCKET_ROWS = 100_000

#: Maximum digits of the number of messages in an id. No document of keuss holds a million.
MAX_ROWS_DIGITS = 6

#: Number of hex digits of the digest in the id.
DIGEST_DIGITS = 16

#: The end of the id of a bucket that a store has just converted from a document of keuss. Such a
#: bucket has no digest, and may be empty.
CONVERTED_SUFFIX = f"{BUCKET_PREFIX}id"


#: After a first id that has the form of a generated one, if the ids of the bucket do not grow.
UNORDERED_MARK = "~"

#: Between the digest and the size of the messages in the id of a bucket.
SIZE_MARK = "+"

#: Maximum digits of that size.
MAX_SIZE_DIGITS = 12


class DamagedBucket(ValueError):
    """A bucket that cannot be read; the text says why."""


@dataclass(frozen=True, slots=True)
class Buckets:
    """The settings of buckets: at most `size` messages in one, compressed by `lz4` or `zstd`.

    Raises `OptionError` if `size` is not 1 to 100000, or the compression is another one.
    """

    size: int = 4096
    compression: str = "lz4"

    def __post_init__(self) -> None:
        if not 0 < self.size <= MAX_BUCKET_ROWS:
            raise OptionError(
                f"bucket size must be 1 to {MAX_BUCKET_ROWS} messages, not {self.size}", option="bucketSize"
            )
        if self.compression not in ("lz4", "zstd"):
            hint = did_you_mean(self.compression, ("lz4", "zstd"))
            raise OptionError(
                f"compression must be lz4 or zstd, not {self.compression!r}{hint}", option="compression"
            )


#: How messages are written: in buckets, or single. `None`: as the setting of their queue says.
Layout = Buckets | Literal["single"] | None


class Record(NamedTuple):
    """One record of a store, a message or a bucket. `mature`: when it is due (ms)."""

    id: str
    mature: int


def is_bucket(id: str) -> bool:
    """Return whether the record with this id is a bucket."""
    return id.startswith(BUCKET_PREFIX)


def are_buckets(ids: pa.Array) -> pa.Array:
    """Return whether each of these records is a bucket. The ids may be text or binary."""
    return pc.starts_with(ids, BUCKET_PREFIX)


def rows_of(id: str) -> int:
    """Return the number of messages that the record with this id holds.

    It is 1 if the id is damaged, since such a record becomes one dead letter.
    """
    rows = _parse_rows(id) if is_bucket(id) else 1
    return 1 if rows is None else rows


def _parse_rows(id: str) -> int | None:
    """Return the number of messages in the id of a bucket, `None` if it has no valid one."""
    digits = id.rsplit(BUCKET_PREFIX, 2)[-2]
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= MAX_ROWS_DIGITS):
        return None
    rows = int(digits)
    return rows if rows or id.endswith(CONVERTED_SUFFIX) else None


def count_rows(ids: pa.Array) -> int:
    """Return the number of messages that the records with these ids hold together."""
    buckets = ids.filter(are_buckets(ids))
    return len(ids) - len(buckets) + sum(map(rows_of, buckets.cast(pa.string()).to_pylist()))


def bytes_of(id: str, stored: int) -> int:
    """Return how many bytes the messages of a record take in memory. `stored`: its bytes as stored.

    A bucket without that number in its id counts as a full one: it may be compressed to anything.
    """
    if not is_bucket(id) or id.endswith(CONVERTED_SUFFIX):
        return stored
    size = _parse_bytes(id)
    return max(stored, MAX_BUCKET_BYTES) if size is None else size


def _parse_bytes(id: str) -> int | None:
    """Return the bytes of messages in the id of a bucket, `None` if it does not have them."""
    _, mark, digits = id.rpartition(SIZE_MARK)
    return int(digits) if mark and re.fullmatch(f"[0-9]{{1,{MAX_SIZE_DIGITS}}}", digits) else None


@dataclass(frozen=True, slots=True)
class ClaimLimit:
    """How much a claim takes: messages until there are `target`, but never more than `rows`.

    Also no more than `bytes`, if that is set. The first record is taken however large it is, unless
    `allow_empty` is set.
    """

    rows: int
    target: int
    bytes: int | None = None
    allow_empty: bool = False

    def after(self, rows: int, size: int) -> ClaimLimit:
        """Return the limit of the rest, after this number of messages and of their bytes."""
        left = None if self.bytes is None else max(0, self.bytes - size)
        return ClaimLimit(self.rows - rows, self.target - rows, left, self.allow_empty or rows > 0)

    def rows_in(self, bucket: str) -> int:
        """Return about how many messages of a bucket are within the limit, if not all of them."""
        rows, size = rows_of(bucket), _parse_bytes(bucket)
        fitting = rows // 2 if size is None else rows * (self.bytes or 0) // max(1, size)
        return self.rows if self.bytes is None else max(1, min(self.rows, fitting, rows - 1))


class Selected(NamedTuple):
    """The records that a claim takes: their keys, and their numbers of messages and bytes.

    `oversized_bucket`: the id of the next record, if that ended the claim: it is a bucket that can
    be split. `full`: whether the next record ended it because of its bytes.
    """

    keys: list[Any]
    rows: int = 0
    bytes: int = 0
    oversized_bucket: str | None = None
    full: bool = False


def select_records(records: Iterable[tuple[Any, str, int]], limit: ClaimLimit) -> Selected:
    """Select the first records that are within a limit.

    `records` are keys, ids and sizes: see `bytes_of`.
    """
    keys: list[Any] = []
    rows = size = 0
    for key, id, stored in records:
        if rows >= limit.target:
            break
        added = rows_of(id)
        if rows + added > limit.rows:
            return Selected(keys, rows, size, id)
        if limit.bytes is not None:
            more = bytes_of(id, stored)
            if size + more > limit.bytes and (keys or limit.allow_empty or added > 1):
                return Selected(keys, rows, size, id if added > 1 and not keys else None, full=True)
            size += more
        keys.append(key)
        rows += added
    return Selected(keys, rows, size)


# --- writing buckets ------------------------------------------------------------------------------


def pack_buckets(batch: pa.RecordBatch, settings: Buckets) -> pa.RecordBatch:
    """Return the rows of a WRITTEN batch, which have their `mature`, as a WRITTEN batch of buckets.

    The messages of a bucket mature at the same moment, have the same tries, and are in the order of
    the rows. If an id occurs twice among such messages, the first one is kept.
    """
    moments, tries = batch.column("mature").cast(pa.int64()), batch.column("tries")
    if all(len(set(pc.min_max(column).as_py().values())) == 1 for column in (moments, tries)):
        groups = [batch]
    else:
        keys = list(zip(moments.to_pylist(), tries.to_pylist(), strict=True))
        order = sorted(range(len(keys)), key=lambda row: keys[row][0])  # stable: of one moment, as they come
        groups = [batch.take(pa.array(list(rows))) for _, rows in groupby(order, lambda row: keys[row])]
    parts = (part for group in groups for part in _split_rows(_without_repeats(group), settings.size))
    buckets = [build_bucket(part, settings) for part in parts]
    return pa.Table.from_batches(buckets, WRITTEN).combine_chunks().to_batches()[0]


def build_bucket(rows: pa.RecordBatch, settings: Buckets) -> pa.RecordBatch:
    """Return one bucket of these WRITTEN or MESSAGES rows as a WRITTEN batch of one row.

    The rows have the same tries. The bucket matures when the last of them does.
    """
    last, pushed = pc.max(rows.column("mature")), rows.column("pushed")
    more = [name for name in ("mature", "pushed") if _differ(rows.column(name))]
    schema = pa.schema([*BUCKET_SCHEMA, *map(MESSAGES.field, more)])
    content = pa.RecordBatch.from_arrays([rows.column(name) for name in schema.names], schema=schema)
    # A large single message gains little, and might grow beyond the size limit of the database.
    packed = to_bytes(content, settings.compression if len(rows) > 1 or content.nbytes < 1 << 20 else None)
    digest = sha256(packed).hexdigest()[:DIGEST_DIGITS]
    last_part = f"{digest}{SIZE_MARK}{text_bytes(content)}"
    id = f"{BUCKET_PREFIX}{_first_id(rows.column('id'))}{BUCKET_PREFIX}{rows.num_rows}{BUCKET_PREFIX}{last_part}"
    columns = {
        "id": [id],
        "payload": [packed],
        "payload_kind": ["binary"],
        "headers": no_headers(1),
        "mature": pa.repeat(last, 1),
        "delay": [None],
        "tries": rows.column("tries").slice(0, 1),
        "pushed": pa.nulls(1, pushed.type) if "pushed" in more else pushed.slice(0, 1),
    }
    return pa.RecordBatch.from_pydict(columns, schema=WRITTEN)


def _first_id(ids: pa.Array) -> str:
    """Return the id of the first message as the id of a bucket has it."""
    first: str = ids[0].as_py()
    if not OBJECT_ID.fullmatch(first):
        return first
    lengths = pc.min_max(pc.binary_length(ids)).as_py()
    grow = pc.all(pc.less(ids.slice(0, len(ids) - 1), ids.slice(1))).as_py() is not False
    return first if grow and set(lengths.values()) == {len(first)} else f"{first}{UNORDERED_MARK}"


def _differ(moments: pa.Array) -> bool:
    """Return whether moments are not all the same; NULL is one, too."""
    if moments.null_count:
        return bool(moments.null_count < len(moments))
    return len(set(pc.min_max(moments).as_py().values())) > 1


def text_bytes(rows: pa.RecordBatch) -> int:
    """Return the bytes of ids, payloads and headers: the same number for equal rows."""
    headers = rows.column("headers")
    first, last = headers.offsets[0].as_py(), headers.offsets[-1].as_py()
    parts = [one.slice(first, last - first) for one in (headers.keys, headers.items)]
    columns = rows.column("id"), rows.column("payload"), *parts
    return sum(pc.sum(pc.binary_length(one)).as_py() or 0 for one in columns)


def _without_repeats(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the first row of each id."""
    ids = rows.column("id")
    if pc.count_distinct(ids).as_py() == len(ids):
        return rows
    first: dict[str, int] = {}
    for row, id in enumerate(ids.to_pylist()):
        first.setdefault(id, row)
    return rows.take(pa.array(list(first.values())))


def _split_rows(rows: pa.RecordBatch, size: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows in parts of at most `size` rows and about MAX_BUCKET_BYTES."""
    if rows.nbytes <= MAX_BUCKET_BYTES * max(1, rows.num_rows // size):
        for start in range(0, rows.num_rows, size):
            yield rows.slice(start, size)
        return
    start = weight = 0
    lengths = pc.binary_length(rows.column("payload")).cast(pa.int64())
    if len(rows.column("headers").items):
        lengths = pc.add(lengths, row_sizes(rows.column("headers")))
    for row, length in enumerate(lengths.to_pylist()):
        if row > start and (row - start == size or weight + length > MAX_BUCKET_BYTES):
            yield rows.slice(start, row - start)
            start, weight = row, 0
        weight += length
    yield rows.slice(start)


# --- reading buckets ------------------------------------------------------------------------------


def open_bucket(record: pa.RecordBatch) -> pa.RecordBatch:
    """Return the messages of a MESSAGES or HISTORY batch that is one bucket, in order.

    Raises `DamagedBucket` if it cannot be read.
    """
    rows = unpack_bucket(record.column("id")[0].as_py(), record.column("payload")[0].as_buffer())
    columns = columns_by_name(rows)
    if "mature" in columns and pc.max(columns["mature"]) != record.column("mature")[0]:
        del columns["mature"]  # the bucket was released: its own due time holds for all
    if record.column("headers").values:
        (added,) = header_dicts(record)
        columns["headers"] = headers_array([one | added for one in header_dicts(rows)])
    for name in record.schema.names:
        if name not in columns:
            columns[name] = pa.repeat(record.column(name)[0], rows.num_rows)
    return pa.RecordBatch.from_pydict(columns, schema=record.schema)


def unpack_bucket(id: str, packed: bytes | pa.Buffer | None) -> pa.RecordBatch:
    """Verify the bucket with this id and return its rows.

    Raises `DamagedBucket` if it is damaged.
    """
    expected, digest = _parse_rows(id), id.rpartition(BUCKET_PREFIX)[2].partition(SIZE_MARK)[0]
    if expected is None:
        raise DamagedBucket(f"its id does not say how many messages it holds (1 to {10**MAX_ROWS_DIGITS - 1:,})")
    converted, has_digest = id.endswith(CONVERTED_SUFFIX), len(digest) == DIGEST_DIGITS
    try:
        rows = from_bytes(packed, _BUCKET_SCHEMAS, digest if has_digest else None)
    except DamagedBytes as error:
        raise DamagedBucket(str(error)) from error
    # If two programs of keuss commit the same message, keuss counts it twice. Then there are more
    # messages than the id says.
    if rows.num_rows < expected or (rows.num_rows > expected and not converted):
        raise DamagedBucket(f"it holds {rows.num_rows:,} messages, but {expected:,} by its id")
    if not (has_digest or converted):
        _check_rows(rows)
    return rows


def _check_rows(rows: pa.RecordBatch) -> None:
    """Check the messages of a bucket without a digest. Raises `DamagedBucket` for a mistake."""
    n = rows.num_rows
    own = columns_by_name(rows)
    defaults = {"mature": pa.nulls(n), "delay": pa.nulls(n), "tries": pa.repeat(0, n)}
    batch = pa.RecordBatch.from_pydict(defaults | own, schema=PUSHES)
    for row, rule in validate_rows(batch, None).items():
        raise DamagedBucket(f"message {row}: {rule}")
    if "mature" in own and own["mature"].null_count:
        raise DamagedBucket("one of its messages has no mature")
    if pc.count_distinct(own["id"]).as_py() < n:
        raise DamagedBucket("two of its messages have the same id")
    if unknown_kinds := set(own["payload_kind"].unique().to_pylist()) - {*get_args(PayloadKind)}:
        raise DamagedBucket(f"one of its messages has the unknown payload_kind {unknown_kinds.pop()!r}")
