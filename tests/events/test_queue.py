"""Events in each store: hub-queue's own cases by their names, and many workers at once."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from xml.etree.ElementTree import fromstring

import pyarrow as pa
import pytest

from spark_queue.client import Queue
from spark_queue.errors import MessageError, OptionError
from spark_queue.events import Events, EventSettings, Executor, Heartbeat, tick
from spark_queue.events.event import BASE, HEARTBEAT_SOURCE, INTERNAL_SOURCE, INTERNAL_TYPE_PREFIX
from spark_queue.events.spark_worker import ExecutorWork
from spark_queue.messages.message import pushes
from spark_queue.options.url import StoreUrl
from spark_queue.stores import open_store
from spark_queue.stores.conformance.waiting import end_lease, wait_until
from tests.moments import make_due

S = "http://example.org/flights"
HOUR = 3_600_000  #: ms


@pytest.fixture
def name(name, store):
    yield name
    for queue in (f"{name}.log", f"{name}.gone", f"{name}.dead"):
        store.drop(queue)


class Seen(list):
    """The ids of events that functions got."""

    def finish(self, event, config):
        self.append(event.id)

    def half(self, event, config):
        self.append(event.id)
        return config

    def fail(self, event, config):
        self.append(event.id)
        raise ValueError("no such flight")


@pytest.fixture
def seen():
    return Seen()


@pytest.fixture
def events(store, name, seen):
    executors = [
        Executor(S, "good", seen.finish),
        Executor(S, "half", seen.half, config="http://my/status/half"),
        Executor(S, "bad", seen.fail),
        Executor(S, "again", seen.fail, retries=1, backoff=HOUR),
        Executor(S, "back", seen.half, config="new"),
    ]
    return Events(store, name, executors=executors)


def with_settings(events, **settings):
    return Events(events.store, events.name, executors=events.declared_executors, settings=EventSettings(**settings))


def taken(events, *types, **facts):
    """The ids of events of these types, made and taken."""
    ids = [events.create(S, one, **facts) for one in types]
    assert [one.id for one in events.take(len(ids))] == ids
    return ids


def hours_ago(events, hours):
    """A moment (ms) by the database's clock."""
    return events.store.now() - hours * 3_600_000


#: The source of internal events, and the begin of their types: ours, those of hub-queue's README, and those of
#: the configurations that it ships.
NAMES = {
    "ours": (INTERNAL_SOURCE, INTERNAL_TYPE_PREFIX),
    "README": (f"{BASE}queue/source/internal", f"{BASE}queue/type/"),
    "README, heartbeat": (f"{BASE}queue/source/heartbeat", f"{BASE}queue/type/"),
    "shipped": (f"{BASE}status/internal", f"{BASE}event/"),
}


@pytest.fixture(params=NAMES)
def named(request, monkeypatch):
    """The names of internal events, which `look_after` uses."""
    monkeypatch.setitem(NAMES, "ours", NAMES[request.param])


def look_after(events, name, payload=None, uris=()):
    """Run an internal event as hub-queue's programs create it, which the settings have to allow; give its status."""
    source, prefix = NAMES["ours"]
    events = with_settings(events, pushed_internal_events=True)
    id = events.create(source, f"{prefix}{name}", payload, uris, priority=True)
    (one,) = events.take(1)
    assert one.id == id
    return events.execute([id])[id]


# --- hub-queue's own cases ------------------------------------------------------------------------


def test_queue_create(events):
    uris = ["/one.json", "/two.json", "/three.json"]
    before = events.store.now()
    id = events.create(S, "t", {"a": "text", "b": fromstring("<x>1</x>")}, uris)
    (one,) = events.take()
    assert (one.id, one.source, one.type) == (id, S, "t")
    assert (one.payload, one.kind) == ({"a": "text", "b": "<x>1</x>"}, "map")
    assert list(one.uris) == uris
    assert one.user and one.host and not one.priority
    assert -2 <= one.created.timestamp() * 1000 - before < 60_000


