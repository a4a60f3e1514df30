"""The order of messages of the same due time: that of the pushes, whatever their ids are."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_queue.messages.message import pushes
from spark_queue.stores.base import Store
from spark_queue.stores.conformance.helpers import ids_of, payloads_of
from spark_queue.stores.conformance.waiting import end_lease, wait_until
from spark_queue.stores.types import DeadLetterInfo

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)

#: What a push is given: ids (`None`: generated), and when they are due (`None`: now).
PUSH_PLANS = st.lists(
    st.tuples(
        st.none() | st.lists(st.text("0123459af-ü", min_size=1, max_size=5), min_size=1, max_size=9, unique=True),
        st.booleans(),
    ),
    min_size=1,
    max_size=6,
)


def own_ids(number: int) -> list[str]:
    """Return ids of two forms whose own order is another one."""
    return [f"{999 - n:024x}" if n % 5 == 3 else f"order-{n}" for n in range(number)]


def drain(store: Store, queue: str, limit: int = 100, tag: str = "drain") -> list[Any]:
    """Reserve and commit until the queue is empty; return the payloads in that order."""
    found: list[Any] = []
    for number in itertools.count():
        rows = store.reserve(queue, f"{tag}/{number}", limit)
        if not rows:
            return found
        for partition in range(len(rows)):
            found += payloads_of(store.fetch(queue, f"{tag}/{number}/{partition}", 7))
        store.commit(queue, f"{tag}/{number}")
    raise AssertionError("itertools.count ends")


class OrderContract:
    """The order in which messages are reserved, fetched and looked at."""

    def test_messages_of_one_push_come_in_its_order(self, store: Store, queue: str) -> None:
        store.push(queue, pushes(list(range(40)), ids=own_ids(40)))
        assert store.reserve(queue, "c/1", 15)
        first = payloads_of(store.fetch(queue, "c/1/0", 4))
        assert first + drain(store, queue) == list(range(40))

    def test_due_times_come_first_and_tries_change_nothing(self, store: Store, queue: str) -> None:
        if "order" in store.unsupported:
            pytest.skip("this layout has the order of the list")
        dues = [LONG_AGO + timedelta(microseconds=(row * 7) % 3 * 1000 + row % 5) for row in range(30)]
        batch = pushes(list(range(30)), ids=own_ids(30))
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        columns |= {"mature": dues, "tries": [row % 4 for row in range(30)]}
        store.push(queue, pa.RecordBatch.from_pydict(columns, schema=batch.schema))
        assert drain(store, queue, 7) == sorted(range(30), key=lambda row: (row * 7) % 3)

    def test_pushes_come_in_the_order_of_their_acknowledgement(self, store: Store, peer: Store, queue: str) -> None:
        @given(made=PUSH_PLANS, limit=st.integers(1, 12))
        @settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
        def check(made: list[tuple[list[str] | None, bool]], limit: int) -> None:
            expected: list[str] = []
            past = any(due for _, due in made)
            for number, (ids, _) in enumerate(made):
                own = None if ids is None else [f"{one}.{number}" for one in ids]
                payloads = [f"{number}.{row}" for row in range(len(ids or "four"))]
                mature = LONG_AGO if past else None
                (store, peer)[number % 2].push(queue, pushes(payloads, ids=own, mature=mature))
                expected += payloads
            assert drain(store, queue, limit) == expected

        check()

    def test_what_is_put_back_keeps_its_order(self, store: Store, queue: str) -> None:
        store.push(queue, pushes(list(range(20)), ids=own_ids(20)))
        assert sum(store.reserve(queue, "c/1", 20)) == 20
        store.rollback(queue, "c/1")
        assert sum(store.reserve(queue, "c/2", 20)) == 20
        end_lease(store, queue, "c/2")
        assert sum(store.reserve(queue, "c/3", 20)) == 20
        assert payloads_of(store.fetch(queue, "c/3/0", 3)) == list(range(20))
        store.rollback(queue, "c/3", delay=1)
        assert wait_until(lambda: store.sizes(queue).ready == 20)
        if "order" not in store.unsupported:  # else some return to the end of the list
            assert store.reserve(queue, "c/4", 8)
            store.rollback(queue, "c/4", delay=None)
        assert drain(store, queue) == list(range(20))

    def test_pushes_that_are_put_back_with_a_new_due_time_keep_their_order(self, store: Store, queue: str) -> None:
        for first, ids in ((0, own_ids(6)), (6, None), (12, [f"x{one}" for one in own_ids(6)]), (18, None)):
            store.push(queue, pushes(list(range(first, first + 6)), ids=ids))
        assert sum(store.reserve(queue, "c/1", 24)) == 24
        store.rollback(queue, "c/1", delay=1)
        assert wait_until(lambda: store.sizes(queue).ready == 24)
        assert drain(store, queue, 7) == list(range(24))

    def test_some_messages_that_are_put_back_keep_their_place(self, store: Store, queue: str) -> None:
        if "order" in store.unsupported:
            pytest.skip("this layout puts messages back at the front of the list")
        store.push(queue, pushes(list(range(12)), ids=own_ids(12), mature=LONG_AGO))
        assert sum(store.reserve(queue, "c/1", 12)) == 12
        held = ids_of(store.fetch(queue, "c/1/0"))
        store.rollback(queue, "c/1", [held[n] for n in (1, 4, 5, 8, 9)], delay=None)
        store.rollback(queue, "c/1", delay=None)
        assert drain(store, queue) == list(range(12))

    def test_what_moves_keeps_its_order(self, store: Store, queue: str) -> None:
        other, dead = f"{queue}.other", f"{queue}.dead"
        store.push(queue, pushes(list(range(20)), ids=own_ids(20)))
        assert store.move(queue, other) == 20
        assert sum(store.reserve(other, "c/1", 20)) == 20
        assert store.move(other, dead, tag="c/1", dead_letter=DeadLetterInfo("why")) == 20
        assert store.move(dead, queue) == 20
        assert wait_until(lambda: store.sizes(queue).ready == 20)  # a list may make some due a few ms later
        assert drain(store, queue) == list(range(20))

    def test_what_stays_of_a_push_keeps_its_place(self, store: Store, queue: str) -> None:
        if "order" in store.unsupported:
            pytest.skip("a move of some messages takes this layout's list apart")
        pushed = [own_ids(9), [f"x{one}" for one in own_ids(9)], [f"a{one}" for one in own_ids(9)]]
        for number, ids in enumerate(pushed):
            store.push(queue, pushes([f"{number}.{row}" for row in range(9)], ids=ids, mature=LONG_AGO))
        assert store.move(queue, f"{queue}.other", ids=[pushed[1][2], pushed[1][6]]) == 2
        assert store.purge(queue, ids=[pushed[0][4], pushed[2][4]]) == 2
        assert sum(store.reserve(queue, "c/1", 9)) >= 1
        held = ids_of(store.fetch(queue, "c/1/0"))
        store.rollback(queue, "c/1", held[1:3], delay=None)
        store.rollback(queue, "c/1", delay=None)
        gone = {"0.4", "1.2", "1.6", "2.4"}
        expected = [f"{number}.{row}" for number in range(3) for row in range(9)]
        assert drain(store, queue, 7) == [one for one in expected if one not in gone]
        assert drain(store, f"{queue}.other") == ["1.2", "1.6"]

    def test_a_stage_is_published_in_its_order(self, store: Store, queue: str, sink: str) -> None:
        for part in range(3):
            ids = [f"{one}.{9 - part}" for one in own_ids(15)]
            store.stage(queue, f"{sink}/0/a", pushes([f"{part}.{n}" for n in range(15)], ids=ids, mature=LONG_AGO))
        store.publish([f"{sink}/0/a"])
        assert drain(store, queue) == [f"{part}.{n}" for part in range(3) for n in range(15)]

    def test_a_look_is_in_the_order_of_the_reserves(self, store: Store, queue: str) -> None:
        if "order" in store.unsupported:
            pytest.skip("a look at this layout is by maturity")
        mature = datetime.fromtimestamp(store.now() / 1000, UTC) - timedelta(minutes=1)
        store.push(queue, pushes(list(range(20)), ids=own_ids(20), mature=mature))
        assert payloads_of(store.peek(queue, limit=12)) == list(range(12))
        assert store.reserve(queue, "c/1", 6)
        assert payloads_of(store.peek(queue, limit=20)) == list(range(20))

    def test_pushes_of_several_threads_are_each_in_order(self, store: Store, peer: Store, queue: str) -> None:
        def work(worker: int) -> None:
            for number in range(6):
                ids = [f"{worker}.{number}.{one}" for one in own_ids(5)] if number % 2 else None
                (store, peer)[worker % 2].push(queue, pushes([[worker, number, row] for row in range(5)], ids=ids))

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))
        found = drain(store, queue)
        assert len(found) == 4 * 6 * 5
        for worker in range(4):
            mine = [one for one in found if one[0] == worker]
            assert mine == sorted(mine)
