"""Whatever request of an operation fails, and however: nothing is lost, doubled or half visible.

Each operation is done again and again, and its first, second, third … request fails, until it has
no more. A client that lives completes it by itself; what one that was killed began is completed by
another client, that repeats it.
"""

from __future__ import annotations

import itertools
import sqlite3
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import sha1
from typing import Any
from urllib.parse import SplitResult, urlsplit, urlunsplit

import pymongo
import pytest
import tenacity

from spark_queue.messages.buckets import Buckets
from spark_queue.messages.ids import new_ids
from spark_queue.messages.message import messages, pushes
from spark_queue.stores import STORES, open_store, types
from spark_queue.stores.base import Store
from spark_queue.stores.conformance.limits import limits_of, with_limits
from spark_queue.stores.mongodb import store as mongodb_store
from spark_queue.stores.redis.limits import RedisLimits
from spark_queue.stores.redis.store import RedisStore, load_scripts
from spark_queue.stores.services.log.log import Log, find_retained
from spark_queue.stores.sqlite import file as sqlite_file
from spark_queue.stores.sqlite import store as sqlite_store
from spark_queue.stores.support.bucket_split import compact
from spark_queue.stores.types import DeadLetterInfo, Note, Sizes
from tests import registered
from tests.stores.crash import MongoWire, Plan, Proxy, RedisWire, Way, killed, watched

SCHEMES, EMBEDDED = registered.schemes(), registered.schemes(server=False)
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


# --- the worlds -----------------------------------------------------------------------------------


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


@pytest.fixture
def world(request, url_of, monkeypatch, set_limits):
    """A world in which no client waits long before it tries again."""
    # Counts are no part of an operation, so none is written while it runs.
    set_limits(smallest_partition=3, flush_interval=3_600, kill_delay=0.005, publisher_timeout=0.03)
    monkeypatch.setattr(tenacity, "wait_random_exponential", lambda **_: tenacity.wait_fixed(0.005))
    scheme, _, variant = request.param.partition(" ")
    url, plan = url_of(scheme), Plan()
    opened: World
    match STORES[scheme].server:
        case "":
            monkeypatch.setattr(sqlite_file, "Connection", watched(plan))
            opened = SqliteWorld(url, url, plan)
        case "redis":
            opened = RedisWorld(url, plan, forgets=variant == "forgets its scripts")
        case "mongodb":
            monkeypatch.setattr(pymongo.common, "MIN_HEARTBEAT_INTERVAL", 0.005)  # of the driver
            if variant == "without transactions":
                hello = mongodb_store.MongoStore._hello
                monkeypatch.setattr(mongodb_store.MongoStore, "_hello", lambda self: (hello(self)[0], False))
            opened = MongoWorld(url, plan)
        case server:
            pytest.fail(f"{scheme}: no World knows the requests of a {server} server; write one")
    yield opened
    opened.close()


# --- what the operations work on ------------------------------------------------------------------

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
        self.store.layout = Buckets(4)
        self.store.push(self.one, self.at_once(*range(8)))
        self.store.layout = None
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


# --- the operations -------------------------------------------------------------------------------


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


def staged_anew(store: Store, scene: Scene) -> None:
    """What a writer does who cannot know what a dead one has staged."""
    store.stage(scene.one, scene.stage("1/b"), scene.batch(*range(8)))
    store.publish([scene.stage("1/b")])
    store.unstage(scene.stage("1"))


def looked(store: Store, scene: Scene) -> Any:
    """What only looks."""
    held = [one.tag for one in store.reservations(scene.one)]
    fetched = sum(page.num_rows for page in store.fetch(scene.one, "c/1/0", 2))
    return held, fetched, store.sizes(scene.one), scene.one in store.queues(), len(store.staged(scene.name))


def peeked(store: Store, scene: Scene) -> Any:
    """What only looks, at every message."""
    first = [sum(page.num_rows for page in store.peek(scene.one, limit=limit)) for limit in (3, 20)]
    ids = {one.id for page in store.peek(scene.one, rows=4) for one in messages(page)}
    return first, len(ids & set(scene.ids))


