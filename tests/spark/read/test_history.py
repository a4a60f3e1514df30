"""The history as a DataFrame: what was processed, when, by whom and how; and pushed once more."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from chispa import assert_df_equality

from spark_queue import Queue, SchemaError
from spark_queue import history as read_history
from spark_queue.stores.types import Condition
from tests.spark.drive import found, save, snapshot
from tests.spark_session import SPARK

HOUR = 3_600

pushdown = pytest.mark.skipif(SPARK < (4, 1), reason="Spark 4.0 pushes no filters into a Python source")


def push_and_settle(url, name):
    """Two messages committed by `etl`, then one dead, then two committed by `checks`; their ids."""
    with Queue(url, name, consumer="etl", history=HOUR) as queue:
        ids = queue.push_many([{"n": n} for n in range(5)])
        queue.commit(*queue.reserve(2))
        queue.dead_letter(*queue.reserve(1), reason="no such flight")
    with Queue(url, name, consumer="checks", history=HOUR) as queue:
        queue.commit(*queue.reserve(2))
    return ids


@pytest.fixture
def past(any_url, name):
    """The ids of a queue with history."""
    return push_and_settle(any_url, name)


def history(url, name, columns=None, filters=None):
    read = snapshot(columns, filters, url=url, queue=name, view="history")
    return sorted(read, key=lambda row: row.get("id") or "")


def test_the_history_has_time_consumer_and_outcome(any_url, name, past):
    rows = history(any_url, name)
    assert list(rows[0])[-3:] == ["processed", "consumer", "outcome"]
    assert [row["id"] for row in rows] == past
    assert [row["consumer"] for row in rows] == ["etl"] * 3 + ["checks"] * 2
    assert [row["outcome"] for row in rows] == ["commit", "commit", "dead", "commit", "commit"]
    assert dict(rows[2]["headers"])["x-error"] == "no such flight"
    assert all(abs(row["processed"] - datetime.now(UTC)) < timedelta(minutes=10) for row in rows)
    columns = {
        "payload": pa.struct({"n": pa.int32()}),
        "outcome": pa.string(),
        "processed": pa.timestamp("us", "UTC"),
    }
    found = history(any_url, name, pa.schema(columns))
    assert sorted(row["payload"]["n"] for row in found) == [0, 1, 2, 3, 4]
    with pytest.raises(SchemaError, match="no column 'outcome'"):
        snapshot(pa.schema({"outcome": pa.string()}), url=any_url, queue=name)


@pushdown
def test_filters_on_the_past_give_the_same_in_the_store(any_url, name, past):
    from pyspark.sql.datasource import EqualTo, GreaterThan, GreaterThanOrEqual, In, IsNotNull, LessThan

    whole = history(any_url, name)
    moment = whole[3]["processed"]
    cases = [
        ([EqualTo(("consumer",), "etl")], lambda row: row["consumer"] == "etl"),
        (
            [GreaterThan(("consumer",), "checks"), EqualTo(("outcome",), "commit")],
            lambda row: row["consumer"] > "checks" and row["outcome"] == "commit",
        ),
        ([In(("consumer",), ("checks", "stranger"))], lambda row: row["consumer"] == "checks"),
        ([In(("outcome",), ("dead", "pop"))], lambda row: row["outcome"] == "dead"),
        ([GreaterThanOrEqual(("processed",), moment)], lambda row: row["processed"] >= moment),
        (
            [LessThan(("processed",), moment), EqualTo(("outcome",), "commit")],
            lambda row: row["processed"] < moment and row["outcome"] == "commit",
        ),
        ([EqualTo(("processed",), moment)], lambda row: row["processed"] == moment),
        ([EqualTo(("id",), past[1]), IsNotNull(("processed",))], lambda row: row["id"] == past[1]),
    ]
    for filters, keep in cases:
        pushed = history(any_url, name, filters=filters)
        assert pushed == [row for row in whole if keep(row)]


@pushdown
def test_filters_on_the_past_reach_the_store():
    from pyspark.sql.datasource import EqualTo, GreaterThan, In, IsNotNull

    from spark_queue.options.roles import parse_options
    from spark_queue.spark.read.snapshot import FilteringReader
    from spark_queue.spark.schema import read_schema

    moment = datetime(2020, 1, 1, tzinfo=UTC)
    taken = [
        GreaterThan(("processed",), moment),
        EqualTo(("consumer",), "etl"),
        In(("outcome",), ("commit", "pop")),
        IsNotNull(("outcome",)),
    ]
    left = [GreaterThan(("processed",), moment + timedelta(microseconds=1)), IsNotNull(("consumer",))]
    for view, conditions in (("messages", 0), ("history", 3)):
        options = parse_options({"url": "sqlite:///q.db", "queue": "a", "view": view}, "snapshot")
        reader = FilteringReader(options, read_schema(options))
        kept = list(reader.pushFilters([*taken, *left]))
        assert len(reader.conditions) == conditions
        if conditions:
            assert kept == left
            assert reader.conditions == [
                Condition("processed", ">", 1_577_836_800_000),
                Condition("consumer", "=", "etl"),
                Condition("outcome", "in", ("commit", "pop")),
            ]


@pytest.mark.parametrize("to", ["", ".again"])
def test_a_part_of_the_history_is_written_as_it_is(any_url, name, past, to):
    columns = pa.schema(
        {
            "id": pa.string(),
            "queue": pa.string(),
            "payload": pa.string(),
            "headers": pa.map_(pa.string(), pa.string()),
            "mature": pa.timestamp("us", "UTC"),
            "tries": pa.int32(),
            "pushed": pa.timestamp("us", "UTC"),
            "delivery_hash": pa.string(),
            "processed": pa.timestamp("us", "UTC"),
            "consumer": pa.string(),
            "outcome": pa.string(),
        }
    )
    rows = history(any_url, name)
    assert list(rows[0]) == columns.names
    again = pa.RecordBatch.from_pylist([row for row in rows if row["consumer"] == "checks"], schema=columns)
    save(again, url=any_url, queue=name + to)
    save(again, url=any_url, queue=name + to)  # what waits already is left as it is
    back = sorted(found(any_url, name + to), key=lambda message: message.id)
    assert [(one.id, one.payload) for one in back] == [(past[3], {"n": 3}), (past[4], {"n": 4})]


# --- with Spark -----------------------------------------------------------------------------------


def test_the_history_is_a_dataframe_that_can_be_written_again(q):
    ids = push_and_settle(q.url, q.name)
    df = q.read(view="history")
    assert df.columns[-3:] == ["processed", "consumer", "outcome"]
    ages = df.selectExpr("max(abs(unix_seconds(current_timestamp()) - unix_seconds(processed)))").first()
    assert ages[0] < 600
    q.writing(df.where("consumer = 'checks'")).save()
    assert [(one.id, json.dumps(one.payload)) for one in found(q.url, q.name)] == [
        (ids[3], '{"n": 3}'), (ids[4], '{"n": 4}'),
    ]  # fmt: skip


@pytest.mark.full
def test_filters_on_the_past_give_the_same_with_and_without_push_down(q_any):
    q, ids = q_any, push_and_settle(q_any.url, q_any.name)
    whole = q.read(view="history").cache()
    moment = whole.where(f"id = '{ids[3]}'").first().processed
    conditions = [
        "consumer = 'etl'",
        "consumer > 'checks' AND outcome = 'commit'",
        "consumer IN ('checks', 'stranger')",
        "consumer IS NULL",
        "outcome <> 'commit'",
        "outcome IN ('dead', 'pop')",
        f"processed >= '{moment}'",
        f"processed < '{moment}' AND outcome = 'commit'",
        f"processed = '{moment}' OR tries > 7",
        f"id = '{ids[1]}' AND processed IS NOT NULL",
    ]
    try:
        counts = {one: whole.where(one).count() for one in conditions}
        assert set(counts.values()) > {0, 1, 2}
        for condition in conditions:
            pushed = q.read(view="history").where(condition).select("id", "outcome").orderBy("id")
            assert_df_equality(pushed, whole.where(condition).select("id", "outcome").orderBy("id"))
    finally:
        whole.unpersist()


@pytest.mark.full
def test_what_a_stream_settles_is_the_same_history_for_spark_and_python(q_any, tmp_path):
    q = q_any
    with Queue(q.url, q.name) as queue:
        queue.push_many([{"n": n} for n in range(6)])
    outcome = "CASE payload WHEN '{\"n\":4}' THEN 'dead' ELSE 'commit' END AS outcome"
    decided = q.stream(consumer="etl", history="1h").selectExpr("id", outcome, "'no such flight' AS reason")
    settled = decided.writeStream.format("queue").options(url=q.url, queue=q.name, operation="settle", consumer="etl")
    settled = settled.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True)
    settled.start().awaitTermination()
    past = read_history(q.url, q.name)
    assert sorted((one.payload["n"], one.outcome, one.consumer, one.error) for one in past) == [
        (n, "dead" if n == 4 else "commit", "etl", "no such flight" if n == 4 else None) for n in range(6)
    ]
    rows = (
        q.read(view="history")
        .selectExpr("id", "payload", "unix_millis(processed)", "outcome", "consumer", "tries")
        .collect()
    )
    assert sorted(tuple(row) for row in rows) == sorted(
        (one.id, json.dumps(one.payload, separators=(",", ":")), round(one.processed.timestamp() * 1000),
         one.outcome, one.consumer, one.tries)
        for one in past
    )  # fmt: skip
