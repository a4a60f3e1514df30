"""The part of the conformance suite about `pushed`: when a message was pushed."""

from __future__ import annotations

from datetime import datetime

import pytest

from spark_queue.messages.buckets import Buckets
from spark_queue.messages.message import Message, pushes
from spark_queue.messages.schema import EPOCH
from spark_queue.stores.base import Store
from spark_queue.stores.conformance.ahead import reserve_ahead
from spark_queue.stores.conformance.forwarding import unchanged_rows
from spark_queue.stores.conformance.helpers import ids_of, messages_of
from spark_queue.stores.conformance.waiting import MINUTE_MS, end_lease, tick
from spark_queue.stores.support.bucket_split import compact
from spark_queue.stores.types import Commit, DeadLetterInfo, HandOut, View

Moments = dict[str, datetime | None]


def milliseconds_of(moment: datetime) -> int:
    """Return a moment in ms since 1970."""
    return round((moment - EPOCH).total_seconds() * 1000)


def pushed_by_payload(found: list[Message]) -> Moments:
    """Return when messages were pushed, by their payload as text."""
    return {str(one.payload): one.pushed for one in found}


class PushedContract:
    """Tests for `StoreContract`, whose fixtures they use."""

    @pytest.fixture
    def moments(self, store: Store, queue: str) -> Moments:
        """Push twice, the second time also a scheduled message; return when, by payload."""
        for rows, delay in ((range(3), None), (range(3, 5), None), ([5], MINUTE_MS)):
            tick(store)
            store.push(queue, pushes([{"n": str(n)} for n in rows], delay=delay, headers={"a": "b"}))
        found = pushed_by_payload(messages_of(store.peek(queue)))
        assert len(found) == 6
        assert len(set(found.values())) == (1 if "pushed" in store.unsupported else 3)
        return found

    @staticmethod
    def check_kept(store: Store, queue: str, moments: Moments, rows: int = 6, *, view: View = "messages") -> None:
        """Check that the messages of a queue were pushed at these moments."""
        found = pushed_by_payload(messages_of(store.peek(queue, view=view)))
        assert len(found) == rows
        assert found == {payload: moments[payload] for payload in found}

    def test_a_message_knows_when_it_was_pushed(self, store: Store, queue: str) -> None:
        before = store.now()
        store.push(queue, pushes([{"n": "1"}, {"n": "2"}], delay=[0, MINUTE_MS]))
        store.push(queue, pushes([{"n": "3"}], mature=EPOCH))
        after = store.now()
        store.reserve(queue, "c/1", 5)
        fetched = messages_of(store.fetch(queue, "c/1/0"))
        for one in [*messages_of(store.peek(queue)), *fetched]:
            if "pushed" in store.unsupported:
                assert one.pushed is None
            else:
                assert one.pushed is not None
                assert before <= milliseconds_of(one.pushed) <= after

    def test_a_message_that_is_pushed_again_keeps_its_moment(self, store: Store, queue: str) -> None:
        if "ids" in store.unsupported:
            pytest.skip("this layout does not compare ids")
        id = store.native_ids(pushes([{}]).column("id"))[0].as_py()
        batch = pushes([{"n": "1"}], ids=[id])
        store.push(queue, batch)
        (first,) = messages_of(store.peek(queue))
        tick(store)
        store.push(queue, batch)
        assert [one.pushed for one in messages_of(store.peek(queue))] == [first.pushed]

    @pytest.mark.parametrize("delay", [None, 0, MINUTE_MS])
    @pytest.mark.parametrize("failed", [False, True])
    def test_a_rollback_keeps_it(
        self, store: Store, queue: str, moments: Moments, failed: bool, delay: int | None
    ) -> None:
        store.reserve(queue, "c/1", 4, partitions=2, min_partitions=2)
        store.rollback(queue, "c/1", delay=delay, failed=failed)
        self.check_kept(store, queue, moments)

    def test_a_lease_that_ends_keeps_it(self, store: Store, queue: str, moments: Moments) -> None:
        store.reserve(queue, "c/1", 4)
        end_lease(store, queue, "c/1")
        store.reserve(queue, "c/2", 5)
        store.transfer(queue, "c/2", "c/3", lease=MINUTE_MS)
        store.renew(queue, "c/3", MINUTE_MS)
        self.check_kept(store, queue, moments)
        held = [one for tag in store.reservations(queue) for one in messages_of(store.fetch(queue, tag.tag))]
        assert [one.pushed for one in held] == [moments[str(one.payload)] for one in held]

    def test_some_messages_of_a_reservation_keep_it(self, store: Store, queue: str, moments: Moments) -> None:
        store.reserve(queue, "c/1", 5)
        ids = ids_of(store.fetch(queue, "c/1/0"))
        store.rollback(queue, "c/1", ids[:1])
        store.transfer(queue, "c/1", "c/2/0", ids[1:2], lease=MINUTE_MS)
        store.commit(queue, "c/1", ids[2:3], history=MINUTE_MS)
        self.check_kept(store, queue, moments, 5)
        self.check_kept(store, queue, moments, 1, view="history")

    def test_messages_that_are_handed_out_keep_it(self, store: Store, queue: str, moments: Moments) -> None:
        first, second, *_ = reserve_ahead(store, queue, 5)
        store.hand_out(queue, HandOut("c/1", first, MINUTE_MS))
        store.settle_and_hand_out(
            queue, "c/1/0", [first], Commit(history=MINUTE_MS), HandOut("c/1", second, MINUTE_MS)
        )
        self.check_kept(store, queue, moments, 5)
        self.check_kept(store, queue, moments, 1, view="history")

    def test_the_history_keeps_it(self, store: Store, queue: str, moments: Moments) -> None:
        store.reserve(queue, "c/1", 5)
        store.commit(queue, "c/1", history=MINUTE_MS)
        self.check_kept(store, queue, moments, 5, view="history")

    def test_a_dead_letter_and_its_redrive_keep_it(self, store: Store, queue: str, moments: Moments) -> None:
        dead = f"{queue}.dead"
        store.reserve(queue, "c/1", 5)
        ids = ids_of(store.fetch(queue, "c/1/0"))
        letter = DeadLetterInfo("failed", failed=1, history=MINUTE_MS)
        store.move(queue, dead, tag="c/1", ids=ids[:2], dead_letter=letter)
        store.move(queue, dead, tag="c/1", dead_letter=letter)
        self.check_kept(store, dead, moments, 5)
        if not store.ids_unique_per_store:  # else a dead letter is only in its queue
            self.check_kept(store, queue, moments, 5, view="history")
        tick(store)
        store.move(dead, queue, ids=ids[:1])
        store.move(dead, queue)
        self.check_kept(store, queue, moments)

    def test_a_move_keeps_it(self, store: Store, queue: str, moments: Moments) -> None:
        store.move(queue, f"{queue}.other", limit=1)
        store.move(queue, f"{queue}.other")
        self.check_kept(store, f"{queue}.other", moments)

    def test_forwarded_messages_keep_it(self, store: Store, queue: str, moments: Moments) -> None:
        store.reserve(queue, "c/1", 5)
        ids = ids_of(store.fetch(queue, "c/1/0"))
        tick(store)
        store.forward(queue, f"{queue}.other", "c/1", unchanged_rows(ids))
        self.check_kept(store, f"{queue}.other", moments, 5)

    def test_a_staged_message_was_pushed_when_it_was_staged(self, store: Store, queue: str) -> None:
        before = store.now()
        store.stage(queue, "s/1", pushes([{"n": "1"}, {"n": "2"}], delay=[0, MINUTE_MS]))
        after = store.now()
        tick(store)
        store.publish(["s/1"])
        for one in messages_of(store.peek(queue)):
            if "pushed" in store.unsupported:
                assert one.pushed is None
            else:
                assert one.pushed is not None
                assert before <= milliseconds_of(one.pushed) <= after

    def test_messages_of_a_bucket_keep_it(self, store: Store, queue: str, peer: Store, moments: Moments) -> None:
        if "buckets" in store.unsupported:
            pytest.skip("this layout has no buckets")
        peer.layout = Buckets(10)
        tick(store)
        peer.push(queue, pushes([{"b": str(n)} for n in range(8)]))
        found = pushed_by_payload(messages_of(store.peek(queue)))
        moments |= {payload: moment for payload, moment in found.items() if payload not in moments}
        assert len(set(moments.values())) == 4
        compact(store, queue, Buckets(50))
        self.check_kept(store, queue, moments, 14)
        store.reserve(queue, "c/1", 9)
        ids = ids_of(store.fetch(queue, "c/1/0"))
        tick(store)
        store.commit(queue, "c/1", ids[:2], history=MINUTE_MS)
        store.rollback(queue, "c/1", ids[2:5])
        letter = DeadLetterInfo("failed", history=MINUTE_MS)
        store.move(queue, f"{queue}.dead", tag="c/1", ids=ids[5:7], dead_letter=letter)
        self.check_kept(store, queue, moments, 10)
        self.check_kept(store, queue, moments, 4, view="history")
        self.check_kept(store, f"{queue}.dead", moments, 2)
        store.rollback(queue, "c/1")
        compact(store, queue, Buckets(50))
        self.check_kept(store, queue, moments, 10)
