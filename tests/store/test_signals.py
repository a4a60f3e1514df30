"""Who waits for a message is woken by whoever brings one; and is no worse off where signals are lost."""

from __future__ import annotations

import logging
import random
import threading
import time
import uuid

import pytest
from pymongo import MongoClient
from redis import Redis

from spark_queue import Queue, open_store
from spark_queue.errors import StoreError
from spark_queue.message import pushes
from spark_queue.store import base, signals

#: Seconds that nobody waits who has been woken.
LONG = 60


@pytest.fixture
def deaf_for_a_minute(monkeypatch):
    """Who waits looks by himself after LONG seconds only, so that nothing but a signal can wake him in time."""
    monkeypatch.setattr(base, "POLL", LONG * 1000)


@pytest.fixture
def other(url):
    """Another client, with connections of its own."""
    with open_store(url) as opened:
        yield opened


def waiting(store, queue):
    """Begin to wait; gives what joins the wait and tells whether a message came, and how long it took (s)."""
    took = []
    begun = threading.Event()

    def wait():
        store.wait(queue, 0)  # from now on it hears
        begun.set()
        start = time.monotonic()
        took.append((store.wait(queue, LONG * 1000), time.monotonic() - start))

    thread = threading.Thread(target=wait)
    thread.start()
    assert begun.wait(LONG)

    def join():
        thread.join(LONG)
        return took[0]

    return join


def hold(store, queue, tag):
    store.push(queue, pushes(["held"]))
    assert store.reserve(queue, tag, 1) == [1]


@pytest.mark.parametrize("act", ["push", "publish", "rollback", "move", "scheduled"])
def test_whoever_brings_a_message_wakes_who_waits(deaf_for_a_minute, store, other, name, act):
    tag = f"c-{name}/0"
    if act == "publish":
        other.stage(name, f"{name}/0/a", pushes(["x"]))
    elif act == "rollback":
        hold(other, name, tag)
    elif act == "move":
        other.push(f"{name}.other", pushes(["x"]))
    woken = waiting(store, name)
    time.sleep(random.uniform(0.05, 0.2))
    if act == "push":
        other.push(name, pushes(["x"]))
    elif act == "publish":
        other.publish([f"{name}/0/a"])
    elif act == "rollback":
        other.rollback(name, f"{tag}/0")
    elif act == "move":
        other.move(f"{name}.other", name)
    else:
        other.push(name, pushes(["x"], delay=300))  # its signal says when
    came, took = woken()
    assert came
    assert took < LONG / 2


@pytest.mark.parametrize("hint", [False, True])
def test_a_signal_alone_is_a_hint_that_wakes_who_asks_for_it(store, other, name, hint):
    assert not store.wait(name, 0)  # from now on it hears
    time.sleep(2 * base.FRESH / 1000)  # and that look is forgotten
    later = threading.Timer(0.2, lambda: other.push(name, pushes(["x"], delay=LONG * 1000)))
    later.start()
    woken = store.wait(name, 1_500, hint=hint)
    later.join()
    assert woken == (hint and isinstance(store, signals.SignallingStore)), "a file that changes says of no queue"
    assert not store.wait(name, 100, hint=hint), "nothing is due"


def test_what_comes_between_a_look_and_the_sleep_is_heard(deaf_for_a_minute, store, other, name, monkeypatch):
    look = store._next_mature

    def looked(queue):
        found = look(queue)
        if found is None:
            other.push(queue, pushes(["x"]))
            time.sleep(0.3)  # until its signal is here
        return found

    monkeypatch.setattr(store, "_next_mature", looked)
    start = time.monotonic()
    assert store.wait(name, LONG * 1000)
    assert time.monotonic() - start < LONG / 2


def test_no_wake_up_falls_between_a_look_and_a_sleep(deaf_for_a_minute, store, other, name):
    """Pushes come at any moment of a consumer's round, and several in one window."""
    wanted = 60
    taken = []

    def consume():
        with Queue(store, name) as queue:
            while len(taken) < wanted:
                got = queue.reserve(10, timeout=LONG / 2)
                assert got, f"nothing came after {len(taken)}"
                taken.extend(got)
                queue.commit(*got)

    thread = threading.Thread(target=consume)
    thread.start()
    for number in range(wanted):
        other.push(name, pushes([number]))
        time.sleep(random.choice((0, 0.001, 0.01, 0.06)))
    thread.join(LONG)
    assert {one.payload for one in taken} == set(range(wanted))
    assert len(taken) == wanted


