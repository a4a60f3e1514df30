"""Exactly-once writes to queues: the ledger records which batches a sink has decided to publish.

A sink writes batches that are numbered 0, 1, 2, …. A batch may come again, in other parts. Tasks
stage their rows, each attempt under its own stage, `sink/batch/attempt`. Then the ledger, one note
for each sink, is set to the batch and to the stages that won. From then on the batch counts as
written. Its stages are published afterwards.

If the ledger already has a batch that comes again, its rows are not staged. They are compared with
the written ones (see `row_hashes.py`), and stages that are left are published. So

    killed before the ledger is set     nothing is visible; the batch comes again, and its stages
                                        are discarded.
    killed after it                     the batch comes again, and its missing part becomes visible.
    the server loses the publish        the next batch publishes it first, or `recover` does.

The decision is a compare-and-set: of two programs that write the same batch, the first decides for
both. `publishing.py` makes it, also for a sink that writes to several databases.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from spark_queue.errors import CheckpointError, FencedError, StoreError
from spark_queue.stores.base import Store
from spark_queue.stores.services import row_hashes
from spark_queue.stores.types import Note

LEDGER_VERSION = 1
LEDGER_PREFIX = "ledger/"

#: The prefix of sinks for a single write, which never comes again.
ONE_WRITE_PREFIX = "write-"

#: The batch of a sink that has published nothing yet.
NO_BATCH = -1


class Share(NamedTuple):
    """The share of one database in a batch: the id of its ledger, its name, its first batch, rows.

    The name is that of the program that decided the batch; others may give the database another.
    """

    id: str
    name: str
    first: int
    rows: int


@dataclass(frozen=True, slots=True)
class Ledger:
    """The last batch that a sink has decided to publish: its stages, and hashes of its rows.

    A sink for one write begins with the batch `NO_BATCH`. Its ledger is removed when the write has
    ended or failed: without one, no rows may be staged for it.

    If a sink writes to several databases, each has a ledger, and they share a decision: `shares`
    has the share of each database, that of the coordinator first. `id` distinguishes the ledgers of
    a sink. Earlier versions had `members` instead: the first batch of each database, by its name.
    """

    sink: str
    batch: int
    stages: tuple[str, ...] = ()
    shares: tuple[Share, ...] = ()
    members: Mapping[str, int] = field(default_factory=dict)
    id: str = field(default="", compare=False)
    version: int = field(default=0, compare=False)  # that of its note
    rows: row_hashes.RowHashes = None
    rows_before: row_hashes.RowHashes = None  # of the batch before: a crash may have left their notes

    @classmethod
    def from_note(cls, sink: str, note: Note | None) -> Ledger | None:
        """Return the ledger in a note. Raises `StoreError` if a newer version wrote it."""
        if note is None:
            return None
        if note.value.get("v") != LEDGER_VERSION:
            raise StoreError(
                f"the ledger of sink {sink!r} has version {note.value.get('v')!r}, this version of spark_queue reads "
                f"{LEDGER_VERSION}: upgrade spark_queue",
                sink=sink,
            )
        value = note.value
        rows, before = (row_hashes.from_json(value.get(key)) for key in ("rows", "rows_before"))
        shares = tuple(Share(*one) for one in value.get("shares", ()))
        members, id = value.get("members", {}), value.get("id", "")
        return cls(sink, value["batch"], tuple(value["stages"]), shares, members, id, note.version, rows, before)

    @property
    def databases(self) -> dict[str, int]:
        """The first batch of each database that it shares its batch with, by name."""
        return {one.name: one.first for one in self.shares} or dict(self.members)

    @property
    def was_set(self) -> bool:
        """Whether it names no stages and databases, as after `spark-queue ledger set`."""
        return not (self.stages or self.shares or self.members)


def ledger_of(store: Store, sink: str) -> Ledger | None:
    """Return the ledger of a sink, or `None` if it has not published yet."""
    return Ledger.from_note(sink, store.note(LEDGER_PREFIX + sink))


def stage_of(sink: str, batch: int, attempt: str) -> str:
    """Return the stage for one attempt to write a part of a batch."""
    return f"{sink}/{batch}/{attempt}"


class Writer(Enum):
    """The kind of write of a sink: which batch numbers are allowed besides the next one."""

    #: A streaming write. Batches have no gaps, and only the last one may come again.
    STREAM = "stream"
    #: A streaming write to a database that takes part from this batch on: its ledger has none
    #: before.
    JOINING = "joining"
    #: A batch write with `txnAppId`, certainly or perhaps in `foreachBatch`. There may be gaps, and
    #: only the last one may come again.
    FOREACH_BATCH = "foreachBatch"
    #: A batch write outside of a query. Each number up to the last one counts as written.
    JOB = "job"


def sink_of(application: str, query: str | None) -> str:
    """Return the sink of an application (`txnAppId`): one for each of its queries, one for jobs."""
    return f"{application}:{query}" if query else application


def inherit_ledger(store: Store, application: str, sink: str) -> None:
    """Copy the ledger that older versions kept for an application to its first query.

    A compare-and-set decides which query that is. May be repeated.
    """
    note = store.note(LEDGER_PREFIX + application)
    if note is None or note.value.get("heir", sink) != sink or Ledger.from_note(application, note) is None:
        return
    inherited = {**note.value, "heir": sink}
    if note.value == inherited or store.set_note(LEDGER_PREFIX + application, inherited, note.version):
        store.set_note(LEDGER_PREFIX + sink, {key: one for key, one in inherited.items() if key != "heir"}, 0)
    else:
        inherit_ledger(store, application, sink)


def is_decided(ledger: Ledger | None, sink: str, batch: int, writer: Writer) -> bool:
    """Return whether the sink has decided on this batch, so its rows must not be staged.

    Raises `CheckpointError` if the ledger does not fit the batch, and `FencedError` if it is ahead
    of the batch.
    """
    last = NO_BATCH if ledger is None else ledger.batch
    if batch == last or (batch < last and writer is Writer.JOB):
        return True
    if batch < last and writer is Writer.FOREACH_BATCH:
        raise CheckpointError(
            f"txnVersion {batch} of sink {sink!r} is below {last}, the last one that was written: whether these rows "
            "were written then is unknown. Nothing was written now. If the query has an older checkpoint, set a new "
            "txnAppId. Within a query txnVersion must grow: pass the batch id",
            sink=sink,
            batch=batch,
        )
    if batch < last:
        raise FencedError(
            f"sink {sink!r} is at batch {last} already, and this is batch {batch}: another query runs on a copy of "
            "this checkpoint, or the checkpoint is an older one. Go on with the newest checkpoint, or a new one",
            sink=sink,
            batch=batch,
        )
    if batch > last + 1 and writer is Writer.STREAM:
        reason = "there is no ledger" if last == NO_BATCH else f"the ledger ends with batch {last}"
        raise CheckpointError(
            f"batch {batch} of sink {sink!r}: {reason}, so it is unknown whether batch {batch - 1} was written. The "
            "query wrote with another delivery or to another place before, or the ledger was removed or restored "
            f"from a backup. If batch {batch - 1} was written, run: spark-queue ledger set URL {sink} {batch - 1}",
            sink=sink,
            batch=batch,
        )
    return False


def create_ledger(store: Store, sink: str) -> None:
    """Create the ledger of a sink, with no batch yet, unless it has one."""
    store.set_note(LEDGER_PREFIX + sink, note_value(None, NO_BATCH, ()), 0)


def identify_ledger(store: Store, sink: str) -> None:
    """Create the ledger of a sink, unless it has one, and give it an id, unless it has one."""
    while not ((note := store.note(LEDGER_PREFIX + sink)) and note.value.get("id")):
        if note is None:
            create_ledger(store, sink)
        else:
            store.set_note(LEDGER_PREFIX + sink, {**note.value, "id": uuid.uuid4().hex}, note.version)


def delete_sink(store: Store, sink: str) -> int:
    """Remove the ledger of a sink that never writes again, then its stages; return their rows.

    The order matters: a task stages first and then checks the ledger, so one of the two sees the
    other.
    """
    if note := store.note(LEDGER_PREFIX + sink):
        store.set_note(LEDGER_PREFIX + sink, None, note.version)
        _delete_hashes(store, note)
    return store.unstage(sink)


def set_ledger(store: Store, sink: str, batch: int) -> None:
    """Set the last batch that a sink has written; the ledger may be of any version.

    Staged rows stay. Raises `FencedError` if the sink has changed its ledger meanwhile.
    """
    note = store.note(LEDGER_PREFIX + sink)
    value = note_value(note.value.get("id") if note else None, batch, ())
    if not store.set_note(LEDGER_PREFIX + sink, value, note.version if note else 0):
        raise FencedError(f"sink {sink!r} has just changed its ledger: stop its query, then try again", sink=sink)
    if note:
        _delete_hashes(store, note)


def _delete_hashes(store: Store, note: Note) -> None:
    """Remove the notes with hashes that a ledger names."""
    for key in ("rows", "rows_before"):
        row_hashes.delete_hashes(store, row_hashes.from_json(note.value.get(key)))


def batch_of(stage: str) -> int:
    """Return the batch of a stage."""
    return int(stage.split("/")[1])


def note_value(id: str | None, batch: int, stages: Sequence[str], shares: Sequence[Share] = ()) -> dict[str, Any]:
    """Return the note of a ledger with this decision."""
    value = {"v": LEDGER_VERSION, "id": id or uuid.uuid4().hex, "batch": batch, "stages": list(stages)}
    return value | {"shares": [list(one) for one in shares]} if shares else value
