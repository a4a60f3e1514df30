"""A batch has no more bytes than fit into memory: the first one, and one whose messages grow. Without Spark."""

from __future__ import annotations

import json
from contextlib import closing

import pytest

from spark_queue import Buckets, Queue, open_store
from spark_queue.messages.message import messages, pushes
from spark_queue.options.roles import parse_options
from spark_queue.spark.read import memory_limit
from spark_queue.spark.read.batch_size import FIRST_ROWS, MAX_ROWS
from spark_queue.spark.read.limits import ALL_ROWS
from spark_queue.spark.read.log_reader import LogReader
from spark_queue.spark.read.memory_limit import PARTITION_BYTES, MemoryLimit
from tests.spark.drive import source
from tests.spark.read.consumers import plan_next
from tests.spark.read.inputs import planner_of
from tests.spark_session import SPARK

KB = 1024


def push_of_sizes(url, name, sizes, layout=None):
    """Push messages of these sizes, in order."""
    with open_store(url) as store:
        store.push(name, pushes([{"x": "x" * size} for size in sizes]), layout=layout)


def bytes_of_batch(url, name, end):
    """Return the bytes of the payloads of a batch."""
    with open_store(url) as store:
        tags = [one.tag for one in store.reservations(name, f"{end['consumer']}/{end['seq']}.1")]
        pages = [page for tag in tags for page in store.peek_reserved(name, tag)]
        return len("".join(one.payload["x"] for page in pages for one in messages(page)))


@pytest.fixture
def small(monkeypatch):
    """A partition may have 200 KB, so a batch of two has 400 KB."""
    monkeypatch.setattr(memory_limit, "PARTITION_BYTES", 200 * KB)  # what a Spark task can hold


@pytest.mark.every_store
@pytest.mark.parametrize("layout", [None, Buckets(5)], ids=["single", "bucket"])
def test_the_first_batch_fits_into_memory(any_url, name, layout, small):
    with open_store(any_url) as store:
        if layout and "buckets" in store.unsupported:
            return
    push_of_sizes(any_url, name, [10 * KB] * 100, layout)
    with closing(planner_of(any_url, name)) as one:
        assert one.max_rows == MAX_ROWS, "nothing is known yet"
        end = plan_next(one, one.initial)
        assert 30 <= sum(end["rows"]) <= 40 and len(end["rows"]) == 2
        assert bytes_of_batch(any_url, name, end) <= 400 * KB
        assert sum(end["rows"]) * 0.9 <= one.max_rows <= 40
        assert sum(plan_next(one, end, ALL_ROWS)["rows"]) >= 60, "Trigger.Once wants all of them"


@pytest.mark.parametrize("prefetch", [0, FIRST_ROWS])
def test_a_batch_whose_messages_grow_fits(any_url, name, small, prefetch):
    """Neither the batch before, nor its own first messages, say how large the next ones are."""
    push_of_sizes(any_url, name, [10] * 700 + [50 * KB] * 100)
    with closing(planner_of(any_url, name)) as one:
        first = plan_next(one, one.initial, 600, prefetch=prefetch and 600)
        assert sum(first["rows"]) == 600
        second = plan_next(one, first, prefetch=prefetch)
        assert 104 <= sum(second["rows"]) <= 108, "the last small ones, and the large ones that fit"
        assert bytes_of_batch(any_url, name, second) <= 400 * KB
        third = plan_next(one, second, prefetch=prefetch)
        assert 6 <= sum(third["rows"]) <= 8 and bytes_of_batch(any_url, name, third) <= 400 * KB


def test_a_batch_that_bytes_limit_is_full_so_the_next_one_is_reserved_ahead(sqlite_url, name, small):
    push_of_sizes(sqlite_url, name, [10 * KB] * 200)
    with closing(planner_of(sqlite_url, name)) as one:
        end = plan_next(one, one.initial, prefetch=FIRST_ROWS)
        assert one.has_prefetched
        one.owned.prefetcher.pending.rows.result(20)
        with open_store(sqlite_url) as store:
            assert store.sizes(name).reserved <= 80, "each of the two fits"
        assert sum(plan_next(one, end, prefetch=FIRST_ROWS)["rows"]) <= 40


def test_a_message_that_never_fits_is_a_batch(any_url, name, small):
    push_of_sizes(any_url, name, [900 * KB, 10, 900 * KB])
    rows = []
    with closing(planner_of(any_url, name)) as one:
        start = one.initial
        while (end := plan_next(one, start)) != start:
            rows.append(sum(end["rows"]))
            start = end
    assert rows == [1, 1, 1]


