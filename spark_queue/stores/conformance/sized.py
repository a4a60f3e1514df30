"""The part of the conformance suite about reserves with a limit of bytes."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from spark_queue.messages.buckets import Buckets, Layout
from spark_queue.messages.message import pushes
from spark_queue.stores.base import Store
from spark_queue.stores.conformance.helpers import payloads_of
from spark_queue.stores.types import Reserved

KB = 1024


def push_sizes(store: Store, queue: str, sizes: Sequence[int], layout: Layout = None) -> None:
    """Push messages of these sizes, numbered in order."""
    store.push(queue, pushes([{"n": str(n), "x": "y" * size} for n, size in enumerate(sizes)]), layout=layout)


def numbers(store: Store, queue: str, tag: str, reserved: Reserved) -> list[int]:
    """Return the numbers of the messages of a batch, in order."""
    pages = (store.fetch(queue, f"{tag}/{part}") for part in range(len(reserved.rows)))
    return [int(one["n"]) for page in pages for one in payloads_of(page)]


class SizedContract:
    """Reserves with a limit of bytes."""

    def test_a_reserve_takes_the_first_messages_that_fit(self, store: Store, queue: str) -> None:
        push_sizes(store, queue, [10 * KB] * 40)
        first = store.reserve_bytes(queue, "c/1", 40, 105 * KB)
        (rows,) = first.rows
        assert 7 <= rows <= 10 and first.full, "10, but for whole buckets"
        assert rows * 10 * KB <= first.bytes <= 105 * KB
        assert numbers(store, queue, "c/1", first) == list(range(rows))
        again = store.reserve_bytes(queue, "c/1", 40, 10**9)
        assert (again.rows, again.full) == ([rows], False), "the tag takes no more"
        rest = store.reserve_bytes(queue, "c/2", 40, 10**9)
        assert (rest.rows, rest.full) == ([40 - rows], False)
        assert store.commit(queue, "c") == 40

    def test_partitions_share_the_bytes(self, store: Store, queue: str) -> None:
        push_sizes(store, queue, [10 * KB] * 40)
        found = store.reserve_bytes(queue, "c/1", 40, 220 * KB, partitions=4)
        assert len(found.rows) == 4 and found.full, "large messages make as many partitions as are allowed"
        assert min(found.rows) >= 1 and 12 <= sum(found.rows) <= 21 and found.bytes <= 220 * KB
        assert numbers(store, queue, "c/1", found) == list(range(sum(found.rows)))
        assert store.reserve_bytes(queue, "c/2", 3, 220 * KB, partitions=4)[::2] == ([3], False)

    def test_messages_that_grow_or_differ_end_the_batch_where_they_do(self, store: Store, queue: str) -> None:
        """No size of earlier messages says anything about the next one."""
        push_sizes(store, queue, [10] * 100 + [100 * KB] * 20 + [10] * 100)
        found = store.reserve_bytes(queue, "c/1", 220, 450 * KB, partitions=2)
        rows = sum(found.rows)
        assert 98 <= rows <= 104 and found.full and found.bytes <= 450 * KB
        rest = store.reserve_bytes(queue, "c/2", 220, 10**9)
        assert numbers(store, queue, "c/2", rest) == list(range(rows, 220))

    def test_a_message_that_never_fits_is_alone(self, store: Store, queue: str) -> None:
        push_sizes(store, queue, [100 * KB, 100 * KB, 10, 10])
        for tag, rows in (("c/1", 1), ("c/2", 1), ("c/3", 2)):
            found = store.reserve_bytes(queue, tag, 10, 50 * KB, partitions=2)
            assert (sum(found.rows), found.full) == (rows, rows == 1)
        push_sizes(store, queue, [10, 100 * KB])
        assert sum(store.reserve_bytes(queue, "c/4", 10, 50 * KB, partitions=2).rows) == 1, "it is not the first"

    def test_headers_count(self, store: Store, queue: str) -> None:
        store.push(queue, pushes([{"n": str(n)} for n in range(20)], headers=[{"h": "x" * 5 * KB}] * 20))
        assert sum(store.reserve_bytes(queue, "c/1", 20, 51 * KB).rows) in (9, 10)

    def test_many_messages_are_claimed_in_several_steps(self, store: Store, queue: str) -> None:
        push_sizes(store, queue, [1] * 12_000)
        found = store.reserve_bytes(queue, "c/1", 12_000, 10**9)
        assert (found.rows, found.full) == ([12_000], False)
        store.rollback(queue, "c/1", delay=None, failed=False)
        half = store.reserve_bytes(queue, "c/2", 12_000, found.bytes * 9 // 10, partitions=1)
        assert 10_000 <= half.rows[0] < 12_000 and half.full
        assert half.bytes <= found.bytes * 9 // 10

    def test_two_that_compete_keep_the_limit_of_each(self, store: Store, peer: Store, queue: str) -> None:
        push_sizes(store, queue, [KB] * 400)
        found: list[Reserved] = []

        def reserve(one: Store, name: str) -> None:
            for turn in range(5):
                found.append(one.reserve_bytes(queue, f"{name}/{turn}", 400, 32 * KB, partitions=2))

        threads = [threading.Thread(target=reserve, args=(one, name)) for one, name in ((store, "a"), (peer, "b"))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(1 <= sum(one.rows) <= 32 for one in found)
        assert sum(sum(one.rows) for one in found) == sum(one.rows for one in store.reservations(queue))

    @pytest.mark.parametrize("compression", ["lz4", "zstd"])
    def test_a_bucket_counts_what_its_messages_take_and_is_split(
        self, store: Store, queue: str, compression: str
    ) -> None:
        if "buckets" in store.unsupported:
            pytest.skip("this layout has no buckets")
        push_sizes(store, queue, [10 * KB] * 64, Buckets(16, compression))  # compressed to almost nothing
        found = store.reserve_bytes(queue, "c/1", 64, 350 * KB)
        assert found.rows == [32] and found.full, "whole buckets"
        small = store.reserve_bytes(queue, "c/2", 64, 90 * KB)
        assert 1 <= sum(small.rows) <= 8 and small.full, "a bucket is split if it alone is too large"
        one = store.reserve_bytes(queue, "c/3", 64, 1)
        assert sum(one.rows) == 1 and one.full
        rest = store.reserve_bytes(queue, "c/4", 64, 10**9)
        got = [n for tag, part in (("c/1", found), ("c/2", small), ("c/3", one), ("c/4", rest))
               for n in numbers(store, queue, tag, part)]  # fmt: skip
        assert got == list(range(64))

    def test_the_sizes_of_reserved_messages_are_read_without_them(self, store: Store, queue: str) -> None:
        push_sizes(store, queue, [KB, 5 * KB, 20 * KB, 1])
        reserved = store.reserve_bytes(queue, "c/1", 10, 10**9)
        sizes = store.sizes_of_reserved(queue, "c/1/0", 10)
        assert sum(rows for rows, _ in sizes) == 4
        assert sum(size for _, size in sizes) <= reserved.bytes + KB
        if len(sizes) == 4:
            assert [size // KB for _, size in sizes] == [1, 5, 20, 0]
            assert store.sizes_of_reserved(queue, "c/1/0", 2) == sizes[:2]
        assert store.sizes_of_reserved(queue, "c/2", 10) == []
