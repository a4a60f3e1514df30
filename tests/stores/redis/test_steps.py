"""Scripts of Redis that are called in steps, and runs of messages."""

from __future__ import annotations

import itertools
import threading
from datetime import UTC, datetime, timedelta

import pytest

from spark_queue.messages.message import messages, pushes
from spark_queue.stores.conformance.limits import with_limits
from spark_queue.stores.redis import store as redis_store
from spark_queue.stores.redis.keys import ids_of, queue_keys
from spark_queue.stores.types import Sizes
from tests.stores.redis.programs import MINUTE, begin_to_renew, consumed, fetched, keuss_commits, keuss_reserves

# --- scripts that are called in steps -------------------------------------------------------------


def test_a_claim_that_was_cut_short_is_resumed(small_steps, store, queue):
    store.push(queue, pushes(list(range(10))))
    state, _, _, _, _, rows = store._run("claim", queue, "c/1/0", 8, MINUTE, redis_store.NO_END, "", 1, 1, 1, "")
    assert (state, rows) == (b"more", 3)
    assert store.reserve(queue, "c/1", 8) == [3]
    assert store.reserve(queue, "c/2", 8) == [7]


OVER = -1_000  #: ms: a lease that ended a second ago


@pytest.mark.parametrize("lease", [MINUTE // 2, 2 * MINUTE])
def test_a_tag_holds_everything_in_the_middle_of_a_renewal(small_steps, store, peer, queue, lease):
    store.push(queue, pushes(list(range(10))))
    store.reserve(queue, "c/1", 10, lease=MINUTE)
    begin_to_renew(store, queue, "c/1/0", lease)
    assert len(fetched(peer, queue, "c/1/0")) == 10
    assert [one.rows for one in peer.reservations(queue)] == [10]
    assert len([one for batch in peer.peek(queue, limit=99) for one in messages(batch)]) == 10
    assert peer.commit(queue, "c/1", [fetched(peer, queue, "c/1/0")[i].id for i in (0, 9)]) == 2
    assert peer.rollback(queue, "c/1") == 8
    assert peer.sizes(queue) == Sizes(8, 0, 0, peer.sizes(queue).oldest_ready_age)


def test_a_renewal_that_was_cut_short_is_ended_by_the_next(small_steps, store, raw, queue):
    store.push(queue, pushes(list(range(10))))
    store.reserve(queue, "c/1", 10, lease=MINUTE)
    begin_to_renew(store, queue, "c/1/0", 2 * MINUTE)
    assert store.renew(queue, "c/1", 3 * MINUTE) == 10
    (held,) = store.reservations(queue)
    assert 2 * MINUTE < held.until - store.now() <= 3 * MINUTE
    assert {score for _, score in raw.zrange(queue_keys(queue).moments, 0, -1, withscores=True)} == {held.until}
    assert raw.zcard(queue_keys(queue).leases) == 1


@pytest.mark.parametrize(("first", "second"), [(OVER, MINUTE), (MINUTE, OVER)])
def test_each_end_of_a_renewal_that_was_cut_short_comes_in_its_time(small_steps, store, queue, first, second):
    store.push(queue, pushes(list(range(10))))
    store.reserve(queue, "c/1", 10, lease=MINUTE)
    store._renew(queue, "c/1", first)
    begin_to_renew(store, queue, "c/1/0", second)
    over = 7 if first == OVER else 3
    assert store.reserve(queue, "d/1", 99) == [over]
    assert {one.tries for one in fetched(store, queue, "d/1/0")} == {1}
    assert store.commit(queue, "c/1") == 10 - over


def test_two_renewals_at_once_leave_one_end(small_steps, store, peer, raw, queue):
    store.push(queue, pushes(list(range(50))))
    store.reserve(queue, "c/1", 50, lease=MINUTE)
    other = threading.Thread(target=lambda: [peer.renew(queue, "c/1", 3 * MINUTE) for _ in range(5)])
    other.start()
    assert [store.renew(queue, "c/1", 2 * MINUTE) for _ in range(5)] == [50] * 5
    other.join()
    assert len({score for _, score in raw.zrange(queue_keys(queue).moments, 0, -1, withscores=True)}) == 1
    assert store.commit(queue, "c/1") == 50
    assert not raw.exists(*queue_keys(queue))


def test_steps_end_also_where_nothing_meets_the_condition(small_steps, store, queue):
    store.push(queue, pushes(["x" * 200] * 10, tries=1))
    store.push(queue, pushes(["y" * 200], tries=2))
    assert store.move(queue, f"{queue}.other", min_tries=3) == 0
    assert store.move(queue, f"{queue}.other", min_tries=2, limit=5) == 1


@pytest.mark.parametrize("steps", ["large", "small"])
def test_tries_are_not_confused_with_payloads_that_look_like_them(store, raw, queue, request, steps):
    if steps == "small":
        request.getfixturevalue("small_steps")
    looks = [{"tries": 9}, {"tries": 0, "hdrs": {}}, '"tries":7', {"a": {"tries": 5}}, {"n": 1}]
    for tries in (0, 1, 3):
        store.push(queue, pushes(looks * 4, tries=tries))
    assert sum(store.reserve(queue, "c/1", 60, partitions=2, min_partitions=2)) == 60
    held = raw.zrange(queue_keys(queue).held, 0, -1)
    assert store.move(queue, f"{queue}.other", tag="c/1", min_tries=4) == 0
    assert raw.zrange(queue_keys(queue).held, 0, -1) == held  # nothing was taken apart for that
    assert store.move(queue, f"{queue}.other", tag="c/1", min_tries=3) == 20
    assert sorted(one.tries for batch in store.peek(queue) for one in messages(batch)) == [0] * 20 + [1] * 20
    assert store.commit(queue, "c/1") == 40


MOMENT = datetime(2023, 1, 1, tzinfo=UTC)


def runs(raw, queue):
    """The ids that each run names."""
    return [[id.decode() for id in ids_of(run)] for run in raw.zrange(queue_keys(queue).held, 0, -1)]


def push_ids(store, queue, ids, mature=MOMENT):
    store.push(queue, pushes(list(ids), ids=list(ids), mature=mature))


# --- runs -----------------------------------------------------------------------------------------


def test_what_is_due_at_one_moment_is_held_in_runs(store, raw, queue):
    push_ids(store, queue, [f"{i:04}" for i in range(600)])
    push_ids(store, queue, ["late"], MOMENT + timedelta(seconds=1))
    store.reserve(queue, "c/1", 1_000)
    assert [len(ids) for ids in runs(raw, queue)] == [250, 250, 100, 1]
    assert [one.id for one in fetched(store, queue, "c/1/0")] == [f"{i:04}" for i in range(600)] + ["late"]


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 7])
def test_pages_of_any_size_give_each_message_once_and_in_order(small_steps, store, queue, rows):
    push_ids(store, queue, "abcdefg")
    push_ids(store, queue, "ABC", MOMENT + timedelta(seconds=1))
    store.reserve(queue, "c/1", 100)
    pages = [page.column("id").to_pylist() for page in store.fetch(queue, "c/1/0", rows)]
    assert "".join(itertools.chain(*pages)) == "abcdefgABC"
    assert max(map(len, pages)) <= rows


