"""A record that cannot be read becomes a dead letter; the other messages of its queue flow."""

from __future__ import annotations

import pytest

from spark_queue import Queue, open_store
from spark_queue.message import header_dicts, messages, pushes
from spark_queue.queue_names import dead_letter_queue
from tests import stores
from tests.store import odd
from tests.tiers import param


def is_fast(kind):
    return stores.embedded(kind.partition(" ")[0])


@pytest.fixture(params=[param(kind, fast=is_fast(kind)) for kind in odd.TABLE])
def kind(request):
    return request.param


@pytest.fixture
def url(kind, url_of):
    scheme, layout = kind.split(" ")
    return stores.in_layout(url_of(scheme), layout)


@pytest.fixture
def store(url):
    with open_store(url) as opened:
        opened.now()
        yield opened


def payload(n):
    return {"n": str(n)}


def letter_of(store, queue):
    """The only dead letter of a queue, with its payload as text."""
    (batch,) = store.peek(dead_letter_queue(queue), decoded=False)
    (letter,), (headers,) = batch.column("payload").to_pylist(), header_dicts(batch)
    (id,) = batch.column("id").to_pylist()
    return headers.get("x-dl-id", id), letter.decode(errors="replace").replace('\\"', '"'), headers


def check_letter(store, queue, one):
    id, text, headers = letter_of(store, queue)
    assert one.reason in headers["x-error"]
    assert headers["x-dl-from-queue"] == queue
    assert {"x-dl-t", "x-dl-tries"} <= headers.keys()
    assert one.raw.replace('\\"', '"') in text
    assert one.id == id or not one.id or one.id == "odd"


def each_odd(*kinds):
    cases = [(kind, one) for kind, found in odd.TABLE.items() for one in found if not kinds or kind in kinds]
    return pytest.mark.parametrize(
        ("kind", "one"),
        [
            pytest.param(kind, one, id=f"{kind}: {one.name}", marks=() if is_fast(kind) else pytest.mark.full)
            for kind, one in cases
        ],
    )


@each_odd()
def test_one_odd_record_stops_nobody(kind, one, url, store, queue):
    odd.put(kind, url, queue, one.record, mature=5)
    store.push(queue, pushes([payload(1)]))
    store.push(queue, pushes([payload(2), payload(3)]))
    total = store.sizes(queue).total
    assert total == 3 + one.rows
    with Queue(store, queue) as client:
        found = client.reserve(10) + client.reserve(10)
        assert sorted(one.payload["n"] for one in found) == ["1", "2", "3"]
        assert client.commit(*found) == 3
    assert store.sizes(queue).total == 0
    check_letter(store, queue, one)


@each_odd()
def test_peek_shows_it_and_changes_nothing(kind, one, url, store, queue):
    odd.put(kind, url, queue, one.record, mature=5)
    store.push(queue, pushes([payload(1)]))
    for limit in (None, 10):
        batches = list(store.peek(queue, limit=limit))
        reasons = [headers.get("x-error", "") for batch in batches for headers in header_dicts(batch)]
        assert len(reasons) == 2
        assert sorted(bool(one) for one in reasons) == [False, True]
        assert any(one.reason in reason for reason in reasons)
        assert [one for batch in batches for one in messages(batch)]
    assert store.sizes(queue).total == 1 + one.rows
