"""Batches that find their size: how they are timed, and what an offset keeps. Without Spark."""

from __future__ import annotations

import itertools
import json
import time
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from spark_queue import Queue, open_store
from spark_queue.options.roles import parse_options
from spark_queue.spark.read import reserver
from spark_queue.spark.read.batch_size import FIRST_ROWS, MAX_ROWS
from spark_queue.spark.read.consumer import Consumer
from spark_queue.spark.read.fair_share import COUNT_INTERVAL
from spark_queue.spark.read.multi_input import MultiInputPlanner
from spark_queue.spark.read.pacing import UNSEEN_TRIGGER, Pacer, Trigger
from tests.spark.drive import Query, source
from tests.spark.read.consumers import plan_next
from tests.spark_session import SPARK

TARGET = 2.0


class Process:
    """A reader process as Spark drives it: each batch is planned, and its tasks take some time."""

    def __init__(self, start=None, interval=0.0):
        self.now, self.called, self.interval = 1_000_000.3, 0.0, interval
        self.pacer = Pacer(round(TARGET * 1000), now=lambda: self.now)
        self.start = start or {"seq": 0}

    def batch(self, per_row=1e-5, fixed=0.4, *, ready=10**9, waited=0.0):
        """Run one batch; return its rows."""
        if self.interval and self.start["seq"]:
            self.now = max(self.now, (self.called // self.interval + 1) * self.interval + 0.01)
        self.called = self.now
        rows = min(self.pacer.next_size(self.start, MAX_ROWS).rows, ready)
        self.now += waited
        end = {"seq": self.start["seq"] + 1}
        self.pacer.keep(end, rows, waited)
        self.now += 0.1  # Spark writes its log
        self.run(end, rows, fixed - 0.1 + per_row * rows)
        return rows

    def run(self, end, rows, seconds):
        self.pacer.start(end, rows)
        self.pacer.start(json.loads(json.dumps(end)), rows)  # a second use of the stream in one query
        self.now += seconds
        self.start = json.loads(json.dumps(end))


def test_sizes_grow_from_the_first_and_settle():
    process = Process()
    rows = [process.batch() for _ in range(12)]
    assert rows[0] == FIRST_ROWS and rows[1] > 8 * FIRST_ROWS
    assert all(100_000 < one < 230_000 for one in rows[6:])


def test_a_first_batch_that_ends_at_a_whole_second_is_no_reason_for_care():
    """It looks like one that waited for a trigger of 1 s."""
    process = Process()
    process.now = 1_000_000.0
    process.batch(per_row=0, fixed=1.0)
    assert process.batch() > 8 * FIRST_ROWS


@pytest.mark.parametrize(("ends", "rows"), [(1_000_021.5, 7_500), (1_000_021.0, 7_500), (1_000_080.0, FIRST_ROWS)])
def test_a_slow_first_batch_is_known_to_be_slow_unless_it_may_have_waited_for_a_trigger(ends, rows):
    """Only the last one ends at a multiple of an interval that is longer than the batch took."""
    process = Process()
    process.now = ends - 20.0
    process.batch(per_row=1e-3, fixed=0.0)
    assert process.batch() == pytest.approx(rows, rel=0.2)


def test_after_a_restart_the_batch_ahead_is_not_the_largest():
    first = Process()
    for _ in range(8):
        rows = first.batch()
    again = Process(start=first.start)
    size = again.pacer.next_size(first.start, MAX_ROWS)
    assert size.rows == rows and size.following < 2 * rows


def test_waits_for_messages_are_no_work():
    process = Process()
    for _ in range(12):
        rows = process.batch(waited=30.0)
    assert rows > 100_000


def test_a_clock_that_is_set_back_does_no_lasting_harm():
    process = Process()
    for number in range(24):
        rows = process.batch()
        if number == 8:
            process.now -= 3600
    assert 100_000 < rows < 230_000


def test_a_trigger_of_time_is_no_work():
    """Without detection, 10 s a batch would look like slow rows, and batches would shrink."""
    process = Process(interval=10.0)
    rows = [process.batch() for _ in range(20)]
    assert min(rows[1:]) >= FIRST_ROWS
    assert max(rows[-2:]) > 500_000, "a batch may take most of the interval"


def test_with_a_trigger_of_time_a_batch_takes_no_more_than_the_interval():
    process, seconds = Process(interval=10.0), []
    for _ in range(30):
        rows = process.batch(per_row=1e-3)
        seconds.append(rows * 1e-3)
    assert all(3 < one < 14 for one in seconds[6:])


def test_a_trigger_is_detected_by_two_intervals_and_forgotten():
    trigger = Trigger()
    assert not trigger.delayed(1000.3, 1007.1)
    assert trigger.delayed(1010.01, 1020.02) and not trigger.interval
    assert trigger.delayed(1020.02, 1030.01) and trigger.interval == 10
    assert not trigger.delayed(1030.01, 1043.7), "the batch was longer than the interval"
    assert trigger.interval == 10
    for number in range(UNSEEN_TRIGGER):
        trigger.delayed(1050.5 + number, 1051.33 + number)
    assert not trigger.interval


def test_a_restarted_query_goes_on_with_its_size_and_a_cold_batch_does_not_change_it():
    first = Process()
    for _ in range(8):
        rows = first.batch()
    again = Process(start=first.start)
    assert again.batch(fixed=4.0) == first.start["size"] == rows
    assert again.batch() > rows / 2


def test_a_replayed_batch_is_the_cold_one_of_its_process():
    first = Process()
    for _ in range(8):
        first.batch()
    end = dict(first.start)
    again = Process(start=end)
    again.run(end, end["size"], 9.0)
    assert again.batch() > end["size"] / 4


def test_where_each_run_is_one_batch_the_size_grows_from_run_to_run():
    """`availableNow` of Spark 4.0 and 4.1."""
    start, rows = None, []
    for _ in range(4):
        process = Process(start=start)
        rows.append(process.batch())
        start = process.start
    assert rows[0] == FIRST_ROWS and rows[1] > 8 * FIRST_ROWS and rows[3] == MAX_ROWS
    assert Process(start=start).batch(ready=5) == 5


# --- with a database ------------------------------------------------------------------------------


def push_texts(url, name, total, text="x"):
    with Queue(url, name) as queue:
        queue.push_many([text] * total)


def sizes_of(query):
    return [end.get("size") for end in query.offsets]


@pytest.mark.parametrize("mode", ["queue", "log"])
@pytest.mark.parametrize("old", [False, True], ids=["", "Spark 4.0 and 4.1"])
def test_offsets_keep_the_size_and_an_offset_without_one_is_read(any_url, name, mode, old):
    push_texts(any_url, name, 30)
    read = []
    query = Query(lambda batch: read.append(len(batch.rows)), url=any_url, queue=name, mode=mode)
    query.run(old=old)
    assert read == [30] and sizes_of(query) == [FIRST_ROWS]
    for offset in query.offsets:
        del offset["size"]
    push_texts(any_url, name, 20)
    query.run(old=old)
    assert read == [30, 20] and sizes_of(query) == [None, FIRST_ROWS]
    query.offsets[-1]["size"] = 7
    push_texts(any_url, name, 20)
    query.run(old=old)
    assert read[2] == 7 and sum(read) == 70


def test_a_number_fixes_the_size(any_url, name):
    push_texts(any_url, name, 30)
    read = []
    query = Query(lambda batch: read.append(len(batch.rows)), url=any_url, queue=name, maxRecordsPerTrigger="12")
    query.run()
    assert read == [12, 12, 6] and sizes_of(query) == [None] * 3


def test_several_inputs_keep_the_size(sqlite_url, name):
    for queue in (f"{name}.a", f"{name}.b"):
        push_texts(sqlite_url, queue, 10)
    inputs = json.dumps({"a": {"queue": f"{name}.a"}, "b": {"queue": f"{name}.b"}})
    reader = source({"url": sqlite_url, "inputs": inputs, "waitTimeout": "0s"})
    stream = reader.streamReader(reader.schema())
    try:
        start = stream.initialOffset()
        end = stream.latestOffset(start, stream.getDefaultReadLimit() if SPARK >= (4, 2) else None)
        assert end["size"] == FIRST_ROWS and end["rows"] == {"a": [10], "b": [10]}
    finally:
        stream.stop()


# --- beside other consumers -----------------------------------------------------------------------


@pytest.fixture
def consumer(any_url, name):
    """Makes consumers whose batches find their size, and closes them."""
    made = []

    def make(**options):
        raw = {"url": any_url, "queue": name, "numPartitions": "2", "waitTimeout": "0s"} | options
        made.append(Consumer(parse_options(raw, "stream")))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.every_store
def test_two_equal_consumers_end_a_backlog_in_nearly_equal_parts(any_url, name, consumer):
    push_texts(any_url, name, 3_000)
    pair = [consumer(), consumer()]
    ends = [plan_next(one, one.initial, 100) for one in pair]
    rows = [sum(end["rows"]) for end in ends]
    fair_share_counts(pair[0])
    for _ in range(20):  # by turns, each wants far more than its share
        for at, one in enumerate(pair):
            ends[at] = plan_next(one, start := ends[at], 1_500)
            rows[at] += sum(ends[at]["rows"]) if ends[at] != start else 0
    assert sum(rows) == 3_000
    assert 0.4 <= rows[0] / 3_000 <= 0.6


@pytest.mark.every_store
def test_a_consumer_beside_a_fast_one_finds_messages(any_url, name, consumer):
    """The fast one reserves ahead too: without its share, the other one would find nothing."""
    push_texts(any_url, name, 2_000)
    fast, slow = consumer(), consumer(consumer="slow")
    fast_end = plan_next(fast, fast.initial, 100, prefetch=100)
    slow_end = plan_next(slow, slow.initial, 100)
    assert sum(slow_end["rows"]) == 100
    fair_share_counts(fast)
    fast_end = plan_next(fast, fast_end, 10_000, prefetch=10_000)
    fast_end = plan_next(fast, fast_end, 10_000, prefetch=10_000)
    if fast.owned.prefetcher.pending:
        fast.owned.prefetcher.pending.rows.result(20)
    assert sum(plan_next(slow, slow_end, 100)["rows"]) == 100


def fair_share_counts(one):
    """Let a consumer count the others at its next batch: it does so every two seconds."""
    one.owned.reserver._share._counted_at -= COUNT_INTERVAL


def test_a_single_consumer_takes_all(any_url, name, consumer):
    push_texts(any_url, name, 500)
    one = consumer()
    assert sum(plan_next(one, one.initial, 10_000)["rows"]) == 500


def test_a_batch_that_was_reserved_ahead_and_is_too_large_by_now_becomes_smaller(any_url, name, consumer):
    push_texts(any_url, name, 1_000)
    one = consumer()
    first = plan_next(one, one.initial, 100, prefetch=600)
    one.owned.prefetcher.pending.rows.result(20)
    second = plan_next(one, first, 50, prefetch=50)
    assert sum(second["rows"]) == 50, "the users' code has become slower"
    assert second["by"] == first["by"] + 1, "no tag names two reservations"
    with open_store(any_url) as store:
        assert store.sizes(name).reserved <= 50 + 50
    third = plan_next(one, second, 40)
    assert sum(third["rows"]) == 50, "a batch that is only somewhat larger is taken as it is"
    rows, end = 100 + 50 + 50, third
    while (following := plan_next(one, end, 300)) != end:
        rows, end = rows + sum(following["rows"]), following
    assert rows == 1_000


def test_a_slow_database_reserves_ahead_no_more_than_it_can_within_the_target(any_url, name, consumer, monkeypatch):
    """The size after the first batch is a guess: it would take long to reserve that much, and to release it."""
    seconds = itertools.count()
    monkeypatch.setattr(reserver, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    monkeypatch.setattr(reserver, "FIRST_ROWS", 50)  # of Spark's reader
    push_texts(any_url, name, 1_000)
    one = consumer(targetBatchDuration="2s")
    # Another thread reserves the second batch, and measures again.
    end = plan_next(one, one.initial, 100, prefetch=800)
    second = plan_next(one, end, 800, prefetch=800)
    assert sum(second["rows"]) == 200, "100 messages a second, as it seems"
    third = plan_next(one, second, 800, prefetch=800)
    assert sum(third["rows"]) == 400, "200 a second; the first batch does not show the time of a row"
    assert one.max_rows == MAX_ROWS


@pytest.mark.parametrize("inputs", [False, True])
def test_the_wait_for_a_batch_that_is_being_reserved_ahead_is_not_its_time(any_url, name, consumer, inputs):
    """It depends on the batch before it, so it would not show the time of a row."""
    push_texts(any_url, name, 100)
    raw = {"url": any_url, "inputs": json.dumps({"a": name}), "numPartitions": "2", "waitTimeout": "0s"}
    planner: Any = MultiInputPlanner(parse_options(raw, "stream")) if inputs else consumer()
    one = planner.queues["a"] if inputs else planner
    with closing(planner):
        first = plan_next(planner, planner.initial, 50, prefetch=50)
        prefetched = one.owned.prefetcher.take
        one.owned.prefetcher.take = lambda tag: time.sleep(0.05) or prefetched(tag)
        before = planner.waiting.seconds
        assert plan_next(planner, first, 50)["seq"] == 2
        assert planner.waiting.seconds - before >= 0.05


def test_a_query_of_a_trickle_stops_guessing(any_url, name, consumer):
    """It prefetches nothing, and its size is not limited by the first reserves forever."""
    one = consumer()
    end = one.initial
    for _ in range(3):
        push_texts(any_url, name, 10)
        end = plan_next(one, end, FIRST_ROWS, prefetch=FIRST_ROWS)
    assert one.max_rows == MAX_ROWS
