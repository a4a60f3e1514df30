"""What tests of more than one store share: each store in turn, and a queue of the test's own."""

from __future__ import annotations

import pytest
import redis

from spark_queue import open_store


@pytest.fixture
def url(any_url):
    """The URL of each store in turn."""
    return any_url


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
