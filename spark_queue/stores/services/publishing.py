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
from dataclasses import dataclass
from typing import Any

from spark_queue.errors import CheckpointError, OptionError, StoreError, plural
from spark_queue.stores.base import Store
from spark_queue.stores.services import row_hashes
from spark_queue.stores.services.ledger import (
    LEDGER_PREFIX,
    NO_BATCH,
    Ledger,
    Share,
    Writer,
    batch_of,
    identify_ledger,
    is_decided,
    ledger_of,
    note_value,
)
from spark_queue.stores.types import Note

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Ledgers:
    """The ledgers of a sink as they were read, by the names of their databases."""

    sink: str
    found: Mapping[str, Ledger | None]

    @property
    def last_batch(self) -> int:
        """The newest batch that one of the databases has decided on."""
        return max((one.batch for one in self.found.values() if one), default=NO_BATCH)

    @property
    def last(self) -> Ledger | None:
        """The newest decision: that of the coordinator, if its ledger has it."""
        at = [one for one in self.found.values() if one and one.batch == self.last_batch]
        return min(at, key=lambda one: not one.shares or one.shares[0].id != one.id, default=None)

    def is_decided(self, batch: int, writer: Writer) -> bool:
        """Return whether one of the databases has decided on this batch.

        Raises `CheckpointError` and `FencedError` as `is_decided`. Raises `CheckpointError` if the
        last decision has a database that is missing here.
        """
        self._check_members(batch)
        decided = [
            is_decided(ledger, self.sink, batch, self._writer_to(name, batch, writer))
            for name, ledger in self.found.items()
        ]
        return any(decided)

    def _writer_to(self, name: str, batch: int, writer: Writer) -> Writer:
        joins = writer is Writer.STREAM and len(self.found) > 1 and self.first_batch(name, batch) == batch
        return Writer.JOINING if joins else writer

    def first_batch(self, name: str, batch: int) -> int:
        """Return the first batch of a database. One that no ledger names counts from this batch.

        Without any ledger, all count from 0.
        """
        known = [one for one in self.found.values() if one and batch - 1 <= one.batch <= batch]
        own = self.found[name]
        by_id = {share.id: share.first for one in known for share in one.shares}
        if own and own.id in by_id:
            return by_id[own.id]
        by_name = {one: first for ledger in known for one, first in ledger.members.items()}
        return by_name.get(name, batch if known else 0)

    def _check_members(self, batch: int) -> None:
        """Raise `CheckpointError` if a database of the last decision is missing, or its ledger."""
        last = self.last
        here = {one.id for one in self.found.values() if one}
        for share in last.shares if last else ():
            own = self.found.get(share.name)
            if share.id in here or (own and own.batch >= share.first and own.batch == self.last_batch):
                continue  # the second: its ledger was set manually
            if share.name in self.found:
                is_decided(None, self.sink, batch, Writer.STREAM)
            raise CheckpointError(
                f"sink {self.sink!r}: batch {self.last_batch} was also written to {share.name!r}, which the query no "
                "longer writes to. It is unknown whether its part is visible there. Nothing was written now. Name "
                "that database again (in option 'urls' or in the graph) until a batch has run. If its part is there, "
                f"or the database is gone, run: spark-queue ledger set URL {self.sink} {self.last_batch} for each of "
                "the others",
                sink=self.sink,
                batch=self.last_batch,
            )

    @property
    def coordinator(self) -> str:
        """The name of the database that decides the next batch."""
        return self._in_order[0]

    @property
    def _in_order(self) -> list[str]:
        """The names of the databases: in the order of the last decision, new ones by id."""
        ids = {name: one.id if one else "" for name, one in self.found.items()}
        last = [one.id for one in (self.last.shares if self.last else ())]
        return sorted(ids, key=lambda name: (last.index(ids[name]) if ids[name] in last else len(last), ids[name]))

    def shares(self, batch: int, rows: Mapping[str, int]) -> tuple[Share, ...]:
        """Return the share of each database in a batch, that of the coordinator first.

        A sink with a single database has none.
        """
        if len(self.found) == 1:
            return ()
        return tuple(
            Share(one.id, name, self.first_batch(name, batch), rows.get(name, 0))
            for name in self._in_order
            if (one := self.found[name])
        )

    def takes_part(self, name: str, decided: Ledger) -> bool:
        """Return whether a database has a share in a decision.

        Earlier versions named the databases: then each that has a ledger counts.
        """
        own = self.found[name]
        if own is None or own is decided:
            return own is decided
        return own.id in {one.id for one in decided.shares} or (not decided.shares and bool(decided.members))

    def name_of(self, decided: Ledger) -> str:
        """Return the name of the database in whose ledger a decision is."""
        return next(name for name, one in self.found.items() if one is decided)


