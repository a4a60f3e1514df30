"""Buckets that are damaged and then read. `python -m tests.damaged_buckets FLIPS SEED` prints what came of it.

It is a process of its own with limited memory, since bytes that are read unchecked may end it or fill it.
"""

from __future__ import annotations

import json
import random
import resource
import struct
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from spark_queue.messages.arrow_bytes import to_bytes
from spark_queue.messages.buckets import BUCKET_SCHEMA, DIGEST_DIGITS, DamagedBucket, unpack_bucket
from spark_queue.messages.columns import with_due_time
from spark_queue.messages.message import pushes
from spark_queue.messages.payload import Json
from spark_queue.messages.schema import BUCKET_PREFIX, MESSAGES

#: Memory that reading may take beyond what the process has to begin with.
MEMORY = 1 << 30

#: What a number of the metadata may become.
EXTREMES = [0, 1, -1, 7, 8, 1 << 20, (1 << 31) - 1, -(1 << 31)]


class Sample(NamedTuple):
    """A sound bucket: its id, its bytes, and its messages."""

    id: str
    packed: bytes
    rows: pa.RecordBatch


def sample(compression: str | None, *, at_once: bool, digest: bool, n: int = 40) -> Sample:
    """Return a bucket with messages of every kind, which mature at once or one after the other."""
    start = datetime(2026, 1, 1, tzinfo=UTC)
    kinds: list[Json | bytes] = [{"n": 1, "text": "x" * 50}, "täxt " * 5, bytes(range(60)), 7]
    batch = pushes(
        [kinds[row % 4] for row in range(n)],
        ids=[f"id-{row:04}" for row in range(n)],
        headers=[{"key": f"value {row}"} if row % 3 else {} for row in range(n)],
        mature=[start + timedelta(hours=0 if at_once else row) for row in range(n)],
    )
    batch = with_due_time(batch, 0)
    schema = BUCKET_SCHEMA if at_once else BUCKET_SCHEMA.append(MESSAGES.field("mature"))
    rows = pa.RecordBatch.from_arrays([batch.column(name) for name in schema.names], schema=schema)
    packed = to_bytes(rows, compression)
    last = sha256(packed).hexdigest()[:DIGEST_DIGITS] if digest else ""
    return Sample(f"{BUCKET_PREFIX}id-0000{BUCKET_PREFIX}{n}{BUCKET_PREFIX}{last}", packed, rows)


def samples() -> dict[str, Sample]:
    """Return a bucket of each kind, by its name."""
    return {
        f"{compression}, {'at once' if at_once else 'dated'}, {'digest' if digest else 'no digest'}": sample(
            compression, at_once=at_once, digest=digest
        )
        for compression in (None, "lz4", "zstd")
        for at_once in (True, False)
        for digest in (True, False)
    }


def flipped(packed: bytes, bit: int) -> bytes:
    """Return the bytes with this bit flipped."""
    changed = bytearray(packed)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def flips(packed: bytes, count: int, dice: random.Random) -> Iterator[bytes]:
    """Yield the bytes with one bit flipped, so often: of half of them in the metadata, where it does most harm."""
    bits = 8 * len(packed)
    for number in range(count):
        yield flipped(packed, dice.randrange(bits // 2 if number % 2 else bits))


def ruined(packed: bytes, count: int, dice: random.Random) -> Iterator[bytes]:
    """Yield the bytes with larger damage, so often."""
    for _ in range(count):
        at = dice.randrange(len(packed))
        size = dice.choice([1, 2, 4, 8, 64, 512])
        match dice.randrange(6):
            case 0:
                yield packed[:at]
            case 1:
                yield packed[:at] + dice.randbytes(size) + packed[at + size :]
            case 2:
                yield packed[:at] + bytes(size) + packed[at + size :]
            case 3:
                yield packed + dice.randbytes(size)
            case 4:
                yield packed[:at] + packed[at + size :]
            case _:
                at &= ~3
                yield packed[:at] + struct.pack("<i", dice.choice(EXTREMES)) + packed[at + 4 :]


def renewed(one: Sample, packed: bytes) -> Sample:
    """Return the sample with the right digest of other bytes, as a program with an error of its own may write it."""
    return one._replace(id=one.id[:-DIGEST_DIGITS] + sha256(packed).hexdigest()[:DIGEST_DIGITS])


def came_of(one: Sample, packed: bytes) -> str:
    """Read a bucket and return what came of it, having looked at each of its values."""
    try:
        rows = unpack_bucket(one.id, packed)
    except DamagedBucket:
        return "refused"
    rows.to_pylist()
    return "as before" if rows == one.rows else "altered"


def main(count: int, seed: int) -> None:
    """Print for each kind of bucket how often it was refused, as before, or altered."""
    dice = random.Random(seed)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    found = {}
    for name, one in samples().items():
        damaged = [*flips(one.packed, count, dice), *ruined(one.packed, count // 4, dice)]
        found[name] = Counter(came_of(one, packed) for packed in damaged if packed != one.packed)
    print(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