HELD, FREE = Scene.some_are_held, Scene.most_are_free
BUCKETS = Scene.some_are_in_buckets
STAGED, FEW = Scene.some_are_staged, Scene.a_few_are_staged
THERE, NOTE, NOTHING = Scene.some_are_there_already, Scene.a_note_is_there, Scene.nothing
MIXED = (0, 5, 1, 6, 4, 7, 8)  #: the last two are not held by c
DEATH = DeadLetterInfo("why", failed=1)

#: The operations whose killed client is in `make test` too.
CORE = {
    "push", "renew", "commit", "commit with history", "rollback", "transfer", "move of a tag", "commit in a bucket",
    "stage", "publish", "unstage", "next note",
}  # fmt: skip

OPERATIONS = {
    "push": Operation(HELD, 2, lambda store, s: store.push(s.one, s.batch(*range(12)))),
    "push to a new queue": Operation(NOTHING, 8, lambda store, s: store.push(s.one, s.batch(*range(8))), new=True),
    "renew": Operation(HELD, 7, lambda store, s: store.renew(s.one, "c", 3 * HOUR), exact=True),
    "commit": Operation(HELD, 7, lambda store, s: store.commit(s.one, "c/1")),
    "commit of some": Operation(HELD, 5, lambda store, s: store.commit(s.one, "c", s.some(*MIXED))),
    "commit with history": Operation(HELD, 7, lambda store, s: store.commit(s.one, "c/1", history=HOUR)),
    "rollback": Operation(HELD, 7, lambda store, s: store.rollback(s.one, "c/1")),
    "rollback of some": Operation(
        HELD, 5, lambda store, s: store.rollback(s.one, "c", s.some(*MIXED), delay=HOUR, failed=False)
    ),
    "transfer": Operation(HELD, 7, lambda store, s: store.transfer(s.one, "c", "d/1/0", lease=2 * HOUR)),
    "transfer of some": Operation(
        HELD, 3, lambda store, s: store.transfer(s.one, "c", "c/1/0", s.some(*MIXED), lease=None)
    ),
    "move": Operation(
        FREE, 4, lambda store, s: store.move(s.one, s.two, min_tries=3, dead_letter=DEATH), BOTH, lingers=True
    ),
    "move of a tag": Operation(
        THERE, 7, lambda store, s: store.move(s.one, s.two, tag="c", dead_letter=DEATH), BOTH, lingers=True
    ),
    "death with history": Operation(
        HELD,
        7,
        lambda store, s: store.move(s.one, s.two, tag="c/1", dead_letter=DeadLetterInfo("why", 1, HOUR)),
        BOTH,
        lingers=True,
    ),
    "move of some": Operation(
        HELD,
        5,
        lambda store, s: store.move(s.one, s.two, tag="c", ids=s.some(*MIXED), min_tries=2),
        BOTH,
        lingers=True,
    ),
    "commit in a bucket": Operation(
        BUCKETS, 2, lambda store, s: store.commit(s.one, "c", s.some(0, 2, 8)), lingers=True
    ),
    "rollback in a bucket": Operation(
        BUCKETS, 2, lambda store, s: store.rollback(s.one, "c/1", s.some(1, 3, 8), delay=HOUR), lingers=True
    ),
    "transfer in a bucket": Operation(
        BUCKETS,
        2,
        lambda store, s: store.transfer(s.one, "c", "d/1/0", s.some(1, 2, 8), lease=2 * HOUR),
        lingers=True,
    ),
    "move in a bucket": Operation(
        BUCKETS,
        2,
        lambda store, s: store.move(s.one, s.two, tag="c", ids=s.some(0, 3, 4), dead_letter=DEATH),
        BOTH,
        lingers=True,
    ),
    "move out of free buckets": Operation(
        BUCKETS, 3, lambda store, s: store.move(s.one, s.two, ids=s.some(0, 5, 6, 8)), BOTH, lingers=True
    ),
    "reserve of less than a bucket": Operation(
        BUCKETS, [2], lambda store, s: store.reserve(s.one, "e/1", 2, lease=HOUR), exact=True, lingers=True
    ),
    "compact": Operation(BUCKETS, True, lambda store, s: compact(store, s.one, Buckets(8)) > 0, lingers=True),
    "stage": Operation(
        NOTHING,
        8,
        lambda store, s: store.stage(s.one, s.stage("1/a"), s.batch(*range(8))),
        exact=True,
        recover=staged_anew,
    ),
    "publish": Operation(STAGED, 5, lambda store, s: store.publish([s.stage("1/a"), s.stage("1/b")]), BOTH),
    "publish to a new queue": Operation(FEW, 4, lambda store, s: store.publish([s.stage("1/a")]), new=True),
    "unstage": Operation(STAGED, 5, lambda store, s: store.unstage(s.stage("1"), keep=[s.stage("1/b")]), BOTH),
    "first note": Operation(NOTHING, True, lambda store, s: store.set_note(s.note, {"b": 2}, 0), exact=True),
    "next note": Operation(NOTE, True, lambda store, s: store.set_note(s.note, {"b": 2}, 1), exact=True),
    "last note": Operation(NOTE, True, lambda store, s: store.set_note(s.note, None, 1), exact=True),
    "purge": Operation(FREE, 9, lambda store, s: store.purge(s.one)),
    "drop": Operation(Scene.notes_are_there, None, lambda store, s: store.drop(s.one), new=True),
    "look": Operation(
        HELD, (["c/1/0", "c/1/1", "d/1/0"], 4, Sizes(1, 1, 8), True, 0), looked, exact=True, looks=True
    ),
    "peek": Operation(HELD, ([3, 10], 10), peeked, exact=True, looks=True),
}