def read_ledgers(stores: Mapping[str, Store], sink: str, *, create: bool = False) -> Ledgers:
    """Return the ledgers of a sink. `create`: those of several databases that are missing.

    Raises `OptionError` if two of these are the same database under two URLs: stages in one would
    then look abandoned in the other.
    """
    found = {name: ledger_of(store, sink) for name, store in stores.items()}
    if create and len(stores) > 1:
        for name in [name for name, one in found.items() if one is None or not one.id]:
            identify_ledger(stores[name], sink)
            found[name] = ledger_of(stores[name], sink)
    names_by_id: dict[str, str] = {}
    for name, one in found.items():
        if one and one.id and (other := names_by_id.setdefault(one.id, name)) != name:
            raise OptionError(
                f"{other!r} and {name!r} are the same database under two URLs: use the same URL for both",
                option="urls",
            )
    return Ledgers(sink, found)


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

        `rows`: how many rows the stages have in each database. An earlier decision is published
        first, if a driver or a server has lost that. May be repeated at any time, even with other
        stages: the stages of the first decision count. Other stages of this batch and earlier ones
        are discarded. `hashes`: of all rows of the batch, to compare them if it comes again (see
        `row_hashes.py`); `None` to compare none.

        Raises `CheckpointError` and `FencedError` as `Ledgers.is_decided` does. Raises
        `CheckpointError` if the batch was written with other rows, and `StoreError` if some staged
        rows are gone; then nothing of the batch becomes visible in that database.
        """
        published, saved = 0, None
        while True:
            ledgers = read_ledgers(self._stores, self._sink, create=True)
            if ledgers.is_decided(batch, writer):
                break
            staged = {name: self._staged(name) for name in self._stores}
            took, again = self._complete(ledgers, staged)
            published += again
            if took or not self._has_all(ledgers, staged, batch, stages, rows):
                continue
            name = ledgers.coordinator
            before = ledgers.found[name]
            shares = ledgers.shares(batch, rows)
            value = note_value(before.id if before else None, batch, stages, shares)
            if hashes is not None:
                value["rows"] = saved = row_hashes.save_hashes(self._stores[name], self._sink, batch, hashes)
            if self._replace(name, before, value):
                hashes = None  # they are those that it has
                note = Note(value, before.version + 1 if before else 1)
                ledgers = Ledgers(self._sink, {**ledgers.found, name: Ledger.from_note(self._sink, note)})
                break
        decided = ledgers.last
        assert decided is not None
        if decided.batch == batch:
            if saved != decided.rows:
                row_hashes.delete_hashes(self._stores[ledgers.coordinator], saved)  # another process decided first
            self._check_rows(ledgers, decided, hashes, writer)
            return published + self._finish(ledgers, decided)
        log.warning(
            "txnVersion %d of txnAppId %s is below %d, the last one that was written: nothing was written",
            batch, self._sink, decided.batch,
        )  # fmt: skip
        for name in self._stores:
            self._discard(name, batch)
        return published

    def complete(self, *, rest: bool = False) -> int:
        """Publish what was decided last, in all databases; return how many became visible now.

        Raises `StoreError` if some staged rows are gone in a database, unless `rest` is set: then
        what is left there becomes visible.
        """
        ledgers = read_ledgers(self._stores, self._sink)
        staged = {name: self._staged(name) for name in self._stores}
        return self._complete(ledgers, staged, rest=rest)[1]

    # --- what was decided -------------------------------------------------------------------------

    def _complete(
        self, ledgers: Ledgers, staged: Mapping[str, Counter[str]], *, rest: bool = False
    ) -> tuple[bool, int]:
        """Publish the last decision in all databases that have not done so.

        Returns whether a ledger has changed, and how many messages became visible.
        """
        took, published, last = False, 0, ledgers.last
        for name, one in ledgers.found.items():
            batch = one.batch if one else NO_BATCH
            if last is not None and batch < last.batch and ledgers.takes_part(name, last):
                took = True
                self._take(name, one, last, rest=rest)
                published += self._stores[name].publish(last.stages)
            elif one and not staged[name].keys().isdisjoint(one.stages):
                published += self._stores[name].publish(one.stages)  # the server has lost this publish
        return took, published

    def _finish(self, ledgers: Ledgers, decided: Ledger) -> int:
        """Publish a decision in all databases, and discard the other stages up to its batch."""
        published = 0
        for name, one in ledgers.found.items():
            if ledgers.takes_part(name, decided):
                self._take(name, one, decided)
                published += self._stores[name].publish(decided.stages)
                self._discard(name, decided.batch, decided.stages)
            if one and one.batch == decided.batch:
                row_hashes.delete_hashes(self._stores[name], one.rows_before)
        return published

    def _take(self, name: str, ledger: Ledger | None, decided: Ledger, *, rest: bool = False) -> None:
        """Take a decision into the ledger of a database, unless it has it.

        Its staged rows must be there, but for `rest`: an earlier version did not note their number.
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
                raise StoreError(
                    f"batch {decided.batch} of sink {self._sink!r} is decided, with {plural(share.rows, 'row')} for "
                    f"{name!r}, and {left:,} are left there: the others were discarded. None of them is visible "
                    "there. To publish the rest: spark-queue recover URL QUEUE CONSUMER, with --sink URL for each "
                    "database of the sink",
                    sink=self._sink,
                    batch=decided.batch,
                )
            value = note_value(ledger.id if ledger else None, decided.batch, decided.stages, decided.shares)
            if self._replace(name, ledger, value):
                return
            ledger = ledger_of(self._stores[name], self._sink)
        if ledger.batch == decided.batch and ledger.stages != decided.stages:
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
                "was changed there. Look whether they are visible in another way, then run: spark-queue ledger set "
                f"URL {self._sink} {max(lost)}, after which the query goes on without these rows",
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

    # --- staged rows ------------------------------------------------------------------------------

    def _staged(self, name: str) -> Counter[str]:
        """Return the number of rows of each stage in a database."""
        staged: Counter[str] = Counter()
        for one in self._stores[name].staged(self._sink):
            staged[one.stage] += one.rows
        return staged

    def _has_all(
        self,
        ledgers: Ledgers,
        staged: Mapping[str, Counter[str]],
        batch: int,
        stages: Sequence[str],
        rows: Mapping[str, int],
    ) -> bool:
        """Return whether all rows of a batch are staged; false if the ledgers have changed."""
        left = {name: sum(staged[name][one] for one in stages) for name in self._stores}
        if all(left[name] == rows.get(name, 0) for name in left):
            return True
        if read_ledgers(self._stores, self._sink).found != ledgers.found:
            return False  # another process has just published it
        raise StoreError(
            f"batch {batch} of sink {self._sink!r}: {plural(sum(rows.values()), 'row')} staged, "
            f"{sum(left.values()):,} left: another process "
            "discarded some; nothing was published, and the batch can be written again",
            sink=self._sink,
            batch=batch,
        )

    def _discard(self, name: str, batch: int, keep: Sequence[str] = ()) -> None:
        """Discard the stages of a database up to a batch, but those to keep."""
        for number in {batch_of(one) for one in self._staged(name)}:
            if number <= batch:
                self._stores[name].unstage(f"{self._sink}/{number}", keep=keep)

    # --- rows that come again ---------------------------------------------------------------------

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
            f"{plural(unwritten, 'row')} that "
            "it did not have: they would be lost. Nothing was written now. Start the query with a new checkpoint; in "
            "foreachBatch set a new txnAppId, and another one for each write of a batch. If the query makes other "
            "rows each time it runs (random values, the clock), set replayCheck=none: then they are left out",
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