def test_a_page_goes_on_behind_a_message_that_is_gone(small_steps, store, peer, raw, queue):
    push_ids(store, queue, "abcdefg")
    store.reserve(queue, "c/1", 100)
    pages = store.fetch(queue, "c/1/0", 3)
    assert next(pages).column("id").to_pylist() == ["a", "b", "c"]
    assert peer.commit(queue, "c/1", ["c", "e"]) == 2
    assert [page.column("id").to_pylist() for page in pages] == [["d", "f", "g"]]


@pytest.mark.parametrize("one", "abcdefg")
def test_one_message_of_a_run_is_settled_alone(store, raw, queue, one):
    push_ids(store, queue, "abcdefg")
    store.reserve(queue, "c/1", 100, lease=MINUTE)
    rest = "abcdefg".replace(one, "")
    assert store.commit(queue, "c/1", [one]) == 1
    assert store.commit(queue, "c/1", [one]) == 0
    assert "".join(message.id for message in fetched(store, queue, "c/1/0")) == rest
    assert store.rollback(queue, "c/1", [rest[0], rest[3]], failed=False) == 2
    assert store.sizes(queue).reserved == 4
    assert store.commit(queue, "c/1") == 4
    assert not raw.zcard(queue_keys(queue).leases)
    assert sorted(consumed(store, queue)) == sorted((rest[0], rest[3]))