def test_who_waits_is_awake_within_fifty_milliseconds(deaf_for_a_minute, store, other, name):
    took = []
    for number in range(9):
        woken = waiting(store, name)
        time.sleep(0.1)
        pushed = time.monotonic()
        other.push(name, pushes(["x"]))
        assert woken()[0]
        took.append(time.monotonic() - pushed)
        store.reserve(name, f"c/{number}", 1)
        store.commit(name, f"c/{number}")
    assert min(took) < 0.05, took  # a machine that does something else as well makes some of them late


def test_threads_that_share_a_store_need_no_signal(deaf_for_a_minute, monkeypatch, store, name):
    if isinstance(store, signals.SignallingStore):
        monkeypatch.setattr(store, "_send", lambda *_: None)
    woken = waiting(store, name)
    time.sleep(0.1)
    store.push(name, pushes(["x"]))
    came, took = woken()
    assert came
    assert took < LONG / 2


def test_a_resume_wakes_who_waits_and_a_pause_keeps_him_asleep(deaf_for_a_minute, store, other, name):
    woken = waiting(store, name)
    other.pause(name)
    other.push(name, pushes(["x"]))
    time.sleep(0.5)
    resumed = time.monotonic()
    other.resume(name)
    assert woken()[0]
    assert 0 < time.monotonic() - resumed < LONG / 2


@pytest.mark.stores(server=True)
def test_a_pause_is_told_by_a_signal_which_is_no_message(url_of, scheme, monkeypatch):
    queue = f"t{uuid.uuid4().hex[:16]}"
    with open_store(url_of(scheme)) as store, open_store(url_of(scheme)) as other:
        rung = store._rung(queue)
        asked = []
        monkeypatch.setattr(store._pauses, "_ask", lambda one: asked.append(one) or False)
        for paused, rings in ((True, 0), (False, 1), (True, 1), (False, 2)):
            (other.pause if paused else other.resume)(queue)
            end = time.monotonic() + LONG
            while store._pauses.paused(queue, LONG) is not paused or store._rung(queue) != rung + rings:
                assert time.monotonic() < end
                time.sleep(0.005)
        assert len(asked) <= 1, "at first, when nothing was known"
        other.drop(queue)


def test_pauses_on_redis_are_signalled_as_keuss_does(redis_url):
    queue = f"t{uuid.uuid4().hex[:16]}"
    with open_store(f"{redis_url}?ns=other") as store, Redis.from_url(redis_url) as raw, raw.pubsub() as heard:
        heard.subscribe(f"keuss:signal:other:{queue}")
        assert heard.get_message(timeout=60)["type"] == "subscribe"
        for act, said in ((store.pause, b"p true"), (store.resume, b"p false")):
            act(queue)
            assert heard.get_message(timeout=60)["data"] == said
            flag = said.removeprefix(b"p ")
            kept = {b"name": queue.encode(), b"ns": b"other", b"opts": b"{}", b"paused": flag}
            assert raw.hgetall(f"keuss:stats:other:{queue}") == kept
        store.drop(queue)
        assert not raw.exists(f"keuss:stats:other:{queue}")


def test_pauses_on_mongodb_are_signalled_as_keuss_does(mongodb_url):
    queue = f"t{uuid.uuid4().hex[:16]}"
    url = f"{mongodb_url}{'&' if '?' in mongodb_url else '?'}ns=other"
    with open_store(url) as store, MongoClient(mongodb_url) as raw:
        store.pause(queue)
        store.push(queue, pushes(["x", "y"]))
        assert store.statistics(queue).put == 2
        database = raw.get_default_database().name
        assert raw[f"{database}_stats"]["keuss_stats"].find_one({"name": queue}) == {
            "_id": f"keuss:stats:other:{queue}", "ns": "other", "name": queue, "opts": {}, "paused": True,
            "counters": {"put": 2},
        }  # fmt: skip
        store.resume(queue)
        found = raw[f"{database}_signal"]["default"].find({"event": f"keuss:signal:other:{queue}"})
        assert [one["message"] for one in found] == ["p true", 1.0, "p false"]
        store.drop(queue)


