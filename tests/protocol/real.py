"""A scenario on a real store: each step of the model is taken by real code, and then both must be in the same state.

A process of the model is a `Process`. What happens around it is done by a client of the store, or by the commands for
operators. The checkpoint is an object.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from itertools import product
from types import SimpleNamespace, TracebackType
from typing import Any, cast

from spark_queue import CheckpointError, FencedError
from spark_queue.admin import recover, recover_consumer
from spark_queue.errors import StoreUnavailable, UsageError
from spark_queue.messages.message import messages, pushes
from spark_queue.spark.supervision import drain
from spark_queue.stores.base import Store
from spark_queue.stores.conformance.waiting import end_lease
from spark_queue.stores.services.ledger import LEDGER_PREFIX, NO_BATCH, delete_sink, ledger_of, note_value
from spark_queue.stores.services.owner import OWNER_NOTE, ConsumerState
from spark_queue.stores.services.publishing import Publisher
from spark_queue.stores.types import Note, queue_note_key
from tests.protocol.possible import AT_ONCE
from tests.protocol.process import EACH, RANK, TIDY, Checkpoint, Failed, Process, Refused
from tests.protocol.scenarios import Scenario, scenario_moves
from tests.protocol.state import ELSEWHERE, FENCED, FREE, LATER, REFUSED, Driver, Held, Stage, State, World, initial
from tests.protocol.there import Differs, There, id_of

#: How often a process may find nothing before it finds a message that is there.
LOOKS = 100

#: The lease (ms) of messages in a copy of a database, longer than a scenario.
COPIED_LEASE = 600_000


class Real(There):
    """A scenario on a real store."""

    def __init__(self, store: Store, name: str, world: World, other: Store | None = None) -> None:
        super().__init__(store, name, world, other)
        parts = "2" if world.cut else "1"  # each of them may be claimed in a step of its own: see `points`
        self._source = {
            "delivery": "exactly-once", "numPartitions": parts, "minPartitions": parts,
            "maxRecordsPerTrigger": str(world.most), "reserveAhead": "false", "waitTimeout": "0s",
        }  # fmt: skip
        if world.queues == 1:
            self._source |= {"url": store.url, "queue": name}
        else:
            inputs = {binding: {"queue": one, "ns": "db"} for binding, one in zip("ab", self.queues, strict=True)}
            urls, combine = json.dumps({"db": store.url}), world.combine
            self._source |= {"urls": urls, "inputs": json.dumps(inputs), "combine": combine}
        self._sink = {"queue": self.out}
        if world.databases > 1:
            self._sink["urls"] = json.dumps({str(number): one.url for number, one in enumerate(self.sinks)})
            for number, one in enumerate(self.sinks):  # the first one decides the first batch
                assert one.set_note(LEDGER_PREFIX + self.queries[0], note_value(str(number), NO_BATCH, []), 0)
        else:
            self._sink["url"] = store.url
        self.copy: Checkpoint | None = None
        self.notes: dict[str, dict[str, Note]] = {}  #: by queue: those of the copy of its database
        self.runs: dict[int, Any] = {}  #: offsets with which runs have ended that may still be drained
        self.processes: dict[int, Process] = {}
        for queue in self.queues:
            store.count(queue)  # so it exists

    def __enter__(self) -> Real:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        for process in self.processes.values():
            process.kill()
        for store, query in product(self.sinks, self.queries):
            delete_sink(store, query)
            store.purge(self.out)
        for queue in (*self.queues, self.out):  # others use them again
            self._empty(queue)
            for key, note in self.store.notes(queue_note_key(queue)).items():
                self.store.set_note(key, None, note.version)

    # --- steps

    def take(self, step: str, before: State, after: State) -> None:
        """Take a step."""
        actor, _, action = step.partition(": ")
        if actor.startswith("driver"):
            place = int(actor.removeprefix("driver ")) - 1
            self._drive(place, action, before, after)
        elif actor == "producer":
            number = before.messages.index(LATER)
            self.store.push(self.queues[number % self.world.queues], pushes([number], ids=[id_of(number)]))
        elif actor == "other":
            self._others(action, before, after)
        elif action.startswith("ends the lease of "):
            self._end_lease(before, after)
        elif action.startswith("removes the note of epoch "):
            key = queue_note_key(self._input(action), OWNER_NOTE, self.epochs[int(action.split()[5])])
            note = self.store.note(key)
            assert note is not None and self.store.set_note(key, None, note.version)
        elif action == "copies the checkpoint":
            self.copy = self.disks[0].copy()
        elif action == "restores the copy":
            assert self.copy is not None
            self.disks[0] = self.copy.copy()
        elif action == "loses the end of the checkpoint":
            disk = self.disks[0] = self.disks[0].copy()
            disk.offsets.pop()
            disk.finished = min(disk.finished, len(disk.offsets) - 1)
        elif action == "copies the database":
            self.notes = {queue: self.store.notes(queue_note_key(queue)) for queue in self.queues}
        elif action.startswith("puts the database back"):
            self._put_back(self._input(action), after)
        elif action == "begins a new checkpoint":
            self.queries.append(uuid.uuid4().hex)
            self.disks[0] = Checkpoint(self.queries[-1])
        elif action.startswith("recovers epoch "):
            self._recover(int(action.split()[2]), self._input(action))
        elif action.startswith("completes the sink of query "):
            recover(self.store.url, self.queries[int(action.split()[5])])
        elif action == "completes the sink":
            Publisher({str(number): one for number, one in enumerate(self.sinks)}, self.queries[0]).complete()
        elif action == "loses the last publish":
            (stage,) = after.stages - before.stages
            self._lose_publish(self.store, self.queries[stage.key], stage)
        elif action.startswith("loses what database "):
            self._lose_take(before, after)
        else:
            raise NotImplementedError(step)

    def _others(self, action: str, before: State, after: State) -> None:
        """Another consumer takes the first message, or gives it back."""
        tag, queue = f"other/{uuid.uuid4().hex[:8]}", self._input(action)
        if sum(self.store.reserve(queue, tag, 1)) != 1:
            raise Differs("the other consumer finds no message")
        if action.startswith("takes"):
            self.store.commit(queue, tag)
            self.elsewhere |= {n for n, where in enumerate(after.messages) if where == ELSEWHERE}
        else:
            self.store.rollback(queue, tag, delay=None)

    def _end_lease(self, before: State, after: State) -> None:
        changed = [one for n, one in enumerate(before.messages) if one != after.messages[n]]
        assert isinstance(changed[0], Held)
        end_lease(self.store, self.queues[changed[0].tag.queue], self.tag(changed[0].tag))

    def _input(self, action: str) -> str:
        """Return the queue that a step names."""
        return self.queues[" of input 2" in action]

    def _put_back(self, queue: str, after: State) -> None:
        """Let the messages and notes of a queue be as they were; processes that have ended are silent."""
        self._empty(queue)
        free = []
        for n, where in enumerate(after.messages):
            if self.queues[n % self.world.queues] != queue or not (where == FREE or isinstance(where, Held)):
                continue
            self.store.push(queue, pushes([n], ids=[id_of(n)]))
            tag, lease = f"free/{n}", cast("int | None", COPIED_LEASE)
            if isinstance(where, Held):
                tag, lease = self.tag(where.tag), None if where.lease == "never" else COPIED_LEASE
            else:
                free.append(tag)
            assert sum(self.store.reserve(queue, tag, 1, lease=lease)) == 1
            if isinstance(where, Held) and where.lease == "ended":
                end_lease(self.store, queue, tag)
        for tag in free:
            self.store.rollback(queue, tag, delay=None, failed=False)
        now = self.store.notes(queue_note_key(queue))
        for key in now.keys() | self.notes[queue].keys():
            note = self.notes[queue].get(key)
            assert self.store.set_note(key, note.value if note else None, now[key].version if key in now else 0)
        for consumer in self.epochs.values():
            self._silence(queue, consumer)

    def _empty(self, queue: str) -> None:
        for held in self.store.reservations(queue):
            self.store.rollback(queue, held.tag)
        self.store.purge(queue)

    def _recover(self, epoch: int, queue: str) -> None:
        consumer = self.epochs[epoch]
        try:
            recover_consumer(self.store.url, queue, consumer, sink=self.store.url)
        except UsageError:  # no task has read the batch: so its operator says that it was not written
            recover_consumer(self.store.url, queue, consumer, written=False)

    def _lose_publish(self, store: Store, sink: str, stage: Stage) -> None:
        """Let the rows of the last batch be staged again, and no longer visible."""
        ledger = ledger_of(store, sink)
        assert ledger is not None
        store.reserve(self.out, "server/1", 1_000)
        found = [one for batch in store.fetch(self.out, "server/1/0") for one in messages(batch)]
        lost = [one for one in found if one.payload in stage.rows]
        store.commit(self.out, "server/1", [one.id for one in lost])
        store.rollback(self.out, "server/1", failed=False)
        again = pushes([one.payload for one in lost], ids=[one.id for one in lost])
        store.stage(self.out, ledger.stages[0], again)

    def _lose_take(self, before: State, after: State) -> None:
        """Let a database of the sink lose that it took and published the last decision."""
        (stage,) = after.stages - before.stages
        store, sink = self.sinks[stage.key], self.queries[0]
        self._lose_publish(store, sink, stage)
        ledger = ledger_of(store, sink)
        assert ledger is not None
        older = note_value(ledger.id, after.ledgers[stage.key].batch, [], ledger.shares if stage.batch else ())
        assert store.set_note(LEDGER_PREFIX + sink, older, ledger.version)

    # --- steps of a process

    def _drive(self, place: int, action: str, before: State, after: State) -> None:
        driver = before.drivers[place]
        if driver is None:
            number, old = place % self.world.queries, self.world.old_calls
            notes = self.world.notes_reserved
            process = Process(self._source, self._sink, lambda: self.disks[number], old=old, notes=notes)
            self.processes[place] = process
            return
        if place in self.runs:
            self._after_run(place, action)
            return
        process = self.processes[place]
        if action == "begins another epoch":
            return  # in the code, epochs have names that are never the same
        if action == "ends its run":
            assert process.consumer is not None
            self.runs[place] = process.consumer.planned
            process.kill()
        elif action in ("crashes", "ends, since it was taken over"):
            process.kill()
        elif action.startswith("fails, and aborts"):
            away = action.rpartition(" without database ")[2]
            process.fail(self.sinks[int(away)].url if away.isdigit() else "")
            if not isinstance(process.error, StoreUnavailable if away.isdigit() else Failed):
                raise Differs(f"{action}: {_where(process)}")
        elif action.startswith((REFUSED, FENCED, "fails")):
            self._refused(process, driver, action)
        else:
            if action.startswith("takes over"):
                self._silence(self.queues[driver.queue], self.epochs[driver.epoch])
            elif action.startswith("removes the owner"):  # it may live
                self._silence(self._input(action), self.epochs[int(action.split()[5])])
            process.begins_empty = action.startswith("finds nothing, and")
            self._goes_on(process, place, action, before, after)
            self._owned(process, driver, after.drivers[place])
        if not process.at:
            self._ended(place)

    def _after_run(self, place: int, action: str) -> None:
        """The run of a query has ended, with the calls of Spark 4.0: it is drained, or not."""
        offset = self.runs.pop(place)
        if action.startswith("drains"):
            sources = [{"endOffset": json.dumps(offset)}]
            query = SimpleNamespace(awaitTermination=lambda: None, lastProgress={"sources": sources})
            drain(cast("Any", query), self.store.url)

    def _refused(self, process: Process, driver: Driver, action: str) -> None:
        while process.at and process.place <= _place(driver):
            process.go_on()
        wanted: Any = FencedError if action.startswith(FENCED) else CheckpointError
        if action.startswith("fails"):
            wanted = Refused
        elif action.endswith("the sink is at another batch"):
            wanted = FencedError, CheckpointError
        if process.at or not isinstance(process.error, wanted):
            raise Differs(f"{action}: {_where(process)}")

    def _goes_on(self, process: Process, place: int, action: str, before: State, then: State) -> None:
        driver, after = before.drivers[place], then.drivers[place]
        assert driver is not None and after is not None
        ledger, at = before.ledgers[driver.query].batch, (driver.step, after.step)
        if driver.step == "complete" and ledger > driver.batch:
            return  # it is refused before it completes anything; the model refuses it in the next step
        if at[0] == at[1] in AT_ONCE:
            return  # the code takes all of these steps in the last one; it binds the inputs in an order of its own
        if at[0] == "stage":
            process.attempt = max(after.attempt, 0)
        if action.startswith(("gives back what was not", "removes the owner", "gives back what epoch")):
            self._tidies(process, action)
            return
        target = _place(after)
        if driver.step == "complete" and ledger == driver.batch:
            # Another process has decided the batch meanwhile: the code sees that at once, and publishes it.
            target = target[0], RANK["sweep"], 0
        if driver.step == "claim":
            while process.at in TIDY:  # there is nothing to give back
                process.go_on()
        if process.place == _place(driver):
            process.go_on()
        for _ in range(LOOKS):
            arrived = process.at in ("", "own") or (after.step == "claim" != driver.step and process.at in TIDY)
            if arrived or process.place >= target:
                break
            process.go_on()
        if not process.at:
            raise Differs(f"it ends: {process.error!r}") from process.error
        if process.place != target and not self._passed(process, driver, after, then):
            raise Differs(f"the next step of the model is {after.step!r} ({after.queue}): {_where(process)}")

    def _tidies(self, process: Process, action: str) -> None:
        """Let it give back what was not started, or what an epoch has abandoned, in one input."""
        queue = int(" of input 2" in action)
        at = "abandon" if action.startswith("removes") else "give" if "abandoned" in action else "tidy"
        while process.at == "tidy" and (process.input < queue or at != "tidy"):  # there is nothing to give back
            process.go_on()
        if (process.at, process.input) != (at, queue):
            raise Differs(f"it {action}: {_where(process)}")
        process.go_on()

    def _passed(self, process: Process, driver: Driver, after: Driver, then: State) -> bool:
        """Whether the code may be elsewhere than before the next step of the model: it has nothing to do there."""
        if process.at == "own":
            return after.step == "ask" and after.start.initial
        if after.step == "ask":
            return after.start.initial and process.at in (*TIDY, "claim")
        if after.step == "plan":
            return after.end.initial and process.at == "bind"
        if after.step == "claim":
            return process.at in TIDY and not process.input
        if after.step == "read":
            return process.at == "stage" and not then.held(*after.end.tags)
        decided = then.ledgers[after.query].batch >= after.batch
        return after.step in ("decide", "publish") and process.at == "sweep" and decided

    def _owned(self, process: Process, driver: Driver, after: Driver | None) -> None:
        """Note the names of an epoch and of processes, once the code has them."""
        assert after is not None and process.consumer is not None
        if not after.by:
            return
        if driver.step == "own" and (after.epoch not in self.epochs or after.end.initial):
            offset = process.consumer.planned
            self.epochs[after.epoch] = offset["consumer"]
        for queue, (member, by) in enumerate(zip(process.members, after.by, strict=False)):
            if member.owned is not None:
                self.numbers[after.epoch, queue, by] = member.owned.number

    def _ended(self, place: int) -> None:
        """Let the note of its consumer say no longer that it lives."""
        for member in self.processes.pop(place).members:
            if member.owned is not None:
                ownership = member.owned.ownership
                self._silence(ownership.queue, ownership.consumer, ownership.token)

    def _silence(self, queue: str, consumer: str, token: str = "") -> None:
        """Let the owner of a consumer have been silent for too long; if it is this one."""
        key = queue_note_key(queue, OWNER_NOTE, consumer)
        note = self.store.note(key)
        if note is None:
            return
        standing = ConsumerState.from_note(note)
        if standing.owner is not None and token in ("", standing.owner.token):
            old = replace(standing, owner=replace(standing.owner, until=0))
            assert self.store.set_note(key, old.note_value, note.version)


def follow(
    store: Store, name: str, scenario: Scenario, world: World, known: int = 0, other: Store | None = None
) -> State:
    """Take all steps of a scenario on a store; return the last state. Raises `Differs`.

    `known`: after how many of the first steps the states were compared in another scenario. `other`: the second
    database of the sink, if the world has two.
    """
    state = initial(world)
    with Real(store, name, world, other) as real:
        for number, step in enumerate(scenario.steps):
            after = next((one for taken, one in scenario_moves(state, world) if str(taken) == step), None)
            if after is None:
                raise LookupError(f"the model cannot take step {number + 1}: {step}")
            try:
                real.take(step, state, after)
                if number >= known:
                    real.check(after)
            except (Differs, LookupError) as error:
                taken = "\n  ".join(scenario.steps[: number + 1])
                raise Differs(f"{error}\nafter these steps of {scenario.world!r}:\n  {taken}") from error
            state = after
    return state


def _place(driver: Driver) -> tuple[int, int, int]:
    """Return where a process of the model stands."""
    return driver.batch, RANK[driver.step], driver.queue if driver.step in EACH else 0


def _where(process: Process) -> str:
    return f"the code stands before {process.at!r}" if process.at else f"the code has ended with {process.error!r}"