def test_queue_log(events):
    (id,) = taken(events, "good")
    events.execute([id])
    reported = [(one.message, one.came, one.went, one.ids) for one in events.log.records()]
    assert reported == [
        ("Events taken", "new", "pending", (id,)),
        ("Events begun", "pending", "executing", (id,)),
        ("Event executed", "executing", "finished", (id,)),
    ]
    begun, executed = events.log.records()[1:]
    assert begun.transaction == executed.transaction and executed.user == events.user
    assert datetime.now(UTC) - executed.timestamp < timedelta(minutes=1)


def test_executor(store, name):
    statuses = []

    def look(event, config):
        assert (event.payload, event.uris) == ("<ping />", ("/a", "/b"))
        statuses.append(Events(store, name).status([event.id])[event.id])

    events = Events(store, name, executors=[Executor(HEARTBEAT_SOURCE, f"{INTERNAL_TYPE_PREFIX}ping", look)])
    id = events.create(HEARTBEAT_SOURCE, f"{INTERNAL_TYPE_PREFIX}ping", fromstring("<ping/>"), ["/a", "/b"])
    events.take()
    assert events.execute([id]) == {id: "finished"}
    assert statuses == ["executing"]
    assert events.status([id]) == {id: "finished"}


def test_executor_of_the_shipped_ping_finishes(events):
    assert look_after(events, "ping") == "finished"


def test_heartbeat_create(events):
    beats = [
        Heartbeat("OneMinute", f"{INTERNAL_TYPE_PREFIX}ping"),
        Heartbeat("OneMinute", "mine", S, {"a": 1}),
        Heartbeat("Other", "t"),
    ]
    ids = tick(events, beats, "OneMinute")
    assert events.status(ids) == dict.fromkeys(ids, "new")
    assert [(one.id, one.source, one.type, one.payload, one.uris) for one in events.take()] == [
        (ids[0], HEARTBEAT_SOURCE, f"{INTERNAL_TYPE_PREFIX}ping", None, ()), (ids[1], S, "mine", {"a": 1}, ()),
    ]  # fmt: skip


# --- made and taken -------------------------------------------------------------------------------


def test_a_batch_of_1001_uris_is_split_and_one_of_none_is_none(events):
    uris = [f"/{n}" for n in range(1001)]
    ids = events.create_batch(S, "t", "p", uris)
    found = events.take(5)
    assert [one.id for one in found] == ids
    assert [len(one.uris) for one in found] == [500, 500, 1]
    assert [uri for one in found for uri in one.uris] == uris
    (together,) = {one.transaction for one in found}
    assert together
    assert [
        len(one.uris) for one in with_settings(events, max_uris=400).get(events.create_batch(S, "t", None, []))
    ] == []
    assert len(with_settings(events, max_uris=400).create_batch(S, "t", None, uris)) == 3
    assert events.create_batch(S, "t") == []


def test_what_is_no_event_is_refused_before_it_is_made(events):
    for facts in ({"source": "a b"}, {"type": ""}, {"uris": "/one"}, {"uris": [3]}):
        with pytest.raises(OptionError):
            events.create(**{"source": S, "type": "t"} | facts)
    for payload, expected in (
        (b"bytes", r"payload: an event cannot hold bytes"),
        ({"a": object()}, r"payload\.a: object has no form in JSON"),
        ({"a": [1, {2}]}, r"payload\.a\[1\]: set has no form in JSON; use a list"),
        ({"a": float("nan")}, r"payload\.a: nan has no form in JSON"),
        ("\ud800", "payload: text with half a surrogate pair"),
    ):
        for create in (events.create, events.create_batch):
            with pytest.raises(MessageError, match=expected):
                create(S, "t", payload)
    with pytest.raises(MessageError, match=r"payload\.uris\[0\]: text with half a surrogate pair"):
        events.create(S, "t", None, ["/\ud800"])
    assert events.summary()["new"] == 0


