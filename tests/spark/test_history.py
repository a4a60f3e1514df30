"""The history as a DataFrame: what was processed, when, by whom and how; and pushed once more."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from chispa import assert_df_equality

from spark_queue.spark import drain
from spark_queue.store.facts import Condition
from tests.spark.conftest import SPARK

HOUR = 3_600


@pytest.fixture
def past(q_any):
    """A queue with history: two messages committed by `etl`, then one dead, then two committed by `checks`."""
    ids = q_any.push([{"n": n} for n in range(5)])
    with q_any.client(consumer="etl", history=HOUR) as queue:
        queue.commit(*queue.reserve(2))
        queue.dead_letter(*queue.reserve(1), reason="no such flight")
    with q_any.client(consumer="checks", history=HOUR) as queue:
        queue.commit(*queue.reserve(2))
    return q_any, ids


def test_the_history_tells_when_by_whom_and_how(past):
    q, ids = past
    df = q.read(view="history")
    assert df.columns[-3:] == ["processed", "consumer", "outcome"]
    rows = df.orderBy("id").collect()
    assert [row.id for row in rows] == ids
    assert [row.consumer for row in rows] == ["etl"] * 3 + ["checks"] * 2
    assert [row.outcome for row in rows] == ["commit", "commit", "dead", "commit", "commit"]
    assert rows[2].headers["x-error"] == "no such flight"
    ages = df.selectExpr("max(abs(unix_seconds(current_timestamp()) - unix_seconds(processed)))").first()
    assert ages[0] < 600
    typed = q.spark.read.format("queue").options(url=q.url, queue=q.name, view="history")
    told = typed.schema("payload STRUCT<n: INT>, outcome STRING, processed TIMESTAMP").load()
    assert sorted(row.payload.n for row in told.collect()) == [0, 1, 2, 3, 4]
    with pytest.raises(Exception, match="no column 'outcome'"):
        q.spark.read.format("queue").options(url=q.url, queue=q.name).schema("outcome STRING").load().collect()


def test_filters_on_the_past_give_the_same_with_and_without_push_down(past):
    q, ids = past
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


@pytest.mark.skipif(SPARK < (4, 1), reason="Spark 4.0 pushes no filters into a Python source")
def test_filters_on_the_past_reach_the_store():
    from pyspark.sql.datasource import EqualTo, GreaterThan, In, IsNotNull

    from spark_queue.options import QueueOptions
    from spark_queue.spark.reader import FilteringReader
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
        options = QueueOptions.parse({"url": "sqlite:///q.db", "queue": "a", "view": view}, "snapshot")
        reader = FilteringReader(options, read_schema(options))
        kept = list(reader.pushFilters([*taken, *left]))
        assert len(reader.where) == conditions
        if conditions:
            assert kept == left
            assert reader.where == [
                Condition("processed", ">", 1_577_836_800_000),
                Condition("consumer", "=", "etl"),
                Condition("outcome", "in", ("commit", "pop")),
            ]


def test_every_way_out_of_a_stream_is_history(q_any):
    q_any.push([{"n": n} for n in range(4)])
    outcome = (
        "CASE get_json_object(payload, '$.n') WHEN 0 THEN 'commit' WHEN 1 THEN 'rollback' WHEN 2 THEN 'dead' END"
    )

    def settle(df, batch_id):
        outcomes = df.selectExpr("id", f"{outcome} outcome", "'why' reason").where("outcome IS NOT NULL")
        options = {"operation": "settle", "consumer": "etl", "maxTries": "1", "history": "1h"}
        q_any.writing(outcomes, **options).save()

    query = q_any.run(q_any.stream(consumer="etl", history="1h"), settle)
    query.awaitTermination()
    drain(query, q_any.url, history=HOUR * 1000)
    rows = q_any.read(view="history").orderBy("id").collect()
    assert [(row.payload, row.outcome, row.tries) for row in rows] == [
        ('{"n":0}', "commit", 0), ('{"n":1}', "dead", 1), ('{"n":2}', "dead", 1), ('{"n":3}', "commit", 0),
    ]  # fmt: skip
    assert {row.consumer for row in rows} == {"etl"}
    assert q_any.sizes().dead == 2


@pytest.mark.parametrize("to", ["", ".again"])
def test_a_part_of_the_history_is_written_as_it_is(past, to):
    q, ids = past
    again = q.read(view="history").where("consumer = 'checks'")
    q.writing(again, queue=q.name + to).save()
    q.writing(again, queue=q.name + to).save()  # what waits already is left as it is
    back = q.read(queue=q.name + to).orderBy("id").collect()
    assert [(row.id, row.payload) for row in back] == [(ids[3], '{"n":3}'), (ids[4], '{"n":4}')]


def test_what_a_read_tells_has_the_type_it_had(q):
    with pytest.raises(Exception, match="column 'processed' is string but must be timestamp"):
        q.writing(q.spark.sql("SELECT '1' payload, 'today' processed")).save()
