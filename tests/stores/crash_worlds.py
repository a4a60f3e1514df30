"""Worlds of crash points: databases whose requests fail, and the messages in them."""

from __future__ import annotations

import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha1
from typing import Any
from urllib.parse import SplitResult, urlsplit, urlunsplit

import pymongo

from spark_queue.messages.buckets import Buckets
from spark_queue.messages.ids import new_ids
from spark_queue.messages.message import messages, pushes
from spark_queue.stores import open_store, types
from spark_queue.stores.base import Store
from spark_queue.stores.conformance.limits import limits_of
from spark_queue.stores.redis.limits import RedisLimits
from spark_queue.stores.redis.store import RedisStore, load_scripts
from spark_queue.stores.types import Note
from tests.layouts import use_layout
from tests.stores.crash import MongoWire, Plan, Proxy, RedisWire, Way, killed

Act = Callable[[Store, Any], Any]

HOUR = 3_600_000

START = datetime(2020, 1, 1, tzinfo=UTC)

ROWS = 12

BOTH = ["one", "two"]  #: the queues

#: Limits with which an operation needs several requests for a few messages.
SMALL = {
    "staged_bytes": 300, "command_chunk": 3, "transaction_chunk": 5, "stage_chunk": 3, "script_chunk": 3,
    "script_bytes": 400,
}  # fmt: skip


