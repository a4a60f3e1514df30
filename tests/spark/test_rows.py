"""Columns, formats, filters, bad rows and options of reads and writes, without Spark."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType, VariantType, VariantVal

from spark_queue import MessageError, OptionError, Queue, SchemaError, open_store
from spark_queue.messages.columns import build_messages
from spark_queue.spark.schema import _variant_payloads, arrow_schema
from spark_queue.spark.typed_json import parse_json_column
from spark_queue.spark.write.data_writers import StreamWriter
from tests.spark.drive import Write, found, payloads, rows, save, snapshot, source
from tests.spark_session import SPARK

UTC_TIME = pa.timestamp("us", tz="UTC")
HEADERS = pa.map_(pa.string(), pa.string())


def push_values(url, name, values, **options):
    with Queue(url, name) as queue:
        return queue.push_many(values, **options)


def read(url, name, columns=None, **options):
    return snapshot(columns, url=url, queue=name, **options)


# --- reads ----------------------------------------------------------------------------------------


def test_a_snapshot_shows_all_and_changes_nothing(any_url, name):
    push_values(any_url, name, [{"n": 1}, {"n": 2}, {"n": 3}], headers={"h": "1"})
    push_values(any_url, name, [{"n": 4}], delay=3600)
    with Queue(any_url, name) as client:
        client.reserve(1)
        shown = read(any_url, name)
        assert sorted(json.loads(row["payload"])["n"] for row in shown) == [1, 2, 3, 4]
        assert {(row["queue"], row["delivery_hash"]) for row in shown} == {(name, None)}
        sizes = client.sizes()
        assert (sizes.ready, sizes.scheduled, sizes.reserved) == (2, 1, 1)


@pytest.mark.parametrize(
    ("form", "kind", "values"),
    [
        ("json", "string", ['{"a":1}', '"text"', '{"$binary":{"base64":"AP8=","subType":"00"}}']),
        ("text", "string", ['{"a":1}', "text", "AP8="]),
        ("binary", "binary", [b'{"a":1}', b"text", b"\x00\xff"]),
    ],
)
def test_payload_formats_of_a_read(any_url, name, form, kind, values):
    push_values(any_url, name, [{"a": 1}, "text", b"\x00\xff"])
    options = {"url": any_url, "queue": name, "payloadFormat": form}
    assert source(options).schema()["payload"].dataType.simpleString() == kind
    shown = sorted(snapshot(**options), key=lambda row: (row["mature"], row["id"]))
    assert [row["payload"] for row in shown] == values


def test_a_variant_payload(any_url, name):
    values = [{"a": {"b": [1, 2**60]}}, "text", 5, None][: 3 if "mongodb" in any_url else 4]
    push_values(any_url, name, values)
    options = {"url": any_url, "queue": name, "payloadFormat": "variant"}
    assert isinstance(source(options).schema()["payload"].dataType, VariantType)
    shown = [row["payload"] for row in sorted(snapshot(**options), key=lambda row: row["id"])]
    assert [VariantVal(one["value"], one["metadata"]).toPython() for one in shown] == values


def test_half_a_surrogate_pair_of_another_program_stops_no_read():
    """JavaScript writes it for cut text: kept as text, `?` in a VARIANT and in a struct."""
    texts, kind = ['{"a":"\\ud800"}', '{"a":"x"}'], StructType([StructField("a", StringType())])
    values, corrupt = parse_json_column(texts, kind, pa.struct({"a": pa.string()}))
    assert (values.to_pylist(), corrupt.to_pylist()) == ([{"a": "?"}, {"a": "x"}], [None, None])
    batch = build_messages("q", ["1", "2"], [one.encode() for one in texts], ["json"] * 2, [{}, {}], [0, 0], [0, 0])
    read, unfit = (one.to_pylist() for one in _variant_payloads(batch))
    assert unfit == [None, None]
    assert [VariantVal(one["value"], one["metadata"]).toPython() for one in read] == [{"a": "?"}, {"a": "x"}]


TYPED = pa.schema(
    {
        "id": pa.string(),
        "payload": pa.struct(
            {
                "n": pa.int32(),
                "s": pa.string(),
                "f": pa.float64(),
                "b": pa.bool_(),
                "d": pa.date32(),
                "t": UTC_TIME,
                "m": pa.decimal128(10, 2),
                "l": pa.list_(pa.int32()),
                "o": pa.map_(pa.string(), pa.int32()),
                "x": pa.struct({"y": pa.int64()}),
            }
        ),
        "_corrupt_payload": pa.string(),
    }
)


def test_typed_payloads(any_url, name):
    good = {
        "n": 1, "s": "text", "f": 1.5, "b": True, "d": "2013-01-31", "t": "2013-01-31T05:00:00Z", "m": 12.5,
        "l": [1, None],
        "o": {"k": 1}, "x": {"y": 2**40}, "unknown": 0,
    }  # fmt: skip
    odd = {"s": 5, "f": 2, "t": "2013-01-31 05:00:00", "m": "7.25"}
    push_values(any_url, name, [good, odd, {"n": 2**31}, {"n": 1.5}, {"l": 5}, "text", {"d": "soon"}, {}])
    shown = sorted(read(any_url, name, TYPED), key=lambda row: row["id"])
    typed = [row["payload"] for row in shown]
    assert typed[0] == {
        "n": 1, "s": "text", "f": 1.5, "b": True, "d": date(2013, 1, 31), "t": datetime(2013, 1, 31, 5, tzinfo=UTC),
        "m": Decimal("12.50"),
        "l": [1, None], "o": [("k", 1)], "x": {"y": 2**40},
    }  # fmt: skip
    assert (typed[1]["s"], typed[1]["f"], typed[1]["m"]) == ("5", 2.0, Decimal("7.25"))
    nothing = dict.fromkeys(typed[0])
    assert typed[2:7] == [nothing, nothing, nothing, None, nothing]
    assert [json.loads(row["_corrupt_payload"]) for row in shown[2:7]] == [
        {"n": 2**31}, {"n": 1.5}, {"l": 5}, "text", {"d": "soon"},
    ]  # fmt: skip
    assert typed[7] is not None and shown[7]["_corrupt_payload"] is None


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"id": pa.string(), "paylod": pa.string()}, "no column 'paylod'; did you mean 'payload'"),
        ({"id": pa.int32()}, "column 'id' is string, not int"),
        ({"payload": pa.int32()}, "column 'payload' cannot be int"),
        ({"payload": pa.struct({"a": pa.null()})}, r"payload\.a cannot be void"),
        ({"payload": pa.struct({"a": pa.map_(pa.int32(), pa.int32())})}, r"payload\.a cannot have keys of int"),
    ],
)
def test_a_schema_that_a_queue_does_not_have_is_refused(any_url, name, columns, message):
    with pytest.raises(SchemaError, match=message):
        read(any_url, name, pa.schema(columns))


@pytest.mark.skipif(SPARK < (4, 1), reason="Spark 4.0 pushes no filters into a Python source")
def test_filters_that_reach_the_store_give_the_same_as_those_that_do_not(any_url, name):
    from pyspark.sql.datasource import EqualTo, GreaterThan, In, IsNotNull, LessThan, LessThanOrEqual

    moments = [datetime(2020, 1, day, tzinfo=UTC) for day in (1, 2, 3, 4)]
    with Queue(any_url, name) as queue:
        ids = [queue.push({"n": n}, mature=moment) for n, moment in enumerate(moments)]
        for _ in range(2):
            queue.rollback(*queue.reserve(1))  # the first one becomes the last, with tries
    whole = read(any_url, name)
    cases = [
        ([EqualTo(("id",), ids[1])], lambda row: row["id"] == ids[1]),
        ([In(("id",), (ids[2], ids[3], "stranger"))], lambda row: row["id"] in ids[2:]),
        ([GreaterThan(("tries",), 0)], lambda row: row["tries"] > 0),
        ([LessThanOrEqual(("tries",), 1)], lambda row: row["tries"] <= 1),
        ([LessThan(("mature",), moments[2])], lambda row: row["mature"] < moments[2]),
        ([EqualTo(("queue",), name), IsNotNull(("id",))], lambda row: True),
        ([EqualTo(("queue",), "another")], lambda row: False),
        ([In(("tries",), (1, 2)), IsNotNull(("queue",))], lambda row: row["tries"] in (1, 2)),
        (
            [EqualTo(("tries",), 0), LessThanOrEqual(("mature",), moments[2])],
            lambda row: row["tries"] == 0 and row["mature"] <= moments[2],
        ),
    ]
    counts = set()
    for filters, keep in cases:
        pushed = snapshot(filters=filters, url=any_url, queue=name)
        assert sorted(row["id"] for row in pushed) == sorted(row["id"] for row in whole if keep(row))
        counts.add(len(pushed))
    assert counts >= {0, 1, 2, 4}


# --- writes ---------------------------------------------------------------------------------------


def test_all_columns_of_a_write(any_url, name):
    batch = pa.record_batch(
        {
            "id": ["5f1d7e0123456789abcdef01", "5f1d7e0123456789abcdef02", None],
            "payload": ['{"n": 1}', "[2]", "3"],
            "headers": pa.array([[("h", "1"), ("gone", None)], None, []], HEADERS),
            "mature": pa.array([datetime(2030, 1, 1, tzinfo=UTC), None, None], UTC_TIME),
            "delay": pa.array([None, 3600, None], pa.int32()),
            "tries": pa.array([3, None, None], pa.int32()),
        }
    )
    save(batch, url=any_url, queue=name)
    late, delayed, now = sorted(found(any_url, name), key=lambda message: -message.mature.timestamp())
    assert (late.id, late.payload, late.headers, late.tries) == ("5f1d7e0123456789abcdef01", {"n": 1}, {"h": "1"}, 3)
    assert late.mature == datetime(2030, 1, 1, tzinfo=UTC)
    assert (delayed.id, delayed.payload, delayed.headers, delayed.tries) == ("5f1d7e0123456789abcdef02", [2], {}, 0)
    assert (now.payload, len(now.id)) == (3, 24)
    assert 3500 < (delayed.mature - now.mature).total_seconds() < 3700


ROW = {
    "i": 1, "d": Decimal("1.50"), "f": float("nan"), "none": None, "t": datetime(2020, 1, 1, 1, 2, 3, tzinfo=UTC),
    "day": date(2020, 1, 1), "m": [("k", [1])], "b": b"\0", "s": {"x": True},
}  # fmt: skip
ROW_TYPE = pa.struct(
    {
        "i": pa.int32(),
        "d": pa.decimal128(3, 2),
        "f": pa.float64(),
        "none": pa.null(),
        "t": UTC_TIME,
        "day": pa.date32(),
        "m": pa.map_(pa.string(), pa.list_(pa.int32())),
        "b": pa.binary(),
        "s": pa.struct({"x": pa.bool_()}),
    }
)
ROW_JSON = {
    "i": 1, "d": 1.5, "f": "NaN", "t": "2020-01-01T01:02:03.000Z", "day": "2020-01-01", "m": {"k": [1]}, "b": "AA==",
    "s": {"x": True},
}  # fmt: skip


@pytest.mark.parametrize(
    ("value", "kind", "form", "payload"),
    [
        ('{"a": [1, 2.5, null]}', pa.string(), None, {"a": [1, 2.5, None]}),
        ("plain {", pa.string(), "text", "plain {"),
        (b"\x00\xff", pa.binary(), None, b"\x00\xff"),
        (b'{"a":1}', pa.binary(), "json", {"a": 1}),
        ("bytes", pa.string(), "binary", b"bytes"),
        (ROW, ROW_TYPE, None, ROW_JSON),
        ([("a", 1)], pa.map_(pa.string(), pa.int32()), None, {"a": 1}),
        ([{"a": 1}], pa.list_(pa.struct({"a": pa.int32()})), None, [{"a": 1}]),
    ],
    ids=["json", "text", "binary", "json in binary", "binary in a string", "struct", "map", "array"],
)
def test_payloads_of_every_type_are_written(any_url, name, value, kind, form, payload):
    options = {"payloadFormat": form} if form else {}
    save(pa.record_batch({"payload": pa.array([value], kind)}), url=any_url, queue=name, **options)
    assert payloads(any_url, name) == [payload]


def test_a_variant_is_written(any_url, name):
    columns = StructType([StructField("payload", VariantType())])
    value = VariantVal.parseJson('{"a": [1, {"b": null}]}')
    kind = arrow_schema(columns).field("payload").type
    batch = pa.record_batch([pa.array([{"value": value.value, "metadata": value.metadata}], kind)], names=["payload"])
    Write(columns, url=any_url, queue=name).run(batch)
    assert payloads(any_url, name) == [{"a": [1, {"b": None}]}]


def test_a_stream_passes_batches_of_arrow_on_each_version_of_spark():
    """Spark 4.0 passes rows to a writer of a stream that is not also one of Arrow batches."""
    kinds = ("DataSourceArrowWriter", "DataSourceStreamArrowWriter")
    assert any(one.__name__ in kinds for one in StreamWriter.__mro__)


@pytest.mark.parametrize(
    ("delay", "kind", "seconds"),
    [
        (5_400_000_000, pa.duration("us"), 5400),
        (120, pa.int32(), 120),
        (1.5, pa.float64(), 1.5),
        (Decimal("2.5"), pa.decimal128(2, 1), 2.5),
    ],
)
def test_delay_is_an_interval_or_seconds(any_url, name, delay, kind, seconds):
    with open_store(any_url) as store:
        before = store.now()
        save(rows([1], delay=pa.array([delay], kind)), url=any_url, queue=name)
        (message,) = found(any_url, name)
        assert before <= round(message.mature.timestamp() * 1000 - seconds * 1000) <= store.now()


def test_one_write_reaches_several_queues(any_url, name):
    batch = rows(range(100), queue=[name if n % 3 == 0 else f"{name}.other" for n in range(100)])
    save(batch, url=any_url)
    assert payloads(any_url, name) == list(range(0, 100, 3))
    assert payloads(any_url, f"{name}.other") == [n for n in range(100) if n % 3]
    save(batch, url=any_url, queue=f"{name}.dead")
    assert payloads(any_url, f"{name}.dead") == list(range(100)), "the option overrides the column"


def test_a_large_write_arrives_whole(any_url, name):
    part = [[rows(range(start, start + 10_000)) for start in (0, 10_000)], [rows(range(20_000, 30_000))]]
    Write(url=any_url, queue=name).run(*part)
    assert sorted(json.loads(row["payload"]) for row in read(any_url, name)) == list(range(30_000))


def one_row(**columns):
    made = {"id": "a", "payload": "1"} | columns
    return pa.record_batch({name: one if isinstance(one, pa.Array) else [one] for name, one in made.items()})


NO_TEXT = pa.array([None], pa.string())
BAD_ROWS = [
    ({"payload": NO_TEXT}, "'a': its payload is NULL"),
    ({"payload": "{oops"}, "'a': its payload is not JSON"),
    ({"mature": pa.array([-1_000_000], UTC_TIME)}, "'a': its mature is before 1970"),
    ({"mature": pa.array([253_402_300_800_000_000], UTC_TIME)}, "'a': its mature is after 9999"),
    ({"delay": -5}, "'a': its delay is negative"),
    ({"delay": float("nan")}, "'a': its delay reaches beyond"),
    ({"id": ""}, "'': its id is empty"),
    ({"id": "x" * 201}, "its id is longer than 200 bytes"),
    ({"tries": -1}, "'a': its tries is negative"),
    ({"tries": 5_000_000_000}, "'a': its tries is beyond"),
]


@pytest.mark.parametrize(("columns", "message"), BAD_ROWS, ids=[message for _, message in BAD_ROWS])
def test_a_bad_row_fails_the_write_and_is_named(any_url, name, columns, message):
    with pytest.raises(MessageError, match=message):
        save(one_row(**columns), url=any_url, queue=name)
    assert payloads(any_url, name) == []


@pytest.mark.every_store
def test_bad_rows_go_to_the_dead_letter_queue_if_asked(any_url, name):
    batch = pa.record_batch(
        {
            "id": ["good", "null", "text", "x" * 201, "a\0b", "\x7fb"],
            "payload": ['{"n": 1}', None, "{oops", "1", "1", "1"],
            "headers": pa.array([[("h", "1")], [("h", "2")], None, None, None, None], HEADERS),
        }
    )
    save(batch.slice(0, 3), batch.slice(3), url=any_url, queue=name, onBadRow="deadLetter")
    assert [message.id for message in found(any_url, name)] == ["good"]
    dead = {message.headers["x-error"].split(" (")[0]: message for message in found(any_url, f"{name}.dead")}
    nul, mark = "its id has the character NUL", "its id begins with the character U+007F, which marks buckets"
    assert set(dead) == {
        "its payload is NULL", "its payload is not JSON", "its id is longer than 200 bytes", nul, mark,
    }  # fmt: skip
    assert (dead[nul].headers["x-dl-id"], dead[mark].headers["x-dl-id"]) == ("a\0b", "\x7fb")
    assert dead["its payload is NULL"].headers["h"] == "2"
    assert {one.headers["x-dl-from-queue"] for one in dead.values()} == {name}
    assert dead["its payload is not JSON"].payload == "{oops"
    assert dead["its id is longer than 200 bytes"].headers["x-dl-id"] == "x" * 201


@pytest.mark.every_store
def test_text_of_spark_that_is_not_utf8_is_a_bad_row(any_url, name):
    """A string column holds any bytes: of a file in Latin-1, or half a surrogate pair."""
    ids = pa.array([b"good", b"caf\xe9", b"caf\xea", b"h", b"p"], pa.binary()).view(pa.string())
    texts = pa.array([b'{"n":1}', b"1", b"2", b"3", b'"\xed\xa0\x80"'], pa.binary()).view(pa.string())
    words = pa.array([b"v", b"\xff"], pa.binary()).view(pa.string())
    headers = pa.MapArray.from_arrays(pa.array([0, 1, 1, 1, 2, 2], pa.int32()), pa.array(["k", "k"]), words)
    batch = pa.record_batch({"id": ids, "payload": texts, "headers": headers})
    with pytest.raises(MessageError, match=r"row with id 'caf\ufffd': its id is not UTF-8 text \(and 3 more rows\)"):
        save(batch, url=any_url, queue=name)
    assert payloads(any_url, name) == []
    save(batch, url=any_url, queue=name, onBadRow="deadLetter")
    assert [(one.id, one.headers) for one in found(any_url, name)] == [("good", {"k": "v"})]
    dead = {str(one.payload): one for one in found(any_url, f"{name}.dead")}
    reasons = {text: one.headers["x-error"] for text, one in dead.items()}
    assert reasons.pop("b'\"\\xed\\xa0\\x80\"'").startswith(
        "its payload is not UTF-8 text (invalid continuation byte at byte 1)"
    )
    no_id = "its id is not UTF-8 text"
    assert reasons == {"1": no_id, "2": no_id, "3": "its headers are not UTF-8 text"}
    assert {dead[one].headers["x-dl-id"] for one in "12"} == {"caf\ufffd"} and dead["3"].headers["k"] == "\ufffd"


TEXTS = pa.array([b"good", b'"caf\xe9'], pa.binary()).view(pa.string())
ONE_OF_EACH = pa.array([0, 1, 2], pa.int32())
NESTED = {
    "struct": (pa.StructArray.from_arrays([TEXTS, pa.array([1.5, 2])], ["a", "b"]), b'{"a":"\\"caf\xe9","b":2.0}'),
    "array": (pa.ListArray.from_arrays(ONE_OF_EACH, TEXTS), b'["\\"caf\xe9"]'),
    "map": (pa.MapArray.from_arrays(ONE_OF_EACH, pa.array(["k", "k"]), TEXTS), b'{"k":"\\"caf\xe9"}'),
    "key": (pa.MapArray.from_arrays(ONE_OF_EACH, TEXTS, pa.array([1, None])), b'{"\\"caf\xe9":null}'),
}


@pytest.mark.parametrize("kind", NESTED)
def test_text_inside_of_a_payload_that_is_not_utf8_is_a_bad_row(kind, any_url, name):
    column, raw = NESTED[kind]
    batch = pa.record_batch({"payload": column})
    refused = r"its payload is not UTF-8 text \(invalid continuation byte.*\).*; clean text with make_valid_utf8"
    with pytest.raises(MessageError, match=refused):
        save(batch, url=any_url, queue=name)
    assert payloads(any_url, name) == []
    save(batch, url=any_url, queue=name, onBadRow="deadLetter")
    assert len(payloads(any_url, name)) == 1
    (dead,) = found(any_url, f"{name}.dead")
    assert dead.payload == raw and dead.headers["x-error"].startswith("its payload is not UTF-8 text")


@pytest.mark.every_store
def test_what_looks_like_extended_json_stops_no_write(any_url, name):
    texts = ['{"$binary":{}}', '{"a":{"$regularExpression":{}}}', '{"$oid":null}', '{"a":"\\ud800"}', '{"n":1}']
    batch = pa.record_batch({"id": list("abcde"), "payload": texts})
    save(batch, url=any_url, queue=name, onBadRow="deadLetter")
    assert {one.id: one.payload for one in found(any_url, name)} == {
        "a": {"$binary": {}}, "b": {"a": {"$regularExpression": {}}}, "c": {"$oid": None}, "e": {"n": 1},
    }  # fmt: skip
    (dead,) = found(any_url, f"{name}.dead")
    assert (dead.id, dead.payload) == ("d", '{"a":"\\ud800"}')
    assert "its payload is not JSON" in dead.headers["x-error"]


def test_a_document_over_16_mb_is_refused_by_mongodb_and_kept_in_part_as_a_dead_letter(mongodb_url, name):
    batch = one_row(id="big", payload=f'"{"x" * 17_000_000}"')
    with pytest.raises(MessageError, match=r"'big'.*larger than"):
        save(batch, url=mongodb_url, queue=name)
    save(batch, url=mongodb_url, queue=name, onBadRow="deadLetter")
    (dead,) = found(mongodb_url, f"{name}.dead")
    assert "larger than" in dead.headers["x-error"]
    assert dead.headers["x-dl-size"] == "17000000"
    assert len(dead.payload) == 1 << 20


def test_rows_that_break_the_rules_of_a_store_are_buried_beside_those_that_break_the_rules_of_all(mongodb_url, name):
    batch = pa.record_batch({"id": list("abcd"), "payload": [None, "null", "18446744073709551616", "1"]})
    save(batch, url=mongodb_url, queue=name, onBadRow="deadLetter")
    assert [message.id for message in found(mongodb_url, name)] == ["d"]
    assert sorted(message.id for message in found(mongodb_url, f"{name}.dead")) == ["a", "b", "c"]


def test_null_queues_are_refused(any_url, name):
    with pytest.raises(MessageError, match="its queue is NULL, and the option 'queue' is not set"):
        save(one_row(queue=NO_TEXT), url=any_url)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"payload": pa.string(), "prio": pa.int32()}, "column 'prio' cannot be written"),
        ({"paylod": pa.string()}, "column 'paylod' cannot be written to a queue; did you mean 'payload'"),
        ({"id": pa.string()}, "column 'payload' is missing"),
        ({"payload": pa.string(), "id": pa.int32()}, "column 'id' is int but must be string"),
        ({"payload": pa.int32()}, "column 'payload' is int but must be"),
        (
            {"payload": pa.string(), "headers": pa.map_(pa.string(), pa.int32())},
            r"column 'headers' is map<string,int> but must be map<string,string>",
        ),
        ({"payload": pa.string(), "delay": pa.string()}, "column 'delay' is string but must be"),
        ({"payload": pa.string(), "processed": pa.string()}, "column 'processed' is string but must be timestamp"),
    ],
)
def test_a_dataframe_that_is_no_messages_is_refused(sqlite_url, name, columns, message):
    with pytest.raises(SchemaError, match=message):
        Write(pa.schema(columns), url=sqlite_url, queue=name)


@pytest.mark.parametrize("query", [None, "a query"])
def test_a_queue_is_never_overwritten(sqlite_url, name, query):
    message = "never overwritten" if query is None else r"outputMode\('complete'\) with foreachBatch"
    with pytest.raises(OptionError, match=message):
        Write(query=query, overwrite=True, url=sqlite_url, queue=name)


# --- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"queu": "a"}, "unknown option 'queu'; did you mean 'queue'"),
        ({"payloadFormat": "xml"}, "option 'payloadFormat' is 'xml' but must be one of json, text, binary, variant"),
        ({"url": "mysql://localhost/db"}, "no store for mysql://"),
        ({"url": "sqlit:///q.db"}, "no store for sqlit://; did you mean 'sqlite'"),
        ({"onBadRow": "fail"}, "option 'onBadRow' is not for a streaming read or a batch read"),
        ({"queue": "x" * 201}, "cannot name a queue"),
        ({"maxRecordsPerTrigger": "many"}, "option 'maxRecordsPerTrigger' is 'many' but must be a whole number"),
        ({"reserveTimeout": "soon"}, "option 'reserveTimeout' is 'soon' but must be a duration such as"),
        ({"delivery": "exactly-twice"}, "must be one of at-least-once, at-most-once, exactly-once; did you mean"),
        ({"delivery": "exactly-once", "reserveTimeout": "10s"}, "'reserveTimeout' contradicts delivery=exactly-once"),
        ({"delivery": "at-most-once", "isolateFailures": "true"}, "contradicts delivery=at-most-once"),
        ({"queue": None}, "option 'queue' is missing"),
        ({"url": None}, "option 'url' is missing"),
    ],
)
def test_options_are_checked_when_the_dataframe_is_made(sqlite_url, name, options, message):
    given = {"url": sqlite_url, "queue": name} | options
    with pytest.raises(Exception, match=message):
        source({key: one for key, one in given.items() if one is not None}).schema()
