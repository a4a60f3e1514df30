"""A damaged record becomes the same dead letter, with the same history, whichever face meets it."""

from __future__ import annotations

import uuid
from contextlib import contextmanager

import pytest

pytest.importorskip("fastapi")

from spark_queue import Queue, admin, open_store
from spark_queue.events import Events
from spark_queue.events.settings import EventSettings
from spark_queue.graph.model import Graph, Namespace
from spark_queue.messages.columns import header_dicts
from spark_queue.messages.message import messages, pushes
from spark_queue.options.roles import parse_options
from spark_queue.rest import Settings, create_app
from spark_queue.spark.read.fetch import FetchRange, fetch_messages
from spark_queue.stores.policy import QueuePolicy
from tests import odd, registered
from tests.command_line import Run
from tests.rest.in_process import calling
from tests.tiers import param

#: The history that each face is asked for (s), and its dead-letter queue.
HISTORY, GRAVEYARD = 600, "graveyard"

KINDS = [param(kind, fast=registered.embedded(kind.partition("/")[0])) for kind in odd.TABLE]


def by_client(url, queue, dead):
    with Queue(url, queue, dead_letter_queue=dead, history=HISTORY) as client:
        client.reserve(10)


def by_iteration(url, queue, dead):
    with Queue(url, queue, dead_letter_queue=dead, history=HISTORY) as client:
        list(client.messages(timeout=0))


def by_pop(url, queue, dead):
    with Queue(url, queue, dead_letter_queue=dead, history=HISTORY) as client:
        client.pop()
        client.pop()


def by_admin(url, queue, dead):
    admin.consume.reserve(url, queue, 10, dead=dead, history=HISTORY)


def by_admin_pop(url, queue, dead):
    admin.consume.pop(url, queue, lambda _: None, limit=None, dead=dead, history=HISTORY)


def by_command(url, queue, dead):
    Run("reserve", url, queue, "--limit", "10", "--dead", dead, "--history", f"{HISTORY}s")


def by_pop_command(url, queue, dead):
    Run("pop", url, queue, "--all", "--dead", dead, "--history", f"{HISTORY}s")


@contextmanager
def served_store(url, dead):
    options = {"deadLetterQueue": dead, "history": f"{HISTORY}s"}
    with calling(create_app(Settings(graph=Graph({"ns": Namespace(url, options=options)})))) as client:
        yield client


def by_rest(url, queue, dead):
    with served_store(url, dead) as client:
        assert client.request("POST", f"/v1/queues/ns/{queue}/reserve", json={"limit": 10}).status_code == 200


def by_keuss_rest(url, queue, dead):
    with served_store(url, dead) as client:
        while client.get(f"/q/ns/{queue}?to=0").status_code == 200:
            pass


def by_a_task(url, queue, dead):
    raw = {"url": url, "queue": queue, "deadLetterQueue": dead, "history": f"{HISTORY}s"}
    with open_store(url) as store:
        store.reserve(queue, "etl/e/1", 10)
    list(fetch_messages(parse_options(raw, "stream"), FetchRange("etl/e/1/0")))


FACES = [
    by_client, by_iteration, by_pop, by_admin, by_admin_pop, by_command, by_pop_command, by_rest, by_keuss_rest,
    by_a_task,
]  # fmt: skip


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def url(kind, url_of):
    scheme, layout = kind.split("/")
    return registered.in_layout(url_of(scheme), layout)


@pytest.fixture
def name(url):
    made = f"t{uuid.uuid4().hex[:12]}"
    with open_store(url) as store:
        store.now()
        yield made
        for queue in (made, f"{made}.dead", f"{made}.{GRAVEYARD}", f"{made}.events"):
            store.drop(queue)


@pytest.mark.parametrize("face", FACES, ids=lambda face: face.__name__)
def test_each_face_sends_it_to_the_dead_letter_queue_and_keeps_the_history(kind, face, url, name):
    one, dead = odd.TABLE[kind][0], f"{name}.{GRAVEYARD}"
    odd.put(kind, url, name, one.record, mature=5)
    with open_store(url) as store:
        store.push(name, pushes([{"n": "1"}]))
        face(url, name, dead)
        check_face_letter(store, name, dead, one)


def check_face_letter(store, queue, dead, one):
    (letter,) = [message for batch in store.peek(dead, check_json=False) for message in messages(batch)]
    assert one.reason in letter.headers["x-error"] and letter.headers["x-dl-from-queue"] == queue
    assert store.sizes(f"{queue}.dead").total == 0
    if not store.supports_forward:  # there an id is in one place
        kept = [
            headers["x-error"]
            for batch in store.peek(queue, view="history")
            for outcome, headers in zip(batch.column("outcome").to_pylist(), header_dicts(batch), strict=True)
            if outcome == "dead"
        ]
        assert len(kept) == 1 and one.reason in kept[0]


def test_events_keep_it_as_long_as_events_that_ended(kind, url, name):
    with open_store(url) as store:
        if store.ids_unique_per_store or store.unsupported or type(store).default_layout is not None:
            pytest.skip("this layout holds no events")
        one = odd.TABLE[kind][0]
        odd.put(kind, url, name, one.record, mature=5)
        with Events(store, name, settings=EventSettings(keep=HISTORY * 1000)) as events:
            events.create("http://example.org/flights", "landed")
            assert len(events.take(10)) == 1
        assert store.sizes(f"{name}.dead").total == 1
        (batch,) = store.peek(name, view="history")
        assert batch.column("outcome").to_pylist() == ["dead"]


def test_a_fetch_changes_nothing(kind, url, name):
    one = odd.TABLE[kind][0]
    odd.put(kind, url, name, one.record, mature=5)
    with open_store(url) as store:
        store.push(name, pushes([{"n": "1"}]))
        assert store.reserve(name, "c/1", 10) == [1 + one.rows]
        for _ in range(2):
            found = [message for batch in store.fetch(name, "c/1/0", check_json=True) for message in messages(batch)]
            assert [message.payload for message in found] == [{"n": "1"}]
            assert store.sizes(name).reserved == 1 + one.rows
            assert store.sizes(f"{name}.dead").total == 0


def test_messages_that_failed_too_often_go_the_same_way(kind, url, name):
    dead = f"{name}.{GRAVEYARD}"
    policy = QueuePolicy(max_tries=1, dead_letter_queue=dead, history=HISTORY * 1000)
    with open_store(url) as store:
        queue = store.queue(name, policy)
        queue.push(pushes([{"n": "1"}]))
        store.reserve(name, "c/1", 1)
        store.rollback(name, "c/1")
        assert not queue.consume(10, tag="c/2").batches
        (letter,) = [message for batch in store.peek(dead) for message in messages(batch)]
        assert letter.headers["x-dl-tries"] == "1" and letter.headers["x-error"].startswith("failed 1 time")
