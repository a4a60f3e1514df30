"""A client that waits sends few requests while nothing comes, and loses no time when something does."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from typing import Any

import pytest
from redis import Redis

from spark_queue import Queue, open_store
from spark_queue.errors import StoreUnavailable
from spark_queue.messages.message import pushes
from spark_queue.rest.watches import StoreWatch
from spark_queue.stores.conformance.limits import with_limits
from spark_queue.stores.conformance.waiting import wait_until
from spark_queue.stores.limits import StoreLimits

#: How much more often clients poll here.
FASTER = 10

#: How many polls are counted.
POLLS = 8

#: Commands in a second that a waiting client may send. Before, it sent 6 to 16.
MOST = 1.0


@pytest.fixture
def queue(new_server):
    """A queue of a server of its own, whose commands are counted."""
    return new_server().url, f"t{uuid.uuid4().hex[:16]}"


@pytest.fixture
def faster(set_limits):
    """Let clients poll FASTER, so that few seconds show what a minute would."""
    set_limits(poll_interval_ms=StoreLimits.poll_interval_ms / FASTER, pause_cache=StoreLimits.pause_cache / FASTER)


def commands(raw):
    return sum(one["calls"] for name, one in raw.info("commandstats").items() if not name.endswith(("info", "ping")))


class Polls:
    """The polls of a store: what its server had been sent, and when, as each of them began.

    From the start of one poll to that of another the commands are those of whole polls: no part of one more counts.
    """

    def __init__(self, store, raw):
        self.begun: list[tuple[str, int, float]] = []
        ask = store.next_reservable

        def noted(name):
            self.begun.append((name, commands(raw), time.monotonic()))
            return ask(name)

        store.next_reservable = noted

    def of(self, name):
        return [(sent, moment) for one, sent, moment in self.begun if one == name]

    def rate(self, name):
        """Wait for some polls of a queue; return the commands in a second of a client that is not `faster`."""
        first = len(self.of(name))
        wait_until(lambda: len(self.of(name)) > first + POLLS, description="some polls")
        (sent, begun), (all_sent, ended) = self.of(name)[first], self.of(name)[first + POLLS]
        return (all_sent - sent) / (ended - begun) / FASTER


def open_any(url) -> Any:
    return open_store(url)


@pytest.mark.parametrize("layout", ["", "?layout=redis-list"])
@pytest.mark.parametrize("state", ["empty", "scheduled", "paused"])
def test_a_waiting_client_of_redis_sends_at_most_one_command_a_second(queue, faster, layout, state):
    url, name = queue
    with open_any(url + layout) as store, Redis.from_url(url, protocol=2) as raw:
        if state == "scheduled":
            store.push(name, pushes(["x"], delay=3_600_000))
        elif state == "paused":
            store.push(name, pushes(["x"]))
            store.pause(name)
        store.statistics(name)  # writes the counts
        polls = Polls(store, raw)
        waiting = threading.Thread(target=store.wait, args=(name, 3_600_000), daemon=True)
        waiting.start()
        wait_until(lambda: polls.begun and store._listener.is_receiving(name), description="a client that sleeps")
        assert 0 < polls.rate(name) <= MOST
        store.close()
        waiting.join()


def test_many_waiting_requests_of_a_service_send_at_most_one_command_a_second_for_each_queue(queue, faster):
    url, name = queue
    with open_any(url) as store, Redis.from_url(url, protocol=2) as raw:
        polls = Polls(store, raw)

        async def wait():
            watch = StoreWatch(store)
            caller: Any = "caller"
            waits = [asyncio.ensure_future(watch.wait(f"{name}.{n % 3}", 60, caller)) for n in range(30)]
            await asyncio.to_thread(wait_until, lambda: store._listener and store._listener.is_receiving(f"{name}.2"))
            rate = await asyncio.to_thread(polls.rate, f"{name}.2")
            for one in waits:
                one.cancel()
            watch.close()
            return rate

        assert asyncio.run(wait()) <= 3 * MOST


# --- what comes -----------------------------------------------------------------------------------


@pytest.fixture
def rarely(set_limits):
    """Let clients that receive signals poll after an hour."""
    set_limits(rarer_polls=3_600 * 1_000 // StoreLimits.poll_interval_ms)


def test_a_message_that_is_due_later_comes_on_time_between_two_polls(redis_url, rarely):
    name = f"t{uuid.uuid4().hex[:16]}"
    with open_any(redis_url) as store, open_any(redis_url) as other:
        other.push(name, pushes(["x"], delay=300))
        began = time.monotonic()
        assert store.wait(name, 60_000)
        assert store.reserve(name, "c/1", 1, lease=300) == [1]
        assert store.wait(name, 60_000), "the lease ends"
        assert time.monotonic() - began < 30
        other.drop(name)


@with_limits(poll_interval_ms=50)
def test_after_a_message_without_a_signal_a_client_polls_as_often_as_one_without_signals(redis_url, monkeypatch):
    """As if keuss had pushed it that sends no signals, or a client that was killed before it could."""
    name = f"t{uuid.uuid4().hex[:16]}"
    with open_any(redis_url) as store, open_any(redis_url) as silent:
        monkeypatch.setattr(silent._sender, "_send", lambda *_: None)
        store._signal_version(name)
        wait_until(lambda: store._listener.is_receiving(name))
        assert store.poll_interval(name) == 0.5
        waited = threading.Thread(target=store.wait, args=(name, 60_000), daemon=True)
        waited.start()
        wait_until(lambda: store._listener._queues[name].waiters, description="a client that sleeps")
        before = store._listener._subscription
        silent.push(name, pushes(["x"]))
        waited.join(60)
        wait_until(lambda: store._listener._subscription not in (None, before) and store._listener.is_receiving(name))
        assert store.poll_interval(name) == 0.05
        assert store.reserve(name, "c/1", 1) == [1]
        monkeypatch.setattr(time, "monotonic", lambda now=time.monotonic: now() + 301)
        assert store.poll_interval(name) == 0.5
        monkeypatch.undo()
        silent.drop(name)


def test_messages_with_signals_leave_polls_rare(redis_url):
    name = f"t{uuid.uuid4().hex[:16]}"
    with Queue(redis_url, name) as queue, Queue(redis_url, name) as other:
        for number in range(5):
            got: list[Any] = []
            waiting = threading.Thread(target=lambda got=got: got.extend(queue.reserve(timeout=60)), daemon=True)
            waiting.start()
            store: Any = queue.store
            wait_until(lambda store=store: store._listener and store._listener.is_receiving(name))
            other.push(number)
            waiting.join(60)
            assert queue.commit(*got) == 1
        assert queue.store.poll_interval(name) == 10 * StoreLimits.poll_interval_ms / 1000
        other.store.drop(name)


def test_a_client_that_receives_no_signals_polls_twice_a_second(redis_url, monkeypatch):
    name = f"t{uuid.uuid4().hex[:16]}"
    with open_any(redis_url) as store:
        store._signal_version(name)
        wait_until(lambda: store._listener.is_receiving(name))
        assert store.poll_interval(name) == 5
        monkeypatch.setattr(store._listener, "_connect", _refused)
        store._listener.reconnect()
        wait_until(lambda: store._listener._disconnected, description="that its connection is lost")
        assert store.poll_interval(name) == 0.5
    with open_any(f"{redis_url}?layout=rfq") as store:
        store._signal_version(name)
        wait_until(lambda: store._listener.is_receiving(name))
        assert store.poll_interval(name) == 0.5, "rfq's own programs send none"


def _refused():
    raise StoreUnavailable("no server")
