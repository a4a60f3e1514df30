"""The ledgers of a sink, one in each of its databases: what is decided, and who decides next.

See `publishing.py` for how a batch is decided. A database is known by the id of its ledger, not by
its name or its place in the options.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spark_queue.errors import CheckpointError, OptionError
from spark_queue.stores.base import Store
from spark_queue.stores.services.ledger import (
    NO_BATCH,
    Ledger,
    Share,
    Writer,
    identify_ledger,
    is_decided,
    ledger_of,
)


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
                continue  # the second: its ledger was set with `spark-queue ledger set`
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
