"""What tests of more than one store share: each store in turn, and a queue of the test's own."""

from __future__ import annotations

import uuid

import pytest
import redis

from spark_queue import open_store
from spark_queue.store.ledger import forget


@pytest.fixture(params=["sqlite", "mongodb", "redis"])
def url(request, url_of):
    """The URL of each store in turn."""
    return url_of(request.param)


@pytest.fixture
def store(url):
    with open_store(url) as opened:
        opened.now()  # makes the SQLite file
        yield opened


@pytest.fixture
def raw(redis_url):
    """What other programs see of Redis."""
    with redis.Redis.from_url(redis_url, protocol=2) as client:
        yield client


@pytest.fixture
def name(store):
    """The name of a queue, and of a sink, that is removed with those named after it that tests use."""
    name = f"t{uuid.uuid4().hex[:16]}"
    yield name
    for queue in (name, f"{name}.dead", f"{name}.other"):
        store.drop(queue)
    forget(store, name)
