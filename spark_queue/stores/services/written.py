"""The rows of the batch that a sink wrote last, as hashes: when the batch comes again, it may have no other rows.

A sink knows a batch by its number. If a checkpoint is restored from a copy, or a source gives other rows under the
same number, these rows would count as written, and be lost. So the ledger keeps a hash of each row of its last batch.
The rows that come again must be among them. Some may be missing: another consumer may have taken them meanwhile.

A hash is 8 bytes of BLAKE2b, of payload, queue and delay. The ids are left out, since the sink makes new ones, and
the headers, since they may count tries. Up to IN_LEDGER hashes are a part of the ledger. More lie in notes of their
own, beside it, and go when the next batch is decided. A crash in between may leave them, so the next ledger names
them, and they go when its batch comes again.
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

#: Bytes of a hash.
HASH = 8

#: Hashes in the ledger itself, which each task reads; and in one note beside it.
IN_LEDGER, IN_NOTE = 1_000, 500_000

#: Rows of the largest batch that is compared: their hashes go from the tasks to the driver, 80 MB.
MOST_ROWS = 10_000_000

#: What a ledger says of its rows: their hashes, the notes that have them, or nothing.
RowHashes = str | tuple[str, ...] | None


def row_hashes(queue: str, rows: pa.RecordBatch) -> bytes:
    """Return the hashes of the rows of a PUSHES batch for `queue`, one after the other."""
    delays, payloads = rows.column("delay"), rows.column("payload").to_pylist()
    begun = {one: blake2b(f"{queue}\0{one}\0".encode(), digest_size=HASH) for one in delays.unique().to_pylist()}
    each = repeat(*begun.values()) if len(begun) == 1 else map(begun.__getitem__, delays.to_pylist())
    made = []
    for start, payload in zip(each, payloads, strict=False):
        one = start.copy()
        one.update(payload or b"")
        made.append(one.digest())
    return b"".join(made)


def keep(store: Store, sink: str, batch: int, hashes: bytes) -> RowHashes:
    """Return what a ledger is to say of the rows of a batch; too many are put into notes first. May be repeated."""
    if len(hashes) > MOST_ROWS * HASH:
        log.warning(
            "batch %d of sink %s has more than %d rows: they are not compared if it comes again",
            batch,
            sink,
            MOST_ROWS,
        )
        return None
    if len(hashes) <= IN_LEDGER * HASH:
        return b64encode(hashes).decode()
    # Of two programs that write the same batch, each names its own.
    own = blake2b(hashes, digest_size=HASH).hexdigest()
    keys: list[str] = []
    for start in range(0, len(hashes), IN_NOTE * HASH):
        keys.append(f"{WRITTEN_PREFIX}{sink}/{batch}/{own}/{len(keys)}")
        part = b64encode(hashes[start : start + IN_NOTE * HASH]).decode()
        store.set_note(keys[-1], {"v": WRITTEN_VERSION, "rows": part}, 0)
    return tuple(keys)


def kept(store: Store, rows: RowHashes) -> bytes | None:
    """Return the hashes that a ledger names; `None` where there are none any more, or never were."""
    if rows is None or isinstance(rows, str):
        return None if rows is None else b64decode(rows)
    notes = [store.note(key) for key in rows]
    return b"".join(b64decode(one.value["rows"]) for one in notes if one) if all(notes) else None


def drop(store: Store, rows: RowHashes) -> None:
    """Remove the notes that a ledger named."""
    for key in rows if isinstance(rows, tuple) else ():
        store.set_note(key, None, 1)


def others(hashes: bytes, written: bytes) -> int:
    """Return how many of these rows were not written; a row that comes twice must have been written twice."""
    return (Counter(_each(hashes)) - Counter(_each(written))).total()


def _each(hashes: bytes) -> Sequence[int]:
    return memoryview(hashes).cast("Q")


def of_json(value: Any) -> RowHashes:
    """Return what a ledger says of its rows, as its note has it."""
    return tuple(value) if isinstance(value, list) else value
