"""What all tests share: servers, and databases of their own."""

from __future__ import annotations

import os
import shutil
import signal
import uuid
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from urllib.parse import urlsplit, urlunsplit

import pytest
from hypothesis import settings

from spark_queue import open_store
from spark_queue.stores import STORES
from spark_queue.stores.conformance.limits import default_limits
from spark_queue.stores.services.ledger import delete_sink
from tests import registered
from tests.redis_server import Server
from tests.services import service_urls

pytest_plugins = ["tests.tiers", "tests.spark_session"]

#: Machines are noisy: how long an example takes says nothing about it.
settings.register_profile("noisy", deadline=None)
settings.load_profile("noisy")


def pytest_configure(config):
    """Warnings are errors, but for those that older versions of Spark alone give rise to.

    A shell has what it starts in the background ignore Ctrl-C, and so would the programs that are sent one by a test.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if version("pyspark").startswith(("4.0.", "4.1.")):  # sockets of collect() are left to the garbage collector
        config.addinivalue_line("filterwarnings", "ignore:unclosed <socket:ResourceWarning")


def server_url(name: str) -> str:
    """The address of a server; without one the test is skipped, and fails in CI."""
    url = service_urls().get(name)
    if url is None:
        reason = f"no {name} server: type 'make services', or set SPARK_QUEUE_{name.upper()}_URL"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return url


@contextmanager
def mongodb_database():
    """A MongoDB database that is dropped at the end, with those of its signals and statistics."""
    parts = urlsplit(server_url("mongodb"))
    url = urlunsplit(parts._replace(path=f"/t{uuid.uuid4().hex[:12]}"))
    yield url
    from pymongo import MongoClient

    with MongoClient(url) as client:
        for kind in ("", "_signal", "_stats"):
            client.drop_database(f"{client.get_default_database().name}{kind}")


@pytest.fixture(scope="session")
def mongodb_url():
    """A database of this session's own."""
    with mongodb_database() as url:
        yield url


@pytest.fixture
def empty_mongodb_url():
    """A database of one test's own."""
    with mongodb_database() as url:
        yield url


@pytest.fixture(scope="session")
def redis_url():
    """A Redis database that others use too: tests touch only their own queues."""
    return server_url("redis")


@pytest.fixture
def new_server(tmp_path):
    """Starts Redis servers of the test's own."""
    if not shutil.which("redis-server"):
        reason = "no redis-server on PATH: apt-get install redis-server"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
    started = []

    def start(*options):
        folder = tmp_path / str(len(started))
        folder.mkdir()
        started.append(Server(folder, *options))
        return started[-1]

    yield start
    for one in started:
        one.kill()


@pytest.fixture
def sqlite_url(tmp_path):
    return f"sqlite:///{tmp_path}/queues.db"


@pytest.fixture
def set_limits():
    """Return a function that sets limits of the stores that are made from then on: see `default_limits`."""
    with ExitStack() as stack:
        yield lambda **limits: stack.enter_context(default_limits(**limits))


@pytest.fixture(autouse=True)
def _limits(request):
    """Set the limits of a test that has the decorator `with_limits`."""
    if found := getattr(getattr(request.node, "function", None), "limits", None):
        request.getfixturevalue("set_limits")(**found)


@pytest.fixture(scope="session")
def scheme(request):
    """The scheme of each registered store in turn: see tests/tiers.py."""
    return request.param


def store_url(request, scheme, folder):
    """The URL of a store: a file in that folder, or the database of the fixture `<kind of server>_url`."""
    if registered.embedded(scheme):
        return f"{scheme}:///{folder}/queues.db"
    return request.getfixturevalue(f"{STORES[scheme].server}_url")


@pytest.fixture
def url_of(request, tmp_path):
    """The URL of a store by its scheme: `url_of("redis")`."""
    return lambda scheme: store_url(request, scheme, tmp_path)


@pytest.fixture
def any_url(scheme, url_of):
    """The URL of each store in turn."""
    return url_of(scheme)


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
def name(store):
    """The name of a queue of `store`, and of a sink, that is removed with those named after it that tests use."""
    name = f"t{uuid.uuid4().hex[:16]}"
    yield name
    for queue in (name, f"{name}.dead", f"{name}.other"):
        store.drop(queue)
    delete_sink(store, name)


@pytest.fixture
def queue(name):
    """The same, where nothing else has a name."""
    return name
