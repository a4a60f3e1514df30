"""Batch reads and writes: columns, formats, filters, bad rows, options."""

from __future__ import annotations

import json
import threading
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pytest
from chispa import assert_df_equality
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource

from spark_queue import Queue, open_store, register
from spark_queue.spark import QueueDataSource
from spark_queue.store.facts import Condition
from tests.spark.conftest import SPARK, Harness


def peek(q, name=None):
    with Queue(q.url, name or q.name) as queue:
        return queue.peek(1000)


# --- discovery ------------------------------------------------------------------------------------------------------


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
        except Exception as error:  # noqa: BLE001  for the other thread
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert failures == []
    assert [one.payload for one in peek(q, f"{q.name}.out")] == [1]


# --- reads ----------------------------------------------------------------------------------------------------------


def test_a_snapshot_shows_all_and_changes_nothing(q_any):
    q_any.push([{"n": 1}, {"n": 2}, {"n": 3}], headers={"h": "1"})
    q_any.push([{"n": 4}], delay=3600)
    with q_any.client() as client:
        client.reserve(1)
        rows = q_any.read().collect()
        assert sorted(json.loads(row.payload)["n"] for row in rows) == [1, 2, 3, 4]
        assert {(row.queue, row.delivery_hash) for row in rows} == {(q_any.name, None)}
        sizes = q_any.sizes()
        assert (sizes.ready, sizes.scheduled, sizes.reserved) == (2, 1, 1)


def test_a_queue_that_does_not_exist_is_empty(q):
    assert q.read().collect() == []


@pytest.mark.parametrize(
    ("form", "kind", "values"),
    [
        ("json", "string", ['{"a":1}', '"text"', '{"$binary":{"base64":"AP8=","subType":"00"}}']),
        ("text", "string", ['{"a":1}', "text", "AP8="]),
        ("binary", "binary", [b'{"a":1}', b"text", b"\x00\xff"]),
    ],
)
def test_payload_formats_of_a_read(q_any, form, kind, values):
    q_any.push([{"a": 1}, "text", b"\x00\xff"])
    df = q_any.read(payloadFormat=form).orderBy("mature", "id").select("payload")
    assert df.schema["payload"].dataType.simpleString() == kind
    assert [row.payload if form != "binary" else bytes(row.payload) for row in df.collect()] == values


def test_a_variant_payload(q_any):
    q_any.push([{"a": {"b": [1, 2**60]}}, "text", 5, None][: 3 if "mongodb" in q_any.url else 4])
    df = q_any.read(payloadFormat="variant")
    assert df.schema["payload"].dataType.simpleString() == "variant"
    (row,) = df.selectExpr("variant_get(payload, '$.a.b[1]', 'bigint') b").where("b IS NOT NULL").collect()
    assert row.b == 2**60


TYPED = """
    id STRING,
    payload STRUCT<
        n: INT, s: STRING, f: DOUBLE, b: BOOLEAN, d: DATE, t: TIMESTAMP, m: DECIMAL(10,2), l: ARRAY<INT>,
        o: MAP<STRING,INT>,
        x: STRUCT<y: BIGINT>
    >,
    _corrupt_payload STRING
"""