@dataclass
class Run:
    """What became of an operation: `what` happened to it, and the answer it `got`."""

    scene: Scene
    what: str
    killed: bool
    struck: bool
    got: Any


def cases(*worlds: str, operations: Iterable[str] = ("",), ways: Iterable[Way] = Way) -> pytest.MarkDecorator:
    """Each operation in each world with each way in which requests fail there."""
    found = [
        pytest.param(
            name,
            world,
            way,
            id="-".join(filter(None, (name, world, way.name.lower()))).replace(" ", "_"),
            marks=() if way is Way.KILLED and (not name or name in CORE) and world in SCHEMES else pytest.mark.full,
        )
        for name, world, way in itertools.product(operations, worlds, ways)
        # A statement of an embedded store is done or it fails; an operation that only reads leaves
        # nothing behind.
        if not (world in EMBEDDED and way is Way.UNANSWERED)
        and not (way is Way.KILLED and name and OPERATIONS[name].looks)
        # Its peek does not try again.
        and not (name == "peek" and world in EMBEDDED)
    ]
    return pytest.mark.parametrize(("name", "world", "way"), found, indirect=["world"])


def freed(place: Place) -> Place | None:
    """The place of a message whose lease has ended, once a client has looked for messages."""
    if place[-1] != "over":
        return None
    *rest, tries, due, _, _ = place
    return *rest, tries + 1, due


def scenes(world: World, way: Way, operation: Operation, meanwhile: Begin | None = None) -> Iterator[Run]:
    """The operation in scene after scene; each is disturbed one request later than the last one."""
    for at in itertools.count(1):
        scene = Scene(world, operation)
        struck, got = world.disturbed(at, way, operation.act, scene, meanwhile and partial(meanwhile, scene))
        yield Run(scene, world.describe(at, way), struck and way is Way.KILLED, struck, got)
        world.bury()
        scene.clear()
        if not struck:
            assert at > 1, "there is no request"
            return


@cases(*SCHEMES, operations=OPERATIONS)
def test_an_operation_is_completed_whatever_request_fails(world, name, way):
    check(world, way, OPERATIONS[name])


@cases("redis forgets its scripts", operations=["push", "commit"])
def test_scripts_are_sent_again_whatever_request_fails(world, name, way):
    check(world, way, OPERATIONS[name])


@cases("mongodb without transactions", operations=["unstage"])
def test_a_server_without_transactions_forgets_a_stage_whatever_request_fails(world, name, way):
    check(world, way, OPERATIONS[name])


