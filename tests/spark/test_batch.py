"""Batch reads and writes with Spark: discovery, types, filters, errors. Rest: test_rows.py."""

from __future__ import annotations

import threading
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pytest
from chispa import assert_df_equality
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource

from spark_queue import Queue, open_store, register
from spark_queue.spark import QueueDataSource
from spark_queue.stores.types import Condition
from tests.spark_session import SPARK


def peek(q, name=None):
    with Queue(q.url, name or q.name) as queue:
        return queue.peek(1000)


# --- discovery ------------------------------------------------------------------------------------


def test_the_format_is_found_without_registration_and_may_be_registered(q):
    q.push([1])
    assert q.read().count() == 1
    register(q.spark)
    assert q.read().count() == 1
    assert issubclass(QueueDataSource, DataSource)


def test_another_thread_reads_and_writes_after_registration(q):
    failures = []

    def work():
        try:
            register(q.spark)
            q.writing(q.spark.sql("SELECT '1' payload")).save()
            stream = q.stream().select("payload").writeStream.format("queue").option("url", q.url)
            stream = stream.option("queue", f"{q.name}.out").option("checkpointLocation", q.checkpoint)
            stream.trigger(availableNow=True).start().awaitTermination()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert failures == []
    assert [one.payload for one in peek(q, f"{q.name}.out")] == [1]


# --- reads ----------------------------------------------------------------------------------------


def test_a_snapshot_shows_all_and_changes_nothing(q):
    q.push([{"n": 1}, {"n": 2}, {"n": 3}], headers={"h": "1"})
    q.push([{"n": 4}], delay=3600)
    with q.client() as client:
        client.reserve(1)
        rows = q.read().selectExpr("*", "get_json_object(payload, '$.n') n").collect()
        assert sorted(row.n for row in rows) == ["1", "2", "3", "4"]
        assert {(row.queue, row.delivery_hash, str(row.headers)) for row in rows} == {
            (q.name, None, "{'h': '1'}"), (q.name, None, "{}"),
        }  # fmt: skip
        sizes = q.sizes()
        assert (sizes.ready, sizes.scheduled, sizes.reserved) == (2, 1, 1)


def test_a_variant_payload(q):
    q.push([{"a": {"b": [1, 2**60]}}, "text", 5, None])
    df = q.read(payloadFormat="variant")
    assert df.schema["payload"].dataType.simpleString() == "variant"
    (row,) = df.selectExpr("variant_get(payload, '$.a.b[1]', 'bigint') b").where("b IS NOT NULL").collect()
    assert row.b == 2**60


def test_typed_payloads(q):
    good = {
        "n": 1, "s": "text", "f": 1.5, "b": True, "d": "2013-01-31", "t": "2013-01-31T05:00:00Z", "m": 12.5,
        "l": [1, None], "o": {"k": 1}, "x": {"y": 2**40},
    }  # fmt: skip
    q.push([good, "text"])
    schema = """
        id STRING,
        payload STRUCT<
            n: INT, s: STRING, f: DOUBLE, b: BOOLEAN, d: DATE, t: TIMESTAMP, m: DECIMAL(10,2), l: ARRAY<INT>,
            o: MAP<STRING,INT>, x: STRUCT<y: BIGINT>
        >,
        _corrupt_payload STRING
    """
    reader = q.spark.read.schema(schema).format("queue").options(url=q.url, queue=q.name)
    typed, corrupt = reader.load().orderBy("id").collect()
    assert typed.payload.asDict(recursive=True) == good | {
        "d": date(2013, 1, 31), "t": datetime(2013, 1, 31, 5), "m": Decimal("12.50"),
    }  # fmt: skip
    assert (corrupt.payload, corrupt._corrupt_payload) == (None, '"text"')