class World:
    """A database, a client to which nothing happens, and clients that the plan disturbs."""

    atomic = False  #: whether each operation is one transaction

    def __init__(self, url: str, victims: str, plan: Plan) -> None:
        self.store = open_store(url, retry_timeout=10_000)
        self.prefix = f"t{uuid.uuid4().hex[:16]}"
        self.victims, self.plan = victims, plan
        self._names: list[str] = []

    def victim(self) -> Store:
        return open_store(self.victims, retry_timeout=10_000, limits=limits_of(self.victims, **SMALL))

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Count the requests of the block."""
        with self.plan.watch():
            yield

    def undisturbed(self, act: Act, about: Any) -> Any:
        """What comes out where nothing happens."""
        self.plan.arm(0)
        with self.victim() as client, self.watched():
            result = act(client, about)
        self._names = self.plan.seen
        return result

    def disturbed(
        self, at: int, way: Way, act: Act, about: Any, meanwhile: Callable[[], object] | None = None
    ) -> tuple[bool, Any]:
        """Whether there is such a request, and what comes out (of a killed client nothing does)."""
        self.plan.arm(at, way, meanwhile)
        if way is not Way.KILLED:
            with self.victim() as client, self.watched():
                result = act(client, about)
            return self.plan.struck, result

        def work() -> None:
            with self.victim() as client:
                act(client, about)

        with self.watched():
            return killed(work, self.plan), None

    def describe(self, at: int, way: Way) -> str:
        """Return what happened, for the message of a failure."""
        name = self._names[at - 1] if at <= len(self._names) else "after the last one"
        return f"request {at} ({name}) {way.value}"

    def bury(self) -> None:
        """End the transaction of a killed client; the server itself notices it in a minute."""

    def close(self) -> None:
        for one in BOTH:
            self.store.drop(f"{self.prefix}.{one}")
        self.store.close()


class SqliteWorld(World):
    atomic = True


def through(proxy: Proxy, url: SplitResult) -> str:
    """The URL of a server behind its proxy."""
    user, at, _ = url.netloc.rpartition("@")
    return urlunsplit(url._replace(netloc=f"{user}{at}127.0.0.1:{proxy.port}"))


class MongoWorld(World):
    def __init__(self, url: str, plan: Plan) -> None:
        parts = urlsplit(url)
        self._wire = MongoWire()
        self._proxy = Proxy(parts.hostname or "", parts.port or 27017, self._wire, plan)
        # The driver does not try again: it would hide what the store does.
        options = "directConnection=true&serverMonitoringMode=poll&retryWrites=false&retryReads=false"
        super().__init__(url, through(self._proxy, parts._replace(query=f"{parts.query}&{options}")), plan)
        self._client = pymongo.MongoClient(url)

    def bury(self) -> None:
        if self._wire.transactions:
            self._client.admin.command("killSessions", list(self._wire.transactions.values()))
            self._wire.transactions.clear()

    def close(self) -> None:
        super().close()
        self._client.close()
        self._proxy.close()


class RedisWorld(World):
    def __init__(self, url: str, plan: Plan, *, forgets: bool) -> None:
        parts = urlsplit(url)
        self._proxy = Proxy(parts.hostname or "", parts.port or 6379, RedisWire(lambda: self._scripts), plan)
        self._forgets, self._scripts = forgets, load_scripts(RedisLimits())
        super().__init__(url, through(self._proxy, parts), plan)

    def victim(self) -> Store:
        victim = super().victim()
        assert isinstance(victim, RedisStore)
        if self._forgets:  # texts that the server has not seen yet
            texts = {name: f"-- {uuid.uuid4()}\n{text}" for name, (_, text) in victim._scripts.items()}
            victim._scripts = {name: (sha1(text.encode()).hexdigest(), text) for name, text in texts.items()}
        self._scripts = victim._scripts
        return victim

    def close(self) -> None:
        super().close()
        self._proxy.close()


Place = tuple[Any, ...]

Begin = Callable[["Scene"], None]


@dataclass
class Picture:
    """All places of each message, and the rest of the state."""

    places: dict[int, list[Place]]
    staged: list[Place]
    notes: list[Note | None]


class Scene:
    """The messages, stages and notes of one run, which are those of no other run."""

    def __init__(self, world: World, operation: Operation) -> None:
        self.store = world.store
        self.name = f"{world.prefix}.{uuid.uuid4().hex[:8]}"
        self.one, self.two = (f"{self.name if operation.new else world.prefix}.{name}" for name in BOTH)
        self.queues = {name: getattr(self, name) for name in operation.queues}
        self.ids = new_ids(ROWS)
        self.consumed: list[int] = []
        self.note = self.stage("note")
        self.notes: list[str] = []
        operation.begin(self)

    def batch(self, *numbers: int, delay: int | None = None) -> Any:
        """Messages that are due one after the other, or later."""
        return pushes(
            [{"n": number} for number in numbers],
            ids=[self.ids[number] for number in numbers],
            headers=[{"h": str(number)} for number in numbers],
            mature=None if delay else [START + timedelta(seconds=number) for number in numbers],
            delay=delay,
            tries=2,
        )

    def some(self, *numbers: int) -> list[str]:
        return [self.ids[number] for number in numbers]

    def stage(self, name: str) -> str:
        return f"{self.name}/{name}"

    # --- beginnings -------------------------------------------------------------------------------

    def nothing(self) -> None:
        self.notes = [self.note]

    def some_are_held(self) -> None:
        """c/1/0 holds 0 to 3, c/1/1 holds 4 to 6, d/1/0 holds 7; 8 is ready and 9 scheduled."""
        self.store.push(self.one, self.batch(*range(9)))
        self.store.push(self.one, self.batch(9, delay=2 * HOUR))  # not when a lease ends
        assert self.store.reserve(self.one, "c/1", 7, partitions=2, lease=HOUR) == [4, 3]
        assert self.store.reserve(self.one, "d/1", 1, lease=HOUR) == [1]

    def some_are_in_buckets(self) -> None:
        """c/1/0 holds a bucket with 0 to 3; ready are a bucket with 4 to 7, and 8, and 9."""
        use_layout(self.store, Buckets(4))
        self.store.push(self.one, self.at_once(*range(8)))
        use_layout(self.store, None)
        for number in (8, 9):
            self.store.push(self.one, self.batch(number))
        assert self.store.reserve(self.one, "c/1", 4, lease=HOUR) == [4]

    def at_once(self, *numbers: int) -> Any:
        """Messages that are due together."""
        ids, headers = [self.ids[number] for number in numbers], [{"h": str(number)} for number in numbers]
        return pushes([{"n": number} for number in numbers], ids=ids, headers=headers, mature=START, tries=2)

    def most_are_free(self) -> None:
        """d/1/0 holds 0, e/1/0 with 1 to 4 has ended, 5 to 8 are ready and 9 is scheduled."""
        self.store.push(self.one, self.batch(*range(9)))
        self.store.push(self.one, self.batch(9, delay=HOUR))
        assert self.store.reserve(self.one, "d/1", 1, lease=HOUR) == [1]
        assert self.store.reserve(self.one, "e/1", 4, lease=HOUR) == [4]
        assert self.store.renew(self.one, "e/1", 1) == 4
        end = self.store.now() + 1
        while self.store.now() <= end:
            time.sleep(0.001)

    def some_are_staged(self) -> None:
        """Stage a holds 0 to 3, b holds 4 and 5, a losing stage 6; 3 is in its queue already."""
        self.store.push(self.one, self.batch(3))
        self.store.stage(self.one, self.stage("1/a"), self.batch(0, 1, 2, 3))
        self.store.stage(self.two, self.stage("1/b"), self.batch(4, 5))
        self.store.stage(self.two, self.stage("1/c"), self.batch(6))

    def a_few_are_staged(self) -> None:
        """Stage a holds 0 to 3."""
        self.store.stage(self.one, self.stage("1/a"), self.batch(0, 1, 2, 3))

    def all_are_staged(self) -> None:
        """Stage a holds 0 to 3, b holds 4 for the other queue."""
        self.store.stage(self.one, self.stage("1/a"), self.batch(0, 1, 2, 3))
        self.store.stage(self.two, self.stage("1/b"), self.batch(4))

    def some_are_there_already(self) -> None:
        self.some_are_held()
        self.store.push(self.two, self.batch(2, 5, 8, delay=HOUR))

    def a_note_is_there(self) -> None:
        self.nothing()
        assert self.store.set_note(self.note, {"a": 1}, 0)

    def notes_are_there(self) -> None:
        """One about the queue, and others."""
        self.store.push(self.one, self.batch(0, 1))
        assert self.store.reserve(self.one, "d/1", 1, lease=HOUR) == [1]
        self.notes = [self.note, types.queue_note_key(self.one, "a"), types.queue_note_key(self.one, "b")]
        assert all(self.store.set_note(key, {"a": 1}, 0) for key in self.notes)

    # --- what became of them ----------------------------------------------------------------------

    def picture(self) -> Picture:
        places = defaultdict(list)
        self.now = self.store.now()
        for name, queue in self.queues.items():
            holders = {}
            for one in self.store.reservations(queue):
                fetched = [message.id for page in self.store.fetch(queue, one.tag) for message in messages(page)]
                assert len(fetched) == one.rows
                for id in fetched:
                    assert id not in holders, "it is held by two"
                    holders[id] = (one.tag, self.hours(one.until))
            for view in ("messages", "history"):
                for batch in self.store.peek(queue, view=view):
                    for message in messages(batch):
                        if message.id in self.ids:
                            number = self.ids.index(message.id)
                            places[number].append((name, view, *self.seen(message), *holders.get(message.id, ())))
        staged = [
            (one.stage.removeprefix(self.name), one.queue == self.one, one.rows)
            for one in self.store.staged(self.name)
            if one.rows  # a store may list what a dead writer was about to stage
        ]
        notes = [self.store.note(key) for key in self.notes]
        return Picture({number: sorted(places[number]) for number in range(ROWS)}, staged, notes)

    def seen(self, message: Any) -> Place:
        headers = {name: value for name, value in message.headers.items() if name != "x-dl-t"}
        if "x-dl-from-queue" in headers:
            headers["x-dl-from-queue"] = str(headers["x-dl-from-queue"] == self.one)
        due = message.mature if message.mature.year == START.year else self.hours(message.mature.timestamp() * 1000)
        return message.payload["n"], sorted(headers.items()), message.tries, str(due)

    def hours(self, moment: float | None) -> str:
        """How far a moment is away."""
        if moment is None:
            return "never"
        left = moment - self.now
        return "over" if left <= 0 else f"{round(left / HOUR)} hours"

    def drain(self, *names: str) -> list[int]:
        """Take and commit what is ready in these queues, or in both; give the numbers."""
        found: list[int] = []
        for queue in (self.queues[name] for name in names or self.queues):
            tag = f"drain/{uuid.uuid4().hex}"
            while self.store.reserve(queue, tag, 100):
                got = [message for page in self.store.fetch(queue, f"{tag}/0") for message in messages(page)]
                found += [self.ids.index(message.id) for message in got if message.id in self.ids]
                self.store.commit(queue, tag)
        return found

    def clear(self) -> None:
        for queue in self.queues.values():
            for one in self.store.reservations(queue):
                self.store.commit(queue, one.tag)
            self.store.purge(queue)
            if queue.startswith(self.name):
                self.store.drop(queue)
        self.store.unstage(self.name)
        for key in self.notes:
            if note := self.store.note(key):
                self.store.set_note(key, None, note.version)


@dataclass(frozen=True)
class Operation:
    """What is done in a scene after its beginning.

    `gives`: its result. `exact`: a repeated call returns the same; otherwise it returns what was left
    to do. `recover`: the operation of the next client after a kill, if it is another one. `new`: the
    queues are new. `looks`: it changes nothing. `lingers`: if it is killed within its transaction,
    the next client waits until the server ends that.
    """

    begin: Begin
    gives: Any
    act: Act
    queues: Sequence[str] = ("one",)
    exact: bool = False
    recover: Act | None = None
    new: bool = False
    lingers: bool = False
    looks: bool = False