def check(world: World, way: Way, operation: Operation) -> None:
    """In the end all is as if undisturbed; until then each message is as before or as after it."""
    recover = operation.recover or operation.act
    scene = Scene(world, operation)
    before = scene.picture()
    wanted = world.undisturbed(operation.act, scene)
    after = scene.picture()
    assert wanted == operation.gives
    recover(world.store, scene)
    recovered = scene.picture()
    assert operation.recover or recovered == after, "an operation that was repeated changed something"
    scene.clear()
    for run in scenes(world, way, operation):
        now = run.scene.picture()
        if not run.killed:
            assert now == after, run.what
        else:
            for number, places in now.places.items():
                one = before.places[number]
                assert places in (one, after.places[number], [freed(place) for place in one]), run.what
            if world.atomic and operation.begin is not BUCKETS:  # of those it is one step after the other
                assert now.places in (before.places, after.places), run.what
            if operation.lingers:
                world.bury()
            recover(world.store, run.scene)
            assert run.scene.picture() == recovered, run.what
        if way is not Way.KILLED:
            exact = operation.exact or not run.struck
            assert run.got == wanted if exact else 0 <= (run.got or 0) <= (wanted or 0), run.what


@cases(*SCHEMES)
@pytest.mark.parametrize("partitions", [1, 3])
def test_a_reserve_holds_the_first_whatever_request_fails(world, name, way, partitions):
    def reserve(store: Store, scene: Scene) -> list[int]:
        return store.reserve(scene.one, "c/1", 5, partitions=partitions, lease=HOUR)

    order = [5, 6, 7, 8, 1, 2, 3, 4] if isinstance(world, MongoWorld) else [1, 2, 3, 4, 5, 6, 7, 8]
    operation = Operation(Scene.most_are_free, [5], reserve)
    scene = Scene(world, operation)
    assert sum(world.undisturbed(reserve, scene)) == 5
    scene.clear()
    for run in scenes(world, way, operation):
        rows = reserve(world.store, run.scene) if way is Way.KILLED else run.got
        places = run.scene.picture().places
        held: list[list[int]] = [[] for _ in rows]
        for number in order:
            (place,) = places[number]
            tries, tag = place[4], place[6] if len(place) > 6 else ""
            if tag.startswith("c/1/"):
                held[int(tag[4:])].append(number)
                assert tries == 2 + (number in (1, 2, 3, 4)), run.what
            else:
                assert (tag, tries - 2) in ([("e/1/0", 0), ("", 1)] if number < 5 else [("", 0)]), run.what
        assert [len(part) for part in held] == rows and 0 < sum(rows) <= 5, run.what
        assert sorted(itertools.chain(*held)) == sorted(order[: sum(rows)]), run.what
        assert len(places[0]) == len(places[9]) == 1
        assert world.store.commit(run.scene.one, "c/1") == sum(rows), run.what
        assert sorted(order[: sum(rows)] + run.scene.drain()) == list(range(1, 9)), run.what


@cases(*SCHEMES, "mongodb without transactions", ways=[Way.UNANSWERED, Way.KILLED])
def test_what_is_published_and_consumed_at_once_comes_once_whatever_request_fails(world, name, way):
    def publish(store: Store, scene: Scene) -> int:
        return store.publish([scene.stage("1/a"), scene.stage("1/b")])

    check_consumption(world, way, Operation(Scene.all_are_staged, 5, publish, BOTH), BOTH)


@cases(*SCHEMES, ways=[Way.UNANSWERED, Way.KILLED])
def test_what_is_moved_and_consumed_at_once_comes_once_whatever_request_fails(world, name, way):
    def move(store: Store, scene: Scene) -> int:
        return store.move(scene.one, scene.two)

    check_consumption(world, way, Operation(Scene.most_are_free, 9, move, BOTH, lingers=True), ["two"])


def check_consumption(world: World, way: Way, operation: Operation, queues: Sequence[str]) -> None:
    """A consumer takes and commits all there is before the operation goes on, or is repeated."""

    def consume(scene: Scene) -> None:
        scene.consumed += scene.drain(*queues)

    scene = Scene(world, operation)
    world.undisturbed(operation.act, scene)
    numbers = sorted(scene.drain(*queues))
    assert len(numbers) > 4
    scene.clear()
    # A client of SQLite keeps the others waiting until its transaction has ended.
    meanwhile = None if way is Way.KILLED or world.atomic else consume
    for run in scenes(world, way, operation, meanwhile):
        if run.killed:
            consume(run.scene)
            if operation.lingers:
                world.bury()
            operation.act(world.store, run.scene)
        consume(run.scene)
        assert sorted(run.scene.consumed) == numbers, run.what
        assert run.scene.picture().staged == [], run.what