def test_typed_payloads_agree_with_spark(q):
    schema = "n INT, s STRING, f DOUBLE, d DATE, t TIMESTAMP, l ARRAY<STRING>, o MAP<STRING,DOUBLE>"
    payloads = [
        {
            "n": 1,
            "s": "a",
            "f": 1,
            "d": "2013-01-31",
            "t": "2013-01-31T05:00:00.123Z",
            "l": ["x", 1],
            "o": {"a": 1.5},
        },
        {"s": {"z": 1}, "t": "2013-01-31T05:00:00+02:00", "l": [], "o": {}},
        {"f": "NaN", "n": None, "s": None},
        {"s": True, "l": [None, [1, 2]]},
    ]
    q.push(payloads)
    ours = q.spark.read.schema(f"id STRING, payload STRUCT<{schema.replace(' ', ': ').replace(',: ', ', ')}>")
    ours = ours.format("queue").options(url=q.url, queue=q.name).load().select("id", "payload.*")
    theirs = q.read().select("id", F.from_json("payload", schema).alias("p")).select("id", "p.*")
    assert_df_equality(
        ours.drop("o"), theirs.drop("o"), ignore_row_order=True, ignore_nullable=True, allow_nan_equality=True
    )


# --- filters --------------------------------------------------------------------------------------


@pytest.fixture
def filtered(q_any):
    moments = [datetime(2020, 1, day, tzinfo=UTC) for day in (1, 2, 3, 4)]
    with q_any.client() as queue:
        ids = [queue.push({"n": n}, mature=moment) for n, moment in enumerate(moments)]
        for _ in range(2):
            queue.rollback(*queue.reserve(1))  # the first one becomes the last, with tries
    return q_any, ids


CONDITIONS = [
    "id IN ('{0[2]}', '{0[3]}', 'stranger')",
    "tries = 0 AND mature >= '2020-01-03'",
    "id LIKE '%' AND tries <= 1",
    "id = '{0[1]}'",
    "tries > 0",
    "mature < '2020-01-03 00:00:00.0005'",
    "queue = '{1}'",
    "queue = 'another'",
    "tries = 1 OR mature = '2020-01-03'",
    "tries IN (1, 2) AND queue IS NOT NULL",
]


@pytest.mark.parametrize("conditions", [CONDITIONS[:3], pytest.param(CONDITIONS[3:], marks=pytest.mark.full)])
def test_filters_give_the_same_with_and_without_push_down(filtered, conditions):
    q, ids = filtered
    whole = q.read().cache()
    try:
        for one in conditions:
            condition = one.format(ids, q.name)
            pushed = q.read().where(condition).select("id", "tries").orderBy("id")
            assert_df_equality(pushed, whole.where(condition).select("id", "tries").orderBy("id"))
    finally:
        whole.unpersist()


@pytest.mark.skipif(SPARK < (4, 1), reason="Spark 4.0 pushes no filters into a Python source")
def test_filters_reach_the_store(tmp_path):
    from pyspark.sql.datasource import (
        EqualTo,
        GreaterThan,
        In,
        IsNotNull,
        LessThanOrEqual,
        StringContains,
    )

    from spark_queue.options.roles import parse_options
    from spark_queue.spark.read.snapshot import FilteringReader
    from spark_queue.spark.schema import read_schema

    url = f"sqlite:///{tmp_path}/q.db"
    with Queue(url, "a") as queue:
        queue.push("1")
    options = parse_options({"url": url, "queue": "a"}, "snapshot")
    reader = FilteringReader(options, read_schema(options))
    moment = datetime(2020, 1, 1, tzinfo=UTC)
    left = [
        GreaterThan(("mature",), moment + timedelta(microseconds=1)),
        StringContains(("id",), "x"),
        EqualTo(("payload",), "x"),
        In(("tries",), (None, 1)),
    ]
    taken = [
        EqualTo(("id",), "x"),
        In(("tries",), (1, 2)),
        LessThanOrEqual(("mature",), moment),
        EqualTo(("queue",), "a"),
        IsNotNull(("id",)),
    ]
    assert list(reader.pushFilters([*left, *taken])) == left
    assert reader.conditions == [
        Condition("id", "=", "x"),
        Condition("tries", "in", (1, 2)),
        Condition("mature", "<=", 1_577_836_800_000),
    ]
    assert not reader.empty
    list(reader.pushFilters([EqualTo(("queue",), "b")]))
    assert reader.empty
    (partition,) = reader.partitions()
    assert list(reader.read(partition)) == []