def test_typed_payloads(q_any):
    good = {
        "n": 1, "s": "text", "f": 1.5, "b": True, "d": "2013-01-31", "t": "2013-01-31T05:00:00Z", "m": 12.5,
        "l": [1, None],
        "o": {"k": 1}, "x": {"y": 2**40}, "unknown": 0,
    }  # fmt: skip
    odd = {"s": 5, "f": 2, "t": "2013-01-31 05:00:00", "m": "7.25"}
    q_any.push([good, odd, {"n": 2**31}, {"n": 1.5}, {"l": 5}, "text", {"d": "soon"}, {}])
    spark = q_any.spark
    reader = spark.read.schema(TYPED).format("queue").options(url=q_any.url, queue=q_any.name)
    rows = reader.load().orderBy("id").collect()
    assert rows[0].payload.asDict(recursive=True) == {
        "n": 1, "s": "text", "f": 1.5, "b": True, "d": date(2013, 1, 31), "t": datetime(2013, 1, 31, 5),
        "m": Decimal("12.50"),
        "l": [1, None], "o": {"k": 1}, "x": {"y": 2**40},
    }  # fmt: skip
    assert (rows[1].payload.s, rows[1].payload.f, rows[1].payload.m) == ("5", 2.0, Decimal("7.25"))
    assert [row.payload for row in rows[2:7]] == [None] * 5
    assert [json.loads(row._corrupt_payload) for row in rows[2:7]] == [
        {"n": 2**31}, {"n": 1.5}, {"l": 5}, "text", {"d": "soon"},
    ]  # fmt: skip
    assert rows[7].payload is not None and rows[7]._corrupt_payload is None


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


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("id STRING, paylod STRING", "no column 'paylod'; did you mean 'payload'"),
        ("id INT", "column 'id' is string, not int"),
        ("payload INT", "column 'payload' cannot be int"),
        ("payload STRUCT<a: BINARY>", r"payload\.a cannot be binary"),
        ("payload STRUCT<a: MAP<INT,INT>>", r"payload\.a cannot have keys of int"),
    ],
)
def test_a_schema_that_a_queue_does_not_have_is_refused(q, schema, message):
    with pytest.raises(Exception, match=message):
        q.spark.read.schema(schema).format("queue").options(url=q.url, queue=q.name).load().collect()


# --- filters --------------------------------------------------------------------------------------------------------


@pytest.fixture
def filtered(q_any):
    moments = [datetime(2020, 1, day, tzinfo=UTC) for day in (1, 2, 3, 4)]
    with q_any.client() as queue:
        ids = [queue.push({"n": n}, mature=moment) for n, moment in enumerate(moments)]
        for _ in range(2):
            queue.rollback(*queue.reserve(1))  # the first one becomes the last, with tries
    return q_any, ids


def test_filters_give_the_same_with_and_without_push_down(filtered):
    q, ids = filtered
    conditions = [
        f"id = '{ids[1]}'",
        f"id IN ('{ids[2]}', '{ids[3]}', 'stranger')",
        "tries > 0",
        "tries = 0 AND mature >= '2020-01-03'",
        "mature < '2020-01-03 00:00:00.0005'",
        f"queue = '{q.name}'",
        "queue = 'another'",
        "tries = 1 OR mature = '2020-01-03'",
        "id LIKE '%' AND tries <= 1",
        "tries IN (1, 2) AND queue IS NOT NULL",
    ]
    for condition in conditions:
        pushed = q.read().where(condition).select("id", "tries").orderBy("id")
        whole = q.read().cache()
        try:
            assert_df_equality(pushed, whole.where(condition).select("id", "tries").orderBy("id"))
        finally:
            whole.unpersist()
    assert q.read().where("queue = 'another'").collect() == []


@pytest.mark.skipif(SPARK < (4, 1), reason="Spark 4.0 pushes no filters into a Python source")
def test_filters_reach_the_store():
    from pyspark.sql.datasource import EqualTo, GreaterThan, In, IsNotNull, LessThanOrEqual, StringContains

    from spark_queue.options import QueueOptions
    from spark_queue.spark.reader import FilteringReader
    from spark_queue.spark.schema import read_schema

    options = QueueOptions.parse({"url": "sqlite:///q.db", "queue": "a"}, "snapshot")
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
    assert reader.where == [
        Condition("id", "=", "x"),
        Condition("tries", "in", (1, 2)),
        Condition("mature", "<=", 1_577_836_800_000),
    ]
    assert not reader.empty
    list(reader.pushFilters([EqualTo(("queue",), "b")]))
    assert reader.empty
    assert list(reader.read(reader.partitions()[0])) == []


def test_without_the_setting_spark_filters_by_itself(filtered):
    q, ids = filtered
    q.spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        assert [row.id for row in q.read().where(f"id = '{ids[1]}'").collect()] == [ids[1]]
    finally:
        q.spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


