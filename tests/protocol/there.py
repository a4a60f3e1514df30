"""What is there after a step of a scenario, beside what the model says."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from typing import Any

from spark_queue.messages.message import Message, messages
from spark_queue.stores.base import Store
from spark_queue.stores.services.ledger import ledger_of
from spark_queue.stores.services.owner import OWNER_NOTE, ConsumerState
from spark_queue.stores.types import Note as Facts
from spark_queue.stores.types import queue_note_key
from tests.protocol.possible import AT_ONCE
from tests.protocol.process import Checkpoint
from tests.protocol.state import ELSEWHERE, FREE, GONE, LATER, Held, Ledger, Note, State, Tag, Where, World, of_queue


class Differs(AssertionError):
    """The code does something else than the model."""


class There:
    """The queues and the checkpoint of a scenario, and the names that things have in the code."""

    def __init__(self, store: Store, name: str, world: World, other: Store | None = None) -> None:
        """`other`: the second database of the sink, if the world has two."""
        self.store, self.world = store, world
        self.sinks = [store, other] if world.databases > 1 and other else [store]
        self.queues = [name, f"{name}.two"][: world.queues]
        self.out = f"{name}.out"
        self.queries = [uuid.uuid4().hex for _ in range(world.queries)]  #: by the number of the query in the model
        self.disks = [Checkpoint(query) for query in self.queries]
        self.epochs: dict[int, str] = {}  #: consumers, by the number of their epoch
        self.numbers: dict[tuple[int, int, int], int] = {}  #: of processes, by epoch, queue and number in the model
        self.elsewhere: set[int] = set()  #: what another consumer has taken
        self._checked: State | None = None

    def tag(self, tag: Tag) -> str:
        """Return the tag of the code."""
        return f"{self.epochs[tag.epoch]}/{tag.seq}.{self.numbers[tag.epoch, tag.queue, tag.by]}"

    def check(self, state: State) -> None:
        """Compare all that is there with a state of the model. Raises `Differs`."""
        plain = state._replace(drivers=(), copy=None, backup=None, faults=())
        if plain == self._checked or any(one and one.step in AT_ONCE and one.queue for one in state.drivers):
            return  # the step was none of a database's; or the code takes it with the next one
        self._checked = plain
        for what, (here, there) in self._facts(state).items():
            if here != there:
                raise Differs(f"{what}: {here} in the model, {there} in the store")

    def _facts(self, state: State) -> dict[str, tuple[Any, Any]]:
        found: dict[str, tuple[Any, Any]] = {}
        found["messages"] = [self._where(one) for one in state.messages], self._messages(state)
        seen = Counter(one.payload for store in self.sinks for one in _peeked(store, self.out))
        found["visible"] = list(state.visible), [seen[n] for n in range(self.world.messages)]
        notes = {key: one for queue in self.queues for key, one in self.store.notes(queue_note_key(queue)).items()}
        for epoch, its in enumerate(state.notes):
            for queue, note in enumerate(its):
                found[f"note of epoch {epoch}{of_queue(queue)}"] = self._note(epoch, queue, note, notes)
        for key, ledger in enumerate(state.ledgers):
            found[f"ledger {key}"] = self._ledger(state, key, ledger)
        for query in range(len(state.bound)):
            keys = [queue_note_key(queue, "query", f"{self.queries[query]}/") for queue in self.queues]
            reads = [notes[key].value["consumer"] if key in notes else None for key in keys]
            bound = [self.epochs[one] if one >= 0 else None for one in state.bound[query]]
            if self.world.combine == "zip":  # the code binds an input when it has read those before it
                reads = [one or (bound[queue] if queue else None) for queue, one in enumerate(reads)]
            found[f"what query {query} reads"] = bound, reads
        for number, (disk, there) in enumerate(zip(state.disks, self.disks, strict=True)):
            found[f"checkpoint {number}"] = (
                (self.queries[disk.query], len(disk.offsets), disk.finished),
                (there.query, len(there.offsets), there.finished),
            )
        return found

    def _where(self, where: Where) -> str:
        return f"held by {self.tag(where.tag)}, {where.lease}" if isinstance(where, Held) else where

    def _messages(self, state: State) -> list[str]:
        """Return where each message is."""
        there: dict[str, str] = {}
        now = time.time() * 1000  # of this machine: its leases end in minutes, or have ended a second ago
        for queue in self.queues:
            there |= {one.id: FREE for one in _peeked(self.store, queue)}
            for held in self.store.reservations(queue):
                lease = "never" if held.until is None else "ended" if held.until <= now else "ends"
                for one in messages(next(self.store.fetch(queue, held.tag))):
                    there[one.id] = f"held by {held.tag.rpartition('/')[0]}, {lease}"
        return [
            ELSEWHERE if n in self.elsewhere else there.get(id_of(n), LATER if where == LATER else GONE)
            for n, where in enumerate(state.messages)
        ]

    def _note(self, epoch: int, queue: int, note: Note | None, notes: dict[str, Facts]) -> tuple[Any, Any]:
        facts = notes.get(queue_note_key(self.queues[queue], OWNER_NOTE, self.epochs[epoch]))
        has = ConsumerState.from_note(facts) if facts else None
        removed = bool(note and not note.owner and has and not has.owner)  # a recovery removes it, too
        number = note.owner and self.numbers[epoch, queue, note.owner] if note else 0
        reserved = has.reserved if has and self.world.notes_reserved else None
        return (
            note and (number, *(one and self.tag(one) for one in (note.started, note.reserved))),
            has
            and (
                0 if removed else has.number,
                *(one and f"{self.epochs[epoch]}/{one}" for one in (has.started, reserved)),
            ),
        )

    def _ledger(self, state: State, key: int, ledger: Ledger) -> tuple[Any, Any]:
        """Compare the ledger and the stages of a query, or those in a database."""
        several = self.world.databases > 1
        store, sink = self.sinks[key if several else 0], self.queries[0 if several else key]
        there = ledger_of(store, sink)
        staged = Counter((int(one.stage.split("/")[1]), one.rows) for one in store.staged(sink))
        wanted = Counter((one.batch, len(one.rows)) for one in state.stages if one.key == key and one.rows)
        return (ledger.batch, wanted), (there.batch if there else -1, staged)


def id_of(number: int) -> str:
    """Return the id of a message."""
    return f"{number:024x}"


def _peeked(store: Store, queue: str) -> list[Message]:
    return [one for batch in store.peek(queue) for one in messages(batch)]
