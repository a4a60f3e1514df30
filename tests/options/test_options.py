"""Options: strings in, typed facts out, or an error that helps."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_queue.errors import OptionError
from spark_queue.options.consistency import option_name
from spark_queue.options.parsers import duration
from spark_queue.options.queue_options import QueueOptions
from spark_queue.options.roles import role_of_write
from spark_queue.options.table import table

BASE = {"url": "sqlite:///q.db", "queue": "flights"}


def parse(role="stream", **more):
    return QueueOptions.parse(BASE | more, role)


def test_defaults_are_those_of_the_table():
    options = parse()
    assert options.max_records_per_trigger is None and options.target_batch_duration == 2_000
    assert options.reserve_timeout == 120_000
    assert options.delivery == "at-least-once"
    assert (options.wait_timeout, options.history_ms, options.retry_timeout) == (1_000, 0, 30_000)
    assert options.dead_letter_queue_of("flights") == "flights.dead"


def test_letter_case_does_not_matter_and_sparks_own_options_pass():
    options = parse(MAXRECORDSPERTRIGGER="5", checkpointlocation="/tmp/x", queryName="q")
    assert options.max_records_per_trigger == 5


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("500ms", 500),
        ("30s", 30_000),
        ("2 minutes", 120_000),
        ("1.5h", 5_400_000),
        ("7d", 604_800_000),
        ("1 sec", 1_000),
    ],
)
def test_durations(text, ms):
    assert duration(text) == ms


@given(st.text())
def test_any_text_is_a_duration_or_a_value_error(text):
    try:
        assert duration(text) >= 0
    except ValueError as error:
        assert "duration" in str(error)


@given(st.dictionaries(st.sampled_from([option_name(one) for one in QueueOptions.__dataclass_fields__]), st.text()))
def test_any_values_parse_or_raise_an_option_error(raw):
    try:
        QueueOptions.parse(raw, "stream", "push")
    except OptionError as error:
        assert "option" in str(error)


@pytest.mark.parametrize(
    ("role", "raw", "message"),
    [
        ("stream", {"queu": "x"}, "unknown option 'queu'; did you mean 'queue'?"),
        ("stream", {"maxRecords": "x"}, "or 'maxRecordsPerTrigger'"),
        ("stream", {"zzz": "x"}, "unknown option 'zzz'; known are allowEviction, bucketSize, combine"),
        ("stream", {"path": "/x"}, "a queue has no path: set the options 'url' and 'queue'"),
        ("snapshot", {"provider": "queue"}, "a table keeps no options for a queue: use CREATE TEMPORARY VIEW"),
        ("snapshot", {"option.url": "x"}, "a table keeps no options for a queue: use CREATE TEMPORARY VIEW"),
        ("stream", {"startingOffsetsByTimestamp": "1"}, "one sequence of positions: set 'startingTimestamp'"),
        ("stream", {"maxOffsetsPerTrigger": "1"}, "; set 'maxRecordsPerTrigger'"),
        ("stream", {"subscribe": "a"}, "set 'queue' to the name of one queue"),
        ("stream", {"mode": "log", "endingOffsets": "latest"}, "'endingOffsets' is not for a streaming read"),
        ("stream", {"mode": "log", "endingTimestamp": "5"}, "'endingTimestamp' is not for a streaming read"),
        ("snapshot", {"mode": "log", "endingOffsets": "earliest"}, "must be one of latest, or a position"),
        ("snapshot", {"mode": "log", "startingOffsets": "latest"}, "after which a batch read finds nothing"),
        ("stream", {"mode": "log", "startingOffsets": '{"t":{"0":23}}'}, "a log has no partitions"),
        ("stream", {"mode": "log", "startingOffsets": "-2"}, "or a position such as 1000"),
        ("stream", {"mode": "log", "startingOffsets": "earlist"}, "did you mean 'earliest'"),
        ("stream", {"startingTimestamp": "0"}, "'startingTimestamp' needs mode=log"),
        ("snapshot", {"endingOffsets": "5"}, "'endingOffsets' needs mode=log"),
        ("stream", {"mode": "log", "startingTimestamp": "2026-01-01"}, "ms since 1970, such as 1767225600000"),
        ("stream", {"mode": "log", "startingTimestamp": "2026-01-01T00:00:00Z"}, "since 1970, here 1767225600000"),
        ("stream", {"mode": "log", "startingTimestamp": "1767225600"}, "1767225600 seconds are 1767225600000"),
        ("stream", {"mode": "log", "startingTimestamp": "-1"}, "a time in ms since 1970"),
        ("stream", {"mode": "log", "startingTimestamp": "1.5"}, "a time in ms since 1970"),
        ("stream", {"mode": "log", "startingTimestamp": "9" * 16}, "before the year 10000"),
        (
            "stream",
            {"mode": "log", "startingTimestamp": "5", "startingOffsets": "earliest"},
            "'startingOffsets' and 'startingTimestamp' exclude each other",
        ),
        (
            "snapshot",
            {"mode": "log", "endingTimestamp": "5", "endingOffsets": "7"},
            "'endingOffsets' and 'endingTimestamp' exclude each other",
        ),
        (
            "snapshot",
            {"mode": "log", "startingTimestamp": "6", "endingTimestamp": "5"},
            "'endingTimestamp' is 5 but must not be before 'startingTimestamp', which is 6",
        ),
        ("snapshot", {"mode": "log", "startingOffsets": "6", "endingOffsets": "5"}, "'endingOffsets' is 5 but must"),
        (
            "stream",
            {"mode": "log", "startingOffsetsByTimestampStrategy": "latest"},
            "'startingOffsetsByTimestampStrategy' needs 'startingTimestamp'",
        ),
        ("stream", {"onBadRow": "fail"}, "'onBadRow' is not for a streaming read"),
        ("push", {"maxTries": "3"}, "'maxTries' is not for a write that pushes"),
        ("stream", {"maxTries": "0"}, "'maxTries' is '0' but must be a whole number from 1"),
        ("stream", {"numPartitions": "1e3"}, "'numPartitions' is '1e3'"),
        ("stream", {"reserveTimeout": "forever"}, "7d, or 'never'"),
        ("stream", {"reserveTimeout": "1ms"}, "at least 100ms"),
        (
            "stream",
            {"numPartitions": "2", "minPartitions": "3"},
            "'minPartitions' is 3 but must not exceed 'numPartitions', which is 2",
        ),
        ("stream", {"consumer": "a/b"}, "'consumer' is 'a/b' but must be 1 to 100 letters"),
        ("stream", {"queue": " "}, "'queue' is ' ' but must be non-empty"),
        ("stream", {"delivery": "exactly-once", "reserveTimeout": "9s"}, "'reserveTimeout' contradicts delivery"),
        ("stream", {"isolateFailures": "yes"}, "must be one of true, false"),
        ("push", {"txnAppId": "a"}, "'txnAppId' and 'txnVersion' go together"),
        ("push", {"txnAppId": "a", "txnVersion": "-1"}, "'txnVersion' is '-1' but must be a whole number"),
        ("push", {"txnAppId": "a", "txnVersion": "1", "delivery": "at-least-once"}, "needs delivery=exactly-once"),
        ("stream", {"delivery": "twice"}, "must be one of at-least-once"),
        ("push", {"onBadRow": "deadleter"}, "did you mean 'deadLetter'"),
        ("settle", {}, "option 'consumer' is missing"),
    ],
)
def test_what_cannot_be_meant_is_told(role, raw, message):
    with pytest.raises(OptionError) as caught:
        QueueOptions.parse(BASE | raw, role)
    assert message in str(caught.value)


def test_what_is_missing_is_told():
    with pytest.raises(OptionError, match="option 'url' is missing"):
        QueueOptions.parse({"queue": "a"}, "stream")
    for role in ("stream", "snapshot", "settle"):
        with pytest.raises(OptionError, match="option 'queue' is missing"):
            QueueOptions.parse({"url": "sqlite:///q.db"}, role)
    assert QueueOptions.parse({"url": "sqlite:///q.db"}, "push").queue is None


def test_a_url_is_not_shown_where_it_is_wrong():
    with pytest.raises(OptionError) as caught:
        QueueOptions.parse({"url": " ", "queue": "a"}, "stream")
    assert "(hidden)" in str(caught.value)


def test_never_is_a_lease():
    assert parse(reserveTimeout="Never").reserve_timeout is None


@pytest.mark.parametrize(
    ("raw", "role"), [({}, "push"), ({"Operation": "SETTLE"}, "settle"), ({"operation": "push"}, "push")]
)
def test_the_role_of_a_write(raw, role):
    assert role_of_write(raw) == role


def test_an_operation_that_is_none_is_told():
    with pytest.raises(OptionError, match="did you mean 'settle'"):
        role_of_write({"operation": "setle"})


def test_the_docs_show_the_table_of_options():
    page = (Path(__file__).parents[2] / "docs" / "options.md").read_text()
    assert table() in page, (
        "run: python -c 'from spark_queue.options.table import table; print(table())' and put it in docs/options.md"
    )


def test_a_read_fails_if_its_queue_is_missing_unless_it_is_a_stream():
    assert parse("snapshot").fail_if_missing and not parse("snapshot", failIfMissing="false").fail_if_missing
    assert not parse().fail_if_missing and parse(failIfMissing="true").fail_if_missing


def test_what_follows_from_the_delivery():
    def parse(role, **raw):
        return QueueOptions.parse({"url": "sqlite:///q.db", "queue": "q"} | raw, role)

    assert (parse("stream").delivery, parse("push").delivery) == ("at-least-once", "exactly-once")
    assert (parse("stream").reserve_timeout, parse("stream").isolate_failures) == (120_000, True)
    exactly = parse("stream", delivery="exactly-once")
    assert (exactly.reserve_timeout, exactly.isolate_failures) == (None, False)
    assert parse("stream", delivery="exactly-once", reserveTimeout="never", isolateFailures="true").isolate_failures


def test_partitions_are_those_that_are_wanted():
    assert [parse(**raw).partition_limits(4) for raw in (
        {}, {"numPartitions": "8"}, {"minPartitions": "3"}, {"minPartitions": "9"},
        {"numPartitions": "8", "minPartitions": "8"},
    )] == [(4, 1), (8, 1), (4, 3), (9, 9), (8, 8)]  # fmt: skip


def test_modes_do_not_mix():
    options = parse(mode="LOG", startingOffsets="latest", retention="7d", failOnDataLoss="false", consumer="etl")
    assert (options.mode, options.starting_offsets, options.retention) == ("log", "latest", 604_800_000)
    assert (options.fail_on_data_loss, parse().mode, parse().retention) == (False, "queue", None)
    for raw, told in [
        ({"mode": "log", "maxTries": "3"}, "'maxTries' cannot be used with mode=log"),
        ({"mode": "log", "reserveTimeout": "never"}, "'reserveTimeout' cannot be used with mode=log"),
        ({"mode": "log", "history": "1h"}, "'history' cannot be used with mode=log"),
        ({"retention": "1h"}, "'retention' needs mode=log"),
        ({"startingOffsets": "latest"}, "'startingOffsets' needs mode=log"),
        ({"failOnDataLoss": "false"}, "'failOnDataLoss' needs mode=log"),
        ({"mode": "log", "startingOffsets": "latests"}, "did you mean 'latest'"),
        ({"mode": "logs"}, "did you mean 'log'"),
        ({"consumer": "log"}, "another name than 'log'"),
    ]:
        with pytest.raises(OptionError, match=told):
            parse(**raw)
    with pytest.raises(OptionError, match="'retention' is not for a batch read"):
        parse("snapshot", mode="log", retention="1h")
