"""Internal events are obeyed if heartbeats or housekeeping created them, or if the settings allow pushed ones."""

from __future__ import annotations

import logging

import pytest

from spark_queue.client import Queue
from spark_queue.events import Events, EventSettings, Executor, Heartbeat, origin, tick
from spark_queue.events.builtin import _NAMES
from spark_queue.events.event import BASE, HEARTBEAT_SOURCE, INTERNAL_SOURCE, INTERNAL_TYPE_PREFIX, OTHER_SOURCES
from spark_queue.events.origin import ORIGIN_NOTE, is_internal
from spark_queue.messages.message import pushes
from spark_queue.stores.types import queue_note_key

S = "http://example.org/flights"
CLEAR = f"{INTERNAL_TYPE_PREFIX}clear"


@pytest.fixture
def name(name, store):
    yield name
    for queue in (f"{name}.log", f"{name}.gone", f"{name}.dead"):
        store.drop(queue)


@pytest.fixture
def events(store, name):
    return Events(store, name)


def pushed(events, source, type, uris=(), **facts):
    """Push an internal event as any program may push a message; give its id."""
    document = {"source": source, "type": type, "uris": list(uris), "priority": True, **facts}
    with Queue(events.store, events.name) as queue:
        return queue.push(document)


def execute_all(events, id):
    """Execute all that is new; give the status of one, and its error."""
    taken = events.take(20)
    statuses = events.execute([one.id for one in taken])
    errors = {key: error for one in events.log.records() for key, error in one.errors.items()}
    return statuses[id], errors.get(id, "")


@pytest.mark.every_store
@pytest.mark.parametrize("source", [INTERNAL_SOURCE, HEARTBEAT_SOURCE, *OTHER_SOURCES])
def test_a_pushed_internal_event_fails_and_its_reason_names_the_setting(events, source):
    victim = events.create(S, "t")
    types = [f"{prefix}clear" for prefix in (INTERNAL_TYPE_PREFIX, f"{BASE}queue/type/")]
    for type in types:
        status, reason = execute_all(events, pushed(events, source, type, [victim]))
        assert status == "failed" and "pushedInternalEvents: true" in reason and "Traceback" not in reason
        events.reset([victim])
    assert events.status([victim]) == {victim: "new"}


@pytest.mark.parametrize("name_of_event", _NAMES)
def test_no_kind_of_internal_event_is_obeyed_from_a_push(events, name_of_event):
    ended = events.create(S, "t")
    events.take()
    events.execute([ended])
    id = pushed(events, INTERNAL_SOURCE, f"{INTERNAL_TYPE_PREFIX}{name_of_event}", [ended], payload="new")
    assert execute_all(events, id)[0] == "failed"
    assert events.status([ended]) == {ended: "failed"} and events.summary()["new"] == 0, "it created nothing either"


def test_what_programs_create_with_source_and_type_of_their_own_is_a_push_too(events):
    victim = events.create(S, "t")
    for create in (events.create, events.create_batch):
        made = create(INTERNAL_SOURCE, CLEAR, None, [victim], priority=True)
        id = made if isinstance(made, str) else made[0]
        assert events.get([id])[id].event.proof == ""
        assert execute_all(events, id)[0] == "failed"
        events.reset([victim])
    assert victim in events.get([victim])


def test_a_setting_makes_pushed_internal_events_obeyed(store, name):
    events = Events(store, name, settings=EventSettings(pushed_internal_events=True))
    victim = events.create(S, "t")
    id = pushed(events, INTERNAL_SOURCE, CLEAR, [victim])
    assert execute_all(events, id) == ("finished", "")
    assert events.status([victim]) == {victim: None}


