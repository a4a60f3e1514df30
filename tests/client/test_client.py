"""`Queue`, the client, on every store."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta

import pytest

from spark_queue import MessageError, OptionError, Queue
from spark_queue.errors import StoreUnavailable
from spark_queue.stores.conformance.waiting import end_lease


@pytest.fixture
def queue(url, name):
    with Queue(url, name) as opened:
        yield opened


def test_push_reserve_commit(queue):
    id = queue.push({"carrier": "UA"}, headers={"h": "1"})
    (message,) = queue.reserve()
    assert (message.id, message.payload, message.headers, message.tries) == (id, {"carrier": "UA"}, {"h": "1"}, 0)
    assert queue.reserve() == []
    assert queue.commit(message) == 1
    assert queue.commit(message) == 0
    assert queue.sizes().total == 0


def test_what_was_taken_together_is_settled_in_any_parts(url, name):
    with Queue(url, name) as queue, Queue(url, name) as other:
        queue.push_many(range(6))
        first, second, third, fourth = queue.reserve(4)
        assert queue.commit(second) == 1
        assert other.store.sizes(name).reserved == 3
        assert queue.rollback(first) == 1
        assert [one.payload for one in other.reserve(1)] == [4]  # rolled back now, so after what was ready before
        assert queue.commit(third, fourth, third, second) == 2
        assert queue.commit(third) == 0
        assert (other.store.sizes(name).reserved, other.store.sizes(name).ready) == (1, 2)


def test_what_could_not_be_settled_can_be_once_more(url, name, monkeypatch):
    with Queue(url, name) as queue:
        queue.push_many(range(3))
        taken = queue.reserve(3)

        def away(*_, **__):
            raise StoreUnavailable("the database is away")

        with monkeypatch.context() as broken:
            broken.setattr(queue.store, "commit", away)
            with pytest.raises(StoreUnavailable):
                queue.commit(*taken[:2])
        assert queue.commit(*taken[:2]) == 2
        assert queue.commit(*taken) == 1


def test_push_many(queue):
    moment = datetime(2020, 1, 1, tzinfo=UTC)
    ids = queue.push_many(["a", b"b", {"c": 1}], headers=[{"n": "1"}, {}, {"n": "3"}], mature=[None, moment, None])
    assert [(one.id, one.payload) for one in queue.peek()] == [(ids[1], b"b"), (ids[0], "a"), (ids[2], {"c": 1})]
    assert queue.push_many([]) == []
    assert queue.push("again", id=ids[0]) == ids[0]
    assert queue.sizes().ready == 3


def test_tries_may_be_given(url, name):
    with Queue(url, name, max_tries=3) as queue:
        queue.push("a", tries=2)
        queue.push_many(["b", "c", "d"], tries=[0, 1, 3])
        queue.push_many(["e", "f"], tries=1)
        found = {one.payload: one.tries for one in queue.peek()}
        assert found == {"a": 2, "b": 0, "c": 1, "d": 3, "e": 1, "f": 1}
        assert len(queue.reserve(10)) == 5
        assert queue.sizes().dead == 1, "d has failed as often as it may"


def test_what_cannot_be_pushed_is_refused_before_anything_is_pushed(queue):
    with pytest.raises(MessageError, match=r"message 2 of 2: payload: set has no form in JSON; use a list"):
        queue.push_many([1, {1, 2}])
    with pytest.raises(MessageError, match="'x': its delay is negative"):
        queue.push(1, id="x", delay=-1)
    with pytest.raises(MessageError, match="before 1970"):
        queue.push(1, mature=datetime(1950, 1, 1, tzinfo=UTC))
    assert queue.sizes().total == 0


def test_a_delayed_message_is_waited_for(queue):
    queue.push("never", delay=3_600)
    assert queue.reserve() == []
    before = queue.store.now()
    queue.push("later", delay=0.2)
    begun = time.monotonic()
    (message,) = queue.reserve(timeout=200)
    assert message.payload == "later"
    assert queue.store.now() >= before + 200
    assert time.monotonic() - begun < 100, "it waited for its own end, not for the message"


def test_a_waiting_reserve_looks_seldom_and_ends_in_time(queue):
    looks = []
    real = queue.store.next_mature
    queue.store.next_mature = lambda name: looks.append(1) or real(name)
    begun = time.monotonic()
    assert queue.reserve(timeout=0.6) == []
    taken = time.monotonic() - begun
    assert 0.59 < taken < 60
    assert len(looks) <= 3 + taken / 0.5, "it must not poll busily"


def test_a_waiting_reserve_gets_what_another_client_pushes(url, name, queue):
    got = []
    thread = threading.Thread(target=lambda: got.extend(queue.reserve(timeout=200)))
    thread.start()
    with Queue(url, name) as other:
        other.push("hello")
    thread.join(timeout=100)
    assert [message.payload for message in got] == ["hello"]


def test_pop_takes_for_good(queue):
    assert queue.pop() is None
    queue.push_many([1, 2])
    assert queue.pop().payload == 1
    assert queue.sizes().total == 1


def test_rollback_and_dead_letter(url, name):
    with Queue(url, name, max_tries=2) as queue:
        queue.push("poison")
        (first,) = queue.reserve()
        assert queue.rollback(first) == 1
        (second,) = queue.reserve()
        assert second.tries == 1
        assert queue.rollback(second) == 1
        assert queue.reserve() == []
        assert queue.sizes().dead == 1
        queue.push("hopeless")
        assert queue.dead_letter(*queue.reserve(), reason="no such flight \ud800") == 1
    with Queue(url, f"{name}.dead") as dead:
        poison, hopeless = dead.peek()
        assert (poison.payload, poison.headers["x-dl-tries"], poison.headers["x-dl-from-queue"]) == (
            "poison",
            "2",
            name,
        )
        assert (hopeless.payload, hopeless.headers["x-error"]) == ("hopeless", "no such flight ?")


def test_messages_whose_lease_ended_too_often_are_buried_too(url, name):
    with Queue(url, name, max_tries=1) as queue:
        queue.push("slow")
        assert len(queue.reserve()) == 1
        end_lease(queue.store, name, queue.consumer)
        assert queue.reserve() == []
        assert queue.sizes().dead == 1


def test_a_delayed_rollback(queue):
    queue.push("a")
    queue.rollback(*queue.reserve(), delay=60)
    sizes = queue.sizes()
    assert (sizes.ready, sizes.scheduled) == (0, 1)


def test_a_late_commit_changes_nothing_and_says_so(url, name):
    with Queue(url, name) as slow, Queue(url, name) as fast:
        slow.push("a")
        mine = slow.reserve()
        end_lease(slow.store, name, slow.consumer)
        theirs = fast.reserve()
        assert [message.tries for message in theirs] == [1]
        assert slow.commit(*mine) == 0
        assert fast.commit(*theirs) == 1


def test_closing_gives_back_what_is_held_without_counting_a_try(url, name):
    with Queue(url, name) as queue:
        queue.push_many([1, 2])
        (first, _) = queue.reserve(2)
        queue.commit(first)
    with Queue(url, name) as queue:
        (again,) = queue.reserve(5)
        assert (again.payload, again.tries) == (2, 0)


def test_closing_one_client_leaves_others_of_the_same_consumer_alone(url, name):
    with Queue(url, name, consumer="etl") as other:
        other.push_many([1, 2])
        held = other.reserve()
        with Queue(url, name, consumer="etl") as queue:
            queue.reserve()
        assert other.commit(*held) == 1
        assert other.sizes().ready == 1


def test_history(url, name):
    with Queue(url, name, history=60) as queue:
        queue.push("a")
        queue.commit(*queue.reserve())
        assert len(list(queue.store.peek(name, view="history"))) == 1


def test_purge(queue):
    queue.push_many([1, 2, 3])
    queue.reserve()
    assert queue.purge() == 2
    assert queue.sizes().reserved == 1


def test_a_consumer_that_cannot_be_one(url, name):
    with pytest.raises(OptionError, match="consumer 'a/b' must be"):
        Queue(url, name, consumer="a/b")


def test_a_far_moment_survives(queue):
    far = datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)
    queue.push("end of time", mature=far)
    assert queue.peek()[0].mature == far
    with pytest.raises(OptionError, match="delay must be a number of seconds that end before the year 5000"):
        queue.push("x", delay=timedelta(days=3_000_000).total_seconds())
