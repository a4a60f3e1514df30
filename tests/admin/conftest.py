"""Fixtures of several tests of operations."""

from __future__ import annotations

import pytest

from spark_queue.stores.services.ledger import (
    delete_sink,
)


@pytest.fixture
def sink(store, name):
    yield name
    delete_sink(store, name)
