"""The part of the conformance suite about `Store.forward`, for the stores that support it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from spark_queue.errors import MessageError, OptionError
from spark_queue.messages.message import pushes
from spark_queue.messages.payload import Json
from spark_queue.messages.schema import PUSHES
from spark_queue.stores.base import Store
from spark_queue.stores.conformance.helpers import ids_of, messages_of, push_and_reserve
from spark_queue.stores.conformance.waiting import DEADLINE, MINUTE_MS, end_lease
from spark_queue.stores.types import Sizes


def unchanged_rows(ids: list[str], **columns: object) -> pa.RecordBatch:
    """Return a batch that changes neither payload nor headers, unless `columns` has them."""
    rows = [{"id": id, "tries": 0, **columns} for id in ids]
    return pa.RecordBatch.from_pylist(rows, schema=PUSHES)


class ForwardingContract:
    """Tests for `StoreContract`, whose fixtures they use."""

    @pytest.fixture(autouse=True)
    def _forwards(self, request: pytest.FixtureRequest) -> None:
        needed = request.function.__name__.startswith("test_forwarded")
        if needed and not request.getfixturevalue("store").supports_forward:
            pytest.skip("this layout does not support forward")

    def test_what_cannot_be_forwarded_is_refused(self, store: Store, queue: str) -> None:
        push_and_reserve(store, queue, pushes([{"n": "1"}], ids=["a" * 24]))
        batch = pushes([{"n": "2"}], ids=["a" * 24])
        broken = batch.set_column(1, PUSHES.field("payload"), pa.array([b"{"], pa.binary()))
        if not store.supports_forward:
            with pytest.raises(OptionError, match="pl-mongo"):
                store.forward(queue, f"{queue}.other", "c/1", batch)
            return
        with pytest.raises(OptionError, match="itself"):
            store.forward(queue, queue, "c/1", batch)
        with pytest.raises(MessageError, match="not JSON"):
            store.forward(queue, f"{queue}.other", "c/1", broken)
        assert store.sizes(queue) == Sizes(0, 0, 1)

    def test_forwarded_messages_are_changed_and_moved(self, store: Store, queue: str) -> None:
        other = f"{queue}.other"
        push_and_reserve(store, queue, pushes([{"n": n} for n in range(4)], headers={"a": "1", "b": "2"}, tries=2), 3)
        ids = ids_of(store.fetch(queue, "c/1/0"))
        due = datetime(2020, 1, 1, tzinfo=UTC)
        changed: list[Json | bytes] = [{"new": [1]}, "text", b"\x00bytes"]
        batch = pushes(changed, ids=ids, headers={"c": "3"}, mature=due, tries=1)
        assert store.forward(queue, other, "c/1", batch) == 3
        found = messages_of(store.peek(other))
        assert {one.id: one.payload for one in found} == dict(zip(ids, changed, strict=True))
        assert {(str(one.headers), one.mature, one.tries) for one in found} == {("{'c': '3'}", due, 1)}
        assert (store.sizes(queue).ready, store.sizes(queue).total, store.sizes(other).ready) == (1, 1, 3)
        assert store.reservations(queue) == store.reservations(other) == []
        assert store.reserve(other, "d/1", 9) == [3]

    def test_forwarded_messages_keep_what_is_null(self, store: Store, queue: str) -> None:
        other = f"{queue}.other"
        push_and_reserve(store, queue, pushes([{"n": 1}, b"\xff", "t"], headers={"a": "1"}))
        kept = messages_of(store.fetch(queue, "c/1/0"))
        new_headers = unchanged_rows([kept[0].id], headers=[("h", "ü")])
        assert store.forward(queue, other, "c", new_headers) == 1
        assert store.forward(queue, other, "c", unchanged_rows([one.id for one in kept[1:]], delay=MINUTE_MS)) == 2
        found = {one.id: one for one in messages_of(store.peek(other))}
        assert {id: one.payload for id, one in found.items()} == {one.id: one.payload for one in kept}
        assert [found[one.id].headers for one in kept] == [{"h": "ü"}, {"a": "1"}, {"a": "1"}]
        assert (store.sizes(other).ready, store.sizes(other).scheduled) == (1, 2)

    def test_forwarded_is_what_the_tag_still_holds(self, store: Store, peer: Store, queue: str) -> None:
        other = f"{queue}.other"
        push_and_reserve(store, queue, pushes(["a", "b", "c"]), lease=MINUTE_MS)
        ids = ids_of(store.fetch(queue, "c/1/0"))
        end_lease(store, queue, "c/1")
        assert peer.reserve(queue, "d/1", 1) == [1]
        lost = ids_of(peer.fetch(queue, "d/1/0"))
        batch = pushes(["A", "B", "C"], ids=ids)
        assert store.forward(queue, other, "c/1", batch) == 2
        assert store.forward(queue, other, "c/1", batch) == 0, "a repeated call forwards the rest"
        assert ids_of(peer.fetch(queue, "d/1/0")) == lost
        assert store.sizes(other).ready == 2

    def test_forwarded_messages_wake_a_waiting_client(self, store: Store, peer: Store, queue: str) -> None:
        other = f"{queue}.other"
        push_and_reserve(store, queue, pushes(["a"]))
        ids = ids_of(store.fetch(queue, "c/1/0"))
        with ThreadPoolExecutor() as pool:
            woken = pool.submit(peer.wait, other, DEADLINE * 1000)
            store.forward(queue, other, "c/1", unchanged_rows(ids))
        assert woken.result()

    def test_forwarded_is_a_large_batch(self, store: Store, queue: str) -> None:
        other, n = f"{queue}.other", 12_000
        push_and_reserve(store, queue, pushes([{"n": i} for i in range(n)]))
        ids = ids_of(store.fetch(queue, "c/1/0"))
        half = pushes([{"m": i} for i in range(n // 2)], ids=ids[: n // 2])
        assert store.forward(queue, other, "c/1", half) == n // 2
        assert store.forward(queue, other, "c/1", unchanged_rows(ids[n // 2 :])) == n // 2
        assert sorted(ids_of(store.peek(other))) == sorted(ids)
        assert store.sizes(queue).total == 0
