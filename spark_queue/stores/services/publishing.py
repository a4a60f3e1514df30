"""Publish a batch of a sink: decide it once, for all databases, then make its stages visible.

A sink may write to several databases. A batch that comes again may have other rows in each of them,
because a rule of the query is random, for example. So one decision holds for all:

1. Tasks read all ledgers, then stage their rows. If any ledger is at the batch, it is decided, and
   they stage nothing.
2. The driver decides by one compare-and-set, in the ledger of the *coordinator*. It names all
   stages, and how many rows each database has. The coordinator is the first database of the last
   decision, so all programs agree on it.
3. The other databases take that decision into their ledgers, whatever rows the present run has.
4. The stages become visible. The next batch is not decided before all databases have this one.

A database is known by the id of its ledger, not by its name or its place in the options. Its stages
of a batch are discarded only when its own ledger is at that batch.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from spark_queue.errors import CheckpointError, StoreError, plural
from spark_queue.stores.base import Store
from spark_queue.stores.services import row_hashes
from spark_queue.stores.services.ledger import (
    LEDGER_PREFIX,
    NO_BATCH,
    Ledger,
    Writer,
    batch_of,
    ledger_of,
    note_value,
)
from spark_queue.stores.services.sink_ledgers import Ledgers, read_ledgers, went_back
from spark_queue.stores.types import Note

log = logging.getLogger(__name__)


class Proposal(NamedTuple):
    """A staged batch: its stages, how many rows they have in each database, and their hashes."""

    batch: int
    stages: tuple[str, ...]
    rows: Mapping[str, int]
    hashes: bytes | None


class Decided(NamedTuple):
    """The ledgers, one of which has a decision on a batch or on a later one.

    `published`: how many messages of the decision before it became visible now. `is_own`: whether
    this process has just made it.
    """

    ledgers: Ledgers
    published: int
    is_own: bool = False


class Publisher:
    """Publishes the batches of one sink in all its databases. For one thread."""

    def __init__(self, stores: Mapping[str, Store], sink: str) -> None:
        """Remember the sink, and all its databases by name."""
        self._stores, self._sink = stores, sink

    def publish_batch(
        self,
        batch: int,
        stages: Sequence[str],
        rows: Mapping[str, int],
        writer: Writer,
        *,
        hashes: bytes | None = None,
    ) -> int:
        """Publish a staged batch; return how many messages became visible now.

        `rows`: how many rows the stages have in each database. If a driver or a server has lost the
        publish of the last decision, that is published first. May be repeated at any time, even
        with other stages: the stages of the first decision count. Other stages of this batch and
        earlier ones are discarded. `hashes`: of all rows of the batch, to compare them if it comes
        again (see `row_hashes.py`); `None` to compare none.

        Raises `CheckpointError` and `FencedError` as `Ledgers.is_decided` does. Raises
        `CheckpointError` if the batch was written with other rows, or a database has lost its last
        writes. Raises `StoreError` if rows of an undecided batch are gone. Then nothing of the
        batch becomes visible in that database.
        """
        found = self._decide(Proposal(batch, tuple(stages), rows, hashes), writer)
        decided = found.ledgers.last
        assert decided is not None
        if decided.batch != batch:
            return found.published + self._leave_out(batch, decided)
        if not found.is_own:
            self._check_rows(found.ledgers, decided, hashes, writer)
        return found.published + self._finish(found.ledgers, decided)

    def complete(self, *, rest: bool = False) -> int:
        """Publish what was decided last, in all databases; return how many became visible now.

        Raises `CheckpointError` if a database has lost its last writes, or a batch was decided
        twice. With `rest`, staged rows may be missing: those that are left become visible.
        """
        ledgers = read_ledgers(self._stores, self._sink)
        staged = {name: self._staged(name) for name in self._stores}
        return self._complete(ledgers, staged, rest=rest)[1]

    # --- 1. decide --------------------------------------------------------------------------------

    def _decide(self, proposal: Proposal, writer: Writer) -> Decided:
        """Decide a batch, unless that is done. The last decision is published first.

        Raises `CheckpointError`, `FencedError` and `StoreError` as `publish_batch` does.
        """
        batch, published, saved = proposal.batch, 0, None
        while True:
            ledgers = read_ledgers(self._stores, self._sink, create=True)
            if ledgers.is_decided(batch, writer):
                break
            staged = {name: self._staged(name) for name in self._stores}
            took, again = self._complete(ledgers, staged)
            published += again
            if took or not self._has_all(ledgers, staged, proposal):
                continue
            name = ledgers.coordinator
            before = ledgers.found[name]
            shares = ledgers.shares(batch, proposal.rows)
            value = note_value(before.id if before else None, batch, proposal.stages, shares)
            if proposal.hashes is not None:
                saved = row_hashes.save_hashes(self._stores[name], self._sink, batch, proposal.hashes)
                value["rows"] = saved
            if self._replace(name, before, value):
                note = Note(value, before.version + 1 if before else 1)
                own = Ledger.from_note(self._sink, note)
                return Decided(Ledgers(self._sink, {**ledgers.found, name: own}), published, is_own=True)
        if ledgers.last and saved != ledgers.last.rows:
            row_hashes.delete_hashes(self._stores[ledgers.coordinator], saved)  # another process decided first
        return Decided(ledgers, published)

    def _complete(
        self, ledgers: Ledgers, staged: Mapping[str, Counter[str]], *, rest: bool = False
    ) -> tuple[bool, int]:
        """Publish the last decision in all databases that have not done so.

        Returns whether a ledger has changed, and how many messages became visible. Raises
        `CheckpointError` as `complete`.
        """
        took, published = False, 0
        for name, one in ledgers.found.items():
            decided = ledgers.to_publish(name)
            if decided is None:
                continue
            if one is None or one.batch < decided.batch:
                took = True
                self._take(name, one, decided, rest=rest)
                published += self._stores[name].publish(decided.stages)
            elif not staged[name].keys().isdisjoint(decided.stages):
                published += self._stores[name].publish(decided.stages)  # the server has lost this publish
        return took, published

    def _has_all(self, ledgers: Ledgers, staged: Mapping[str, Counter[str]], proposal: Proposal) -> bool:
        """Return whether all rows of a batch are staged; false if the ledgers have changed.

        Raises `StoreError` if another process has discarded some.
        """
        rows = proposal.rows
        left = {name: sum(staged[name][one] for one in proposal.stages) for name in self._stores}
        if all(left[name] == rows.get(name, 0) for name in left):
            return True
        if read_ledgers(self._stores, self._sink).found != ledgers.found:
            return False  # another process has just published it
        raise StoreError(
            f"batch {proposal.batch} of sink {self._sink!r}: {plural(sum(rows.values()), 'row')} staged, "
            f"{sum(left.values()):,} left: another process discarded some; nothing was published, "
            "and the batch can be written again",
            sink=self._sink,
            batch=proposal.batch,
        )

    # --- 2. compare the rows of a batch that comes again ------------------------------------------

    def _check_rows(self, ledgers: Ledgers, decided: Ledger, hashes: bytes | None, writer: Writer) -> None:
        """Raise `CheckpointError` if a decided batch has other rows now; in a job, log it."""
        written = None if hashes is None else self._written_hashes(ledgers, decided)
        if hashes is None or written is None or not (unwritten := row_hashes.count_unwritten(hashes, written)):
            return
        if writer is Writer.JOB:
            log.warning(
                "txnVersion %d of txnAppId %s was written before, without %s that it has now: nothing was written",
                decided.batch, self._sink, plural(unwritten, "row"),
            )  # fmt: skip
            return
        raise CheckpointError(
            f"batch {decided.batch} of sink {self._sink!r} is written, and comes again with "
            f"{plural(unwritten, 'row')} that it did not have: they would be lost. Nothing was written now. "
            "Start the query with a new checkpoint; in foreachBatch set a new txnAppId, and another one for each "
            "write of a batch. If the query makes other rows each time it runs (random values, the clock), set "
            "replayCheck=none: then they are left out",
            sink=self._sink,
            batch=decided.batch,
        )

    def _written_hashes(self, ledgers: Ledgers, decided: Ledger) -> bytes | None:
        """Return the hashes of a decided batch; `None` if those of a database are unknown.

        Each database had its own in earlier versions.
        """
        if decided.shares or len(self._stores) == 1:
            return row_hashes.load_hashes(self._stores[ledgers.name_of(decided)], decided.rows)
        found = [
            row_hashes.load_hashes(self._stores[name], one.rows if one and one.batch == decided.batch else None)
            for name, one in ledgers.found.items()
        ]
        return None if None in found else b"".join(one for one in found if one)

    # --- 3. publish, and discard the rest ---------------------------------------------------------

    def _finish(self, ledgers: Ledgers, decided: Ledger) -> int:
        """Publish a decision in all databases, and discard the other stages up to its batch.

        Raises `CheckpointError` as `complete`.
        """
        published = 0
        for name, one in ledgers.found.items():
            if ledgers.takes_part(name, decided):
                self._take(name, one, decided)
                published += self._stores[name].publish(decided.stages)
                self._discard(name, decided.batch, decided.stages)
            if one and one.batch == decided.batch:
                row_hashes.delete_hashes(self._stores[name], one.rows_before)
        return published

    def _leave_out(self, batch: int, decided: Ledger) -> int:
        """Discard what was staged for a batch that a job has written before; return 0."""
        log.warning(
            "txnVersion %d of txnAppId %s is below %d, the last one that was written: nothing was written",
            batch, self._sink, decided.batch,
        )  # fmt: skip
        for name in self._stores:
            self._discard(name, batch)
        return 0

    # --- one database -----------------------------------------------------------------------------

    def _take(self, name: str, ledger: Ledger | None, decided: Ledger, *, rest: bool = False) -> None:
        """Take a decision into the ledger of a database, unless it has it.

        Its staged rows must be there, but for `rest`: an earlier version did not note their number.
        Raises `CheckpointError` as `complete`.
        """
        share = next((one for one in decided.shares if ledger and one.id == ledger.id), None)
        while ledger is None or ledger.batch < decided.batch:
            staged = self._staged(name)
            self._check_lost(name, ledger, decided, staged)
            left = sum(staged[one] for one in decided.stages)
            if share and not rest and left != share.rows:
                if (now := ledger_of(self._stores[name], self._sink)) != ledger:
                    ledger = now  # another process has just published them
                    continue
                state = f"{left:,} of them {'is' if left == 1 else 'are'} staged there"
                raise went_back(self._sink, name, decided.batch, share.rows, state)
            value = note_value(ledger.id if ledger else None, decided.batch, decided.stages, decided.shares)
            if self._replace(name, ledger, value):
                return
            ledger = ledger_of(self._stores[name], self._sink)
        if ledger.batch == decided.batch and ledger.stages != decided.stages and not ledger.was_set:
            raise CheckpointError(
                f"batch {decided.batch} of sink {self._sink!r} was decided twice, otherwise in {name!r}: two queries "
                "ran on one checkpoint, with other databases. Nothing was published there. Look at both with: "
                "spark-queue ledger list URL",
                sink=self._sink,
                batch=decided.batch,
            )

    def _check_lost(self, name: str, ledger: Ledger | None, decided: Ledger, staged: Mapping[str, int]) -> None:
        """Raise `CheckpointError` if a database has staged rows between its batch and the next one.

        Each batch is in all databases before the next one is decided: so it has lost that one.
        """
        last = ledger.batch if ledger else NO_BATCH
        lost = {batch_of(one) for one in staged if last < batch_of(one) < decided.batch}
        if lost and ledger_of(self._stores[name], self._sink) == ledger:
            raise CheckpointError(
                f"sink {self._sink!r}: {name!r} has lost its last writes, such as in a failover: it is at batch "
                f"{last}, batch {decided.batch} is decided, and rows of batch {max(lost)} are staged there. Nothing "
                "was changed there. Look whether they are visible in another way. To go on without these rows, run: "
                f"spark-queue ledger set URL {self._sink} {max(lost)}, with the URL of {name!r}",
                sink=self._sink,
                batch=decided.batch,
            )

    def _replace(self, name: str, before: Ledger | None, value: dict[str, Any]) -> bool:
        """Write a ledger, unless another process has changed it."""
        if before and isinstance(before.rows, tuple):
            value["rows_before"] = before.rows
        replaced = self._stores[name].set_note(LEDGER_PREFIX + self._sink, value, before.version if before else 0)
        if replaced and before:
            row_hashes.delete_hashes(self._stores[name], before.rows)
        return replaced

    def _staged(self, name: str) -> Counter[str]:
        """Return the number of rows of each stage in a database."""
        staged: Counter[str] = Counter()
        for one in self._stores[name].staged(self._sink):
            staged[one.stage] += one.rows
        return staged

    def _discard(self, name: str, batch: int, keep: Sequence[str] = ()) -> None:
        """Discard the stages of a database up to a batch, but those to keep."""
        for number in {batch_of(one) for one in self._staged(name)}:
            if number <= batch:
                self._stores[name].unstage(f"{self._sink}/{number}", keep=keep)