def logged(store: Store, scene: Scene) -> list[int]:
    """What a reader finds in the log, from its first message on."""
    found = Log(store, scene.one)
    return [
        scene.ids.index(message.id)
        for piece in found.ranges_between(found.first(), found.end())
        for page in found.fetch(piece)
        for message in messages(page)
    ]


@cases(*SCHEMES, ways=[Way.KILLED])
@with_limits(segment_rows=4, segment_growth=0)
def test_segments_are_the_same_for_all_whatever_request_fails(world, name, way):
    check_sealing(world, way)


@cases(*SCHEMES)
@with_limits(segment_rows=10, segment_growth=10)
def test_a_segment_that_grows_is_the_same_for_all_whatever_request_fails(world, name, way):
    check_sealing(world, way)


def check_sealing(world: World, way: Way) -> None:
    """Check that other clients see the first messages of a seal, and that another one completes it, in order."""

    def begin(scene: Scene) -> None:
        scene.store.push(scene.one, scene.batch(0, 1, 2))
        assert Log(scene.store, scene.one).seal() == 3
        scene.store.push(scene.one, scene.batch(*range(3, 9)))

    operation = Operation(begin, 6, lambda store, scene: Log(store, scene.one).seal(), new=True)
    for run in scenes(world, way, operation):
        scene = run.scene
        found = logged(world.store, scene)
        assert len(found) >= 3 and found == list(range(len(found))), run.what
        one = Log(world.store, scene.one)
        while one.seal():
            pass
        assert logged(world.store, scene) == list(range(9)), f"{run.what}: it is not complete, or not in order"
        world.store.push(scene.one, scene.batch(9))
        assert one.seal() == 1, run.what
        assert logged(world.store, scene) == list(range(10)), run.what
        sizes = world.store.sizes(scene.one)
        assert (sizes.ready, sizes.reserved) == (0, 10), run.what
        kept = find_retained(world.store, scene.one)
        assert kept is not None
        assert {held.tag for held in world.store.reservations(scene.one)} == kept.tags, (
            f"{run.what}: a tag is left over"
        )


@cases(*SCHEMES, ways=[Way.KILLED])
@with_limits(page_segments=1, segment_rows=3, seal_rows=3, segment_growth=0)
def test_a_log_is_trimmed_whatever_request_fails(world, name, way):

    def begin(scene: Scene) -> None:
        scene.store.push(scene.one, scene.batch(*range(9)))
        assert [Log(scene.store, scene.one).seal() for _ in range(3)] == [3, 3, 3]

    operation = Operation(begin, 9, lambda store, scene: Log(store, scene.one).trim(0), new=True)
    for run in scenes(world, way, operation):
        scene, one = run.scene, Log(world.store, run.scene.one)
        assert logged(world.store, scene) in ([], list(range(9))), run.what
        one.trim(0)
        assert (one.positions, world.store.sizes(scene.one).total) == ((9, 9), 0), run.what
        assert len(world.store.notes(types.queue_note_key(scene.one, "log"))) <= 2, (
            run.what
        )  # a page may have had no head yet
        world.store.push(scene.one, scene.batch(9))
        assert one.seal() == 1
        assert logged(world.store, scene) == [9], run.what


@cases(*EMBEDDED)
@pytest.mark.parametrize("version", [0, 1])
def test_a_file_is_made_whatever_statement_fails(world, name, way, version, tmp_path):
    """A file of SQLite that is not there, or is of an older version."""
    world.plan.opening = True
    for at in itertools.count(1):
        path = tmp_path / f"{at}.db"
        if version:
            with closing(sqlite3.connect(path)) as older:
                older.executescript(f"PRAGMA journal_mode = WAL; {sqlite_store.SCHEMA[0]}; PRAGMA user_version = 1")
        world.victims = f"sqlite:///{path}"
        batch = pushes([1, 2, 3])
        struck, _ = world.disturbed(at, way, lambda store, batch: store.push("q", batch), batch)
        with open_store(world.victims, retry_timeout=10_000) as store:
            store.push("q", batch)
            assert store.sizes("q").ready == 3
            assert store.staged() == []
        if not struck:
            assert at > 5
            return
