"""Fixtures of several tests of MongoDB."""

from __future__ import annotations

import uuid

import pytest
from pymongo import MongoClient

from spark_queue.stores import open_store
from spark_queue.stores.mongodb.bson_json import CODEC
from tests.stores.mongodb.programs import Mongod, client_of


@pytest.fixture(scope="module")
def standalone(tmp_path_factory):
    server = Mongod(tmp_path_factory.mktemp("standalone"))
    yield server
    server.kill()


@pytest.fixture
def url(mongodb_url):
    return mongodb_url


@pytest.fixture
def collection(url, queue):
    """The queue as other programs see it."""
    with client_of(url) as client:
        yield client.get_default_database(codec_options=CODEC)[queue]


@pytest.fixture
def raw_of():
    """The database of a store as other programs see it."""
    return lambda store: store._database()


@pytest.fixture(params=["transactions", "standalone"])
def anywhere(request):
    """A store with transactions, and one without."""
    plain = request.param == "standalone"
    url = request.getfixturevalue("standalone").url("stages") if plain else request.getfixturevalue("mongodb_url")
    with open_store(url, retry_timeout=20_000) as opened:
        yield opened


@pytest.fixture
def name(anywhere):
    """Of a stage, and what names of queues begin with."""
    made = f"t{uuid.uuid4().hex[:16]}"
    yield made
    anywhere.unstage(made)
    for one in anywhere.queues():
        if one.startswith(made):
            anywhere.drop(one)


@pytest.fixture
def raw(anywhere):
    """The database as other programs see it."""
    with client_of(anywhere.url) as client:
        yield client.get_default_database(codec_options=CODEC)


@pytest.fixture
def database(mongodb_url):
    with MongoClient(mongodb_url, tz_aware=True) as client:
        yield client.get_default_database()


@pytest.fixture
def users(database):
    """An application's collection."""
    found = database[f"users{uuid.uuid4().hex[:12]}"]
    yield found
    found.drop()
