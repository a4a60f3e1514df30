"""The part of the conformance suite about `Store.forward`, for the stores that support it."""

from __future__ import annotations

import threading
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from spark_queue.errors import MessageError, OptionError
from spark_queue.messages.message import messages, pushes
from spark_queue.messages.payload import Json
from spark_queue.messages.schema import MESSAGES, PUSHES
from spark_queue.stores.base import Store
from spark_queue.stores.conformance.waiting import DEADLINE, MINUTE_MS, end_lease
from spark_queue.stores.types import Sizes


def ids_by_payload(store: Store, queue: str, tag: str) -> dict[str, str]:
    """Return the ids that a tag holds, by payload."""
    return {str(one.payload): one.id for batch in store.fetch(queue, tag) for one in messages(batch)}


def unchanged_rows(ids: list[str], **columns: object) -> pa.RecordBatch:
    """Return a batch that changes neither payload nor headers, unless `columns` has them."""
    rows = [{"id": id, "tries": 0, **columns} for id in ids]
    return pa.RecordBatch.from_pylist(rows, schema=PUSHES)


class ForwardingContract:
    """Tests for `StoreContract`, whose fixtures they use."""

    @pytest.fixture(autouse=True)
    def _forwards(self, request: pytest.FixtureRequest) -> None:
        if (
            request.function.__name__.startswith("test_forwarded")
            and not request.getfixturevalue("store").supports_forward
        ):
            pytest.skip("this layout does not support forward")

    def test_what_cannot_be_forwarded_is_refused(self, store: Store, queue: str) -> None:
        store.push(queue, pushes([{"n": "1"}], ids=["a" * 24]))
        store.reserve(queue, "c/1", 1)
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
        store.push(queue, pushes([{"n": n} for n in range(4)], headers={"a": "1", "b": "2"}, tries=2))
        store.reserve(queue, "c/1", 3)
        ids = list(ids_by_payload(store, queue, "c/1/0").values())
        due = datetime(2020, 1, 1, tzinfo=UTC)
        changed: list[Json | bytes] = [{"new": [1]}, "text", b"\x00bytes"]
        batch = pushes(changed, ids=ids, headers={"c": "3"}, mature=due, tries=1)
        assert store.forward(queue, other, "c/1", batch) == 3
        (found,) = (messages(batch) for batch in store.peek(other))
        assert {one.id: one.payload for one in found} == dict(zip(ids, changed, strict=True))
        assert {(str(one.headers), one.mature, one.tries) for one in found} == {("{'c': '3'}", due, 1)}
        assert (store.sizes(queue).ready, store.sizes(queue).total, store.sizes(other).ready) == (1, 1, 3)
        assert store.reservations(queue) == store.reservations(other) == []
        assert store.reserve(other, "d/1", 9) == [3]

    def test_forwarded_messages_keep_what_is_null(self, store: Store, queue: str) -> None:
        other = f"{queue}.other"
        store.push(queue, pushes([{"n": 1}, b"\xff", "t"], headers={"a": "1"}))
        store.reserve(queue, "c/1", 3)
        kept = [one for batch in store.fetch(queue, "c/1/0") for one in messages(batch)]
        new_headers = unchanged_rows([kept[0].id], headers=[("h", "ü")])
        assert store.forward(queue, other, "c", new_headers) == 1
        assert store.forward(queue, other, "c", unchanged_rows([one.id for one in kept[1:]], delay=MINUTE_MS)) == 2
        found = {one.id: one for batch in store.peek(other) for one in messages(batch)}
        assert {id: one.payload for id, one in found.items()} == {one.id: one.payload for one in kept}
        assert [found[one.id].headers for one in kept] == [{"h": "ü"}, {"a": "1"}, {"a": "1"}]
        assert (store.sizes(other).ready, store.sizes(other).scheduled) == (1, 2)

    def test_forwarded_is_what_the_tag_still_holds(self, store: Store, peer: Store, queue: str) -> None:
        other = f"{queue}.other"
        store.push(queue, pushes(["a", "b", "c"]))
        store.reserve(queue, "c/1", 3, lease=MINUTE_MS)
        ids = ids_by_payload(store, queue, "c/1/0")
        end_lease(store, queue, "c/1")
        assert peer.reserve(queue, "d/1", 1) == [1]
        (lost,) = ids_by_payload(peer, queue, "d/1/0").values()
        batch = pushes(["A", "B", "C"], ids=[ids["a"], ids["b"], ids["c"]])
        assert store.forward(queue, other, "c/1", batch) == 2
        assert store.forward(queue, other, "c/1", batch) == 0, "a repeated call forwards the rest"
        assert list(ids_by_payload(peer, queue, "d/1/0").values()) == [lost]
        assert store.sizes(other).ready == 2

    def test_forwarded_messages_wake_a_waiting_client(self, store: Store, peer: Store, queue: str) -> None:
        other = f"{queue}.other"
        store.push(queue, pushes(["a"]))
        store.reserve(queue, "c/1", 1)
        ids = list(ids_by_payload(store, queue, "c/1/0").values())
        woken: list[bool] = []
        waiting = threading.Thread(target=lambda: woken.append(peer.wait(other, DEADLINE * 1000)))
        waiting.start()
        store.forward(queue, other, "c/1", unchanged_rows(ids))
        waiting.join()
        assert woken == [True]

    def test_forwarded_is_a_large_batch(self, store: Store, queue: str) -> None:
        other, n = f"{queue}.other", 12_000
        store.push(queue, pushes([{"n": i} for i in range(n)]))
        store.reserve(queue, "c/1", n)
        ids = [id for batch in store.fetch(queue, "c/1/0") for id in batch.column("id").to_pylist()]
        half = pushes([{"m": i} for i in range(n // 2)], ids=ids[: n // 2])
        assert store.forward(queue, other, "c/1", half) == n // 2
        assert store.forward(queue, other, "c/1", unchanged_rows(ids[n // 2 :])) == n // 2
        found = pa.Table.from_batches(list(store.peek(other)), MESSAGES)
        assert sorted(found.column("id").to_pylist()) == sorted(ids)
        assert store.sizes(queue).total == 0