def test_messages_arrive_though_every_signal_is_lost(monkeypatch, store, other, name):
    if isinstance(store, signals.SignallingStore):
        monkeypatch.setattr(other._sender, "_send", lambda *_: None)
    else:
        monkeypatch.setattr(store, "_rung", lambda *_: 0)
    monkeypatch.setattr(base, "POLL", 100)
    woken = waiting(store, name)
    other.push(name, pushes(["x"]))
    came, took = woken()
    assert came
    assert took < LONG / 2


def test_a_redis_signal_is_as_keuss_sends_it(redis_url):
    queue = f"t{uuid.uuid4().hex[:16]}"
    with open_store(redis_url) as store, Redis.from_url(redis_url) as raw, raw.pubsub() as heard:
        heard.subscribe(f"keuss:signal:N:{queue}")
        assert heard.get_message(timeout=60)["type"] == "subscribe"
        now = store.now()
        store.push(queue, pushes(["x"], delay=60_000))
        message = heard.get_message(timeout=60)
        assert now + 50_000 < int(message["data"]) < now + 70_000
        store.push(queue, pushes(["x"]))
        assert heard.get_message(timeout=60)["data"] == b"1", "by 0 keuss would understand that nothing is there"
        store.drop(queue)


def test_a_mongodb_signal_is_as_keuss_sends_it(mongodb_url):
    queue = f"t{uuid.uuid4().hex[:16]}"
    with open_store(mongodb_url) as store, MongoClient(mongodb_url) as raw:
        store.push(queue, pushes(["x"]))
        signals = raw[f"{raw.get_default_database().name}_signal"]
        found = signals["default"].find_one({"event": f"keuss:signal:N:{queue}"})
        assert found["message"] == 1.0
        assert isinstance(found["message"], float)
        assert signals["default"].options() == {"capped": True, "size": 5_242_880}
        assert signals["default"].find_one({"dummy": True})
        store.drop(queue)


def test_a_user_who_may_not_signal_still_pushes_and_waits(redis_url, monkeypatch, caplog):
    monkeypatch.setattr(base, "POLL", 100)
    queue = f"t{uuid.uuid4().hex[:16]}"
    with Redis.from_url(redis_url) as raw:
        may = {"keys": ["*"], "categories": ["+@all"]}
        raw.acl_setuser(queue, enabled=True, passwords=["+sesame"], **may, reset_channels=True)
        mute = redis_url.replace("redis://", f"redis://{queue}:sesame@")
        try:
            with open_store(mute) as store, caplog.at_level(logging.WARNING):
                woken = waiting(store, queue)
                store.push(queue, pushes(["x"]))
                assert woken()[0]
                store.drop(queue)
        finally:
            raw.acl_deluser(queue)
    told = sorted(one.getMessage().partition(":")[0] for one in caplog.records)
    assert told == [
        f"signals of '{queue}' are not heard, so they are looked for instead",
        f"signals of '{queue}' are not sent, so that who waits has to look for himself",
    ]
    assert "sesame" not in caplog.text


def test_a_signal_that_cannot_be_sent_does_not_fail_the_push(monkeypatch, caplog, mongodb_url):
    queue = f"t{uuid.uuid4().hex[:16]}"
    with open_store(mongodb_url) as store, caplog.at_level(logging.WARNING):

        def refused(*_):
            raise StoreError("not authorized")

        monkeypatch.setattr(store, "_send", refused)
        for _ in range(3):
            assert store.push(queue, pushes(["x"])) == 1
            time.sleep(0.06)
        assert len(caplog.records) == 1
        store.drop(queue)


def test_a_store_that_is_closed_while_it_hears_goes_quietly(store, name, caplog):
    with caplog.at_level(logging.WARNING):
        store.wait(name, 0)
        store.close()
        time.sleep(1.5)  # longer than a heartbeat
    assert not caplog.records
    assert not [one.name for one in threading.enumerate() if name in one.name]
    store.push(name, pushes(["x"]))  # a closed store opens again
    assert store.wait(name, 0)
