"""A queue that the real keuss and we share, on each of its backends that we speak."""

from __future__ import annotations

import uuid
from contextlib import ExitStack, contextmanager
from urllib.parse import urlsplit

import pytest

from spark_queue import Queue, open_store
from spark_queue.options.url import StoreUrl
from tests.interop import rfq as rfq_client
from tests.interop.driver import required
from tests.interop.keuss import Keuss, unavailable

#: Where each backend keeps its messages, and what keuss itself can do there: `hold` them, for `later`, by an `id`.
ALL = {"hold", "later", "id"}
BACKENDS = {
    "mongo": ("mongodb", ALL),
    "ps-mongo": ("mongodb", ALL),
    "pl-mongo": ("mongodb", ALL),
    "bucket-mongo-safe": ("mongodb", ALL),
    "redis-oq": ("redis", ALL),
    "redis-list": ("redis", set()),
}


class Shared:
    """One queue, and the ways into it."""

    def __init__(self, backend, url, name, stack):
        self.backend, self.url, self.name = backend, url, name
        self.scheme, self.can = BACKENDS[backend]
        self._stack = stack
        self.store = stack.enter_context(open_store(url))

    def keuss(self, name=None, **settings):
        """One more keuss, ended with the test."""
        return self._stack.enter_context(Keuss(self.backend, self.url, name or self.name, **settings))

    def ours(self, **options):
        """One more client of ours, closed with the test."""
        return self._stack.enter_context(Queue(self.url, self.name, **options))

    @property
    def holds_are_counted(self):
        """Whether keuss itself knows what is reserved, and counts the try when it reserves."""
        return self.scheme == "mongodb"


@contextmanager
def sharing(backend, url_of):
    """A queue of this test's own on a backend."""
    required(unavailable())
    url = url_of(BACKENDS[backend][0])
    assert urlsplit(url).path.strip("/"), "keuss has a database of its own in mind where the URL names none"
    url = StoreUrl.parse(url).with_layout(backend)
    name = f"t{uuid.uuid4().hex[:16]}"
    with ExitStack() as stack:
        yield Shared(backend, url, name, stack)
    with open_store(url) as store:
        for one in {*store.queues(), *store.all_statistics()}:
            if one.startswith(name):
                store.drop(one)


@pytest.fixture(params=[backend for backend in BACKENDS if backend != "bucket-mongo-safe"])
def shared(request, url_of):
    """A queue of this test's own on each backend in turn that has a record for each message.

    If keuss can do there what the marker `needs` names.
    """
    can = BACKENDS[request.param][1]
    if lacking := {need for mark in request.node.iter_markers("needs") for need in mark.args} - can:
        pytest.skip(f"keuss on {request.param} cannot: {', '.join(sorted(lacking))}")
    with sharing(request.param, url_of) as found:
        yield found


@pytest.fixture
def buckets(url_of):
    """The same on the backend that has many messages in one record."""
    with sharing("bucket-mongo-safe", url_of) as found:
        yield found


pytestmark = [pytest.mark.interop, pytest.mark.full]  # test_smoke.py is what `make test` runs of it


@pytest.fixture
def topic(redis_url):
    with rfq_client.sharing(redis_url) as topic:
        yield topic


@pytest.fixture
def rfq(topic):
    return topic.rfq()
