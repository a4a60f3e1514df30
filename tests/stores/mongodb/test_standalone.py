"""A MongoDB server without transactions."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from pymongo.collection import Collection

from spark_queue.messages.message import pushes
from spark_queue.stores import open_store
from spark_queue.stores.conformance.conformance import StoreContract
from spark_queue.stores.conformance.helpers import ids_of


def test_a_move_without_transactions_may_be_repeated_where_it_broke_off(standalone, monkeypatch):
    queue, dead = f"t{uuid.uuid4().hex[:16]}", f"t{uuid.uuid4().hex[:16]}"
    with open_store(standalone.url("db")) as store:
        store.push(queue, pushes(list(range(10))))
        store.reserve(queue, "c/1", 6)

        def crash(*_: Any, **__: Any) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(Collection, "delete_many", crash)
            with pytest.raises(KeyboardInterrupt):
                store.move(queue, dead, tag="c/1")
        assert len(ids_of(store.peek(dead))) == len(ids_of(store.fetch(queue, "c/1/0"))) == 6
        assert store.move(queue, dead, tag="c/1") == 6
        assert store.move(queue, dead, limit=2) == 2
        assert len(ids_of(store.peek(dead))) == 8
        assert store.sizes(queue).total == 2
        store.drop(queue)
        store.drop(dead)


@pytest.mark.full
class TestOnAStandaloneServer(StoreContract):
    """The whole contract but atomic moves."""

    test_any_json_document_survives_failures = None  # type: ignore[assignment]  # hypothesis runs it in one class only
    test_a_million_scheduled_messages_do_not_slow_the_ready_ones = None  # type: ignore[assignment]
    test_a_bucket_counts_what_its_messages_take_and_is_split = None  # type: ignore[assignment]  # it needs transactions

    @pytest.fixture
    def url(self, standalone):
        return standalone.url("contract")

    @pytest.fixture
    def unreachable(self):
        return None

    @pytest.fixture
    def atomic_moves(self):
        return False
