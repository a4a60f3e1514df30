"""The command line, where a record cannot be read."""

from __future__ import annotations

import json

import pytest

from spark_queue import Queue
from spark_queue.messages.message import pushes
from spark_queue.stores import open_store
from spark_queue.stores.policy import QueuePolicy
from spark_queue.stores.support.dead_lettering import SET_ASIDE_TAG
from tests import odd
from tests.command_line import Run

ODD = [
    one for one in odd.TABLE["sqlite/"] if one.decoded or one.rows > 1 or one.name in ("headers a list", "id a blob")
]


@pytest.fixture
def url(sqlite_url):
    with open_store(sqlite_url) as store:
        store.now()
    return sqlite_url


def put_odd_record(url, one):
    odd.put("sqlite/", url, "orders", one.record, mature=5)
    with Queue(url, "orders") as queue:
        queue.push_many([{"n": 0}, {"n": 1}, {"n": 2}])


@pytest.mark.parametrize("one", ODD, ids=lambda one: one.name)
def test_pop_prints_the_good_messages(one, url):
    put_odd_record(url, one)
    done = Run("pop", url, "orders", "--limit", "1")
    assert (done.code, [json.loads(line) for line in done.out.splitlines()]) == (0, [{"n": 0}])
    done = Run("pop", url, "orders", "--limit", "10")
    assert [json.loads(line) for line in done.out.splitlines()] == [{"n": 1}, {"n": 2}]
    (letter,) = Run("deadletter", "list", url, "orders", "--json").json
    assert one.reason in letter["error"]
    assert letter["from_queue"] == "orders"


@pytest.mark.parametrize("one", ODD, ids=lambda one: one.name)
def test_peek_prints_it_with_the_reason(one, url):
    put_odd_record(url, one)
    done = Run("peek", url, "orders", "--json")
    rows = [json.loads(line) for line in done.out.splitlines()]
    assert [one.reason in row["headers"].get("x-error", "") for row in rows] == [True, False, False, False]
    assert Run("peek", url, "orders").code == 0


def test_a_note_that_is_damaged_is_named_and_removed(url):
    with open_store(url) as store:
        store.push("orders", pushes([{"n": 1}]))
        store.set_note("queue/orders/layout", {"v": 1}, 0)
        with store._transaction() as db:  # type: ignore[attr-defined]
            db.execute("UPDATE note SET value = '{oops'")
    done = Run("doctor", url, "--json")
    (found,) = [one for one in done.json["findings"] if one["what"] == "note"]
    assert found["todo"] == "spark-queue doctor URL --remove-note queue/orders/layout"
    assert Run("doctor", url, "--remove-note", "queue/orders/layout").out == "note queue/orders/layout removed\n"
    done = Run("doctor", url, "--remove-note", "queue/orders/layout")
    assert (done.code, "is not damaged" in done.err) == (2, True)


def test_what_was_set_aside_is_shown_as_damaged(url):
    put_odd_record(url, ODD[0])
    with open_store(url) as store:
        store.reserve("orders", "c/1", 1)
        list(store.queue("orders", QueuePolicy(dead_letter_queue="x" * 300)).read("c/1/0"))
    done = Run("reservations", url, "orders")
    assert done.rows == [["orders", SET_ASIDE_TAG, "1", "never", "(damaged)"]]
    assert Run("release", url, "orders", SET_ASIDE_TAG, "--yes").out == "1 message of orders released\n"
    assert Run("pop", url, "orders", "--limit", "10").code == 0
    assert len(Run("deadletter", "list", url, "orders", "--json").json) == 1


def test_what_was_set_aside_can_be_removed(url):
    put_odd_record(url, ODD[0])
    with open_store(url) as store:
        store.reserve("orders", "c/1", 1)
        list(store.queue("orders", QueuePolicy(dead_letter_queue="x" * 300)).read("c/1/0"))
    assert Run("commit", url, "orders", SET_ASIDE_TAG).code == 0
    assert Run("reservations", url, "orders", "--json").json == []
