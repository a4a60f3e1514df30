"""A queue that the real keuss and we share, on both of its backends."""

from __future__ import annotations

import os
import uuid
from contextlib import ExitStack
from urllib.parse import urlsplit

import pytest

from spark_queue import Queue, open_store
from tests.interop.keuss import Keuss, unavailable
from tests.spark.conftest import spark  # noqa: F401

STORES = {"mongo": "mongodb", "redis-oq": "redis"}


class Shared:
    """One queue, and the ways into it."""

    def __init__(self, backend, url, name, stack):
        self.backend, self.url, self.name = backend, url, name
        self._stack = stack
        self.store = stack.enter_context(open_store(url))

    def keuss(self, name=None):
        """One more keuss, ended with the test."""
        return self._stack.enter_context(Keuss(self.backend, self.url, name or self.name))

    def ours(self, **options):
        """One more client of ours, closed with the test."""
        return self._stack.enter_context(Queue(self.url, self.name, **options))

    @property
    def holds_are_counted(self):
        """Whether keuss itself knows what is reserved, and counts the try when it reserves."""
        return self.backend == "mongo"


@pytest.fixture(params=STORES)
def shared(request, url_of):
    """A queue of this test's own on each backend in turn."""
    if reason := unavailable():
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    url = url_of(STORES[request.param])
    assert urlsplit(url).path.strip("/"), "keuss has a database of its own in mind where the URL names none"
    name = f"t{uuid.uuid4().hex[:16]}"
    with ExitStack() as stack:
        yield Shared(request.param, url, name, stack)
    with open_store(url) as store:
        for one in store.queues():
            if one.startswith(name):
                store.drop(one)
