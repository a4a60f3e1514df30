"""Exactly-once writes to queues: the ledger records which batches a sink has published.

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
both.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from spark_queue.errors import CheckpointError, FencedError, OptionError, StoreError, plural
from spark_queue.stores.base import Store
from spark_queue.stores.services import row_hashes
from spark_queue.stores.types import Note

log = logging.getLogger(__name__)

LEDGER_VERSION = 1
LEDGER_PREFIX = "ledger/"

#: The prefix of sinks for a single write, which never comes again.
ONE_WRITE_PREFIX = "write-"

#: The batch of a sink that has published nothing yet.
NO_BATCH = -1


@dataclass(frozen=True, slots=True)
class Ledger:
    """The last batch that a sink has decided to publish: its stages, and hashes of its rows.

    A sink for one write begins with the batch `NO_BATCH`. Its ledger is removed when the write has
    ended or failed: without one, no rows may be staged for it.

    If a sink writes to several databases, each has a ledger. `members` has all their names, with
    the first batch of each. `id` distinguishes the ledgers of a sink.
    """

    sink: str
    batch: int
    stages: tuple[str, ...] = ()
    members: Mapping[str, int] = field(default_factory=dict)
    id: str = field(default="", compare=False)
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
        members, id = value.get("members", {}), value.get("id", "")
        return cls(sink, value["batch"], tuple(value["stages"]), members, id, rows, before)


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


def participants(ledgers: Iterable[Ledger | None], names: Iterable[str], batch: int) -> dict[str, int]:
    """Return the databases of this batch of a sink, with the first batch of each.

    A database that no ledger names counts from this batch. Without any ledger, all count from 0.
    """
    last = [one for one in ledgers if one is not None and batch - 1 <= one.batch <= batch]
    first_batches = {name: first for one in last for name, first in one.members.items()}
    return {name: first_batches.get(name, batch if last else 0) for name in names}


def publish_batch(
    store: Store,
    sink: str,
    batch: int,
    stages: Sequence[str],
    rows: int,
    writer: Writer,
    *,
    members: Mapping[str, int] | None = None,
    hashes: bytes | None = None,
) -> int:
    """Publish a staged batch of `rows` rows; return how many messages became visible now.

    An earlier batch is published first, if the server has lost that publish. May be repeated at any
    time, even with other stages: the stages of the first decision count. Other stages of this batch
    and earlier ones are discarded. `hashes`: of all rows of the batch, to compare them if it comes
    again (see `row_hashes.py`); `None` to compare none.

    Raises `CheckpointError` and `FencedError` as `is_decided` does. Raises `CheckpointError` if the
    batch was written with other rows, and `StoreError` if some staged rows are gone; then nothing
    is visible.
    """
    republished, own_hashes = 0, None
    while True:
        note = store.note(LEDGER_PREFIX + sink)
        found = Ledger.from_note(sink, note)
        if is_decided(found, sink, batch, writer):
            winners: Sequence[str] = ()
            if found and found.batch == batch:
                if own_hashes != found.rows:
                    row_hashes.delete_hashes(store, own_hashes)  # another process decided first
                _check_rows(store, found, hashes, writer)
                row_hashes.delete_hashes(store, found.rows_before)
                winners = found.stages
            elif found:
                log.warning(
                    "txnVersion %d of txnAppId %s is below %d, the last one that was written: nothing was written",
                    batch, sink, found.batch,
                )  # fmt: skip
            break
        staged = Counter(dict.fromkeys(stages, 0))
        for one in store.staged(sink):
            staged[one.stage] += one.rows
        if found and not staged.keys().isdisjoint(found.stages):
            republished += store.publish(found.stages)  # the server has lost this publish
        if (remaining := sum(staged[one] for one in stages)) != rows:
            if ledger_of(store, sink) != found:
                continue  # another process has just published it
            raise StoreError(
                f"batch {batch} of sink {sink!r}: {plural(rows, 'row')} staged, {remaining:,} left: another process "
                "discarded some; nothing was published, and the batch can be written again",
                sink=sink,
                batch=batch,
            )
        value = _note_value(found.id if found else None, batch, stages)
        if members:
            value["members"] = dict(members)
        if hashes is not None:
            value["rows"] = own_hashes = row_hashes.save_hashes(store, sink, batch, hashes)
        if found and isinstance(found.rows, tuple):
            value["rows_before"] = found.rows
        if store.set_note(LEDGER_PREFIX + sink, value, note.version if note else 0):
            winners = stages
            if found:
                row_hashes.delete_hashes(store, found.rows)
            break
    published = store.publish(winners)
    for number in {batch_of(one.stage) for one in store.staged(sink)}:
        if number <= batch:
            store.unstage(f"{sink}/{number}", keep=winners)
    return republished + published


def _check_rows(store: Store, ledger: Ledger, hashes: bytes | None, writer: Writer) -> None:
    """Raise `CheckpointError` if a written batch comes again with other rows; in a job, log it."""
    written = None if hashes is None else row_hashes.load_hashes(store, ledger.rows)
    if hashes is None or written is None or not (unwritten := row_hashes.count_unwritten(hashes, written)):
        return
    if writer is Writer.JOB:
        log.warning(
            "txnVersion %d of txnAppId %s was written before, without %s that it has now: nothing was written",
            ledger.batch, ledger.sink, plural(unwritten, "row"),
        )  # fmt: skip
        return
    raise CheckpointError(
        f"batch {ledger.batch} of sink {ledger.sink!r} is written, and comes again with "
        f"{plural(unwritten, 'row')} that "
        "it did not have: they would be lost. Nothing was written now. Start the query with a new checkpoint; in "
        "foreachBatch set a new txnAppId, and another one for each write of a batch. If the query makes other rows "
        "each time it runs (random values, the clock), set replayCheck=none: then they are left out",
        sink=ledger.sink,
        batch=ledger.batch,
    )


def create_ledger(store: Store, sink: str) -> None:
    """Create the ledger of a sink, with no batch yet, unless it has one."""
    store.set_note(LEDGER_PREFIX + sink, _note_value(None, NO_BATCH, ()), 0)


def read_ledgers(stores: Mapping[str, Store], sink: str) -> dict[str, Ledger | None]:
    """Return the ledgers of a sink in several databases; create missing ones.

    Raises `OptionError` if two of these are the same database under two URLs: stages in one would
    then look abandoned in the other.
    """
    names_by_id: dict[str, str] = {}
    ledgers: dict[str, Ledger | None] = {}
    for name, store in stores.items():
        found = ledgers[name] = ledger_of(store, sink)
        if found is None:
            create_ledger(store, sink)
            found = ledger_of(store, sink)
        if found and found.id and (other := names_by_id.setdefault(found.id, name)) != name:
            raise OptionError(
                f"{other!r} and {name!r} are the same database under two URLs: use the same URL for both",
                option="urls",
            )
    return ledgers


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
    value = _note_value(note.value.get("id") if note else None, batch, ())
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


def _note_value(id: str | None, batch: int, stages: Sequence[str]) -> dict[str, Any]:
    return {"v": LEDGER_VERSION, "id": id or uuid.uuid4().hex, "batch": batch, "stages": list(stages)}