def test_take_returns_ten_by_default_and_each_event_once(events):
    ids = [events.create(S, "t") for _ in range(13)]
    assert [one.id for one in events.take()] == ids[:10]
    assert events.take(0) == []
    assert [one.id for one in with_settings(events, max_events=2).take()] == ids[10:12]
    assert [one.id for one in events.take()] == ids[12:]
    assert events.take() == []
    with pytest.raises(OptionError, match="count must be 0 or more"):
        events.take(-1)


def test_priority_comes_first_then_the_oldest(events):
    ids = [events.create(S, "t", priority=n in (1, 3)) for n in range(4)]
    assert [one.id for one in events.take()] == [ids[1], ids[3], ids[0], ids[2]]


def test_a_message_that_is_no_event_fails_when_it_is_taken(events):
    with Queue(events.store, events.name) as queue:
        id = queue.push("no event")
    good = events.create(S, "good")
    assert [one.id for one in events.take()] == [good]
    assert events.store.sizes(events.name).total == 1
    assert any(id in one.errors for one in events.log.records())


# --- executed -------------------------------------------------------------------------------------


def test_each_event_gets_the_status_that_its_executor_says(events, seen):
    ids = taken(events, "good", "half", "bad", "nobody", "back")
    reported = events.execute(ids)
    assert list(reported.values()) == ["finished", "http://my/status/half", "failed", "failed", "new"]
    assert events.status(ids) == reported
    assert seen == [ids[0], ids[1], ids[2], ids[4]]
    errors = {id: error for one in events.log.records() for id, error in one.errors.items()}
    assert set(errors) == {ids[2], ids[3]}
    assert "ValueError: no such flight" in errors[ids[2]] and "Traceback" in errors[ids[2]]
    assert errors[ids[3]] == f"there is no executor for events nobody of {S}"
    counted = events.summary()
    assert counted == {
        "new": 1, "pending": 0, "executing": 0, "finished": 1, "failed": 2, "http://my/status/half": 1,
    }  # fmt: skip


def test_what_was_taken_can_be_executed_in_any_order_and_once(events, seen):
    ids = taken(events, "good", "good", "good")
    assert list(events.execute([ids[2], ids[0], ids[2]])) == [ids[2], ids[0]]
    assert events.execute([ids[0], ids[1]]) == {ids[0]: "finished", ids[1]: "finished"}
    assert seen == [ids[2], ids[0], ids[1]]


def test_a_new_event_is_not_executed_and_an_unknown_one_has_no_status(events, seen, caplog):
    new = events.create(S, "good")
    assert events.execute([new, "stranger"]) == {new: "new", "stranger": None}
    assert seen == []
    assert events.status(["stranger"]) == {"stranger": None}
    assert "there are no events stranger" in caplog.text
    (reported,) = events.log.records()
    assert (reported.message, reported.ids) == ("Event ID does not exist", ("stranger",))
    assert events.execute([]) == {}


def test_an_event_that_failed_comes_again_where_that_is_asked_for(events, seen):
    (id,) = taken(events, "again")
    assert events.execute([id]) == {id: "new"}
    assert events.take() == []
    make_due(events.store, events.name)
    (one,) = events.take()
    assert (one.id, one.tries) == (id, 1)
    assert events.execute([id]) == {id: "failed"}
    assert len(seen) == 2


def test_two_that_execute_the_same_event_run_it_once(store, name, url):
    begun, go, ran = threading.Barrier(4), threading.Event(), []

    def work(event, config):
        ran.append(event.id)
        go.wait(60)

    ids = taken(Events(store, name), *["t"] * 3)

    def execute(order):
        with Events(url, name, executors=[Executor(S, "t", work)]) as mine:
            begun.wait(60)
            return mine.execute(order)

    with ThreadPoolExecutor(4) as threads:
        reported = [threads.submit(execute, order) for order in (ids, ids[::-1], ids, ids)]
        wait_until(
            lambda: len(ran) + sum(one.done() for one in reported) == 4,
            description="that each of them works or has ended",
        )
        go.set()
        answers = [one.result(60) for one in reported]
    assert sorted(ran) == sorted(ids)
    assert Events(store, name).status(ids) == dict.fromkeys(ids, "finished")
    for answer in answers:
        assert set(answer.values()) <= {"pending", "executing", "finished"}


