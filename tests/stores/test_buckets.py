"""Queues with many messages in one record: `test_conformance.py` has what all queues do."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from spark_queue import Buckets, MessageError, Queue, open_store
from spark_queue.messages.buckets import Record, build_bucket, open_bucket
from spark_queue.messages.columns import milliseconds
from spark_queue.messages.message import messages, pushes
from spark_queue.stores.base import read_layout, set_layout
from spark_queue.stores.conformance.helpers import check_sizes_up_to
from spark_queue.stores.conformance.limits import with_limits
from spark_queue.stores.conformance.waiting import tick
from spark_queue.stores.support.bucket_split import compact, split_bucket
from spark_queue.stores.types import Condition, DeadLetterInfo, Sizes
from tests.layouts import use_layout

MINUTE = 60_000


@pytest.fixture
def store(store):
    use_layout(store, Buckets(10))
    return store


def messages_in(batches):
    return [one for batch in batches for one in messages(batch)]


def payloads_in(batches):
    return [one.payload for one in messages_in(batches)]


def records(store, queue):
    """How many messages each bucket of the queue holds, in order, reserved ones included."""
    return [rows.num_rows for page in store._buckets(queue, None) for rows in _opened(page.batch)]


def _opened(page):
    for row in range(page.num_rows):
        yield open_bucket(page.slice(row, 1))


def test_sizes_up_to_a_limit_are_exact_or_lower_bounds(store, name):
    store.push(name, pushes(range(100)))
    store.push(name, pushes(range(100), delay=MINUTE))
    for number in range(3):
        store.reserve(name, f"c/{number}", 10, lease=MINUTE)
    for limit in (1, 3, 10):
        assert check_sizes_up_to(limit, store, name)
    for limit in (30, 70, 100):  # a store that counts buckets has counted them all
        check_sizes_up_to(limit, store, name)
    assert not check_sizes_up_to(1_000, store, name)


# --- messages in ----------------------------------------------------------------------------------


def test_a_push_makes_as_few_records_as_it_can(store, name):
    store.push(name, pushes(list(range(25))))
    assert records(store, name) == [10, 10, 5]
    assert store.sizes(name) == Sizes(25, 0, 0)


def test_only_messages_that_mature_together_and_failed_equally_often_share_a_bucket(store, name):
    now = datetime.fromtimestamp(store.now() / 1000, UTC)
    early, late = now - timedelta(hours=1), now + timedelta(hours=1)
    store.push(name, pushes(list(range(6)), mature=[early, late] * 3))
    store.push(name, pushes(["failed", "failed too"], mature=early, tries=2))
    assert sorted(records(store, name)) == [2, 3, 3]
    assert store.sizes(name) == Sizes(5, 3, 0)
    store.reserve(name, "c/1", 10)
    found = {one.payload: (one.tries, one.mature) for one in messages_in(store.fetch(name, "c/1/0"))}
    assert found.keys() == {0, 2, 4, "failed", "failed too"}
    assert found["failed"][0] == 2
    assert all(abs(mature - early) < timedelta(milliseconds=1) for _, mature in found.values())


def test_one_message_alone_is_no_bucket(store, name):
    store.push(name, pushes(["alone"]))
    assert records(store, name) == []
    assert payloads_in(store.peek(name)) == ["alone"]


def test_large_messages_share_no_bucket_that_would_be_too_large(store, name):
    texts = ["x" * 3_000_000, "y" * 3_000_000, "z"]
    store.push(name, pushes(texts))
    assert records(store, name) == [1, 2]
    assert payloads_in(store.peek(name, limit=5)) == texts


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_messages_of_every_kind_come_out_of_a_bucket_as_they_went_in(store, name, compression):
    use_layout(store, Buckets(100, compression))
    values = [{"a": [1, None, 2.5, "ü"]}, "text", b"\0\xff", 2**62, [], {}, True]
    store.push(name, pushes(values, headers=[{"n": str(n)} if n % 2 else {} for n in range(7)]))
    store.reserve(name, "c/1", 100)
    found = messages_in(store.fetch(name, "c/1/0"))
    assert [one.payload for one in found] == values
    assert [one.headers for one in found] == [{"n": str(n)} if n % 2 else {} for n in range(7)]
    assert {one.queue for one in found} == {name}


def test_an_id_that_looks_like_a_bucket_is_refused(store, name):
    with pytest.raises(MessageError, match=r"U\+007F, which marks buckets"):
        store.push(name, pushes([1, 2], ids=["fine", "\x7ffine\x7f2\x7fabc"]))
    assert store.sizes(name).total == 0


# --- the setting of a queue -----------------------------------------------------------------------


def test_the_setting_of_a_queue_holds_for_all_who_do_not_say_otherwise(store, name, url):
    set_layout(store, name, Buckets(7, "zstd"))
    with open_store(url) as other:
        assert read_layout(other, name) == Buckets(7, "zstd")
        other.push(name, pushes(list(range(14))))
        assert records(store, name) == [7, 7]
        use_layout(other, "single")
        other.push(name, pushes([14, 15]))
        assert records(store, name) == [7, 7]
    set_layout(store, name, None)
    with open_store(url) as another:
        another.push(name, pushes([16, 17]))
    assert records(store, name) == [7, 7]
    assert store.sizes(name).ready == 18
    assert sorted(payloads_in(store.peek(name))) == list(range(18))


def test_a_dropped_queue_forgets_its_setting(store, name):
    set_layout(store, name, Buckets())
    store.drop(name)
    assert read_layout(store, name) is None


# --- messages out ---------------------------------------------------------------------------------


def test_single_messages_and_buckets_of_a_queue_come_in_the_order_of_their_maturity(store, name):
    store.push(name, pushes(list(range(4))))
    tick(store)
    use_layout(store, "single")
    store.push(name, pushes([4, 5]))
    tick(store)
    use_layout(store, Buckets(10))
    store.push(name, pushes([6, 7, 8]))
    assert store.reserve(name, "c/1", 100) == [9]
    assert payloads_in(store.fetch(name, "c/1/0")) == list(range(9))
    assert store.commit(name, "c/1") == 9


def test_messages_are_taken_one_by_one_out_of_a_large_bucket_in_order(store, name, url):
    use_layout(store, Buckets(1_000))
    store.push(name, pushes(list(range(300))))
    with Queue(store, name) as queue:
        taken = [queue.pop() for _ in range(40)]
        assert [one and one.payload for one in taken] == list(range(40))
        assert queue.sizes().ready == 260
    assert max(records(store, name)) <= 5, "it was split once, into parts that are split again"


def test_buckets_that_do_not_fit_leave_a_reserve_short_but_never_empty(store, name):
    store.push(name, pushes(list(range(30))))
    assert store.reserve(name, "c/1", 15) == [10]
    assert store.reserve(name, "c/2", 7) == [7]
    assert store.reserve(name, "c/3", 7) == [3]
    assert store.reserve(name, "c/4", 7) == [7]


def test_two_clients_that_split_the_same_bucket_get_each_message_once(store, name, url):
    use_layout(store, Buckets(500))
    store.push(name, pushes(list(range(500))))
    found, line = [], threading.Barrier(4)

    def take(number):
        with open_store(url, retry_timeout=20_000) as mine:
            line.wait(120)
            at = 0
            while mine.reserve(name, f"t{number}/{at}", 3):
                found.extend(payloads_in(mine.fetch(name, f"t{number}/{at}/0")))
                mine.commit(name, f"t{number}/{at}")
                at += 1

    threads = [threading.Thread(target=take, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == list(range(500))
    assert store.sizes(name).total == 0


def test_a_split_of_a_bucket_that_fits_loses_nothing(store, name):
    """A reserve found it too large; when it splits it, there may be room."""
    store.push(name, pushes(list(range(10))))
    (page,) = (one.batch for one in store._buckets(name, None))
    split_bucket(store, name, page.column("id")[0].as_py(), 10)
    assert records(store, name) == [10]
    assert payloads_in(store.peek(name)) == list(range(10))


def test_a_record_that_is_replaced_by_itself_stays(store, name):
    store.push(name, pushes(list(range(10))))
    (page,) = (one.batch for one in store._buckets(name, None))
    (rows,) = _opened(page)
    record = Record(page.column("id")[0].as_py(), milliseconds(page.column("mature"))[0].as_py())
    replace = partial(store._attempt, store._replace_records, name)  # a transaction may meet another and begin again
    assert replace(None, [record], build_bucket(rows, Buckets(10)))
    assert payloads_in(store.peek(name)) == list(range(10))
    store.reserve(name, "c/1", 10)
    assert replace("c/1/0", [record], build_bucket(rows, Buckets(10)))
    assert payloads_in(store.fetch(name, "c/1/0")) == list(range(10))
    assert store.sizes(name) == Sizes(0, 0, 10)
    assert not replace("c/2/0", [record], build_bucket(rows, Buckets(10))), "it is not theirs"
    assert not replace(None, [record], build_bucket(rows, Buckets(10))), "it is not free"
    assert store.commit(name, "c/1") == 10
    assert not replace("c/1/0", [record], build_bucket(rows, Buckets(10))), "it is gone"
    assert store.sizes(name) == Sizes(0, 0, 0)


# --- some messages of a bucket --------------------------------------------------------------------


def push_and_hold(store, name, n=10):
    store.push(name, pushes(list(range(n))))
    store.reserve(name, "c/1", n)
    return [one.id for one in messages_in(store.fetch(name, "c/1/0"))]


def test_some_messages_of_a_bucket_are_committed_and_the_others_stay_held(store, name):
    ids = push_and_hold(store, name)
    assert store.commit(name, "c/1", [ids[2], ids[5], "stranger"]) == 2
    assert store.commit(name, "c/1", [ids[2]]) == 0
    assert payloads_in(store.fetch(name, "c/1/0")) == [0, 1, 3, 4, 6, 7, 8, 9]
    assert store.sizes(name) == Sizes(0, 0, 8)
    assert store.commit(name, "c/1", [id for id in ids if id not in (ids[2], ids[5])]) == 8
    assert store.reservations(name) == []


def test_some_messages_of_a_bucket_fail_and_count_a_try_of_their_own(store, name):
    ids = push_and_hold(store, name)
    assert store.rollback(name, "c/1", ids[:2]) == 2
    assert store.rollback(name, "c/1", ids[2:4], delay=MINUTE) == 2
    assert store.sizes(name) == Sizes(2, 2, 6)
    store.reserve(name, "c/2", 10)
    assert [(one.payload, one.tries) for one in messages_in(store.fetch(name, "c/2/0"))] == [(0, 1), (1, 1)]
    assert {one.tries for one in messages_in(store.fetch(name, "c/1/0"))} == {0}


def test_clients_that_settle_messages_of_one_bucket_at_the_same_time_lose_none(store, name, url):
    use_layout(store, Buckets(200))
    ids = push_and_hold(store, name, 200)
    done, line = [], threading.Barrier(4)

    def settle(number):
        with open_store(url, retry_timeout=30_000) as mine:
            line.wait(120)
            for at in range(number, 40, 4):
                done.append(mine.commit(name, "c/1", ids[at:160:40]))

    threads = [threading.Thread(target=settle, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(done) == 160
    assert payloads_in(store.fetch(name, "c/1/0")) == list(range(160, 200))


def test_a_dead_letter_out_of_a_bucket_has_the_queue_that_it_comes_from(store, name):
    ids = push_and_hold(store, name)
    dead = f"{name}.dead"
    assert store.move(name, dead, tag="c/1", ids=ids[3:5], dead_letter=DeadLetterInfo("why", failed=1)) == 2
    assert store.move(name, dead, tag="c/1", dead_letter=DeadLetterInfo("all")) == 8
    letters = {one.payload: one.headers for one in messages_in(store.peek(dead))}
    assert sorted(letters) == list(range(10))
    assert letters[3]["x-error"] == "why"
    assert letters[3]["x-dl-tries"] == "1"
    assert letters[0]["x-error"] == "all"
    assert letters[0]["x-dl-from-queue"] == name


def test_a_move_with_a_limit_moves_no_more(store, name):
    store.push(name, pushes(list(range(30))))
    other = f"{name}.other"
    assert store.move(name, other, limit=13) == 13
    assert payloads_in(store.peek(other, limit=50)) == list(range(13))
    assert store.move(name, other, limit=50) == 17


def test_free_messages_in_buckets_are_moved_by_their_ids(store, name):
    batch = pushes(list(range(30)))
    store.push(name, batch)
    ids = batch.column("id").to_pylist()
    assert store.move(name, f"{name}.other", ids=[ids[1], ids[12], ids[13]]) == 3
    assert sorted(payloads_in(store.peek(f"{name}.other"))) == [1, 12, 13]
    assert store.sizes(name).ready == 27


# --- looking --------------------------------------------------------------------------------------


def test_a_filter_finds_messages_in_buckets(store, name):
    batch = pushes(list(range(25)), ids=[f"m{n:02}" for n in range(25)])
    store.push(name, batch)
    use_layout(store, "single")
    store.push(name, pushes(["single"], ids=["n"]))
    found = [Condition("id", "in", ("m03", "m17", "n", "stranger"))]
    assert sorted(map(str, payloads_in(store.peek(name, found)))) == ["17", "3", "single"]
    assert payloads_in(store.peek(name, [Condition("id", ">=", "m23")], limit=2)) == [23, 24]
    assert payloads_in(store.peek(name, [Condition("id", "=", "n")], limit=1)) == ["single"]
    assert payloads_in(store.peek(name, [Condition("tries", ">", 0)])) == []


def test_history_holds_the_messages_of_buckets(store, name):
    ids = push_and_hold(store, name)
    assert store.commit(name, "c/1", ids[:4], history=MINUTE) == 4
    assert store.commit(name, "c/1", history=MINUTE) == 6
    assert sorted(payloads_in(store.peek(name, view="history"))) == list(range(10))
    assert payloads_in(store.peek(name, [Condition("id", "=", ids[7])], view="history")) == [7]


# --- putting together -----------------------------------------------------------------------------


def test_a_compaction_puts_little_pushes_together_and_changes_nothing_else(store, name):
    for n in range(0, 40, 2):
        store.push(name, pushes([n, n + 1], headers={"n": str(n)}))
    store.push(name, pushes(["later", "too"], delay=MINUTE))
    store.reserve(name, "c/1", 4)
    before = {one.id: one for one in messages_in(store.peek(name))}
    assert compact(store, name, Buckets(10)) == 18 - 4
    assert {one.id: one for one in messages_in(store.peek(name))} == before
    assert sorted(records(store, name)) == [2, 2, 2, 6, 10, 10, 10]
    assert store.sizes(name) == Sizes(36, 2, 4)
    assert compact(store, name, Buckets(10)) == 0
    store.reserve(name, "c/2", 100)
    assert payloads_in(store.fetch(name, "c/2/0")) == list(range(4, 40))


@with_limits(compaction_step=4)
def test_a_compaction_fills_its_buckets_whatever_it_reads_at_once(store, name):
    use_layout(store, "single")
    store.push(name, pushes(list(range(25))))
    assert compact(store, name, Buckets(10)) == 25 - 3
    assert sorted(records(store, name)) == [5, 10, 10]
    assert payloads_in(store.peek(name)) == list(range(25))


def test_a_compaction_leaves_alone_what_others_take_meanwhile(store, name, url):
    use_layout(store, "single")
    store.push(name, pushes(list(range(1_000))))
    found = []
    ready = threading.Event()

    def take():
        with open_store(url, retry_timeout=30_000) as mine:
            at = 0
            while mine.reserve(name, f"t/{at}", 17):
                found.extend(payloads_in(mine.fetch(name, f"t/{at}/0")))
                mine.commit(name, f"t/{at}")
                at += 1
                ready.set()

    taker = threading.Thread(target=take)
    taker.start()
    ready.wait(120)
    while taker.is_alive():
        compact(store, name, Buckets(50))
    taker.join()
    assert sorted(found) == list(range(1_000))
    assert store.sizes(name).total == 0


def test_what_failed_after_a_compaction_matures_when_its_bucket_is_given_back(store, name):
    for n in range(4):
        store.push(name, pushes([n, n + 10]))
    compact(store, name, Buckets(10))
    store.reserve(name, "c/1", 10)
    before = store.now()
    assert store.rollback(name, "c/1", delay=MINUTE) == 8
    (due,) = {round(one.mature.timestamp() * 1000) for one in messages_in(store.peek(name))}
    assert before <= due - MINUTE <= store.now()