# --- writes ---------------------------------------------------------------------------------------------------------


def test_all_columns_of_a_write(q_any):
    df = q_any.spark.sql(
        """
        SELECT '5f1d7e0123456789abcdef01' id, '{"n": 1}' payload, map('h', '1', 'gone', CAST(NULL AS STRING)) headers,
               TIMESTAMP '2030-01-01 00:00:00' mature, CAST(NULL AS INT) delay, 3 tries
        UNION ALL SELECT '5f1d7e0123456789abcdef02', '[2]', NULL, NULL, 3600, NULL
        UNION ALL SELECT NULL, '3', map(), NULL, NULL, NULL
        """
    )
    q_any.writing(df).save()
    late, delayed, now = sorted(peek(q_any), key=lambda message: -message.mature.timestamp())
    assert (late.id, late.payload, late.headers, late.tries) == ("5f1d7e0123456789abcdef01", {"n": 1}, {"h": "1"}, 3)
    assert late.mature == datetime(2030, 1, 1, tzinfo=UTC)
    assert (delayed.id, delayed.payload, delayed.headers, delayed.tries) == ("5f1d7e0123456789abcdef02", [2], {}, 0)
    assert (now.payload, len(now.id)) == (3, 24)
    assert 3500 < (delayed.mature - now.mature).total_seconds() < 3700


@pytest.mark.parametrize(
    ("expression", "form", "payload"),
    [
        ("""'{"a": [1, 2.5, null]}'""", None, {"a": [1, 2.5, None]}),
        ("'plain {'", "text", "plain {"),
        ("X'00FF'", None, b"\x00\xff"),
        ("""CAST('{"a":1}' AS BINARY)""", "json", {"a": 1}),
        ("'bytes'", "binary", b"bytes"),
        ("parse_json('{\"a\": [1, {\"b\": null}]}')", None, {"a": [1, {"b": None}]}),
        (
            "named_struct('i', 1, 'd', 1.50BD, 'f', CAST('NaN' AS DOUBLE), 'none', NULL, "
            "'t', TIMESTAMP '2020-01-01 01:02:03', "
            "'day', DATE '2020-01-01', 'm', map('k', array(1)), 'b', X'00', 's', named_struct('x', true))",
            None,
            {
                "i": 1, "d": 1.5, "f": "NaN", "t": "2020-01-01T01:02:03Z", "day": "2020-01-01", "m": {"k": [1]},
                "b": "AA==",
                "s": {"x": True},
            },
        ),
        ("map('a', 1)", None, {"a": 1}),
        ("array(named_struct('a', 1))", None, [{"a": 1}]),
    ],
)  # fmt: skip
def test_payloads_of_every_type_are_written(q_any, expression, form, payload):
    df = q_any.spark.sql(f"SELECT {expression} payload")
    q_any.writing(df, **({"payloadFormat": form} if form else {})).save()
    (message,) = peek(q_any)
    assert message.payload == payload


@pytest.mark.parametrize(
    ("delay", "seconds"), [("INTERVAL '90' MINUTE", 5400), ("120", 120), ("1.5D", 1.5), ("2.5BD", 2.5)]
)
def test_delay_is_an_interval_or_seconds(q, delay, seconds):
    q.writing(q.spark.sql(f"SELECT '1' payload, {delay} delay")).save()
    (message,) = peek(q)
    with open_store(q.url) as store:
        assert abs(message.mature.timestamp() - store.now() / 1000 - seconds) < 60


def test_one_write_reaches_several_queues(q_any):
    df = q_any.spark.range(100).selectExpr(
        "CAST(id AS STRING) payload", f"concat('{q_any.name}', CASE WHEN id % 3 = 0 THEN '' ELSE '.other' END) queue"
    )
    df.write.format("queue").mode("append").options(url=q_any.url).save()
    assert q_any.sizes().ready == 34
    assert q_any.sizes(f"{q_any.name}.other").ready == 66
    df.write.format("queue").mode("append").options(url=q_any.url, queue=f"{q_any.name}.dead").save()
    assert q_any.sizes(f"{q_any.name}.dead").ready == 100, "the option overrides the column"


