"""Arrow batches as bytes in a database: how they are written, and how they are verified before they are read.

Disks flip bits, and other programs write to the same database. pyarrow trusts what it reads: damaged bytes can end
the process, fill its memory, or return parts of this memory as messages. So all of this is checked first:

    digest      that of the writer, if there is one: nearly all damage ends here
    frame       a schema, one batch of it, the end of the stream, and nothing more
    metadata    each buffer lies inside the bytes, and all of them together unpack to MOST_UNPACKED bytes at most
    columns     those that the reader expects; without a digest each of their values as well

The metadata is in FlatBuffers, as `Message.fbs` of Arrow has it. It is read here in plain Python, which may find
nonsense but never reads outside of the bytes; only then pyarrow reads it, and checks it once more.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256

import pyarrow as pa
import pyarrow.ipc

#: Most bytes that compressed buffers may unpack to. What is larger is written as it is, and needs no limit: it is no
#: larger in memory than in the database.
MOST_UNPACKED = 1 << 28

#: How each message of a stream begins, and how a stream ends.
_BEGIN, _END = 0xFFFFFFFF, b"\xff\xff\xff\xff\0\0\0\0"

#: To start threads takes longer than to unpack most buckets.
_ALONE = pa.ipc.IpcReadOptions(use_threads=False)

#: Most bytes of the message that has the schema. Those of ours take less than 2,000.
_LONGEST_HEAD = 1 << 16

#: Types of messages, and the version of all that pyarrow writes.
_SCHEMA, _BATCH, _VERSION = 1, 3, 4


class DamagedBytes(ValueError):
    """Bytes that are not what was written; its text says why."""


def to_bytes(batch: pa.RecordBatch, compression: str | None = None) -> bytes:
    """Return the batch as an Arrow IPC stream."""
    if batch.nbytes > MOST_UNPACKED // 2:  # half: `nbytes` leaves out a little
        compression = None
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_batch(batch)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def with_digest(packed: bytes) -> bytes:
    """Return the stream with its digest behind it, which readers of Arrow pass over."""
    return packed + sha256(packed).digest()


def from_bytes_with_digest(packed: object, schemas: Sequence[pa.Schema]) -> pa.RecordBatch:
    """Return the batch of a stream that has its digest behind it, or none. Raises `DamagedBytes`."""
    if not isinstance(packed, bytes):
        raise DamagedBytes("it has no bytes")
    if packed.endswith(_END):
        return from_bytes(packed, schemas)
    size = sha256().digest_size
    return from_bytes(memoryview(packed)[:-size], schemas, packed[-size:].hex())


def from_bytes(
    packed: bytes | memoryview | pa.Buffer | None, schemas: Sequence[pa.Schema], digest: str | None = None
) -> pa.RecordBatch:
    """Return the batch again, which has one of the schemas.

    `digest` is the beginning of the SHA-256 of the bytes, in hex, as the writer kept it. Raises `DamagedBytes`.
    """
    if packed is None:
        raise DamagedBytes("it has no bytes")
    if digest is not None and sha256(packed).hexdigest()[: len(digest)] != digest:
        raise DamagedBytes(f"its bytes do not have the digest {digest}")
    try:
        return _read(memoryview(packed).cast("B"), schemas, trusted=digest is not None)
    except struct.error as error:
        raise DamagedBytes("it is cut off, or its metadata points outside of its bytes") from error
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:  # OSError: of the decompression
        reason = str(error).partition("\n")[0]
        raise DamagedBytes(f"pyarrow cannot read it: {reason}") from error


def _read(packed: memoryview, schemas: Sequence[pa.Schema], *, trusted: bool) -> pa.RecordBatch:
    head = _Message(packed, 0, _SCHEMA)
    message = _Message(packed, head.end, _BATCH)
    if packed[message.end :] not in (_END, b"") or head.end > _LONGEST_HEAD:
        raise DamagedBytes("it is no Arrow stream of one batch")
    schema = _schema(bytes(packed[: head.end]))
    if schema not in schemas:
        raise DamagedBytes("its columns are not those of messages")
    _check_buffers(message)
    batch = pa.ipc.open_stream(pa.py_buffer(packed), options=_ALONE).read_next_batch()
    batch.validate(full=not trusted)
    return batch


def _check_buffers(message: _Message) -> None:
    """Check that the buffers lie in the body, and how large they become."""
    compressed = message.header.position(3) is not None
    places = message.header.integers(2)
    unpacked = 0
    for start, length in zip(places[::2], places[1::2], strict=True):
        if start < 0 or length < 0 or start + length > len(message.body):
            raise DamagedBytes("a buffer of its columns lies outside of its bytes")
        if compressed and length:
            (size,) = struct.unpack_from("<q", message.body, start)
            if size < -1:  # -1: this one is not compressed
                raise DamagedBytes(f"a buffer of its columns unpacks to {size} bytes")
            unpacked += max(size, 0)
    if unpacked > MOST_UNPACKED:
        raise DamagedBytes(f"it unpacks to {unpacked:,} bytes, and {MOST_UNPACKED:,} are the limit")


@lru_cache(maxsize=16)
def _schema(head: bytes) -> pa.Schema:
    """The schema in the first message of a stream, which is the same in nearly all streams."""
    return pa.ipc.read_schema(pa.py_buffer(head))


# --- FlatBuffers ----------------------------------------------------------------------------------------------------


class _Message:
    """A message of a stream, at this place: the table with its metadata, its body, and where it ends."""

    def __init__(self, packed: memoryview, at: int, kind: int) -> None:
        begin, size = struct.unpack_from("<II", packed, at)
        metadata, body = packed[at + 8 : at + 8 + size], at + 8 + size
        table = _Table(metadata, _at(metadata, "<I", 0))
        version, found, length = table.number(0, "<h"), table.number(1, "<B"), table.number(3, "<q")
        self.end = body + length
        if (begin, version, found) != (_BEGIN, _VERSION, kind) or not body <= self.end <= len(packed):
            raise DamagedBytes("it is no Arrow stream of one batch")
        self.header = table.table(2)
        self.body = packed[body : self.end]


class _Table:
    """A table of FlatBuffers at this place."""

    def __init__(self, metadata: memoryview, at: int) -> None:
        self._metadata, self._at = metadata, at
        self._slots = at - _at(metadata, "<i", at)
        self._size = _at(metadata, "<H", self._slots)

    def position(self, number: int) -> int | None:
        """The place of a field, `None` if it is left out."""
        slot = 4 + 2 * number
        offset = _at(self._metadata, "<H", self._slots + slot) if slot < self._size else 0
        return self._at + offset if offset else None

    def number(self, number: int, form: str) -> int:
        place = self.position(number)
        return 0 if place is None else _at(self._metadata, form, place)

    def table(self, number: int) -> _Table:
        return _Table(self._metadata, self._follow(number))

    def integers(self, number: int) -> tuple[int, ...]:
        """A vector of structs of two 64-bit integers, as one sequence."""
        start = self._follow(number)
        return struct.unpack_from(f"<{2 * _at(self._metadata, '<I', start)}q", self._metadata, start + 4)

    def _follow(self, number: int) -> int:
        """The place that a field refers to."""
        place = self.position(number)
        if place is None:
            raise DamagedBytes("a part of its metadata is missing")
        return place + _at(self._metadata, "<I", place)


def _at(metadata: memoryview, form: str, place: int) -> int:
    """The number at this place. Raises `struct.error` if it lies outside."""
    if place < 0:  # Python would count from the end
        raise struct.error("negative place")
    number: int = struct.unpack_from(form, metadata, place)[0]
    return number
