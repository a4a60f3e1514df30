"""Messages that are reserved ahead: which tries count, and which message is handed out."""

from __future__ import annotations

import pytest

from spark_queue.messages.buckets import Record
from spark_queue.messages.columns import milliseconds
from spark_queue.messages.message import pushes
from spark_queue.stores.base import Store
from spark_queue.stores.conformance.helpers import messages_of
from spark_queue.stores.conformance.waiting import end_lease
from spark_queue.stores.support.bucket_split import unpack
from spark_queue.stores.types import Commit, DeadLetterInfo, HandOut, Rollback, unseen_tag

LEASE = 600_000


def reserve_ahead(store: Store, queue: str, rows: int, tag: str = "c/1") -> list[Record]:
    """Reserve messages ahead, and return them in order."""
    assert store.reserve(queue, tag, rows, lease=LEASE, unseen=True) == [rows]
    unpack(store, queue, unseen_tag(tag))
    return [
        Record(id, mature)
        for batch in store.fetch(queue, unseen_tag(tag))
        for id, mature in zip(
            batch.column("id").to_pylist(), milliseconds(batch.column("mature")).to_pylist(), strict=True
        )
    ]


def tries_by_id(store: Store, queue: str, rows: int, tag: str) -> dict[str, int]:
    """Reserve all messages, and return the tries of each by its id."""
    assert sum(store.reserve(queue, tag, rows)) == rows
    return {one.id: one.tries for one in messages_of(store.fetch(queue, f"{tag}/0"))}


class AheadContract:
    """Messages that are reserved ahead."""

    def test_messages_that_no_consumer_has_seen_keep_their_tries(self, store: Store, queue: str) -> None:
        store.push(queue, pushes([{"n": n} for n in range(5)]))
        records = reserve_ahead(store, queue, 5)
        assert store.hand_out(queue, HandOut("c/1", records[0], LEASE))
        end_lease(store, queue, "c/1")
        expected = {one.id: int(one == records[0]) for one in records}
        assert tries_by_id(store, queue, 5, "c/2") == expected
        end_lease(store, queue, "c/2")  # now a consumer has seen all of them
        assert tries_by_id(store, queue, 5, "c/3") == {id: tries + 1 for id, tries in expected.items()}

    @pytest.mark.parametrize("history", [0, LEASE])
    def test_a_commit_hands_out_the_next_message(self, store: Store, queue: str, history: int) -> None:
        store.push(queue, pushes([{"n": n} for n in range(4)]))
        first, second, third, fourth = reserve_ahead(store, queue, 4)
        assert store.hand_out(queue, HandOut("c/1", first, LEASE))
        settled = store.settle_and_hand_out(
            queue, "c/1/0", [first], Commit(history=history), HandOut("c/1", second, LEASE)
        )
        assert settled == (1, True)
        assert store.held_ids(queue, "c/1/0") == [second.id]
        assert store.sizes(queue).reserved == 3
        assert store.settle_and_hand_out(
            queue, "c/1/0", [second], Commit(history=history), HandOut("c/1", third, LEASE)
        ) == (1, True)
        kept = [one.id for one in messages_of(store.peek(queue, view="history"))]
        assert sorted(kept) == sorted([first.id, second.id] if history or store.always_keeps_history else [])
        end_lease(store, queue, "c/1")
        assert tries_by_id(store, queue, 2, "c/2") == {third.id: 1, fourth.id: 0}
        assert store.push(queue, pushes([{"n": 9}], ids=[first.id])) == 1, "its id is free again"

    @pytest.mark.parametrize("failed", [True, False])
    def test_a_rollback_hands_out_the_next_message(self, store: Store, queue: str, failed: bool) -> None:
        store.push(queue, pushes([{"n": n} for n in range(3)]))
        first, second, third = reserve_ahead(store, queue, 3)
        store.hand_out(queue, HandOut("c/1", first, LEASE))
        settled = store.settle_and_hand_out(
            queue, "c/1/0", [first], Rollback(failed=failed), HandOut("c/1", second, LEASE)
        )
        assert settled == (1, True)
        assert tries_by_id(store, queue, 1, "c/2") == {first.id: int(failed)}
        assert store.rollback(queue, "c/1", failed=False) == 2
        assert tries_by_id(store, queue, 2, "c/3") == {second.id: 0, third.id: 0}

    def test_what_is_lost_is_neither_settled_nor_handed_out(self, store: Store, queue: str) -> None:
        store.push(queue, pushes([{"n": n} for n in range(4)]))
        first, second, third, _ = reserve_ahead(store, queue, 4)
        assert store.hand_out(queue, HandOut("c/1", first, LEASE))
        assert store.hand_out(queue, HandOut("c/1", first, LEASE)), "a repeated call"
        end_lease(store, queue, unseen_tag("c/1"))
        assert sum(store.reserve(queue, "c/2", 3)) == 3
        assert not store.hand_out(queue, HandOut("c/1", second, LEASE))
        next = HandOut("c/1", third, LEASE)
        assert store.settle_and_hand_out(queue, "c/1/0", [first], Commit(), next) == (1, False)
        assert store.settle_and_hand_out(queue, "c/1/0", [second], Commit(), next) == (0, False)
        assert store.sizes(queue).reserved == 3

    def test_a_pause_returns_what_was_reserved_ahead(self, store: Store, queue: str) -> None:
        store.push(queue, pushes([{"n": n} for n in range(2)]))
        reserve_ahead(store, queue, 1)
        store.pause(queue)
        assert store.reserve(queue, "c/1", 2, unseen=True) == [1]
        assert store.reserve(queue, "c/2", 2, unseen=True) == []
        store.resume(queue)

    def test_a_move_of_free_messages_counts_no_try_that_was_none(self, store: Store, queue: str) -> None:
        store.push(queue, pushes([{"n": n} for n in range(2)]))
        first, _ = reserve_ahead(store, queue, 2)
        store.hand_out(queue, HandOut("c/1", first, LEASE))
        end_lease(store, queue, "c/1")
        dead = f"{queue}.dead"
        try:
            assert store.move(queue, dead, min_tries=1, dead_letter=DeadLetterInfo("tried")) == 1
            assert [one.id for one in messages_of(store.peek(dead))] == [first.id]
        finally:
            store.drop(dead)

    def test_a_bucket_whose_messages_have_taken_ids_stays_as_it_is(self, store: Store, queue: str) -> None:
        if "buckets" in store.unsupported:
            pytest.skip("this layout has no buckets")
        ids = store.native_ids(pushes([{}] * 3).column("id")).to_pylist()
        batch = pushes([{"n": n} for n in range(3)], ids=ids)
        for _ in range(2):  # ids in buckets are not compared
            store.push(queue, batch)
        rows = store.sizes(queue).ready
        found = reserve_ahead(store, queue, rows)
        assert sorted(one.id for one in found) == sorted(ids * (rows // 3))
