"""A client that waits is woken by a push of any client, and is no worse off without signals."""

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
from spark_queue.messages.message import pushes
from spark_queue.stores.conformance.limits import with_limits
from spark_queue.stores.conformance.waiting import wait_until
from spark_queue.stores.services import signals
from spark_queue.stores.sqlite.change_poll import POLL_INTERVAL
from tests.stores.clock import Clock

pytestmark = pytest.mark.every_store  # each has signals of its own

#: ms that a wait lasts which nothing ends: far longer than a test waits for its end.
HOUR = 3_600_000


@pytest.fixture
def deaf_for_an_hour(set_limits):
    """A client that waits polls after an HOUR only, so only a signal can wake it within a test.

    It waits until its connection is up: a busy machine may need longer than by default.
    """
    set_limits(poll_interval_ms=HOUR, listen_timeout=60.0)


@pytest.fixture
def other(url):
    """Another client, with connections of its own."""
    with open_store(url) as opened:
        yield opened


def listeners():
    """The threads that hear signals."""
    return [one for one in threading.enumerate() if one.name == "spark_queue signals"]


class Waiter:
    """A thread that waits an HOUR for a message: it has subscribed and checked, and now sleeps."""

    def __init__(self, monkeypatch, store, queue, hint=False):
        self.sleeps, self.came, listen = 0, [], store._wait_signal

        def counted(*arguments):
            self.sleeps += 1
            listen(*arguments)

        monkeypatch.setattr(store, "_wait_signal", counted)
        wait = lambda: self.came.append(store.wait(queue, HOUR, hint=hint))  # noqa: E731
        threading.Thread(target=wait, daemon=True).start()
        self.sleeps_again(0)

    def sleeps_again(self, before):
        """Wait until it has fallen asleep once more than it had before."""
        wait_until(lambda: self.sleeps > before, description="a waiter that sleeps")

    def woken(self):
        """Wait until it is awake, and return whether a message came."""
        return wait_until(lambda: self.came, description="the end of a wait")[0]


@pytest.fixture
def waiting(monkeypatch):
    """Begin to wait: `waiting(store, queue)`."""
    return lambda *what, **how: Waiter(monkeypatch, *what, **how)


def hold(store, queue, tag):
    store.push(queue, pushes(["held"]))
    assert store.reserve(queue, tag, 1) == [1]


@pytest.mark.parametrize("act", ["push", "publish", "rollback", "move", "scheduled"])
def test_each_operation_that_brings_a_message_wakes_a_client(deaf_for_an_hour, waiting, store, other, name, act):
    tag = f"c-{name}/0"
    if act == "publish":
        other.stage(name, f"{name}/0/a", pushes(["x"]))
    elif act == "rollback":
        hold(other, name, tag)
    elif act == "move":
        other.push(f"{name}.other", pushes(["x"]))
    waiter = waiting(store, name)
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
    assert waiter.woken()


@pytest.mark.parametrize("hint", [False, True])
def test_a_signal_alone_is_a_hint_that_wakes_who_asks_for_it(deaf_for_an_hour, waiting, store, other, name, hint):
    waiter = waiting(store, name, hint=hint)
    before = waiter.sleeps
    other.push(name, pushes(["x"], delay=HOUR))
    if hint and isinstance(store, signals.SignallingStore):
        assert waiter.woken()
    else:  # a file that changes says of no queue
        waiter.sleeps_again(before)
        assert not waiter.came
        other.push(name, pushes(["now"]))
        assert waiter.woken()
        assert store.reserve(name, "c/1", 1) == [1]
    assert not store.wait(name, 0, hint=hint), "nothing is due"


def test_what_comes_between_a_look_and_the_sleep_is_heard(deaf_for_an_hour, waiting, store, other, name, monkeypatch):
    look, rung = store._next_mature, store._signal_version(name)

    def looked(queue):
        found = look(queue)
        if found is None:
            other.push(queue, pushes(["x"]))
            wait_until(lambda: store._signal_version(queue) != rung, description="its signal")
        return found

    monkeypatch.setattr(store, "_next_mature", looked)
    assert waiting(store, name).woken()


def test_no_wake_up_falls_between_a_look_and_a_sleep(deaf_for_an_hour, store, other, name):
    """Pushes come at any moment of a consumer's round, and several in one window."""
    wanted = 60
    taken = []

    def consume():
        with Queue(store, name) as queue:
            while len(taken) < wanted:
                got = queue.reserve(10, timeout=HOUR / 1000)
                queue.commit(*got)
                taken.extend(got)

    thread = threading.Thread(target=consume, daemon=True)
    thread.start()
    for number in range(wanted):
        other.push(name, pushes([number]))
        time.sleep(random.choice((0, 0.001, 0.01, 0.06)))
    wait_until(lambda: not thread.is_alive(), description=f"the last of {wanted} messages")
    assert {one.payload for one in taken} == set(range(wanted))
    assert len(taken) == wanted