def test_a_large_write_arrives_whole(q_any):
    q_any.writing(q_any.spark.range(30_000).selectExpr("CAST(id AS STRING) payload"))
    q_any.writing(q_any.spark.range(30_000).selectExpr("CAST(id AS STRING) payload")).save()
    rows = (
        q_any.read().selectExpr("CAST(payload AS INT) n").agg(F.count("n"), F.countDistinct("n"), F.sum("n")).first()
    )
    assert tuple(rows) == (30_000, 30_000, 30_000 * 29_999 // 2)


BAD_ROWS = [
    ("'a' id, CAST(NULL AS STRING) payload", "'a': its payload is NULL"),
    ("'a' id, '{oops' payload", "'a': its payload is not JSON"),
    ("'a' id, '1' payload, TIMESTAMP '1969-12-31 23:59:59' mature", "'a': its mature is before 1970"),
    ("'a' id, '1' payload, TIMESTAMP '+10000-01-01 00:00:00' mature", "'a': its mature is after 9999"),
    ("'a' id, '1' payload, -5 delay", "'a': its delay is negative"),
    ("'a' id, '1' payload, CAST('NaN' AS DOUBLE) delay", "'a': its delay reaches beyond"),
    ("'' id, '1' payload", "'': its id is empty"),
    ("repeat('x', 201) id, '1' payload", "its id is longer than 200 bytes"),
    ("'a' id, '1' payload, -1 tries", "'a': its tries is negative"),
    ("'a' id, '1' payload, 5000000000 tries", "'a': its tries is beyond"),
]


@pytest.mark.parametrize(("row", "message"), BAD_ROWS)
def test_a_bad_row_fails_the_write_and_is_named(q, row, message):
    with pytest.raises(Exception, match=message):
        q.writing(q.spark.sql(f"SELECT {row}")).save()
    assert q.sizes().total == 0


def test_bad_rows_go_to_the_dead_letter_queue_if_asked(q_any):
    df = q_any.spark.sql(
        """
        SELECT 'good' id, '{"n": 1}' payload, map('h', '1') headers
        UNION ALL SELECT 'null', NULL, map('h', '2')
        UNION ALL SELECT 'text', '{oops', NULL
        UNION ALL SELECT repeat('x', 201), '1', NULL
        UNION ALL SELECT concat('a', char(0), 'b'), '1', NULL
        UNION ALL SELECT concat(char(127), 'b'), '1', NULL
        """
    )
    q_any.writing(df, onBadRow="deadLetter").save()
    assert [message.id for message in peek(q_any)] == ["good"]
    dead = {message.headers["x-error"].split(" (")[0]: message for message in peek(q_any, f"{q_any.name}.dead")}
    nul, mark = "its id has the character NUL", "its id begins with the character U+007F, which marks buckets"
    assert set(dead) == {
        "its payload is NULL", "its payload is not JSON", "its id is longer than 200 bytes", nul, mark,
    }  # fmt: skip
    assert (dead[nul].headers["x-dl-id"], dead[mark].headers["x-dl-id"]) == ("a\0b", "\x7fb")
    assert dead["its payload is NULL"].headers["h"] == "2"
    assert dead["its payload is NULL"].headers["x-dl-from-queue"] == q_any.name
    assert dead["its payload is not JSON"].payload == "{oops"
    assert dead["its id is longer than 200 bytes"].headers["x-dl-id"] == "x" * 201


def test_a_document_over_16_mb_is_refused_by_mongodb_and_kept_in_part_as_a_dead_letter(
    spark, mongodb_url, name, tmp_path
):
    q = Harness(spark, mongodb_url, name, tmp_path)
    df = spark.sql("SELECT 'big' id, concat('\"', repeat('x', 17000000), '\"') payload")
    with pytest.raises(Exception, match=r"'big'.*larger than"):
        q.writing(df).save()
    q.writing(df, onBadRow="deadLetter").save()
    (dead,) = peek(q, f"{name}.dead")
    assert "larger than" in dead.headers["x-error"]
    assert dead.headers["x-dl-size"] == "17000000"
    assert len(dead.payload) == 1 << 20


def test_rows_that_break_the_rules_of_a_store_are_buried_beside_those_that_break_the_rules_of_all(
    spark, mongodb_url, name, tmp_path
):
    q = Harness(spark, mongodb_url, name, tmp_path)
    df = spark.sql(
        "SELECT * FROM VALUES ('a', NULL), ('b', 'null'), ('c', '18446744073709551616'), ('d', '1') t(id, payload)"
    )
    q.writing(df.coalesce(1), onBadRow="deadLetter").save()
    assert [message.id for message in peek(q)] == ["d"]
    assert sorted(message.id for message in peek(q, f"{name}.dead")) == ["a", "b", "c"]


def test_null_queues_are_refused(q):
    df = q.spark.sql("SELECT 'a' id, '1' payload, CAST(NULL AS STRING) queue")
    with pytest.raises(Exception, match="its queue is NULL, and the option 'queue' is not set"):
        df.write.format("queue").mode("append").options(url=q.url).save()


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("'1' payload, 1 prio", "column 'prio' cannot be written"),
        ("'1' paylod", "column 'paylod' cannot be written to a queue; did you mean 'payload'"),
        ("'a' id", "column 'payload' is missing"),
        ("'1' payload, 1 id", "column 'id' is int but must be string"),
        ("1 payload", "column 'payload' is int but must be"),
        ("'1' payload, map('a', 1) headers", r"column 'headers' is map<string,int> but must be map<string,string>"),
        ("'1' payload, '5s' delay", "column 'delay' is string but must be"),
        ("named_struct('a', INTERVAL '1' MONTH) payload", r"payload\.a cannot be interval"),
    ],
)
def test_a_dataframe_that_is_no_messages_is_refused(q, columns, message):
    with pytest.raises(Exception, match=message):
        q.writing(q.spark.sql(f"SELECT {columns}")).save()