@with_limits(script_chunk=4, run_size=3)
def test_runs_of_a_tag_do_not_overlap(store, raw, queue, monkeypatch):
    """A message that is freed between two calls of a claim sorts among those of the first call."""
    push_ids(store, queue, "acegikm")
    run, calls = store._run, []

    def with_another(script, *arguments, **more):
        answer = run(script, *arguments, **more)
        if script == "claim" and not calls:
            calls.append(1)
            push_ids(store, queue, "bd")
            raw.zadd(queue_keys(queue).moments, dict.fromkeys("bd", MOMENT.timestamp() * 1000))  # as if freed
        return answer

    monkeypatch.setattr(store, "_run", with_another)
    assert store.reserve(queue, "c/1", 100) == [9]
    spans = sorted((min(ids), max(ids)) for ids in runs(raw, queue))
    assert all(last < first for (_, last), (first, _) in itertools.pairwise(spans))
    for rows in (1, 2, 100):
        pages = [page.column("id").to_pylist() for page in store.fetch(queue, "c/1/0", rows)]
        assert "".join(itertools.chain(*pages)) == "abcdegikm"
    assert store.commit(queue, "c/1", ["d", "e"]) == 2
    assert store.commit(queue, "c/1") == 7


def test_whole_runs_are_settled_by_ids_as_they_are_unless_they_change(store, peer, raw, queue, monkeypatch):
    push_ids(store, queue, "abcdefghi")
    store.reserve(queue, "c/1", 100)
    run = store._run
    named: list[list[bytes] | None] = []

    def after_another(script, *arguments, **more):
        if not named:
            assert peer.commit(queue, "c/1", ["b"]) == 1
        named.append([one for one in arguments if isinstance(one, bytes)])
        return run(script, *arguments, **more)

    monkeypatch.setattr(store, "_run", after_another)
    assert store.commit(queue, "c/1", list("abcdefghi")) == 8, "a run that is another now is looked at again"
    assert runs(raw, queue) == []
    push_ids(store, queue, "abcdefghi")
    store.reserve(queue, "c/2", 100)
    named[:] = [None]
    assert store.rollback(queue, "c/2", list("abcdefghi"), delay=None) == 9
    assert [len(members or ()) for members in named[1:]] == [1], "one run, not nine messages"


def test_what_is_passed_on_takes_its_place_among_runs(store, raw, queue):
    push_ids(store, queue, "acegi")
    store.reserve(queue, "c/1", 100)
    push_ids(store, queue, "bdfhj")
    store.reserve(queue, "d/1", 100)
    assert store.transfer(queue, "d/1", "c/1/0", ["d", "h", "j"], lease=None) == 3
    assert "".join(one.id for one in fetched(store, queue, "c/1/0")) == "acdeghij"
    assert store.commit(queue, "c/1") == 8
    assert "".join(one.id for one in fetched(store, queue, "d/1/0")) == "bf"


#: Five ids of a run that is read id by id, and of one that is long enough to be read as a whole.
FIVE = pytest.mark.parametrize("five", [list("abcde"), [one * 120 for one in "abcde"]], ids=["short", "long"])