def test_a_restarted_query_has_batches_that_fit_whatever_its_size_is(any_url, name, small):
    push_of_sizes(any_url, name, [10 * KB] * 100)
    raw = {"url": any_url, "queue": name, "numPartitions": "2", "waitTimeout": "0s"}
    reader = source(raw)
    stream = reader.streamReader(reader.schema())
    try:
        start = stream.initialOffset() | {"size": 500_000}
        end = stream.latestOffset(start, stream.getDefaultReadLimit()) if SPARK >= (4, 2) else None
        if end is not None:
            assert sum(end["rows"]) <= 40
    finally:
        stream.stop()


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ({"maxRecordsPerTrigger": "90"}, 90),  # what the user said
        ({"maxRecordsPerTrigger": "90", "maxBytesPerTrigger": "100k"}, 9),
        ({"maxRecordsPerTrigger": "3", "maxBytesPerTrigger": "100k"}, 3),
        ({"maxBytesPerTrigger": "100k"}, 9),
        ({"maxBytesPerTrigger": "1"}, 1),
        ({"maxBytesPerTrigger": "1g"}, 100),
    ],
)
def test_the_options_say_what_a_batch_may_have(sqlite_url, name, small, options, rows):
    push_of_sizes(sqlite_url, name, [10 * KB] * 100)
    with closing(planner_of(sqlite_url, name, numPartitions="1", **options)) as one:
        assert sum(plan_next(one, one.initial, int(options.get("maxRecordsPerTrigger", FIRST_ROWS)))["rows"]) == rows


# --- several inputs, and logs ---------------------------------------------------------------------


def test_the_rows_of_several_inputs_fit_together(any_url, name, small):
    push_of_sizes(any_url, f"{name}.a", [10 * KB] * 100)
    push_of_sizes(any_url, f"{name}.b", [10 * KB] * 100)
    inputs = json.dumps({"a": f"{name}.a", "b": f"{name}.b"})
    with closing(planner_of(any_url, name, inputs=inputs)) as one:
        end = plan_next(one, one.initial)
        assert 15 <= one.rows(one.initial, end) <= 20, "200 KB of each input"
    with closing(planner_of(any_url, name, inputs=inputs, combine="alts")) as one:
        end = plan_next(one, one.initial)
        assert 30 <= one.rows(one.initial, end) <= 40, "400 KB of one"


def test_an_input_whose_messages_are_large_limits_the_others(any_url, name, small):
    push_of_sizes(any_url, f"{name}.a", [10] * 300)
    push_of_sizes(any_url, f"{name}.b", [50 * KB] * 30)
    inputs = json.dumps({"a": f"{name}.a", "b": f"{name}.b"})
    with closing(planner_of(any_url, name, inputs=inputs)) as one:
        assert 3 <= one.rows(one.initial, plan_next(one, one.initial)) <= 4


@pytest.mark.every_store
def test_a_log_is_limited_by_the_bytes_of_its_messages(any_url, name, small):
    push_of_sizes(any_url, name, [10] * 300 + [50 * KB] * 30)
    reader = LogReader(parse_options({"url": any_url, "queue": name, "mode": "log", "numPartitions": "2"}, "stream"))
    with closing(reader):
        end = reader.next(reader.initial, FIRST_ROWS)
        assert 305 <= reader.rows(reader.initial, end) <= 308, "the small ones, and the large ones that fit"
        following = reader.next(end, FIRST_ROWS)
        assert 6 <= reader.rows(end, following) <= 8
        assert reader.rows(reader.initial, reader.next(reader.initial, ALL_ROWS)) == 330


def test_a_log_that_is_an_input_is_limited_too(any_url, name, small):
    push_of_sizes(any_url, f"{name}.a", [10 * KB] * 100)
    push_of_sizes(any_url, f"{name}.b", [10] * 100)
    inputs = json.dumps({"a": {"queue": f"{name}.a", "mode": "log"}, "b": f"{name}.b"})
    with closing(planner_of(any_url, name, inputs=inputs)) as one:
        assert 15 <= one.rows(one.initial, plan_next(one, one.initial)) <= 20


# --- the limit ------------------------------------------------------------------------------------


def limit_of(**options):
    raw = {"url": "sqlite:///queues.db", "queue": "q", "numPartitions": "2"} | options
    return MemoryLimit(parse_options(raw, "stream"))


def test_without_options_each_partition_has_its_bytes():
    assert limit_of().batch_bytes(100) == 2 * PARTITION_BYTES
    assert limit_of(maxBytesPerTrigger="64m").batch_bytes(100) == 64 << 20
    assert limit_of(maxRecordsPerTrigger="7").batch_bytes(7) is None
    assert limit_of(maxBytesPerTrigger="64m").batch_bytes(ALL_ROWS) is None, "Trigger.Once wants all"


def test_the_rows_that_fit_follow_the_last_batch():
    limit = limit_of(maxBytesPerTrigger="1000")
    assert limit.rows == MAX_ROWS
    for rows, size, expected in ((10, 100, 100), (10, 0, 100), (0, 0, 100), (2, 10_000, 1), (500, 500, 1000)):
        limit.note_batch(rows, size)
        assert limit.rows == expected


def test_a_queue_of_a_query_is_read_as_before_where_messages_are_small(sqlite_url, name):
    with Queue(sqlite_url, name) as queue:
        queue.push_many([{"n": n} for n in range(3_000)])
    with closing(planner_of(sqlite_url, name)) as one:
        assert plan_next(one, one.initial)["rows"] == [1_500, 1_500]