def test_who_has_lost_an_event_changes_nothing_of_it(store, name):
    def work(event, config):
        Events(store, name).fail([event.id], "somebody said so")
        return "mine"

    events = Events(store, name, executors=[Executor(S, "t", work)])
    (id,) = taken(events, "t")
    events.execute([id])
    assert events.status([id]) == {id: "failed"}
    assert any("no longer held" in one.message for one in events.log.records())


def test_no_two_takers_get_the_same_event(store, name, url):
    """Two threads and two processes at once."""
    events = Events(store, name)
    ids = events.create_batch(S, "t", None, [str(n) for n in range(400)], max_uris=1)
    code = (
        "import sys; from spark_queue.events import Events\n"
        "with Events(sys.argv[1], sys.argv[2]) as events:\n"
        "    print('ready', flush=True); sys.stdin.readline()\n"
        "    while taken := events.take(3): print(*(one.id for one in taken))"
    )
    program = [sys.executable, "-c", code, store.url, name]
    root = str(Path(__file__).parents[2])
    how = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": root}
    running = [subprocess.Popen(program, **how) for _ in range(2)]
    assert [one.stdout.readline() for one in running] == ["ready\n"] * 2

    def in_thread():
        found = []
        with Events(url, name) as mine:
            while some := mine.take(3):
                found += [one.id for one in some]
        return found

    for one in running:
        one.stdin.write("go\n")
        one.stdin.flush()
    with ThreadPoolExecutor(2) as threads:
        got = [one.result() for one in [threads.submit(in_thread) for _ in range(2)]]
    got += [one.communicate(timeout=300)[0].split() for one in running]
    assert sorted(id for some in got for id in some) == sorted(ids)
    assert events.summary()["pending"] == 400


# --- looked after ---------------------------------------------------------------------------------


def test_a_taker_that_is_gone_makes_its_events_new_again(events):
    id = events.create(S, "good", priority=True)
    events.take()
    assert events.status([id]) == {id: "pending"}
    end_lease(events.store, events.name, "pending")
    assert events.status([id]) == {id: "new"} and events.find("new") == [id]
    assert events.summary()["new"] == 1
    assert [(one.id, one.tries) for one in events.take()] == [(id, 0)], "no function has run: that is no try"


def test_internal_pending_timeout_makes_new(events, named):
    young, old = taken(events, "good", "good")
    events.store.transfer(events.name, "pending", f"pending/{hours_ago(events, 1)}.gone", [old], lease=None)
    assert look_after(events, "pending-timeout") == "finished"
    assert events.status([old, young]) == {old: "pending", young: "pending"}
    (reset,) = events.take(5)
    assert (reset.type, reset.uris, reset.priority) == (f"{INTERNAL_TYPE_PREFIX}reset", (old,), True)
    assert events.execute([reset.id]) == {reset.id: "finished"}
    assert events.status([old, young]) == {old: "new", young: "pending"}


def test_internal_execution_timeout_fails(events, named):
    young, old = taken(events, "good", "good")
    for id, began in ((young, hours_ago(events, 0)), (old, hours_ago(events, 2))):
        events.store.transfer(events.name, "pending", f"executing/{began}.gone", [id], lease=None)
    look_after(events, "execution-timeout")
    assert events.status([old, young]) == {old: "executing", young: "executing"}
    (fail,) = events.take(5)
    assert (fail.type, fail.uris, fail.priority) == (f"{INTERNAL_TYPE_PREFIX}fail", (old,), True)
    events.execute([fail.id])
    assert events.status([old, young]) == {old: "failed", young: "executing"}
    assert any("executed for more than 3600 s" in one.errors.get(old, "") for one in events.log.records())


