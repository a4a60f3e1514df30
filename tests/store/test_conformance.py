"""Every registered store keeps the contract, on its real server.

A store registered under a new scheme joins by itself: give a fixture `<scheme>_url` in tests/conftest.py.
"""

from __future__ import annotations

import pytest

from spark_queue.buckets import Buckets
from spark_queue.message import pushes
from spark_queue.store import STORES, open_store
from spark_queue.store.base import SMALLEST_PARTITION
from spark_queue.store.conformance import StoreContract, all_of, ids_of

#: One scheme for each store class.
SCHEMES = {path: scheme for scheme, (path, _) in reversed(STORES.items())}.values()


@pytest.fixture(params=sorted(SCHEMES))
def scheme(request):
    return request.param


class TestStore(StoreContract):
    @pytest.fixture
    def url(self, scheme, url_of):
        return url_of(scheme)

    @pytest.fixture
    def unreachable(self, scheme):
        return None if scheme == "sqlite" else f"{scheme}://user:sesame@127.0.0.1:1/0"


class TestBuckets(StoreContract):
    """The same, where whatever is pushed lies in buckets, of three messages for the most part.

    A bucket is taken as a whole where it fits: then a reserve may give fewer messages than it may, and partitions are
    not alike. And the ids in buckets are not looked at by a push. What the contract says of that is told here anew.
    """

    size = 3

    @pytest.fixture
    def url(self, scheme, url_of):
        return url_of(scheme)

    @pytest.fixture
    def unreachable(self):
        return None

    def opened(self, url):
        store = open_store(url)
        store.layout = Buckets(self.size)
        return store

    def test_a_push_may_be_repeated(self, store, queue):
        batch = pushes([1, 2, 3, 4])
        assert store.push(queue, batch) == 4
        assert store.push(queue, batch) == 0
        assert store.sizes(queue).ready == 4

    def test_an_id_that_the_queue_holds_is_left_as_it_is(self, store, queue, sink):
        batch = pushes(["new", "other"], ids=["mine", "free"])
        store.stage(queue, f"{sink}/0/a", batch)
        store.stage(queue, f"{sink}/0/b", batch)
        assert store.publish([f"{sink}/0/a"]) == 2
        assert store.publish([f"{sink}/0/b"]) == 0
        assert sorted(ids_of(store.peek(queue))) == ["free", "mine"]

    def test_a_move_onto_an_id_that_is_there_replaces_nothing(self, store, queue):
        other, batch = f"{queue}.other", pushes(["first", "second"], ids=["a", "b"])
        store.push(queue, batch)
        store.push(other, batch)
        assert store.move(queue, other) == 2
        assert store.sizes(other).total == 2
        assert store.sizes(queue).total == 0

    def test_a_large_batch_is_pushed_and_comes_back_whole(self, store, queue):
        store.layout = Buckets(1_000)
        self.check_large_batch(store, queue, page=400, taken=22_000)

    def test_a_reserve_takes_the_first_in_order_up_to_its_limit(self, store, queue):
        store.push(queue, pushes(list(range(10))))
        assert store.reserve(queue, "c/1", 4) == [3]
        assert store.reserve(queue, "c/2", 2) == [2], "a bucket that is too large is split"
        assert store.reserve(queue, "c/3", 4) == [4]
        assert store.reserve(queue, "c/4", 4) == [1]
        found = [[one.payload for one in all_of(store.fetch(queue, f"c/{n}/0"))] for n in (1, 2, 3, 4)]
        assert found == [[0, 1, 2], [3, 4], [5, 6, 7, 8], [9]]

    @pytest.mark.parametrize("partitions", [1, 4])
    def test_the_same_tag_gets_the_same_messages_again(self, store, queue, partitions):
        super().test_the_same_tag_gets_the_same_messages_again(store, queue, partitions)

    def test_partitions_share_the_messages_in_order(self, store, queue):
        store.layout = Buckets(900)
        store.push(queue, pushes(list(range(4_000))))
        rows = store.reserve(queue, "c/1", 4_000, partitions=4)
        assert rows == [1_800, 1_800, 400]
        got = [[one.payload for one in all_of(store.fetch(queue, f"c/1/{p}"))] for p in range(3)]
        assert got == [list(range(1_800)), list(range(1_800, 3_600)), list(range(3_600, 4_000))]

    def test_a_reserve_that_was_cut_short_is_resumed(self, store, peer, queue):
        store.layout = Buckets(SMALLEST_PARTITION)
        super().test_a_reserve_that_was_cut_short_is_resumed(store, peer, queue)

    def test_reservations_tell_who_holds_what(self, store, queue):
        store.layout = Buckets(1)
        super().test_reservations_tell_who_holds_what(store, queue)

    def test_a_whole_tree_passes_to_a_tag_that_holds_some_already(self, store, queue):
        store.layout = Buckets(1)
        super().test_a_whole_tree_passes_to_a_tag_that_holds_some_already(store, queue)

    def test_a_million_scheduled_messages_do_not_slow_the_ready_ones(self, store, queue):
        store.layout = Buckets()
        super().test_a_million_scheduled_messages_do_not_slow_the_ready_ones(store, queue)
