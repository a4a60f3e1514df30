"""The ledgers of a sink, one in each of its databases: what is decided, and who decides next.

See `publishing.py` for how a batch is decided. A database is known by the id of its ledger, not by
its name or its place in the options.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spark_queue.errors import CheckpointError, OptionError, plural
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
        return min(at, key=lambda one: (one.was_set, not one.shares or one.shares[0].id != one.id), default=None)

    def is_decided(self, batch: int, writer: Writer) -> bool:
        """Return whether one of the databases has decided on this batch.

        Raises `CheckpointError` and `FencedError` as `is_decided`. Raises `CheckpointError` if a
        database of the last decision is missing here, or has lost its last writes.
        """
        self._check_members(writer)
        decided = [
            is_decided(self._completed(name), self.sink, batch, self._writer_to(name, batch, writer))
            for name in self.found
        ]
        return any(decided)

    def _completed(self, name: str) -> Ledger | None:
        """Return the ledger of a database as it is when the last decision is complete."""
        last = self.last
        return last if last and last.shares and self.takes_part(name, last) else self.found[name]

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

    def _check_members(self, writer: Writer) -> None:
        """Raise `CheckpointError` if a database of the last decision is missing, or went back."""
        shares = self.last.shares if self.last else ()
        ids = {one.id for one in shares}
        for share in shares:
            name = self._name_of_share(share)
            own = self.found.get(name or share.name)
            if name is None and (share.name not in self.found or (own and own.id in ids)):
                raise self._has_left(share)
            # Batches of a stream have no gaps, and each is in all databases before the next one.
            at_least = self.last_batch - 1 if writer is Writer.STREAM and share.first < self.last_batch else NO_BATCH
            if name is None or own is None or own.batch < at_least:
                has_none = own is None or own.batch == NO_BATCH
                state = "it has no ledger" if has_none else f"its ledger ends with {own and own.batch}"
                raise went_back(self.sink, name or share.name, self.last_batch, share.rows, state)

    def _has_left(self, share: Share) -> CheckpointError:
        return CheckpointError(
            f"sink {self.sink!r}: batch {self.last_batch} was also written to {share.name!r}, which the query no "
            "longer writes to. It is unknown whether its part is visible there. Nothing was written now. Name that "
            "database again (in option 'urls' or in the graph) until a batch has run. If its part is there, or the "
            f"database is gone, run: spark-queue ledger set URL {self.sink} {self.last_batch} for each of the others",
            sink=self.sink,
            batch=self.last_batch,
        )

    def _name_of_share(self, share: Share) -> str | None:
        """Return the name of the database that has a share in the last decision, if it is here.

        It has the ledger of the share. If that was lost, and set with `spark-queue ledger set`, the
        database is known by its name.
        """
        for name, one in self.found.items():
            if one and one.id == share.id:
                return name
        own = self.found.get(share.name)
        return share.name if own and own.was_set and own.batch == self.last_batch else None

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
        """Return whether a database has a share in the last decision.

        Earlier versions named the databases: then each that has a ledger counts.
        """
        own = self.found[name]
        if own is None or own is decided:
            return own is decided
        if not decided.shares:
            return bool(decided.members)
        return name in map(self._name_of_share, decided.shares)

    def to_publish(self, name: str) -> Ledger | None:
        """Return the decision whose stages a database has to publish: the last one, or its own.

        If its ledger was set with `spark-queue ledger set`, these are the rows that are left.
        """
        last, own = self.last, self.found[name]
        if last and self.takes_part(name, last) and (own is None or own.batch < last.batch or own.was_set):
            return last
        return own

    def name_of(self, decided: Ledger) -> str:
        """Return the name of the database in whose ledger a decision is."""
        return next(name for name, one in self.found.items() if one is decided)


def went_back(sink: str, name: str, batch: int, rows: int, state: str) -> CheckpointError:
    """Return the error of a database that has lost its last writes. `state`: how that is known."""
    return CheckpointError(
        f"sink {sink!r}: batch {batch} is decided, with {plural(rows, 'row')} for {name!r}, but {state}. That "
        "database was restored from a copy, has lost its last writes, or is another one. Its rows of this batch "
        "and earlier ones may be missing. Nothing was changed there. Check which of them are there. To go on without "
        f"those that are missing, run: spark-queue ledger set URL {sink} {batch}, with the URL of {name!r}",
        sink=sink,
        batch=batch,
    )


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