def test_a_queue_is_never_overwritten(q):
    with pytest.raises(Exception, match="never overwritten"):
        q.writing(q.spark.sql("SELECT '1' payload")).mode("overwrite").save()


# --- options --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"queu": "a"}, "unknown option 'queu'; did you mean 'queue'"),
        ({"payloadFormat": "xml"}, "option 'payloadFormat' is 'xml' but must be one of json, text, binary, variant"),
        ({"url": "mysql://localhost/db"}, "no store for mysql://"),
        ({"url": "sqlit:///q.db"}, "no store for sqlit://; did you mean 'sqlite'"),
        ({"onBadRow": "fail"}, "option 'onBadRow' does not go with a streaming read or a batch read"),
        ({"queue": "x" * 201}, "cannot name a queue"),
        ({"maxRecordsPerTrigger": "many"}, "option 'maxRecordsPerTrigger' is 'many' but must be a whole number"),
        ({"reserveTimeout": "soon"}, "option 'reserveTimeout' is 'soon' but must be a duration such as"),
        ({"delivery": "exactly-twice"}, "must be one of at-least-once, at-most-once, exactly-once; did you mean"),
        ({"delivery": "exactly-once", "reserveTimeout": "10s"}, "'reserveTimeout' contradicts delivery=exactly-once"),
        ({"delivery": "at-most-once", "isolateFailures": "true"}, "contradicts delivery=at-most-once"),
    ],
)
def test_options_are_checked_when_the_dataframe_is_made(q, options, message):
    with pytest.raises(Exception, match=message):
        q.read(**options)


def test_a_missing_queue_is_told(q):
    with pytest.raises(Exception, match="option 'queue' is missing"):
        q.spark.read.format("queue").option("url", q.url).load()
    with pytest.raises(Exception, match="option 'url' is missing"):
        q.spark.read.format("queue").option("queue", "a").load()