def test_without_the_setting_spark_filters_by_itself(filtered):
    q, ids = filtered
    q.spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        assert [row.id for row in q.read().where(f"id = '{ids[1]}'").collect()] == [ids[1]]
    finally:
        q.spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


# --- writes ---------------------------------------------------------------------------------------


def test_all_columns_of_a_write(q):
    df = q.spark.sql(
        """
        SELECT '5f1d7e0123456789abcdef01' id, '{"n": 1}' payload, map('h', '1', 'gone', CAST(NULL AS STRING)) headers,
               TIMESTAMP '2030-01-01 00:00:00' mature, CAST(NULL AS INT) delay, 3 tries
        UNION ALL SELECT '5f1d7e0123456789abcdef02', '[2]', NULL, NULL, 3600, NULL
        UNION ALL SELECT NULL, '3', map(), NULL, NULL, NULL
        """
    )
    q.writing(df).save()
    late, delayed, now = sorted(peek(q), key=lambda message: -message.mature.timestamp())
    assert (late.id, late.payload, late.headers, late.tries) == ("5f1d7e0123456789abcdef01", {"n": 1}, {"h": "1"}, 3)
    assert late.mature == datetime(2030, 1, 1, tzinfo=UTC)
    assert (delayed.id, delayed.payload, delayed.headers, delayed.tries) == ("5f1d7e0123456789abcdef02", [2], {}, 0)
    assert (now.payload, len(now.id)) == (3, 24)
    assert 3500 < (delayed.mature - now.mature).total_seconds() < 3700


