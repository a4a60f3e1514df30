"""Hashes of the rows of a sink's last batch: if the batch comes again, it must have no other rows.

A sink knows a batch by its number. A checkpoint may be restored from a copy, or a source may return
other rows for the same number. These rows would count as written, and be lost. So the ledger keeps
a hash of each row of its last batch. The rows that come again must be among them. Some may be
missing, since another consumer may have taken them meanwhile.

A hash is 8 bytes of BLAKE2b over payload, queue and delay. It omits the id, since the sink makes
new ones, and the headers, since they may count tries. Up to 1,000 hashes are part of the ledger.
More are in notes of their own, which are removed when the next batch is decided. A crash in
between may leave them, so the next ledger names them, and they are removed when its batch comes
again.
"""

from __future__ import annotations

import logging
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b
from itertools import repeat
from typing import Any

import pyarrow as pa

from spark_queue.stores.base import Store

log = logging.getLogger(__name__)

WRITTEN_VERSION = 1
WRITTEN_PREFIX = "written/"

#: The size of a hash in bytes.
HASH_BYTES = 8

#: The rows of a ledger: their hashes in Base64, the keys of the notes with them, or `None`.
RowHashes = str | tuple[str, ...] | None


def hash_rows(queue: str, rows: pa.RecordBatch) -> bytes:
    """Return the concatenated hashes of the rows of a PUSHES batch for `queue`."""
    delays, payloads = rows.column("delay"), rows.column("payload").to_pylist()
    prefixes = {
        one: blake2b(f"{queue}\0{one}\0".encode(), digest_size=HASH_BYTES) for one in delays.unique().to_pylist()
    }
    each = repeat(*prefixes.values()) if len(prefixes) == 1 else map(prefixes.__getitem__, delays.to_pylist())
    digests = []
    for start, payload in zip(each, payloads, strict=False):
        one = start.copy()
        one.update(payload or b"")
        digests.append(one.digest())
    return b"".join(digests)


def save_hashes(store: Store, sink: str, batch: int, hashes: bytes) -> RowHashes:
    """Return the value for the ledger; if there are many hashes, write them into notes first.

    May be repeated.
    """
    limits = store.limits
    if len(hashes) > limits.compared_rows * HASH_BYTES:
        log.warning(
            "batch %d of sink %s has more than %d rows: they are not compared if it comes again",
            batch, sink, limits.compared_rows,
        )  # fmt: skip
        return None
    if len(hashes) <= limits.hashes_in_ledger * HASH_BYTES:
        return b64encode(hashes).decode()
    # Two programs may write the same batch: each has its own notes.
    own = blake2b(hashes, digest_size=HASH_BYTES).hexdigest()
    keys: list[str] = []
    for start in range(0, len(hashes), limits.hashes_per_note * HASH_BYTES):
        keys.append(f"{WRITTEN_PREFIX}{sink}/{batch}/{own}/{len(keys)}")
        part = b64encode(hashes[start : start + limits.hashes_per_note * HASH_BYTES]).decode()
        store.set_note(keys[-1], {"v": WRITTEN_VERSION, "rows": part}, 0)
    return tuple(keys)


def load_hashes(store: Store, rows: RowHashes) -> bytes | None:
    """Return the hashes that a ledger names; `None` if it has none, or a note is missing."""
    if rows is None or isinstance(rows, str):
        return None if rows is None else b64decode(rows)
    notes = [store.note(key) for key in rows]
    return b"".join(b64decode(one.value["rows"]) for one in notes if one) if all(notes) else None


def delete_hashes(store: Store, rows: RowHashes) -> None:
    """Remove the notes that a ledger named."""
    for key in rows if isinstance(rows, tuple) else ():
        store.set_note(key, None, 1)


def count_unwritten(hashes: bytes, written: bytes) -> int:
    """Return how many of these rows were not written; each duplicate counts."""
    return (Counter(_each(hashes)) - Counter(_each(written))).total()


def _each(hashes: bytes) -> Sequence[int]:
    return memoryview(hashes).cast("Q")


def from_json(value: Any) -> RowHashes:
    """Return the value from the JSON of a ledger."""
    return tuple(value) if isinstance(value, list) else value