def test_who_waits_is_woken_by_the_push_itself(deaf_for_an_hour, waiting, store, other, name, monkeypatch):
    """No timer delays the first signal, and a file is looked at often."""
    waiter = waiting(store, name)
    Clock(monkeypatch, signals)  # no timer of signals ends
    other.push(name, pushes(["x"]))
    assert waiter.woken()
    assert POLL_INTERVAL <= 0.05


def test_threads_that_share_a_store_need_no_signal(deaf_for_an_hour, waiting, monkeypatch, store, name):
    if isinstance(store, signals.SignallingStore):
        monkeypatch.setattr(store, "_send", lambda *_: None)
    waiter = waiting(store, name)
    store.push(name, pushes(["x"]))
    assert waiter.woken()


def test_a_resume_wakes_a_waiting_client_and_a_pause_keeps_it_asleep(deaf_for_an_hour, waiting, store, other, name):
    waiter = waiting(store, name)
    other.pause(name)
    before = waiter.sleeps
    other.push(name, pushes(["x"]))
    waiter.sleeps_again(before)  # it has seen the message
    assert not waiter.came
    other.resume(name)
    assert waiter.woken()


@pytest.mark.stores(server=True)
def test_the_signal_of_a_pause_is_no_message(url_of, scheme, monkeypatch):
    queue = f"t{uuid.uuid4().hex[:16]}"
    with open_store(url_of(scheme)) as store, open_store(url_of(scheme)) as other:
        rung = store._signal_version(queue)
        asked = []
        monkeypatch.setattr(store._pause_cache, "_read_flag", lambda one: asked.append(one) or False)
        for paused, rings in ((True, 0), (False, 1), (True, 1), (False, 2)):
            (other.pause if paused else other.resume)(queue)
            heard = paused, rung + rings
            wait_until(lambda: (store._pause_cache.is_paused(queue, HOUR), store._signal_version(queue)) == heard)  # noqa: B023
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


@with_limits(poll_interval_ms=100)
def test_messages_arrive_though_every_signal_is_lost(monkeypatch, waiting, store, other, name):
    if isinstance(store, signals.SignallingStore):
        monkeypatch.setattr(other._sender, "_send", lambda *_: None)
    else:
        monkeypatch.setattr(store, "_signal_version", lambda *_: 0)
    waiter = waiting(store, name)
    other.push(name, pushes(["x"]))
    assert waiter.woken()


def test_a_redis_signal_is_as_keuss_sends_it(redis_url):
    queue = f"t{uuid.uuid4().hex[:16]}"
    with open_store(redis_url) as store, Redis.from_url(redis_url) as raw, raw.pubsub() as heard:
        heard.subscribe(f"keuss:signal:N:{queue}")
        assert heard.get_message(timeout=60)["type"] == "subscribe"
        now = store.now()
        store.push(queue, pushes(["x"], delay=60_000))
        message = heard.get_message(timeout=60)
        assert now + 59_000 < int(message["data"]) < store.now() + 61_000
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


@with_limits(poll_interval_ms=100)
def test_a_user_who_may_not_signal_still_pushes_and_waits(redis_url, waiting, caplog):
    queue = f"t{uuid.uuid4().hex[:16]}"
    with Redis.from_url(redis_url) as raw:
        may = {"keys": ["*"], "categories": ["+@all"]}
        raw.acl_setuser(queue, enabled=True, passwords=["+sesame"], **may, reset_channels=True)
        mute = redis_url.replace("redis://", f"redis://{queue}:sesame@")
        try:
            with open_store(mute) as store, caplog.at_level(logging.WARNING):
                waiter = waiting(store, queue)
                store.push(queue, pushes(["x"]))
                assert waiter.woken()
                wait_until(lambda: len(caplog.records) > 1, description="both warnings")
                store.drop(queue)
        finally:
            raw.acl_deluser(queue)
    reported = sorted(one.getMessage().partition(":")[0] for one in caplog.records)
    assert reported == [
        f"signals of queue '{queue}' are not received, so its waiting clients poll",
        f"signals of queue '{queue}' are not sent, so waiting clients poll",
    ]
    assert "sesame" not in caplog.text


@with_limits(signal_window=0)  # each push has its signal
def test_a_signal_that_cannot_be_sent_does_not_fail_the_push(monkeypatch, caplog, mongodb_url):
    queue = f"t{uuid.uuid4().hex[:16]}"
    with open_store(mongodb_url) as store, caplog.at_level(logging.WARNING):

        def refused(*_):
            raise StoreError("not authorized")

        monkeypatch.setattr(store, "_send", refused)
        for _ in range(3):
            assert store.push(queue, pushes(["x"])) == 1
        assert len(caplog.records) == 1
        store.drop(queue)


def test_a_store_that_is_closed_while_it_hears_goes_quietly(store, name, caplog):
    before = set(threading.enumerate())
    with caplog.at_level(logging.WARNING):
        store.wait(name, 0)
        store.close()
        wait_until(lambda: set(listeners()) <= before, description="the end of its listener")
    assert not caplog.records
    store.push(name, pushes(["x"]))  # a closed store opens again
    assert store.wait(name, 0)
