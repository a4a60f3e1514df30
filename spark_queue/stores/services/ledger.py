"""Exactly once into queues: what a sink has published, whatever dies in between.

A sink writes batches that are numbered 0, 1, 2, … and may come again, in other pieces: tasks stage their rows, each
attempt under a stage of its own, `sink/batch/attempt`. Then the ledger, one note for each sink, is set to the batch
and to the stages that won: from that moment the batch counts as written. Its stages are published after it; a batch
that the ledger names already is not staged again, but compared with what was written (see `written`), and whatever of
its stages is left is published. So

    killed before the ledger is set     nothing is visible; the batch comes again, and what was staged is swept
    killed after it                     the batch comes again, and what is missing becomes visible
    the server loses the publish        the next batch publishes it first, or `recover` does

The decision is a compare-and-set: of two programs that write the same batch, the first decides for both.
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
from spark_queue.stores.services import written
from spark_queue.stores.types import Note

log = logging.getLogger(__name__)

LEDGER_VERSION = 1
LEDGER_PREFIX = "ledger/"

#: How the sinks begin that live for one write: nobody will ask for it again.
ONE_WRITE = "write-"

#: The batch of a sink that has published nothing yet.
NOTHING = -1


@dataclass(frozen=True, slots=True)
class Ledger:
    """The last batch that a sink has decided to publish, the stages that hold it, and what is known of its rows.

    A sink for one write begins with the batch `NOTHING`, and its ledger goes when the write has ended, well or not:
    without one, nothing may be staged for it any more.

    Where a sink writes to several databases, each has a ledger, and `members` names them all, with the first batch
    that each has a part in. `id` tells the ledgers of a sink apart.
    """

    sink: str
    batch: int
    stages: tuple[str, ...] = ()
    members: Mapping[str, int] = field(default_factory=dict)
    id: str = field(default="", compare=False)
    rows: written.RowHashes = None
    rows_before: written.RowHashes = None  # those of the batch before; a crash may have left their notes

    @classmethod
    def read(cls, sink: str, note: Note | None) -> Ledger | None:
        """The ledger in a note. Raises `StoreError` for one that a newer version wrote."""
        if note is None:
            return None
        if note.value.get("v") != LEDGER_VERSION:
            raise StoreError(
                f"the ledger of sink {sink!r} has version {note.value.get('v')!r}, this version of spark_queue reads "
                f"{LEDGER_VERSION}: upgrade spark_queue",
                sink=sink,
            )
        value = note.value
        rows, before = (written.of_json(value.get(key)) for key in ("rows", "rows_before"))
        members, id = value.get("members", {}), value.get("id", "")
        return cls(sink, value["batch"], tuple(value["stages"]), members, id, rows, before)


def ledger_of(store: Store, sink: str) -> Ledger | None:
    """The ledger of a sink, `None` where it has published nothing yet."""
    return Ledger.read(sink, store.note(LEDGER_PREFIX + sink))


def stage_of(sink: str, batch: int, attempt: str) -> str:
    """The stage of one attempt to write a part of a batch."""
    return f"{sink}/{batch}/{attempt}"


class Writer(Enum):
    """Who writes the batches of a sink, which says what a number means that is not the next one."""

    #: A streaming write. Batches have no gaps, and only the last one may come again.
    STREAM = "stream"
    #: A streaming write to a database that takes part since this batch: its ledger knows none before.
    JOINING = "joining"
    #: A batch write with `txnAppId` in `foreachBatch`, or one that may be. There may be gaps, and only the last one
    #: may come again.
    FOREACH_BATCH = "foreachBatch"
    #: A batch write outside of a query. Each number up to the last one counts as written.
    JOB = "job"


def sink_of(application: str, query: str | None) -> str:
    """Return the sink of an application (`txnAppId`): one for each query that reads for it, and one for jobs."""
    return f"{application}:{query}" if query else application


def inherit(store: Store, application: str, sink: str) -> None:
    """Let the first query of an application go on with the ledger that older versions kept for the application.

    One compare-and-set decides which query that is. May be repeated.
    """
    note = store.note(LEDGER_PREFIX + application)
    if note is None or note.value.get("heir", sink) != sink or Ledger.read(application, note) is None:
        return
    inherited = {**note.value, "heir": sink}
    if note.value == inherited or store.set_note(LEDGER_PREFIX + application, inherited, note.version):
        store.set_note(LEDGER_PREFIX + sink, {key: one for key, one in inherited.items() if key != "heir"}, 0)
    else:
        inherit(store, application, sink)


def decided(ledger: Ledger | None, sink: str, batch: int, writer: Writer) -> bool:
    """Return whether the sink has decided on this batch, so that nothing of it is to be staged.

    Raises `CheckpointError` if the ledger does not fit the batch, `FencedError` if it is ahead of it.
    """
    last = NOTHING if ledger is None else ledger.batch
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
            "this checkpoint, or the checkpoint is an older one; go on with that one, or start with a new checkpoint",
            sink=sink,
            batch=batch,
        )
    if batch > last + 1 and writer is Writer.STREAM:
        known = "there is no ledger" if last == NOTHING else f"the ledger ends with batch {last}"
        raise CheckpointError(
            f"batch {batch} of sink {sink!r}: {known}, so it is unknown whether batch {batch - 1} was written. The "
            "query wrote with another delivery or to another place before, or the ledger was removed or restored "
            f"from a backup. If batch {batch - 1} was written, say so: spark-queue ledger set URL {sink} {batch - 1}",
            sink=sink,
            batch=batch,
        )
    return False


def members(ledgers: Iterable[Ledger | None], names: Iterable[str], batch: int) -> dict[str, int]:
    """The databases that have a part in this batch of a sink, with the first batch in which each had.

    Where no ledger is left that could tell, as if they had always had.
    """
    last = [one for one in ledgers if one is not None and batch - 1 <= one.batch <= batch]
    known = {name: first for one in last for name, first in one.members.items()}
    return {name: known.get(name, batch if last else 0) for name in names}


def publish(
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
    """Publish a batch that is staged, `rows` in all, and give the number of messages that became visible just now.

    What was decided before is published first, if the server has lost that it was. May be repeated at any time, also
    with other stages: those count with which it was decided first. What else was staged for this batch and those
    before is discarded, except what the ledger names. `hashes`: those of all rows of the batch, staged or not, where
    they are to be compared if it comes again (see `written`).

    Raises as `decided` does; `CheckpointError` if the batch is written, and had other rows; `StoreError` if a part of
    what was staged is gone (nothing is visible then).
    """
    before, mine = 0, None
    while True:
        note = store.note(LEDGER_PREFIX + sink)
        found = Ledger.read(sink, note)
        if decided(found, sink, batch, writer):
            winners: Sequence[str] = ()
            if found and found.batch == batch:
                if mine != found.rows:
                    written.drop(store, mine)  # another process has decided first
                _check_rows(store, found, hashes, writer)
                written.drop(store, found.rows_before)
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
            before += store.publish(found.stages)  # it was decided, and the server has lost that it was published
        if (there := sum(staged[one] for one in stages)) != rows:
            if ledger_of(store, sink) != found:
                continue  # somebody else has just published it
            raise StoreError(
                f"batch {batch} of sink {sink!r}: {plural(rows, 'row')} staged, {there:,} left: another process "
                "discarded some; nothing was published, and the batch can be written again",
                sink=sink,
                batch=batch,
            )
        value = _value(found.id if found else None, batch, stages) | ({"members": dict(members)} if members else {})
        if hashes is not None:
            value["rows"] = mine = written.keep(store, sink, batch, hashes)
        if found and isinstance(found.rows, tuple):
            value["rows_before"] = found.rows
        if store.set_note(LEDGER_PREFIX + sink, value, note.version if note else 0):
            winners = stages
            if found:
                written.drop(store, found.rows)
            break
    published = store.publish(winners)
    for number in {batch_of(one.stage) for one in store.staged(sink)}:
        if number <= batch:
            store.unstage(f"{sink}/{number}", keep=winners)
    return before + published


def _check_rows(store: Store, ledger: Ledger, hashes: bytes | None, writer: Writer) -> None:
    """Raise `CheckpointError` if a batch that is written comes again with other rows; warn of it, in a job."""
    before = None if hashes is None else written.kept(store, ledger.rows)
    if hashes is None or before is None or not (other := written.others(hashes, before)):
        return
    if writer is Writer.JOB:
        log.warning(
            "txnVersion %d of txnAppId %s was written before, without %s that it has now: nothing was written",
            ledger.batch, ledger.sink, plural(other, "row"),
        )  # fmt: skip
        return
    raise CheckpointError(
        f"batch {ledger.batch} of sink {ledger.sink!r} is written, and comes again with {plural(other, 'row')} that "
        "it did not have: they would be lost. Nothing was written now. Start the query with a new checkpoint; in "
        "foreachBatch set a new txnAppId, and another one for each write of a batch. If the query makes other rows "
        "each time it runs (random values, the clock), set replayCheck=none: then they are left out",
        sink=ledger.sink,
        batch=ledger.batch,
    )


def begin(store: Store, sink: str) -> None:
    """Write the ledger of a sink that has none, before anything is published for it."""
    store.set_note(LEDGER_PREFIX + sink, _value(None, NOTHING, ()), 0)


def apart(stores: Mapping[str, Store], sink: str) -> dict[str, Ledger | None]:
    """The ledgers of a sink in several databases, each of which has one from now on.

    Raises `OptionError` where two of these are the same database under two URLs: what the sink publishes in one it
    would take for left behind in the other.
    """
    names: dict[str, str] = {}
    ledgers: dict[str, Ledger | None] = {}
    for name, store in stores.items():
        found = ledgers[name] = ledger_of(store, sink)
        if found is None:
            begin(store, sink)
            found = ledger_of(store, sink)
        if found and found.id and (other := names.setdefault(found.id, name)) != name:
            raise OptionError(
                f"{other!r} and {name!r} are the same database under two URLs: use the same URL for both",
                option="urls",
            )
    return ledgers


def forget(store: Store, sink: str) -> int:
    """Remove the ledger of a sink that will never write again, then all that it has staged; give the rows of that.

    In this order: who stages looks for the ledger afterwards, and so one of the two sees the other.
    """
    if note := store.note(LEDGER_PREFIX + sink):
        store.set_note(LEDGER_PREFIX + sink, None, note.version)
        _drop_rows(store, note)
    return store.unstage(sink)


def set_ledger(store: Store, sink: str, batch: int) -> None:
    """Set the last batch that the sink has written, whatever version wrote its ledger.

    What it has staged is kept.
    """
    note = store.note(LEDGER_PREFIX + sink)
    value = _value(note.value.get("id") if note else None, batch, ())
    if not store.set_note(LEDGER_PREFIX + sink, value, note.version if note else 0):
        raise FencedError(f"sink {sink!r} is at work: its ledger changed just now", sink=sink)
    if note:
        _drop_rows(store, note)


def _drop_rows(store: Store, note: Note) -> None:
    """Remove the notes about rows that a ledger names."""
    for key in ("rows", "rows_before"):
        written.drop(store, written.of_json(note.value.get(key)))


def batch_of(stage: str) -> int:
    """The batch that a stage is for."""
    return int(stage.split("/")[1])


def _value(id: str | None, batch: int, stages: Sequence[str]) -> dict[str, Any]:
    return {"v": LEDGER_VERSION, "id": id or uuid.uuid4().hex, "batch": batch, "stages": list(stages)}
