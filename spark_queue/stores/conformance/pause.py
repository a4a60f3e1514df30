"""The part of the conformance suite about the statistics and the pause of a queue."""

from __future__ import annotations

import threading
import time
import uuid
from types import SimpleNamespace

import pytest

from spark_queue.errors import OptionError
from spark_queue.messages.message import pushes
from spark_queue.stores import open_store
from spark_queue.stores.base import Store
from spark_queue.stores.conformance.helpers import push_and_reserve
from spark_queue.stores.conformance.waiting import DEADLINE, run_together, wait_until
from spark_queue.stores.support import pause as support_pause
from spark_queue.stores.support.counters import Statistics
from spark_queue.stores.types import DeadLetterInfo


class PauseContract:
    """Tests for `StoreContract`, which has the fixtures `store`, `peer`, `queue` and `url`."""

    # --- statistics -------------------------------------------------------------------------------

    def test_each_act_is_counted_by_messages(self, store: Store, queue: str) -> None:
        assert store.statistics(queue) == Statistics()
        store.push(queue, pushes([{"n": str(n)} for n in range(6)]))
        assert store.statistics(queue) == Statistics(put=6)
        assert sum(store.reserve(queue, "c/1", 100)) == 6
        assert store.statistics(queue) == Statistics(put=6, reserve=6)
        assert store.rollback(queue, "c/1") == 6
        assert sum(store.reserve(queue, "c/2", 100)) == 6
        assert store.commit(queue, "c/2") == 6
        assert store.statistics(queue) == Statistics(put=6, reserve=12, rollback=6, commit=6)

    def test_what_is_asked_again_is_not_counted_again(self, store: Store, queue: str) -> None:
        batch = pushes([{"n": "1"}], ids=["0123456789abcdef01234567"])
        store.push(queue, batch)
        for _ in range(3):
            assert store.reserve(queue, "c/1", 10) == [1]
            assert store.reserve(queue, "c/1", 10, partitions=4) == [1]
        store.commit(queue, "c/1")
        store.commit(queue, "c/1")
        store.rollback(queue, "c/1")
        assert store.reserve(queue, "c/2", 10) == []
        assert store.statistics(queue) == Statistics(put=1, reserve=1, commit=1)

    def test_what_is_reserved_in_partitions_is_counted(self, store: Store, queue: str) -> None:
        assert sum(push_and_reserve(store, queue, pushes([{"n": "x"}] * 1_200), partitions=3)) == 1_200
        assert store.statistics(queue).reserve == 1_200

    def test_what_is_published_is_counted_where_it_arrives(self, store: Store, queue: str) -> None:
        sink, other = f"s{uuid.uuid4().hex[:12]}", f"{queue}.other"
        for name, n in ((queue, 3), (other, 2), (queue, 1)):
            store.stage(name, f"{sink}/0/a", pushes([{"n": "x"}] * n))
        assert store.statistics(queue) == Statistics()
        for _ in range(2):
            store.publish([f"{sink}/0/a"])
        assert (store.statistics(queue), store.statistics(other)) == (Statistics(put=4), Statistics(put=2))

    def test_what_moves_is_counted_in_both_queues(self, store: Store, queue: str) -> None:
        dead = f"{queue}.dead"
        push_and_reserve(store, queue, pushes([{"n": "x"}] * 3))
        assert store.move(queue, dead, tag="c/1", dead_letter=DeadLetterInfo("no use")) == 3
        assert store.move(dead, queue) == 3
        assert store.statistics(queue) == Statistics(put=6, reserve=3, deadletter=3)
        assert store.statistics(dead) == Statistics(put=3, get=3)

    def test_all_clients_count_together(self, store: Store, peer: Store, url: str, queue: str) -> None:
        store.push(queue, pushes([{"n": "x"}] * 2))
        peer.push(queue, pushes([{"n": "x"}] * 3))
        with open_store(url) as third:
            third.push(queue, pushes([{"n": "x"}]))
        assert peer.statistics(queue).put >= 4, "its own counts, and those of closed clients"
        wait_until(lambda: peer.statistics(queue).put >= 6, pause=0.02)
        assert peer.statistics(queue) == Statistics(put=6)

    def test_threads_lose_no_count(self, store: Store, peer: Store, queue: str) -> None:
        def count() -> None:
            for turn in range(500):
                store.count(queue, put=1, get=2)
                if turn % 50 == 0:
                    store.statistics(queue)

        run_together(*[count] * 4)
        store.close()
        assert peer.statistics(queue) == Statistics(put=2_000, get=4_000)

    def test_a_queue_is_known_though_it_is_empty_until_it_is_dropped(
        self, store: Store, peer: Store, queue: str
    ) -> None:
        other = f"{queue}.other"
        push_and_reserve(store, queue, pushes([{"n": "x"}]))
        store.commit(queue, "c/1")
        store.pause(other)
        assert store.reserve(f"{queue}.dead", "c/1", 1) == []
        known = store.all_statistics()
        assert known[queue] == Statistics(put=1, reserve=1, commit=1)
        assert known[other] == Statistics(paused=True)
        assert f"{queue}.dead" not in known, "it was never used"
        assert list(known) == sorted(known)
        store.push(queue, pushes([{"n": "x"}]))
        for one in (queue, other):
            store.drop(one)
        assert peer.statistics(queue) == Statistics()
        assert not {queue, other} & peer.all_statistics().keys()
        assert not peer.is_paused(other)
        assert queue not in store.all_statistics(), "counts from before the drop are not written"

    # --- pause ------------------------------------------------------------------------------------

    def test_from_a_paused_queue_nothing_is_taken(self, store: Store, peer: Store, queue: str) -> None:
        store.push(queue, pushes([{"n": "x"}] * 2))
        assert not store.is_paused(queue)
        store.pause(queue)
        store.pause(queue)
        assert store.is_paused(queue)
        assert peer.is_paused(queue)
        for client in (store, peer):
            assert client.reserve(queue, "c/1", 10) == client.reserve(queue, "c/1", 10, partitions=4) == []
            assert not client.wait(queue, 0)
        assert sum(page.num_rows for page in store.peek(queue)) == 2
        store.resume(queue)
        assert not peer.is_paused(queue)
        assert sum(store.reserve(queue, "c/1", 10)) == 2

    def test_what_is_held_when_a_queue_is_paused_goes_on(self, store: Store, peer: Store, queue: str) -> None:
        rows = push_and_reserve(store, queue, pushes([{"n": str(n)} for n in range(3)]))
        store.pause(queue)
        for client in (store, peer):
            assert client.reserve(queue, "c/1", 10) == rows, "a replay"
            assert client.reserve(queue, "c/1", 10, partitions=8) == rows
        assert sum(page.num_rows for page in store.fetch(queue, "c/1/0")) == sum(rows)
        assert store.renew(queue, "c/1", 60_000) == sum(rows)
        store.push(queue, pushes([{"n": "4"}, {"n": "5"}]))
        assert store.rollback(queue, "c/1") == sum(rows)
        assert store.reserve(queue, "c/1", 10) == []
        assert store.move(queue, f"{queue}.other") == 5
        store.resume(queue)

    def test_a_batch_in_partitions_is_replayed_while_its_queue_is_paused(self, store: Store, queue: str) -> None:
        rows = push_and_reserve(store, queue, pushes([{"n": "x"}] * 1_500), partitions=3)
        store.pause(queue)
        assert store.reserve(queue, "c/1", 1_500, partitions=3) == rows
        assert store.commit(queue, "c/1") == 1_500

    def test_a_pause_survives_the_client_that_set_it(self, url: str, store: Store, queue: str) -> None:
        store.push(queue, pushes([{"n": "x"}]))
        with open_store(url) as first:
            first.pause(queue)
        with open_store(url) as second:
            assert second.is_paused(queue)
            assert second.reserve(queue, "c/1", 1) == []

    def test_a_client_that_does_not_wait_learns_of_a_pause_soon(
        self, store: Store, peer: Store, queue: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        later = 0.0  # the client's own clock ends its cache
        monkeypatch.setattr(support_pause, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + later))
        store.push(queue, pushes([{"n": str(n)} for n in range(3)]))
        for paused in (False, True, False):
            (peer.pause if paused else peer.resume)(queue)
            later += store.limits.pause_cache + 0.01
            assert bool(store.reserve(queue, f"c/{uuid.uuid4().hex[:6]}", 1)) is not paused

    def test_a_waiting_client_sleeps_while_the_queue_is_paused_and_wakes_when_it_is_resumed(
        self, store: Store, peer: Store, queue: str
    ) -> None:
        peer.pause(queue)
        peer.push(queue, pushes([{"n": "x"}]))
        began = time.monotonic()
        assert not store.wait(queue, 100)
        assert time.monotonic() - began >= 0.09, "it did not sleep"
        threading.Timer(0.05, peer.resume, (queue,)).start()
        assert store.wait(queue, 2 * DEADLINE * 1000)
        assert time.monotonic() - began < DEADLINE
        assert store.reserve(queue, "c/1", 1) == [1]

    def test_a_queue_whose_name_is_forbidden_cannot_be_paused(self, store: Store) -> None:
        for act in (store.pause, store.resume):
            with pytest.raises(OptionError):
                act("")