@pytest.mark.every_store
def test_heartbeats_and_what_they_create_are_obeyed_without_the_setting(events):
    ended = events.create(S, "t")
    events.take()
    events.execute([ended])
    beats = [Heartbeat("x", f"{INTERNAL_TYPE_PREFIX}identify-deletions"), Heartbeat("x", "mine", S)]
    beat, mine = tick(events, beats, "x")
    assert events.get([mine])[mine].event.proof == "", "an event of a program's own is as it was"
    (one,) = events.take(1)
    assert events.execute([beat]) == {beat: "finished"} and one.id == beat
    (clear,) = events.take(1)
    assert (clear.type, ended in clear.uris) == (CLEAR, True)
    assert events.execute([clear.id]) == {clear.id: "finished"}
    assert events.status([ended]) == {ended: None}


def made(events, *uris):
    """An internal event that housekeeping has created, as a message that any client may read."""
    (id,) = events.create_internal(INTERNAL_SOURCE, CLEAR, None, uris, priority=True)
    return id, events.get([id])[id].event.document()


@pytest.mark.parametrize(
    "change",
    [{"uris": ["victim"]}, {"type": f"{INTERNAL_TYPE_PREFIX}reset"}, {"source": HEARTBEAT_SOURCE}, {"payload": "x"},
     {"proof": ""}, {"proof": "\ud800"}, {"proof": "é"}, {"proof": 3}, {"proof": ["x"]}, {"proof": "0" * 64},
     {"created": "2099-01-01T00:00:00.000Z"}],
)  # fmt: skip
def test_a_proof_is_for_one_event(events, change):
    victim = events.create(S, "t")
    id, document = made(events, "/other")
    changed = document | {key: [victim] if value == ["victim"] else value for key, value in change.items()}
    events.clear([id])
    if changed.get("proof") == "\ud800":  # no database takes it
        return
    events.store.push(events.name, pushes([changed], ids=[id]))
    assert execute_all(events, id)[0] == "failed"


def test_a_proof_is_for_one_id_and_one_queue(events, store):
    id, document = made(events, "/other")
    copy = pushed(events, **document)
    events.clear([id])
    assert execute_all(events, copy)[0] == "failed"
    other = Events(store, f"{events.name}.gone")
    made(other, "/x")
    store.push(other.name, pushes([document], ids=[id]))
    assert execute_all(other, id)[0] == "failed"
    store.drop(f"{other.name}.log")


def test_an_internal_event_is_obeyed_for_a_day(events, monkeypatch):
    """So a copy of it does not repeat it for longer."""
    id, document = made(events, "/other")
    assert execute_all(events, id)[0] == "finished"
    events.reset([id])
    assert execute_all(events, id)[0] == "finished", "reset makes it new, as any event"
    events.clear([id])
    events.store.push(events.name, pushes([document], ids=[id]))
    monkeypatch.setattr(origin, "MAX_AGE", -1)  # a rule, not a setting
    status, reason = execute_all(events, id)
    assert status == "failed" and reason.endswith("the next heartbeat creates another one")


def test_an_internal_event_of_an_earlier_version_fails_with_a_reason(events):
    """It has no proof: the next heartbeat creates another one."""
    id, document = made(events, "/x")
    events.clear([id])
    del document["proof"]
    old = pushed(events, **document)
    assert "pushedInternalEvents" in execute_all(events, old)[1]


def test_the_key_goes_with_its_queue(events):
    made(events, "/x"), made(events, "/y")
    key = queue_note_key(events.name, ORIGIN_NOTE)
    note = events.store.note(key)
    assert note is not None and note.version == 1, "one key, written once"
    events.store.drop(events.name)
    assert events.store.note(key) is None


def test_an_executor_of_ones_own_runs_for_any_event(store, name, caplog):
    caplog.set_level(logging.WARNING)
    ran = []
    own = Executor(INTERNAL_SOURCE, CLEAR, lambda event, config: ran.append(event.id))
    events = Events(store, name, executors=[own])
    id = pushed(events, INTERNAL_SOURCE, CLEAR, ["x"])
    assert execute_all(events, id)[0] == "finished" and ran == [id]


def test_what_is_internal():
    assert is_internal(HEARTBEAT_SOURCE, CLEAR) and is_internal(OTHER_SOURCES[0], f"{BASE}queue/type/reset")
    assert not is_internal(S, CLEAR) and not is_internal(HEARTBEAT_SOURCE, "poll")
