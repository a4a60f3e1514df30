"""Batch reads in several partitions, and of a range of a log, without Spark: see `drive.py`."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from spark_queue import CheckpointError, OptionError, Queue, open_store, trim
from spark_queue.messages.message import pushes
from spark_queue.stores.base import SMALLEST_PARTITION
from spark_queue.stores.services.log.log import Log, find_retained
from tests.spark.drive import snapshot, source

HOUR = 3_600_000


def partitions(**options):
    """Return the partitions of a batch read."""
    data_source = source(options)
    return data_source.reader(data_source.schema()).partitions()


@pytest.mark.every_store
def test_a_batch_read_has_as_many_partitions_as_are_wanted(any_url, name):
    rows = 4 * SMALLEST_PARTITION
    with open_store(any_url) as store:
        store.push(name, pushes([{"n": n} for n in range(rows)]))
        store.reserve(name, "c/1", 700)
    given = {"url": any_url, "queue": name}
    for wanted, expected in ((1, 1), (2, 2), (3, 3), (100, 4)):
        assert len(partitions(**given, numPartitions=str(wanted))) == expected
    found = Counter(row["id"] for row in snapshot(**given, numPartitions="3"))
    assert len(found) == rows and set(found.values()) == {1}
    with open_store(any_url) as store:
        store.commit(name, "c/1", history=HOUR)
    past = Counter(row["id"] for row in snapshot(**given, numPartitions="2", view="history"))
    assert len(past) == 700 and set(past.values()) == {1}
    assert len(partitions(**given, numPartitions="2", view="history")) == 2


def test_a_read_of_named_ids_has_one_partition(sqlite_url, name):
    from pyspark.sql.datasource import EqualTo  # since Spark 4.1

    from spark_queue.options.queue_options import QueueOptions
    from spark_queue.spark.read.snapshot import FilteringReader
    from spark_queue.spark.schema import read_schema

    with Queue(sqlite_url, name) as queue:
        ids = queue.push_many([{"n": n} for n in range(3 * SMALLEST_PARTITION)])
    options = QueueOptions.parse({"url": sqlite_url, "queue": name, "numPartitions": "3"}, "snapshot")
    reader = FilteringReader(options, read_schema(options))
    assert len(reader.partitions()) == 3
    assert list(reader.pushFilters([EqualTo(("id",), ids[7])])) == []
    (one,) = reader.partitions()
    assert [row["id"] for batch in reader.read(one) for row in batch.to_pylist()] == [ids[7]]


# --- a range of a log -----------------------------------------------------------------------------


@pytest.fixture
def log(any_url, name):
    """A log of 30 messages, one an hour, in segments of ten; and the time of the first one (ms)."""
    first = datetime(2026, 1, 1, tzinfo=UTC)
    with open_store(any_url) as store:
        for part in range(3):
            times = [first + timedelta(hours=10 * part + n) for n in range(10)]
            for n, time in enumerate(times):
                store.push(name, pushes([{"n": 10 * part + n}], mature=time))
            Log(store, name).latest()
        assert Log(store, name).positions == (0, 30)
    return round(first.timestamp() * 1000)


def positions(url, queue, **options):
    options = {"url": url, "queue": queue, "mode": "log"} | {key: str(value) for key, value in options.items()}
    return sorted(row["position"] for row in snapshot(**options))


def test_a_range_of_a_log_by_times_and_by_positions(any_url, name, log):
    whole = list(range(30))
    for options, expected in (
        ({}, whole),
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, whole),
        ({"startingOffsets": 12, "endingOffsets": 14}, [12, 13]),
        ({"startingOffsets": 30}, []),
        ({"endingOffsets": 0}, []),
        ({"startingTimestamp": 0}, whole),
        ({"startingTimestamp": log}, whole),
        ({"startingTimestamp": log + 1}, whole[1:]),
        ({"startingTimestamp": log + 9 * HOUR + 1, "endingTimestamp": log + 20 * HOUR}, whole[10:20]),
        ({"startingTimestamp": log + 29 * HOUR}, whole[29:]),
        ({"endingTimestamp": log}, []),
        ({"endingTimestamp": log + HOUR}, whole[:1]),
        ({"endingTimestamp": log + 1_000 * HOUR}, whole),
        ({"startingOffsets": 28, "endingTimestamp": log + HOUR}, []),
        (
            {"startingTimestamp": log + 30 * HOUR, "startingOffsetsByTimestampStrategy": "latest"},
            [],
        ),
    ):
        assert positions(any_url, name, **options) == expected, options


def test_a_time_stands_for_the_first_message_of_that_time_or_later(any_url, name, log):
    """One that comes later in the log may have been due earlier."""
    with open_store(any_url) as store:
        late = datetime.fromtimestamp(log / 1000, UTC) - timedelta(hours=1)
        store.push(name, pushes([{"n": 30}], mature=late))
        Log(store, name).latest()
    assert positions(any_url, name, startingTimestamp=log + 28 * HOUR) == [28, 29, 30]
    assert positions(any_url, name, endingTimestamp=log) == []


def test_a_place_that_a_log_does_not_have_is_refused(any_url, name, log):
    for options, told in (
        ({"startingTimestamp": log + 30 * HOUR}, "none of the messages in the log .* is due then or later"),
        ({"startingOffsets": 31}, "'startingOffsets' is 31, but the log .* ends at 30"),
        ({"endingOffsets": 31}, "'endingOffsets' is 31, but the log .* ends at 30"),
    ):
        with pytest.raises(OptionError, match=told):
            positions(any_url, name, **options)
    trim(any_url, name, older_than=timedelta(0))
    with Queue(any_url, name) as queue, open_store(any_url) as store:
        queue.push_many([{"n": 30}, {"n": 31}])
        Log(store, name).latest()
    with pytest.raises(CheckpointError, match="begins at 30: older messages were removed"):
        positions(any_url, name, startingOffsets=29)
    assert positions(any_url, name, startingOffsets=29, failOnDataLoss="false") == [30, 31]
    assert positions(any_url, name, startingTimestamp=log) == [30, 31], "the first one that is retained"


def test_a_place_in_a_log_that_does_not_exist_is_refused(any_url, name):
    with Queue(any_url, name) as queue:
        queue.push_many([{"n": n} for n in range(3)])
    for option, value in (("startingTimestamp", 0), ("startingOffsets", 1), ("endingOffsets", 1)):
        with pytest.raises(OptionError, match=rf"'{option}' is .*queue '{name}' has no log yet"):
            positions(any_url, name, **{option: value})
    assert positions(any_url, name) == []
    assert positions(any_url, name, startingOffsets=0, endingOffsets="latest") == []
    assert positions(any_url, name, startingTimestamp=0, startingOffsetsByTimestampStrategy="latest") == []
    assert positions(any_url, name, endingTimestamp=10**13) == []
    with open_store(any_url) as store:
        assert find_retained(store, name) is None, "a batch read changes nothing"


def test_a_range_of_a_log_has_several_partitions(sqlite_url, name):
    with Queue(sqlite_url, name) as queue, open_store(sqlite_url) as store:
        queue.push_many([{"n": n} for n in range(4 * SMALLEST_PARTITION)])
        Log(store, name).latest()
    given = {"url": sqlite_url, "queue": name, "mode": "log", "startingOffsets": str(SMALLEST_PARTITION)}
    assert len(partitions(**given, numPartitions="2")) == 2
    assert len(partitions(**given, numPartitions="100")) == 3


def test_a_stream_starts_at_a_time_or_a_position(any_url, name, log):
    from spark_queue.options.queue_options import QueueOptions
    from spark_queue.spark.read.log_reader import LogReader

    def first(**options):
        raw = {"url": any_url, "queue": name, "mode": "log", "waitTimeout": "10ms"}
        reader = LogReader(QueueOptions.parse(raw | {key: str(one) for key, one in options.items()}, "stream"))
        try:
            assert reader.initial == reader.initial
            return reader.initial["position"], reader.next(reader.initial, 100)["position"]
        finally:
            reader.close()

    assert first(startingTimestamp=log + 20 * HOUR) == (20, 30)
    assert first(startingOffsets=7) == (7, 30)
    with pytest.raises(OptionError, match="startingOffsetsByTimestampStrategy=latest to start after the last"):
        first(startingTimestamp=log + 1_000 * HOUR)
    assert first(startingTimestamp=log + 1_000 * HOUR, startingOffsetsByTimestampStrategy="latest") == (30, 30)
    with Queue(any_url, name) as queue:  # it is not in the log yet
        queue.push({"n": 30})
        now = queue.store.now()
    assert first(startingTimestamp=now - HOUR) == (30, 31)


def test_a_restarted_query_reports_without_a_place_to_start_from(any_url, name, log):
    from spark_queue.options.queue_options import QueueOptions
    from spark_queue.spark.read.log_reader import LogReader

    raw = {"url": any_url, "queue": name, "mode": "log", "waitTimeout": "10ms", "startingTimestamp": str(log)}
    options = QueueOptions.parse(raw, "stream")
    query = LogReader(options)
    end = query.next(query.initial, 100)
    query.close()
    trim(any_url, name, older_than=timedelta(0))
    again = LogReader(options)
    try:
        assert again.next(end, 100) == end
        assert again.backlog()["ready"] == 0
    finally:
        again.close()