@FIVE
def test_what_keuss_took_out_of_a_run_is_lost_and_the_rest_is_held(store, raw, queue, five):
    a, b, c, d, e = five
    push_ids(store, queue, five)
    store.reserve(queue, "c/1", 100)
    raw.zrem(queue_keys(queue).moments, b)
    raw.zadd(queue_keys(queue).moments, {d: 17})
    assert [one.id for one in fetched(store, queue, "c/1/0")] == [a, c, e]
    assert store.renew(queue, "c/1", MINUTE) == 3
    assert runs(raw, queue) == [[a, c, e]]
    assert store.commit(queue, "c/1") == 3
    assert raw.zrange(queue_keys(queue).moments, 0, -1) == [d.encode()]


@FIVE
@pytest.mark.parametrize("at", [0, 2, 4])
def test_one_of_a_run_that_keuss_took_is_lost_wherever_it_stands(store, raw, queue, five, at):
    store.push(queue, pushes([{}] * 5, ids=five))
    store.reserve(queue, "c/1", 100)
    one = five[at]
    keuss_reserves(raw, queue, one)
    assert [one.id for one in fetched(store, queue, "c/1/0")] == five[:at] + five[at + 1 :]
    assert store.commit(queue, "c/1") == 4
    assert raw.zrange(queue_keys(queue).moments, 0, -1) == [one.encode()]
    assert keuss_commits(raw, queue, one)


@pytest.fixture
def before_reading(store, monkeypatch):
    """Gives what lets something happen, once, between the list of a page and its documents."""
    read = store._read_documents

    def let(act):
        acts = [act]

        def late(*arguments):
            if acts:
                acts.pop()()
            return read(*arguments)

        monkeypatch.setattr(store, "_read_documents", late)

    return let


def test_a_page_whose_messages_are_all_gone_is_not_the_end(store, peer, queue, before_reading):
    push_ids(store, queue, "abcdefg")
    store.reserve(queue, "c/1", 100)
    before_reading(lambda: peer.commit(queue, "c/1", list("abc")))
    pages = [page.column("id").to_pylist() for page in store.fetch(queue, "c/1/0", 3)]
    assert pages == [["d", "e", "f"], ["g"]]


def test_the_mark_of_keuss_stays_on_what_it_takes_while_we_read(store, raw, queue, before_reading):
    store.push(queue, pushes([{"n": 1}, {"n": 2}], ids=["a", "b"]))
    store.reserve(queue, "c/1", 9)
    before_reading(lambda: keuss_reserves(raw, queue, "b"))
    fetched(store, queue, "c/1/0")
    assert keuss_commits(raw, queue, "b")
    assert store.commit(queue, "c/1") == 1


def test_the_rest_of_a_run_is_looked_at_again_for_the_next_page(store, raw, queue):
    push_ids(store, queue, "abcdefg")
    store.reserve(queue, "c/1", 100)
    pages = store.fetch(queue, "c/1/0", 3)
    assert next(pages).column("id").to_pylist() == ["a", "b", "c"]
    keuss_reserves(raw, queue, "e")
    assert [page.column("id").to_pylist() for page in pages] == [["d", "f", "g"]]


@FIVE
def test_what_others_took_all_at_once_is_lost(store, raw, queue, five):
    push_ids(store, queue, five)
    store.reserve(queue, "c/1", 100)
    raw.zadd(queue_keys(queue).moments, dict.fromkeys(five, 17))
    assert not fetched(store, queue, "c/1/0")
    assert store.commit(queue, "c/1") == 0
    assert raw.zcard(queue_keys(queue).moments) == 5


@FIVE
def test_what_came_into_the_place_of_one_that_is_gone_is_not_held(store, raw, queue, five):
    a, b, c, d, e = five
    push_ids(store, queue, five)
    store.reserve(queue, "c/1", 100, lease=MINUTE)
    end = raw.zscore(queue_keys(queue).moments, a)
    raw.zrem(queue_keys(queue).moments, c)
    raw.zadd(queue_keys(queue).moments, {f"{b}x": end})  # of keuss, reserved until the same moment
    assert [one.id for one in fetched(store, queue, "c/1/0")] == [a, b, d, e]
    assert store.commit(queue, "c/1") == 4
    assert raw.zrange(queue_keys(queue).moments, 0, -1) == [f"{b}x".encode()]
