"""The price of a call: how many transactions, scripts or commands it takes."""

from __future__ import annotations

import time

import pytest

from spark_queue.errors import StoreUnavailable
from spark_queue.messages.message import pushes
from spark_queue.options.masking import scheme_of
from spark_queue.stores.base import Store
from spark_queue.stores.conformance.calls import count_calls
from spark_queue.stores.conformance.helpers import ids_of
from spark_queue.stores.services.log.log import log_note
from spark_queue.stores.support.claiming import ClaimRequest
from spark_queue.stores.support.summary import SummaryOf, SummaryRequest
from spark_queue.stores.types import Claim, Sizes

#: The price of a reserve: SQLite's transactions, MongoDB's commands for up to 10,000 messages; and
#: for how many messages Redis calls a script. A list of documents has a script for a few MB, too.
#: A bucket that is too large is split before, which takes more.
TRANSACTIONS, COMMANDS, SCRIPT_MESSAGES = 1, 4, 5_000

#: The price of a summary of 20 queues on MongoDB, whose collections this client knows. One that
#: sees them for the first time lists them, too.
SUMMARY_COMMANDS = 2

PARTITIONS = 8


def price_of(store: Store, messages: int) -> int:
    """Return how many calls a reserve may take."""
    scripts = -(-messages // SCRIPT_MESSAGES)
    return {"sqlite": TRANSACTIONS, "redis": scripts, "mongodb": COMMANDS}[scheme_of(store.url)]


class PriceContract:
    """Prices, counted on the real server."""

    @pytest.mark.parametrize(("messages", "max_bytes"), [(5_000, None), (10_000, None), (10_000, 200_000)])
    def test_a_reserve_of_many_partitions_has_the_price_of_one(
        self, store: Store, queue: str, messages: int, max_bytes: int | None
    ) -> None:
        store.push(queue, pushes([{"n": str(n)} for n in range(messages + 500)]))
        store.rollback(queue, "warm", delay=None)
        store.write_counts()
        store._pause_cache._put(queue, (False, time.monotonic() + 3_600))
        counted = count_calls(store)
        if counted is None:
            pytest.skip("it is not known how to count the calls of this store")
        with counted as calls:
            reserved = store.reserve_bytes(queue, "c/1", messages, max_bytes, partitions=PARTITIONS)
        ours = [one for one in calls if queue in one or not one.startswith("EVAL")]
        assert 0 < len(ours) <= price_of(store, messages), ours
        rows = sum(reserved.rows)
        assert len(reserved.rows) == PARTITIONS and 0 < rows <= messages
        held = [ids_of(store.fetch(queue, f"c/1/{part}")) for part in range(PARTITIONS)]
        assert list(map(len, held)) == reserved.rows
        assert len({id for part in held for id in part}) == rows

    @pytest.mark.parametrize("partitions", [1, 3])
    def test_a_repeat_after_a_lost_answer_returns_the_same(
        self, store: Store, peer: Store, queue: str, partitions: int
    ) -> None:
        """A claim returns what each tag holds, and no increment."""
        store.push(queue, pushes([{"n": str(n)} for n in range(2_400)]))
        claim = type(store)._claim
        answers: list[Claim] = []

        def loses_the_first(queue: str, request: ClaimRequest) -> Claim:
            answers.append(claim(store, queue, request))
            if len(answers) == 1:
                raise StoreUnavailable("the answer is lost")
            return answers[-1]

        store._claim = loses_the_first  # type: ignore[method-assign]
        rows = store.reserve(queue, "c/1", 1_800, partitions=partitions)
        assert rows == answers[0].rows == answers[1].rows
        assert len(rows) == partitions and 1_700 < sum(rows) <= 1_800
        assert {one.tag: one.rows for one in peer.reservations(queue)} == {
            f"c/1/{part}": number for part, number in enumerate(rows)
        }
        assert peer.reserve(queue, "c/1", 2_400, partitions=partitions) == rows, "the tags take no more"
        assert store.commit(queue, "c") == sum(rows)

    def test_a_summary_of_many_queues_has_the_price_of_one(self, store: Store, queue: str) -> None:
        names = [f"{queue}.{number}" for number in range(20)]
        with_dead = names[3], f"{names[3]}.dead"
        try:
            for number, name in enumerate(names):
                store.push(name, pushes([{"n": "1"}] * (number % 3 + 1)))
            store.push(with_dead[1], pushes([{"n": "1"}]))
            store.pause(names[5])
            store.set_note(log_note(names[7]), {"v": 0}, 0)
            store.reserve(names[1], "c/1", 2)
            store.write_counts()
            request = SummaryRequest(tuple(SummaryOf(one, f"{one}.dead", log_note(one)) for one in names))
            store.summary(request)
            counted = count_calls(store)
            if counted is None:
                pytest.skip("it is not known how to count the calls of this store")
            with counted as calls:
                found = store.summary(request)
            ours = [one for one in calls if queue in one or not one.startswith("EVAL")]
            most = {"sqlite": TRANSACTIONS, "redis": 2, "mongodb": SUMMARY_COMMANDS}[scheme_of(store.url)]
            assert 0 < len(ours) <= most, ours
            assert {name: found.sizes[name] for name in names} == store.sizes_of(names)
            assert found.sizes[with_dead[1]] == Sizes(1, 0, 0)
            assert [name for name in names if found.paused[name]] == [names[5]]
            assert list(found.notes) == [log_note(names[7])]
        finally:
            for name in (*names, with_dead[1]):
                store.drop(name)

    @pytest.mark.full
    def test_a_summary_of_more_queues_is_that_of_each(self, store: Store, queue: str) -> None:
        """Small queues of a long list are counted in another way."""
        names = [f"{queue}.{number}" for number in range(60)]
        try:
            for number, name in enumerate(names):
                store.push(name, pushes([{"n": "1"}] * (number % 4)))
                store.push(name, pushes([{"n": "1"}] * (number % 3), delay=3_600_000))
            store.push(names[4], pushes([{"n": "1"}] * 300))
            store.reserve(names[4], "c/1", 120)
            store.reserve(names[6], "c/1", 1)
            found = store.summary(SummaryRequest(tuple(SummaryOf(one, f"{one}.dead") for one in names))).sizes
            for name in names:
                assert found[name] == store.sizes(name)
                assert found[name].capped == frozenset()
            assert all(found[f"{name}.dead"] == Sizes(0, 0, 0) for name in names)
        finally:
            for name in names:
                store.drop(name)
