"""The part of the conformance suite about queues that are read as logs."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_queue.errors import CheckpointError, OptionError
from spark_queue.messages.message import pushes
from spark_queue.stores import open_store
from spark_queue.stores.base import Store
from spark_queue.stores.conformance.helpers import payloads_of
from spark_queue.stores.conformance.limits import with_limits
from spark_queue.stores.conformance.waiting import (
    DEADLINE,
    MINUTE_MS,
    REAL_MS,
    kill_self_within,
    run_together,
    run_until_killed,
    tick,
    wait_until,
)
from spark_queue.stores.services.log.log import Log
from spark_queue.stores.services.log.segments import LogPosition

#: Limits with which a few messages make several segments, and a few segments a page.
SMALL = {"segment_rows": 5, "seal_rows": 12, "segment_growth": 3, "page_segments": 2, "smallest_partition": 3}


def numbered_messages(*numbers: int, **facts: Any) -> Any:
    """Return messages that every layout takes, each with its number."""
    return pushes([{"n": str(number)} for number in numbers], **facts)


def read_log(
    one: Log, place: LogPosition, limit: int = 1_000, *, times: int | None = None
) -> tuple[list[int], LogPosition]:
    """Read from a position to the end, or `times` batches.

    Return the numbers of the messages, and the position after them.
    """
    found: list[int] = []
    while times != 0 and (ranges := one.next_ranges(place, limit)):
        assert sum(log_range.rows for log_range in ranges) <= limit
        assert one.ranges_between(place, ranges[-1].end) == ranges, "a batch that comes again is the same"
        for number, log_range in enumerate(ranges):
            assert not number or log_range.start.position == place.position
            rows = [int(payload["n"]) for payload in payloads_of(one.fetch(log_range))]
            assert len(rows) == log_range.rows
            found += rows
            place = log_range.end
        times = None if times is None else times - 1
    return found, place


def _seal_until_killed(url: str, queue: str) -> None:
    """Seal one to four messages at a time until killed. Runs in its own process."""
    with open_store(url, retry_timeout=20_000) as store:
        mine = Log(store, queue)
        for turn in range(1_000_000):
            if turn == 1:
                kill_self_within(30)
            mine.seal(1 + turn % 4)


class LogContract:
    """Tests for `StoreContract`, which has the fixtures `store`, `peer`, `queue` and `url`."""

    open_client: Callable[..., Store]

    @pytest.fixture(autouse=True)
    def _logs(self, request: pytest.FixtureRequest) -> None:
        """Skip the tests of logs if the layout has none."""
        name = request.function.__name__
        needed = name in vars(LogContract) and name != "test_a_layout_in_which_nothing_is_kept_has_no_log"
        if needed and "holds" in request.getfixturevalue("store").unsupported:
            pytest.skip("this layout has no logs")

    def test_a_layout_in_which_nothing_is_kept_has_no_log(self, store: Store, queue: str) -> None:
        if "holds" not in store.unsupported:
            pytest.skip("this layout has logs")
        with pytest.raises(OptionError, match="cannot be read with mode=log"):
            Log(store, queue)

    def test_each_reader_of_a_log_gets_every_message(self, store: Store, peer: Store, queue: str) -> None:
        one, other = Log(store, queue), Log(peer, queue)
        start = one.first()
        assert (other.first(), other.end(), one.positions) == (start, start, (0, 0))
        assert one.next_ranges(start, 10) == []
        store.push(queue, numbered_messages(*range(40)))
        first, place = read_log(one, start, 7)
        assert sorted(first) == list(range(40))
        assert read_log(other, start, 11)[0] == first
        assert place.position == 40
        assert one.end() == other.end()
        store.push(queue, numbered_messages(40))
        assert read_log(other, place)[0] == [40] == read_log(one, place)[0]
        assert read_log(other, start)[0] == [*first, 40], "a reader that starts again"
        assert store.sizes(queue).reserved == 41
        assert store.reserve(queue, "c/1", 100) == [], "messages of a log cannot be reserved"

    def test_what_is_sealed_is_in_order(self, store: Store, queue: str) -> None:
        if "order" in store.unsupported:
            pytest.skip("this layout has another order")
        one, now = Log(store, queue), datetime.fromtimestamp(store.now() / 1000, UTC)
        store.push(queue, numbered_messages(2, mature=now - timedelta(seconds=1)))
        store.push(queue, numbered_messages(1, mature=now - timedelta(seconds=9)))
        seen, place = read_log(one, one.first())
        assert seen == [1, 2]
        store.push(queue, numbered_messages(0, mature=now - timedelta(seconds=20)))
        assert read_log(one, place)[0] == [0], "a late message comes after the sealed ones"
        assert read_log(one, one.first(), 2)[0] == [1, 2, 0]

    def test_what_is_scheduled_comes_when_it_is_due(self, store: Store, queue: str) -> None:
        one = Log(store, queue)
        store.push(queue, numbered_messages(3, delay=60 * MINUTE_MS))
        store.push(queue, numbered_messages(1))
        before = store.now()
        seen, place = read_log(one, one.first())
        assert seen == [1]
        assert one.is_complete(before)
        before = store.now()
        store.push(queue, numbered_messages(2, delay=REAL_MS))
        assert one.wait(place, DEADLINE * 1000)
        assert read_log(one, place)[0] == [2]
        assert store.now() >= before + REAL_MS
        assert not one.wait(one.end(), 50)

    def test_a_reader_begins_at_the_end_if_it_likes(self, store: Store, queue: str) -> None:
        one = Log(store, queue)
        store.push(queue, numbered_messages(*range(9)))
        place = one.latest()
        assert place.position == 9
        store.push(queue, numbered_messages(9))
        assert read_log(one, place)[0] == [9]

    @with_limits(**SMALL)
    def test_a_trickle_makes_few_segments(self, store: Store, peer: Store, queue: str) -> None:
        one, other = Log(store, queue), Log(peer, queue)
        place = start = one.first()
        for number in range(30):
            store.push(queue, numbered_messages(number))
            seen, place = read_log((one, other)[number % 2], place)
            assert seen == [number]
            tick(store)  # a segment grows only by messages that are due later
        assert read_log(other, start, 4)[0] == list(range(30))
        assert len({one.tag for one in store.reservations(queue, "log")}) <= 12

    @with_limits(**SMALL)
    def test_a_long_log_is_read_from_its_pages(self, store: Store, peer: Store, queue: str) -> None:
        one, other = Log(store, queue), Log(peer, queue)
        store.push(queue, numbered_messages(*range(60)))
        seen, place = read_log(one, one.first(), 8)
        assert sorted(seen) == list(range(60))
        assert len(store.notes(f"queue/{queue}/log")) > 1
        for most in (3, 1_000):
            assert read_log(other, other.first(), most) == (seen, place)

    @with_limits(**SMALL)
    def test_what_is_too_old_is_removed(
        self, store: Store, peer: Store, queue: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one = Log(store, queue)
        start = one.first()
        store.push(queue, numbered_messages(*range(40)))
        _, place = read_log(one, start)
        assert one.trim(3_600_000) == 0
        then = store.now()
        tick(store)
        store.push(queue, numbered_messages(*range(40, 45)))
        late, place = read_log(one, place)
        with monkeypatch.context() as patch:
            patch.setattr(store, "now", lambda: then)  # independent of how long the calls take
            assert one.trim(0) == 40 == one.positions[0]
            assert one.trim(0) == 0
        assert store.sizes(queue).total == 5
        assert read_log(one, one.first())[0] == late
        with pytest.raises(CheckpointError, match=r"40 messages removed from position 0 on.*failOnDataLoss"):
            one.next_ranges(start, 10)
        lossy = Log(peer, queue, allow_data_loss=True)
        assert read_log(lossy, start)[0] == late
        assert lossy.trim(0) == 5
        assert store.sizes(queue).total == 0
        assert lossy.positions == (45, 45)
        store.push(queue, numbered_messages(45))
        assert read_log(one, place)[0] == [45], "a reader whose position is retained continues"
        assert len(store.notes(f"queue/{queue}/log")) == 1, "the pages are removed too"

    @with_limits(trim_interval=0)
    def test_a_reader_removes_what_is_older_than_its_retention(self, store: Store, queue: str) -> None:
        store.push(queue, numbered_messages(*range(5)))
        patient = Log(store, queue)
        seen, place = read_log(patient, patient.first())
        assert len(seen) == 5
        one = Log(store, queue, retention=60)
        wait_until(lambda: one.next_ranges(place, 10) or one.positions[0] == 5)
        assert one.next_ranges(place, 10) == []
        assert store.sizes(queue).total == 0

    def test_a_log_that_was_dropped_is_missed(self, store: Store, peer: Store, queue: str) -> None:
        one = Log(store, queue)
        store.push(queue, numbered_messages(*range(5)))
        _, place = read_log(one, one.first())
        peer.drop(queue)
        store.push(queue, numbered_messages(*range(9)))
        with pytest.raises(CheckpointError, match="is gone: the queue was dropped"):
            one.next_ranges(place, 10)
        assert sorted(read_log(Log(store, queue, allow_data_loss=True), place)[0]) == list(range(9))

    def test_manually_released_messages_are_missed(self, store: Store, queue: str) -> None:
        one = Log(store, queue)
        store.push(queue, numbered_messages(*range(5)))
        (piece,) = one.next_ranges(one.first(), 10)
        store.rollback(queue, "log", failed=False)
        with pytest.raises(CheckpointError, match="5 of 5 messages from position 0 on are gone"):
            list(one.fetch(piece))
        assert list(Log(store, queue, allow_data_loss=True).fetch(piece)) == []

    def test_nothing_is_sealed_while_the_queue_is_paused(self, store: Store, queue: str) -> None:
        one = Log(store, queue)
        store.push(queue, numbered_messages(0, 1))
        seen, place = read_log(one, one.first())
        store.push(queue, numbered_messages(2))
        store.pause(queue)
        assert read_log(one, place)[0] == []
        assert read_log(one, one.first())[0] == seen, "sealed messages can be read"
        assert not one.wait(place, 20)
        assert one.is_complete(store.now()), "messages of a paused queue do not count"
        store.resume(queue)
        assert read_log(one, place)[0] == [2]

    def test_every_reader_is_woken(self, store: Store, url: str, queue: str) -> None:
        woken: dict[int, float] = {}
        asleep: set[int] = set()

        def follow(reader: int) -> None:
            with self.open_client(url, poll_interval_ms=2 * DEADLINE * 1000) as mine:  # no reader polls
                one = Log(mine, queue)
                place = one.first()
                mine._signal_version(queue)  # it subscribes
                listen = mine._wait_signal

                def listening(*arguments: Any) -> None:
                    asleep.add(reader)
                    listen(*arguments)

                mine._wait_signal = listening  # type: ignore[method-assign, assignment]
                while not (pieces := one.next_ranges(place, 10)):
                    assert one.wait(place, 2 * DEADLINE * 1000)
                assert sum(piece.rows for piece in pieces) == 1
                woken[reader] = time.monotonic()

        with ThreadPoolExecutor() as pool:
            pool.map(follow, range(3))
            wait_until(lambda: len(asleep) == 3)
            pushed = time.monotonic()
            store.push(queue, numbered_messages(1))
        assert len(woken) == 3
        assert max(woken.values()) - pushed < DEADLINE

    @with_limits(**SMALL)
    def test_all_readers_agree_while_several_seal(self, store: Store, url: str, queue: str) -> None:
        readers, pushers, each = 3, 2, 60
        seen: dict[int, list[int]] = {}

        def follow(reader: int) -> None:
            with self.open_client(url) as mine:
                one = Log(mine, queue)
                place, found = one.first(), list[int]()
                end = time.monotonic() + DEADLINE
                while len(found) < pushers * each and time.monotonic() < end:
                    some, place = read_log(one, place, 1 + 5 * reader)
                    found += some
                    one.wait(place, 50)
                seen[reader] = found

        def bring(pusher: int) -> None:
            with self.open_client(url) as mine:
                for number in range(0, each, 3):
                    past = datetime.fromtimestamp(mine.now() / 1000, UTC) - timedelta(seconds=number % 4)
                    mine.push(queue, numbered_messages(*(pusher * each + number + i for i in range(3)), mature=past))

        following = [partial(follow, reader) for reader in range(readers)]
        run_together(*following, *(partial(bring, pusher) for pusher in range(pushers)))
        assert sorted(seen[0]) == list(range(pushers * each))
        assert seen[1] == seen[0] == seen[2]

    @with_limits(**SMALL, owner_timeout_ms=0)  # a seal in progress is taken over at once
    def test_a_sealer_that_stood_still_changes_nothing_when_it_goes_on(
        self, store: Store, peer: Store, queue: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        slow, other = Log(store, queue), Log(peer, queue)
        start = slow.first()
        store.push(queue, numbered_messages(0))
        seen, place = read_log(other, start)
        sent = 1

        def take_over(name: str, after: bool, rows: int) -> None:
            """Let the other reader seal before or after this call of the slow one."""
            nonlocal sent, place
            tick(store)
            store.push(queue, numbered_messages(*range(sent, sent + rows)))
            sent += rows
            found: list[int] = []
            act: Callable[..., Any] = getattr(store, name)

            def stopped(*arguments: Any, **named: Any) -> Any:
                done = act(*arguments, **named) if after else None
                found.extend(read_log(other, place)[0])
                if after:
                    return done
                store.push(queue, numbered_messages(sent))
                return act(*arguments, **named)

            with monkeypatch.context() as patch:
                patch.setattr(store, name, stopped)
                assert slow.seal() == 0, "another reader took over"
            sent += not after
            more, place = read_log(other, place)
            assert more[: len(found)] == found
            seen.extend(more)
            assert sorted(seen) == list(range(sent))

        take_over("reserve", after=False, rows=1)
        take_over("reserve", after=True, rows=1)
        take_over("transfer", after=False, rows=1)
        take_over("transfer", after=True, rows=1)
        take_over("reserve", after=True, rows=4)
        assert read_log(slow, start)[0] == seen
        assert store.sizes(queue).ready == 0

    @with_limits(**SMALL)
    def test_a_trim_during_a_seal_keeps_the_sealed_messages(
        self, store: Store, peer: Store, queue: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one, other = Log(store, queue), Log(peer, queue)
        store.push(queue, numbered_messages(0))
        seen, place = read_log(one, one.first())
        for number, name in enumerate(("reserve", "transfer"), 1):
            tick(store)
            store.push(queue, numbered_messages(number))
            act: Callable[..., Any] = getattr(store, name)

            def trimmed(*arguments: Any, act: Callable[..., Any] = act, **named: Any) -> Any:
                assert other.trim(0) == 0, "the last segment may be growing"
                done = act(*arguments, **named)
                assert other.trim(0) == 0
                return done

            with monkeypatch.context() as patch:
                patch.setattr(store, name, trimmed)
                assert one.seal() == 1
            more, place = read_log(one, place)
            seen += more
        assert seen == [0, 1, 2]
        assert other.trim(0) == 3

    def test_a_killed_sealer_loses_no_messages(self, store: Store, url: str, queue: str) -> None:
        one, start = Log(store, queue), Log(store, queue).first()
        seen, place = list[int](), start
        for sent in (50, 100, 150, 200):
            store.push(queue, numbered_messages(*range(sent - 50, sent)))
            run_until_killed(_seal_until_killed, url, queue)
            end = time.monotonic() + DEADLINE
            while len(seen) < sent:
                assert time.monotonic() < end, f"{sent - len(seen)} messages did not come"
                some, place = read_log(one, place, 13)
                seen += some
        assert sorted(seen) == list(range(sent))
        assert read_log(one, start)[0] == seen
        assert store.sizes(queue).total == sent

    @with_limits(**SMALL)
    @settings(max_examples=12, suppress_health_check=list(HealthCheck))
    @given(
        steps=st.lists(
            st.one_of(
                st.tuples(st.just("push"), st.integers(1, 14), st.sampled_from([0, 0, 0, 5, 60])),
                st.tuples(st.just("read"), st.integers(0, 2), st.integers(1, 20)),
                st.tuples(st.just("seal"), st.integers(0, 2), st.integers(1, 20)),
                st.tuples(st.just("trim"), st.integers(0, 2), st.just(0)),
            ),
            max_size=14,
        )
    )
    def test_every_message_comes_once_to_each_reader(
        self, store: Store, queue: str, steps: list[tuple[str, int, int]]
    ) -> None:
        store.drop(queue)
        readers = [Log(store, queue) for _ in range(3)]
        places = [readers[0].first()] * 3
        seen: list[list[int]] = [[], [], []]
        sent = 0
        for step, number, value in steps:
            if step == "push":
                past = datetime.fromtimestamp(store.now() / 1000, UTC) - timedelta(seconds=value)
                store.push(queue, numbered_messages(*range(sent, sent + number), mature=past))
                sent += number
            elif step == "read":
                some, places[number] = read_log(readers[number], places[number], value, times=1)
                seen[number] += some
            elif step == "seal":
                readers[number].seal(value)
            elif min(len(one) for one in seen) == readers[0].positions[1]:
                readers[number].trim(0)
        for number, one in enumerate(readers):
            some, places[number] = read_log(one, places[number], 9)
            seen[number] += some
        assert sorted(seen[0]) == list(range(sent))
        assert seen[1] == seen[0] == seen[2]
        assert places[1] == places[0] == places[2]
