"""Write Arrow batches as bytes into a database, and verify them before they are read.

Disks flip bits, and other programs write to the same database. pyarrow trusts its input: damaged
bytes can end the process, fill its memory, or return parts of its memory as messages. These parts
are checked first:

    digest:     the SHA-256 of the writer, if there is one. It finds nearly all damage.
    frame:      one schema, one batch, the end of the stream, and nothing else.
    metadata:   each buffer lies inside the bytes. All buffers together unpack to at most
                MAX_UNPACKED_BYTES.
    columns:    the schema is one that the reader expects. Without a digest, each value is checked.

The metadata is in FlatBuffers, as Arrow's `Message.fbs` defines it. Plain Python reads it here,
which never reads outside of the bytes. Only then does pyarrow read it and check it again.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256

import pyarrow as pa
import pyarrow.ipc

#: Maximum number of bytes that compressed buffers may unpack to. Larger batches are written without
#: compression: they need no limit, since they are no larger in memory than in the database.
MAX_UNPACKED_BYTES = 1 << 28

#: The marker at the start of each message of a stream, and the end of a stream.
_CONTINUATION, _END_OF_STREAM = 0xFFFFFFFF, b"\xff\xff\xff\xff\0\0\0\0"

#: Starting threads takes longer than unpacking most buckets.
_ONE_THREAD = pa.ipc.IpcReadOptions(use_threads=False)

#: Maximum number of bytes of the schema message. Our schemas take less than 2,000.
_MAX_SCHEMA_BYTES = 1 << 16

#: Types of Arrow messages, and the metadata version that pyarrow writes.
_SCHEMA_MESSAGE, _BATCH_MESSAGE, _METADATA_VERSION = 1, 3, 4


class DamagedBytes(ValueError):
    """Bytes that differ from those that were written; the text says why."""


def to_bytes(batch: pa.RecordBatch, compression: str | None = None) -> bytes:
    """Return the batch as an Arrow IPC stream.

    A batch larger than half of MAX_UNPACKED_BYTES is not compressed.
    """
    if batch.nbytes > MAX_UNPACKED_BYTES // 2:  # half, since `nbytes` does not count all buffers fully
        compression = None
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_batch(batch)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def append_digest(packed: bytes) -> bytes:
    """Return the stream with its digest appended, which readers of Arrow ignore."""
    return packed + sha256(packed).digest()


def from_bytes_with_digest(packed: object, schemas: Sequence[pa.Schema]) -> pa.RecordBatch:
    """Return the batch of a stream, with or without a digest appended.

    Raises `DamagedBytes` if the bytes are damaged or have none of the schemas.
    """
    if not isinstance(packed, bytes):
        raise DamagedBytes("it has no bytes")
    if packed.endswith(_END_OF_STREAM):
        return from_bytes(packed, schemas)
    size = sha256().digest_size
    return from_bytes(memoryview(packed)[:-size], schemas, packed[-size:].hex())


def from_bytes(
    packed: bytes | memoryview | pa.Buffer | None, schemas: Sequence[pa.Schema], digest: str | None = None
) -> pa.RecordBatch:
    """Return the batch of an Arrow IPC stream.

    `digest` is the beginning of the SHA-256 of the bytes, in hex, as the writer stored it. Raises
    `DamagedBytes` if the bytes do not match it, cannot be read, or have none of the schemas.
    """
    if packed is None:
        raise DamagedBytes("it has no bytes")
    if digest is not None and sha256(packed).hexdigest()[: len(digest)] != digest:
        raise DamagedBytes(f"its bytes do not have the digest {digest}")
    try:
        return _read(memoryview(packed).cast("B"), schemas, trusted=digest is not None)
    except struct.error as error:
        raise DamagedBytes("it is cut off, or its metadata points outside of its bytes") from error
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:  # OSError: decompression failed
        reason = str(error).partition("\n")[0]
        raise DamagedBytes(f"pyarrow cannot read it: {reason}") from error


def _read(packed: memoryview, schemas: Sequence[pa.Schema], *, trusted: bool) -> pa.RecordBatch:
    schema_message = _IpcMessage(packed, 0, _SCHEMA_MESSAGE)
    batch_message = _IpcMessage(packed, schema_message.end, _BATCH_MESSAGE)
    if packed[batch_message.end :] not in (_END_OF_STREAM, b"") or schema_message.end > _MAX_SCHEMA_BYTES:
        raise DamagedBytes("it is no Arrow stream of one batch")
    schema = _parse_schema(bytes(packed[: schema_message.end]))
    if schema not in schemas:
        raise DamagedBytes("its columns are not those of messages")
    _check_buffers(batch_message)
    batch = pa.ipc.open_stream(pa.py_buffer(packed), options=_ONE_THREAD).read_next_batch()
    batch.validate(full=not trusted)
    return batch


def _check_buffers(message: _IpcMessage) -> None:
    """Check that the buffers lie in the body and do not unpack to too many bytes.

    Raises `DamagedBytes` if not.
    """
    compressed = message.header.field_offset(3) is not None
    offsets_and_lengths = message.header.get_integers(2)
    unpacked = 0
    for start, length in zip(offsets_and_lengths[::2], offsets_and_lengths[1::2], strict=True):
        if start < 0 or length < 0 or start + length > len(message.body):
            raise DamagedBytes("a buffer of its columns lies outside of its bytes")
        if compressed and length:
            (size,) = struct.unpack_from("<q", message.body, start)
            if size < -1:  # -1: this one is not compressed
                raise DamagedBytes(f"a buffer of its columns unpacks to {size} bytes")
            unpacked += max(size, 0)
    if unpacked > MAX_UNPACKED_BYTES:
        raise DamagedBytes(f"it unpacks to {unpacked:,} bytes, but the limit is {MAX_UNPACKED_BYTES:,}")


@lru_cache(maxsize=16)
def _parse_schema(schema_bytes: bytes) -> pa.Schema:
    """Return the schema in the first message of a stream, cached: nearly all streams share it."""
    return pa.ipc.read_schema(pa.py_buffer(schema_bytes))


# --- FlatBuffers ----------------------------------------------------------------------------------


class _IpcMessage:
    """The message at an offset of a stream: its metadata table, its body, and where it ends.

    Raises `DamagedBytes` if it is of another type or version, or does not lie inside the bytes.
    """

    def __init__(self, packed: memoryview, offset: int, kind: int) -> None:
        marker, size = struct.unpack_from("<II", packed, offset)
        metadata, body = packed[offset + 8 : offset + 8 + size], offset + 8 + size
        table = _Table(metadata, _read_number(metadata, "<I", 0))
        version, found, length = table.get_number(0, "<h"), table.get_number(1, "<B"), table.get_number(3, "<q")
        self.end = body + length
        is_inside = body <= self.end <= len(packed)
        if not is_inside or (marker, version, found) != (_CONTINUATION, _METADATA_VERSION, kind):
            raise DamagedBytes("it is no Arrow stream of one batch")
        self.header = table.get_table(2)
        self.body = packed[body : self.end]


class _Table:
    """The FlatBuffers table at an offset."""

    def __init__(self, metadata: memoryview, offset: int) -> None:
        self._metadata, self._offset = metadata, offset
        self._slots = offset - _read_number(metadata, "<i", offset)
        self._size = _read_number(metadata, "<H", self._slots)

    def field_offset(self, field: int) -> int | None:
        """Return the offset of a field, `None` if the table does not have it."""
        slot = 4 + 2 * field
        offset = _read_number(self._metadata, "<H", self._slots + slot) if slot < self._size else 0
        return self._offset + offset if offset else None

    def get_number(self, field: int, form: str) -> int:
        offset = self.field_offset(field)
        return 0 if offset is None else _read_number(self._metadata, form, offset)

    def get_table(self, field: int) -> _Table:
        return _Table(self._metadata, self._target_offset(field))

    def get_integers(self, field: int) -> tuple[int, ...]:
        """Return a vector of structs of two 64-bit integers, as one sequence."""
        start = self._target_offset(field)
        return struct.unpack_from(f"<{2 * _read_number(self._metadata, '<I', start)}q", self._metadata, start + 4)

    def _target_offset(self, field: int) -> int:
        """Return the offset that a field refers to. Raises `DamagedBytes` if there is no field."""
        offset = self.field_offset(field)
        if offset is None:
            raise DamagedBytes("a part of its metadata is missing")
        return offset + _read_number(self._metadata, "<I", offset)


def _read_number(metadata: memoryview, form: str, offset: int) -> int:
    """Return the number at an offset. Raises `struct.error` if it lies outside of the metadata."""
    if offset < 0:  # Python would count from the end
        raise struct.error("negative offset")
    number: int = struct.unpack_from(form, metadata, offset)[0]
    return number