def test_internal_new_timeout_fails(events, named):
    young = events.create(S, "good")
    before = datetime.fromtimestamp(hours_ago(events, 2) / 1000, UTC)
    document = events.get([young])[young].event.document() | {"created": before.isoformat()}
    events.store.push(events.name, pushes([document], ids=["old"], mature=before))
    look_after(events, "identify-timeouts")
    fail = next(one for one in events.take(5) if one.type == f"{INTERNAL_TYPE_PREFIX}fail")
    assert fail.uris == ("old",)
    events.reset(["old"])
    events.execute([fail.id])
    assert events.status(["old", young]) == {"old": "failed", young: "pending"}
    assert events.store.sizes(f"{events.name}.gone").total == 0


def test_internal_identify_deletions_clears_what_has_ended(events, named):
    ids = taken(events, "good", "bad", "half", "good")
    events.execute(ids[:3])
    look_after(events, "identify-deletions")
    (clear,) = events.take(1)
    assert (clear.type, set(clear.uris) >= set(ids[:2])) == (f"{INTERNAL_TYPE_PREFIX}clear", True)
    events.execute([clear.id])
    assert events.status(ids) == {ids[0]: None, ids[1]: None, ids[2]: "http://my/status/half", ids[3]: "pending"}
    assert any(one.message == "Events deleted" and set(ids[:2]) <= set(one.ids) for one in events.log.records())


def test_internal_reset_clear_and_fail_take_ids_and_documents_of_events(events, named):
    first, second, third, other = taken(events, "good", "good", "good", "good")
    assert look_after(events, "reset", uris=[f"/noslogan.org/hub-queue/queue/{first}.xml"]) == "finished"
    assert look_after(events, "fail", "a reason", uris=[second]) == "finished"
    assert look_after(events, "clear", uris=[third, "/other/document.xml"]) == "finished"
    assert look_after(events, "ping") == "finished"
    assert events.status([first, second, third, other]) == {
        first: "new", second: "failed", third: None, other: "pending",
    }  # fmt: skip


def test_internal_update_status(events, named):
    ids = taken(events, "good", "good")
    assert look_after(events, "update-status", f"{BASE}status/failed", ids[:1]) == "finished"
    assert look_after(events, "update-status", "new", ids[1:]) == "finished"
    assert events.status(ids) == {ids[0]: "failed", ids[1]: "new"}
    assert look_after(events, "update-status", "finished", ids) == "failed"


def test_internal_status_is_written_into_the_log(events, named):
    taken(events, "good")
    look_after(events, "status")
    (batch,) = events.store.peek(f"{events.name}.log")
    reported = [row for row in batch.column("payload").to_pylist() if b"Status of the queue" in row]
    assert len(reported) == 1 and b'"pending":1' in reported[0]


def test_reset_makes_new_whatever_the_status_at_the_old_place(events):
    first = events.create(S, "good", {"n": 1}, ["/a"])
    ids = [first, *(events.create(S, one) for one in ("half", "bad", "good", "good"))]
    events.take(4)
    events.execute(ids[:3])
    before = events.get([first])[first].event
    assert events.reset(ids) == 4
    assert events.reset(ids) == 0
    assert events.status(ids) == dict.fromkeys(ids, "new")
    assert [one.id for one in events.take()] == ids
    assert events.get([first])[first].event == before
    assert events.execute([first]) == {first: "finished"}


def test_fail_ends_what_has_not_ended(events):
    ended, pending = taken(events, "half", "good")
    events.execute([ended])
    new = events.create(S, "good", priority=True)
    assert events.fail([ended, pending, new, "stranger"], "no time") == 2
    assert events.status([ended, pending, new]) == {ended: "http://my/status/half", pending: "failed", new: "failed"}
    assert sorted(events.find("failed")) == sorted([pending, new])
    assert events.reset([new]) == 1
    assert [one.id for one in events.take()] == [new]


