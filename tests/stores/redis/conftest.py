"""Fixtures of several tests of Redis."""

from __future__ import annotations

import uuid

import pytest

from spark_queue.stores import open_store
from spark_queue.stores.redis.keys import registry_key


@pytest.fixture
def store(redis_url):
    with open_store(redis_url) as opened:
        yield opened


@pytest.fixture
def peer(redis_url):
    with open_store(redis_url) as opened:
        yield opened


@pytest.fixture
def small_steps(set_limits):
    """Let a call of a script take three messages, so a few messages need many calls."""
    set_limits(script_chunk=3, run_size=2, script_bytes=300)


@pytest.fixture
def sink(store, raw):
    name = f"s{uuid.uuid4().hex[:16]}"
    yield name
    store.unstage(name)
    assert not raw.exists(registry_key(name))