@pytest.mark.full
def test_a_large_write_arrives_whole(q):
    q.writing(q.spark.range(30_000).selectExpr("CAST(id AS STRING) payload")).save()
    rows = q.read().selectExpr("CAST(payload AS INT) n").agg(F.count("n"), F.countDistinct("n"), F.sum("n")).first()
    assert tuple(rows) == (30_000, 30_000, 30_000 * 29_999 // 2)


@pytest.mark.parametrize(
    ("expression", "form", "payload"),
    [
        pytest.param("""'{"a": [1, 2.5, null]}'""", None, {"a": [1, 2.5, None]}, marks=pytest.mark.full),
        pytest.param("'plain {'", "text", "plain {", marks=pytest.mark.full),
        pytest.param("X'00FF'", None, b"\x00\xff", marks=pytest.mark.full),
        pytest.param("""CAST('{"a":1}' AS BINARY)""", "json", {"a": 1}, marks=pytest.mark.full),
        pytest.param("'bytes'", "binary", b"bytes", marks=pytest.mark.full),
        ("parse_json('{\"a\": [1, {\"b\": null}]}')", None, {"a": [1, {"b": None}]}),
        (
            "named_struct('i', 1, 'd', 1.50BD, 'f', CAST('NaN' AS DOUBLE), 'none', NULL, "
            "'t', TIMESTAMP '2020-01-01 01:02:03', "
            "'day', DATE '2020-01-01', 'm', map('k', array(1)), 'b', X'00', 's', named_struct('x', true))",
            None,
            {
                "i": 1, "d": 1.5, "f": "NaN", "t": "2020-01-01T01:02:03.000Z", "day": "2020-01-01", "m": {"k": [1]},
                "b": "AA==",
                "s": {"x": True},
            },
        ),
        pytest.param("map('a', 1)", None, {"a": 1}, marks=pytest.mark.full),
        pytest.param("array(named_struct('a', 1))", None, [{"a": 1}], marks=pytest.mark.full),
    ],
)  # fmt: skip
def test_payloads_of_every_type_are_written(q, expression, form, payload):
    df = q.spark.sql(f"SELECT {expression} payload")
    q.writing(df, **({"payloadFormat": form} if form else {})).save()
    (message,) = peek(q)
    assert message.payload == payload


@pytest.mark.parametrize(
    ("delay", "seconds"),
    [
        ("INTERVAL '90' MINUTE", 5400),
        *(pytest.param(*one, marks=pytest.mark.full) for one in (("120", 120), ("1.5D", 1.5), ("2.5BD", 2.5))),
    ],
)
def test_delay_is_an_interval_or_seconds(q, delay, seconds):
    with open_store(q.url) as store:
        before = store.now()
        q.writing(q.spark.sql(f"SELECT '1' payload, {delay} delay")).save()
        (message,) = peek(q)
        assert before <= round(message.mature.timestamp() * 1000 - seconds * 1000) <= store.now()


# --- errors ---------------------------------------------------------------------------------------


def test_spark_shows_what_is_wrong_with_options_columns_and_rows(q):
    sql, reader = q.spark.sql, q.spark.read.format("queue").options(url=q.url, queue=q.name)
    with pytest.raises(Exception, match="unknown option 'queu'; did you mean 'queue'"):
        q.read(queu="a")
    with pytest.raises(Exception, match="no column 'paylod'; did you mean 'payload'"):
        reader.schema("id STRING, paylod STRING").load().collect()
    with pytest.raises(Exception, match="payload has two fields 'a': rename or drop one"):
        q.writing(sql("SELECT named_struct('a', 1, 'a', 2) payload")).save()
    with pytest.raises(Exception, match="'a': its payload is not JSON"):
        q.writing(sql("SELECT 'a' id, '{oops' payload")).save()
    with pytest.raises(Exception, match="'a': its mature is after 9999"):
        q.writing(sql("SELECT 'a' id, '1' payload, TIMESTAMP '+10000-01-01 00:00:00' mature")).save()
    with pytest.raises(Exception, match="never overwritten"):
        q.writing(sql("SELECT '1' payload")).mode("overwrite").save()
    assert q.sizes().total == 0


@pytest.mark.full
def test_text_that_is_not_utf8_and_what_looks_like_extended_json_stop_no_write(q_any):
    latin, half = "cast(X'636166E9' AS STRING)", "cast(X'22EDA08022' AS STRING)"  # café in Latin-1, half a pair
    rows = q_any.spark.sql(
        f"SELECT * FROM VALUES ('a', '{{\"$binary\":{{}}}}', map('h', 'v')), ({latin}, '1', map()), "
        f"('c', {half}, map()), ('d', '4', map('h', {latin})), ('e', '{{\"$oid\":null}}', map()) "
        "AS t(id, payload, headers)"
    )
    q_any.writing(rows, onBadRow="deadLetter").save()
    assert {one.id: one.payload for one in peek(q_any)} == {"a": {"$binary": {}}, "e": {"$oid": None}}
    dead = {str(one.payload): one.headers["x-error"].split(" (")[0] for one in peek(q_any, f"{q_any.name}.dead")}
    assert dead.pop("b'\"\\xed\\xa0\\x80\"'") == "its payload is not UTF-8 text"
    assert dead == {"1": "its id is not UTF-8 text", "4": "its headers are not UTF-8 text"}
    with pytest.raises(Exception, match=r"its payload is not UTF-8 text .*; clean text with make_valid_utf8"):
        q_any.writing(q_any.spark.sql(f"SELECT named_struct('a', {latin}) payload")).save()
    q_any.writing(q_any.spark.sql(f"SELECT named_struct('a', make_valid_utf8({latin})) payload, 'f' id")).save()
    assert {"a": "caf\ufffd"} in [one.payload for one in peek(q_any)]