@pytest.mark.parametrize("detailed", [False, True])
def test_clear_deletes_event_and_status_and_is_logged(events, detailed):
    events = with_settings(events, detailed_log=detailed)
    ended, pending = taken(events, "bad", "good", payload={"a": 1})
    events.execute([ended])
    new = events.create(S, "good")
    stays = events.create(S, "good")
    assert events.clear([ended, pending, new, "stranger"]) == 3
    assert events.clear([ended]) == 0
    assert events.status([ended, pending, new, stays]) == {ended: None, pending: None, new: None, stays: "new"}
    assert events.store.sizes(events.name).total == 1
    reported = [one for one in events.log.records() if one.message == "Events deleted"]
    assert [sorted(one.ids) for one in reported] == [sorted([ended, pending, new])]
    assert [one["payload"] for one in reported[0].events if one["id"] == ended] == ([{"a": 1}] if detailed else [])


def test_find_selects_events_by_status_and_age(events):
    ids = taken(events, "good", "bad", "half", "good")
    events.execute(ids[:3])
    assert events.find(f"{BASE}status/pending") == [ids[3]]
    assert events.find("finished") == [ids[0]] and events.find("http://my/status/half") == [ids[2]]
    assert events.find("pending", 60_000) == [] == events.find("finished", 60_000) == events.find("new", 60_000)
    assert events.find("failed", limit=0) == []
    known = {one.event.id: one.status for one in events.all()}
    assert known == {ids[0]: "finished", ids[1]: "failed", ids[2]: "http://my/status/half", ids[3]: "pending"}


def test_what_others_take_and_commit_has_a_status_too(events):
    ids = [events.create(S, "good") for _ in range(3)]
    with Queue(events.store, events.name, history=60, lease=60) as queue:
        one, two, _ = queue.reserve(3)
        assert events.status(ids) == dict.fromkeys(ids, "pending")
        queue.commit(one)
        queue.dead_letter(two, reason="hopeless")
    assert events.status(ids) == {ids[0]: "finished", ids[1]: "failed", ids[2]: "new"}
    events.store.drop(f"{events.name}.dead")


@pytest.mark.parametrize("layout", ["pl-mongo", "bucket-mongo-safe"])
def test_a_layout_that_cannot_hold_events_is_refused(url_of, layout):
    with pytest.raises(OptionError, match=f"the layout {layout} cannot hold events"):
        Events(StoreUrl.parse(url_of("mongodb")).with_layout(layout), "q")


def test_lists_cannot_hold_events(url_of):
    for layout in ("redis-list", "rfq"):
        with open_store(StoreUrl.parse(url_of("redis")).with_layout(layout)) as store, pytest.raises(OptionError):
            Events(store, "q")


# --- the tasks of a query -------------------------------------------------------------------------


def task(events, tag):
    """What a task does with the events of a partition, each time it is called."""
    work = ExecutorWork(
        events.store.url, events.name, "executing.q", events.declared_executors, events.settings, "u", "h"
    )
    (page,) = events.store.fetch(events.name, tag)
    columns = {name: page.column(name) for name in ("id", "mature", "tries")}
    columns |= {"payload": page.column("payload").cast(pa.string()), "tag": pa.repeat(tag, page.num_rows)}
    return lambda: list(work(iter([pa.RecordBatch.from_pydict(columns)])))


def test_a_task_settles_what_its_partition_holds_still_and_once(events, seen):
    ids = [events.create(S, one) for one in ("good", "half", "good", "good")]
    store, name = events.store, events.name
    assert store.reserve(name, "executing.q/e/1", 4, partitions=2, min_partitions=2) == [2, 2]
    late = task(events, "executing.q/e/1/1")
    assert store.rollback(name, "executing.q/e/1/1", ids[2:3], delay=None, failed=False) == 1
    assert store.reserve(name, "executing.q/e/2", 4) == [1], "it is in a later batch of this query"
    task(events, "executing.q/e/1/0")()
    assert list(events.status(ids).values()) == ["finished", "http://my/status/half", "executing", "executing"]
    for _ in range(2):
        late()
        assert list(events.status(ids).values())[2:] == ["executing", "finished"]
    assert events.summary()["finished"] == 2 and seen.count(ids[3]) == 2
    reported = [one for one in events.log.records() if "no longer held" in one.message]
    assert [(one.ids, one.transaction) for one in reported] == [((ids[2], ids[3]), "executing.q/e/1/1")] * 2
