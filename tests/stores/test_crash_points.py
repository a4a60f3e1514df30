"""Whatever request of an operation fails, and however: nothing is lost, doubled or half visible.

Each operation is done again and again, and its first, second, third … request fails, until it has
no more. A client that lives completes it by itself; what one that was killed began is completed by
another client, that repeats it."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from spark_queue.messages.buckets import Buckets
from spark_queue.messages.message import messages, pushes
from spark_queue.stores import open_store, types
from spark_queue.stores.base import Store
from spark_queue.stores.conformance.limits import with_limits
from spark_queue.stores.services.log.log import Log, find_retained
from spark_queue.stores.sqlite import store as sqlite_store
from spark_queue.stores.support.bucket_split import compact
from spark_queue.stores.types import DeadLetterInfo, Sizes
from tests import registered
from tests.stores.crash import Way
from tests.stores.crash_worlds import BOTH, HOUR, Begin, MongoWorld, Operation, Place, Scene, World

SCHEMES, EMBEDDED = registered.schemes(), registered.schemes(server=False)


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


# --- the operations -------------------------------------------------------------------------------


@cases(*SCHEMES, operations=OPERATIONS)
def test_an_operation_is_completed_whatever_request_fails(world, name, way):
    check_operation(world, way, OPERATIONS[name])


@cases("redis forgets its scripts", operations=["push", "commit"])
def test_scripts_are_sent_again_whatever_request_fails(world, name, way):
    check_operation(world, way, OPERATIONS[name])


@cases("mongodb without transactions", operations=["unstage"])
def test_a_server_without_transactions_forgets_a_stage_whatever_request_fails(world, name, way):
    check_operation(world, way, OPERATIONS[name])


def check_operation(world: World, way: Way, operation: Operation) -> None:
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
