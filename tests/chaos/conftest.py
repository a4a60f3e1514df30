"""A seed for what is left to chance, and queues of one's own."""

from __future__ import annotations

import os
import random
import uuid

import pytest

from spark_queue import open_store
from tests.services import service_urls


@pytest.fixture
def seed():
    """The text of a failure: SPARK_QUEUE_CHAOS_SEED repeats it."""
    seed = int(os.environ.get("SPARK_QUEUE_CHAOS_SEED") or random.randrange(10**6))
    print(f"SPARK_QUEUE_CHAOS_SEED={seed}")
    return seed


@pytest.fixture
def rng(seed):
    """Chance, with that seed."""
    return random.Random(seed)


@pytest.fixture
def name(request):
    """The name of a queue of this test's own, dropped with those named after it from the server that the test used.

    SQLite files go with their folder, the database in MongoDB with the session.
    """
    name = f"t{uuid.uuid4().hex[:16]}"
    yield name
    if "redis" in request.node.name and (url := service_urls().get("redis")):
        with open_store(url) as store:
            for one in {*store.queues(), *store.all_statistics()}:
                if one.startswith(name):
                    store.drop(one)
