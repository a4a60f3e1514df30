"""The part of the conformance suite about places in a log: by number, and by time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from spark_queue.messages.message import pushes
from spark_queue.stores.base import Store
from spark_queue.stores.conformance.helpers import ids_of
from spark_queue.stores.conformance.waiting import MINUTE_MS
from spark_queue.stores.services.log import sealing
from spark_queue.stores.services.log.log import Log

_FIRST = datetime(2020, 1, 1, tzinfo=UTC)


class LogPlacesContract:
    """The time of the last message under a tag, and positions of a log."""

    def test_the_last_message_of_a_tag_tells_its_time(self, store: Store, queue: str) -> None:
        assert store.last_due(queue, "c/1/0") is None
        times = [_FIRST + timedelta(minutes=n) for n in range(3)]
        for time in times:
            store.push(queue, pushes([{"n": "1"}], mature=time))
        store.reserve(queue, "c/1", 2)
        if "order" not in store.unsupported:
            assert store.last_due(queue, "c/1/0") == round(times[1].timestamp() * 1000)
        store.reserve(queue, "c/10", 1)
        store.reserve(queue, "c/2", 1)
        assert store.last_due(queue, "c/10/0") == max(
            round(one["mature"].timestamp() * 1000)
            for batch in store.fetch(queue, "c/10/0")
            for one in batch.to_pylist()
        )
        assert store.last_due(queue, "c/1") is None, "only of the tag itself"
        assert store.last_due(queue, "c/2/0") is None
        store.rollback(queue, "c/1", delay=MINUTE_MS)
        assert store.last_due(queue, "c/1/0") is None

    def test_a_place_in_a_log_is_found_by_its_number_and_by_its_time(
        self, store: Store, queue: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if {"holds", "order"} & store.unsupported:
            return
        monkeypatch.setattr(sealing, "SEGMENT_ROWS", 8)
        monkeypatch.setattr(sealing, "GROW_LIMIT", 2)
        log = Log(store, queue)
        assert (log.position_since(0), log.position_at(1)) == (None, None)
        assert log.position_at(0) == log.end()
        times = [_FIRST + timedelta(minutes=n) for n in range(40)]
        for some in (times[:20], times[20:39], times[39:]):
            for time in some:
                store.push(queue, pushes([{"n": "1"}], mature=time))
            log.latest()
        assert log.end().segment >= 2, "several segments"
        rows = [
            round(one["mature"].timestamp() * 1000)
            for log_range in log.ranges_between(log.first(), log.end())
            for batch in log.fetch(log_range)
            for one in batch.to_pylist()
        ]
        assert rows == [round(time.timestamp() * 1000) for time in times]
        for position, moment in enumerate(rows):
            for found in (log.position_at(position), log.position_since(moment), log.position_since(moment - 1)):
                assert found is not None and found.position == position
                (one, *_) = log.ranges_between(found, log.end())
                (id, *_) = ids_of(log.fetch(one))
                assert id
        assert log.position_since(rows[-1] + 1) is None
        assert log.position_since(store.now() + 60 * MINUTE_MS) is None
        log.trim(0)
        assert (log.position_at(5), log.position_since(0)) == (None, None)
