"""Processors as steps between DataFrames, without queues: filters, functions, provenance."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime

import pytest
from pyspark.errors import PythonException
from pyspark.sql import functions as F

from spark_queue import GraphError, Output, wrap_error
from spark_queue.graph.model import Graph, Input, Namespace, Place, Processor
from spark_queue.graph.validation import check_graph
from spark_queue.messages.message import Message
from spark_queue.runner.processor import CompiledProcessor

MESSAGE = (
    "STRUCT<id: STRING, queue: STRING, payload: STRING, headers: MAP<STRING, STRING>, mature: TIMESTAMP, tries: INT, "
    "pushed: TIMESTAMP>"
)
AT = datetime(2013, 1, 1, tzinfo=UTC)


def message(id, queue, payload, headers=None):
    text = payload if isinstance(payload, str) else json.dumps(payload)
    return (id, queue, text, headers or {}, AT, 0, AT)


def binary(text):
    return {"$binary": {"base64": text, "subType": "00"}}


def route(processor, **facts):
    graph = check_graph(Graph({"l": Namespace("sqlite:///q.db")}, processors={"p": processor}, **facts))
    return CompiledProcessor("p", graph.processors["p"], graph)


def frame(spark, rows, *names):
    """Rows of inputs, each a tuple of messages; the hash of a row is its number."""
    schema = ", ".join([*(f"`{name}` {MESSAGE}" for name in names), "delivery_hash STRING"])
    return spark.createDataFrame([(*row, str(number)) for number, row in enumerate(rows)], schema)


def outputs_of(route, rows):
    """What comes of rows: `(queue, payload, headers)`."""
    return [
        (one.queue, json.loads(one.payload), dict(one.headers))
        for one in route.output_messages(rows).collect()
    ]  # fmt: skip


def of(processor, rows, **facts):
    return outputs_of(route(processor, provenance=False, **facts), rows)


def seen(process, messages):
    return {"out": {name: one.payload for name, one in messages.items()}}


# --- Cues' filter-messages and processor-fn -------------------------------------------------------


def test_filter_messages(spark):
    """Cues' filter-messages: any of the topics, for each message; not called for empty rows."""
    rows = frame(
        spark,
        [
            (message("1", "a", {"topics": {"x": True}}), message("2", "b", {"topics": {"z": 1}})),
            (message("3", "a", {"topics": {"x": False, "y": None}}), message("4", "b", {})),
            (message("5", "a", {"topics": ["q", "y"]}), message("6", "b", 1, {"topics": "z, x"})),
            (message("7", "a", {"topics": "x"}), message("8", "b", "no JSON")),
        ],
        "a",
        "b",
    )
    both = {"a": Input("a"), "b": Input("b")}
    some = Processor(seen, in_=both, out={"out": Place("o")}, rows=True, topics=["x", "y"])
    assert [payload for _, payload, _ in of(some, rows)] == [
        {"a": {"topics": {"x": True}}},
        {"a": {"topics": ["q", "y"]}, "b": 1},
        {"a": {"topics": "x"}},
    ]


def test_graph_filters(spark):
    """Cues' graph-filters; types and topics must both pass; the header wins over the payload."""
    rows = frame(
        spark,
        [
            (message("1", "a", {"type": "doc", "topics": {"x": 1}}),),
            (message("2", "a", {"type": "doc", "topics": {"z": 1}}),),
            (message("3", "a", {"type": "else", "topics": {"x": 1}}),),
            (message("4", "a", {"type": "else", "topics": {"x": 1}}, {"type": "doc"}),),
        ],
        "a",
    )
    words = {
        "none": {},
        "types": {"types": "doc"},
        "topics": {"topics": "x"},
        "both": {"types": "doc", "topics": "x"},
    }
    passing = []
    for name, filters in words.items():
        one = Processor(
            lambda _, df: {"out": F.col("a.id")}, in_={"a": Input("a")}, out={"out": Place(name)}, **filters
        )
        passing.append(route(one, provenance=False).output_messages(rows))
    found = Counter((one.queue, one.payload) for frame in passing for one in frame.collect())
    assert set(found) == {
        *(("none", id) for id in "1234"), ("types", "1"), ("types", "2"), ("types", "4"),
        ("topics", "1"), ("topics", "3"), ("topics", "4"), ("both", "1"), ("both", "4"),
    }  # fmt: skip


def test_graph_join_fork_conditional(spark):
    """Cues' graph-join-fork-conditional: each sum goes to one of the outputs."""
    rows = frame(spark, [(message("1", "a", n), message("2", "b", m)) for n, m in ((1, 1), (2, 3))], "a", "b")

    def by_parity(process, messages):
        total = sum(one.payload for one in messages.values())
        return {"even" if total % 2 == 0 else "odd": total}

    both, outs = {"a": Input("a"), "b": Input("b")}, {"even": Place("q1"), "odd": Place("q2")}
    assert of(Processor(by_parity, in_=both, out=outs, rows=True), rows) == [("q1", 2, {}), ("q2", 5, {})]


def test_processor_fn(spark):
    """Cues' processor-fn: called for messages that pass, with its context; its results go on."""

    def work(process, messages):
        facts = {"id": process.id, "by": process.opts["by"], "limit": process.system["limit"]}
        facts |= {"hash": process.delivery_hash, "delivery": process.delivery, "out": process.config["out"]}
        return {"out": facts | {"n": messages["in"].payload["n"]}, "other": None}

    rows = frame(
        spark,
        [
            (message(str(n), "a", {"n": n, "topics": topics}),)
            for n, topics in enumerate([None, {}, {"b": 1}, {"a": 1}])
        ],
        "in",
    )
    outs = {"out": Place("o"), "other": Place("p")}
    processor = Processor(work, in_={"in": Input("a")}, out=outs, rows=True, topics="a", opts={"by": 2})
    facts = {
        "id": "p", "by": 2, "limit": 60, "hash": "3", "delivery": "exactly-once",
        "out": {"out": "l/o", "other": "l/p"}, "n": 3,
    }  # fmt: skip
    assert of(processor, rows, system={"limit": 60}) == [("o", facts, {})]
    assert of(processor, rows, system=lambda: {"limit": 60}) == [("o", facts, {})]


# --- what functions give --------------------------------------------------------------------------


def test_rows_give_any_payload_and_more(spark):
    def work(process, messages):
        one = messages["in"]
        assert isinstance(one, Message)
        return {
            "a": Output(one.payload, {"by": "work"}, delay=1.5, tries=2, id=f"x{one.id}"),
            "b": b"\x00" if one.id == "1" else "text",
            "c": one,
        }

    outs = {name: Place(name) for name in "abc"}
    binary = '{"$binary":{"base64":"AP8=","subType":"00"}}'
    rows = frame(spark, [(message("1", "q", binary, {"h": "1"}),), (message("2", "q", '"text"'),)], "in")
    found = route(Processor(work, in_={"in": Input("q")}, out=outs, rows=True)).output_messages(rows).collect()
    assert [(one.queue, json.loads(one.payload)) for one in found] == [
        ("a", json.loads(binary)), ("b", {"$binary": {"base64": "AA==", "subType": "00"}}), ("c", json.loads(binary)),
        ("a", "text"), ("b", "text"), ("c", "text"),
    ]  # fmt: skip
    assert (found[0].id, found[0].delay, found[0].tries, found[0].headers["by"]) == ("x1", 1.5, 2, "work")
    assert (found[2].headers["h"], found[2].id, found[2].mature) == ("1", None, None), "it goes on as a new message"


def test_frames_give_columns_by_output(spark):
    def work(process, df):
        n = F.try_variant_get(F.try_parse_json("in.payload"), "$.n", "int")
        return {
            "number": n,
            "struct": F.when(n % 2 == 0, F.struct(n.alias("n"))),
            "message": F.struct(
                F.to_json(F.struct((n * 2).alias("n"))).alias("payload"),
                F.create_map(F.lit("k"), F.lit("v")).alias("headers"),
                F.expr("INTERVAL '1' SECOND").alias("delay"),
            ),
            "same": F.col("in"),
            "bytes": F.encode(n.cast("string"), "utf-8"),
        }

    names = ("number", "struct", "message", "same", "bytes", "nothing")
    processor = Processor(work, in_={"in": Input("q")}, out={name: Place(name) for name in names})
    rows = frame(spark, [(message(str(n), "q", {"n": n}, {"h": "1"}),) for n in (1, 2)], "in")
    found = route(processor, provenance=False).output_messages(rows).collect()
    assert [(one.queue, json.loads(one.payload)) for one in found] == [
        ("number", 1), ("message", {"n": 2}), ("same", {"n": 1}), ("bytes", binary("MQ==")),
        ("number", 2), ("struct", {"n": 2}), ("message", {"n": 4}), ("same", {"n": 2}), ("bytes", binary("Mg==")),
    ]  # fmt: skip
    assert (found[1].delay, found[1].headers) == (1.0, {"k": "v"})
    assert (found[2].headers, found[2].id, found[2].mature) == ({"h": "1"}, None, None)


def test_frames_may_become_other_frames(spark):
    """Rows may be left out, and become several; a column that is kept shows their origin."""

    def work(process, df):
        words = F.split(F.try_variant_get(F.parse_json("in.payload"), "$", "string"), " ")
        each = df.where("in.id <> '2'").withColumn("word", F.explode(words))
        return each.select(F.struct("word").alias("out"), "provenance")

    rows = frame(spark, [(message("1", "q", '"a b"'),), (message("2", "q", '"c d"'),)], "in")
    found = outputs_of(route(Processor(work, in_={"in": Input("q")}, out={"out": Place("o")})), rows)
    hops = {"l/q": {"position": "1", "time": 1_356_998_400_000}}
    assert [(one["word"], json.loads(headers["x-provenance"])) for _, one, headers in found] == [
        ("a", hops),
        ("b", hops),
    ]


@pytest.mark.parametrize(
    ("function", "wrong"),
    [
        (lambda p, df: 3, "returns 3, which is neither a DataFrame nor a dict of Columns by output"),
        (lambda p, df: df, r"returns no column 'out', which is an output; it has in, delivery_hash, provenance"),
        (lambda p, df: {"outt": F.lit(1)}, r"returns 'outt', which is not one of the outputs; did you mean 'out'\?"),
        (lambda p, df: {"out": F.current_date()}, "its output 'out' is date, which has no form in JSON"),
        (lambda p, df: {"out": F.col("nobody")}, "UNRESOLVED_COLUMN"),
        (lambda p, df: df.select("nobody"), "UNRESOLVED_COLUMN"),
    ],
)
def test_functions_that_cannot_work_are_refused_at_the_start(spark, function, wrong):
    processor = Processor(function, in_={"in": Input("q")}, out={"out": Place("o")})
    with pytest.raises(GraphError, match=wrong):
        outputs_of(route(processor), frame(spark, [], "in"))


# --- where it comes from --------------------------------------------------------------------------


def test_provenance_is_merged_from_all_inputs(spark):
    hops = {"l/s": {"position": "0", "time": 5}, "l/a": {"position": "old", "time": 1}}
    before = {"x-provenance": json.dumps(hops)}
    rows = frame(
        spark,
        [
            (message("1", "a", 1, before), message("2", "b", 2, {"x-provenance": "no JSON"})),
            (message("3", "a", 3), None),
        ],
        "a",
        "b",
    )
    processor = Processor(
        lambda process, got: {"out": Output(1, {"x-provenance": "mine", "by": "me"})},
        in_={"a": Input("a"), "b": Input("b")}, out={"out": Place("o")}, rows=True,
    )  # fmt: skip
    found = [headers for _, _, headers in outputs_of(route(processor), rows)]
    one, two, three = ({"position": id, "time": 1_356_998_400_000} for id in "123")
    assert [json.loads(one["x-provenance"]) for one in found] == [
        {"l/s": hops["l/s"], "l/a": one, "l/b": two}, {"l/a": three}]  # fmt: skip
    assert {one["by"] for one in found} == {"me"}
    assert [one for _, _, one in outputs_of(route(processor, provenance=False), rows)] == [
        {"x-provenance": "mine", "by": "me"}] * 2  # fmt: skip


# --- errors ---------------------------------------------------------------------------------------


def fails(process, messages):
    n = messages["in"].payload["n"]
    with wrap_error(n=n, type="odd"):
        if n % 2:
            raise ValueError(f"{n} is odd")
    return {"out": {"n": float("nan") if n == 2 else n}, **({"outt": 1} if n == 4 else {})}


def test_a_row_that_fails_goes_to_the_error_queue(spark):
    processor = Processor(
        fails, in_={"in": Input("q")}, out={"out": Place("o")}, rows=True, errors=Place("errors"), opts={"x": 1}
    )
    rows = frame(spark, [(message(str(n), "q", {"n": n}),) for n in (1, 2, 4, 6)], "in")
    found = outputs_of(route(processor), rows)
    assert [queue for queue, _, _ in found] == ["errors", "errors", "errors", "o"]
    odd, unwritten, unknown = (payload for _, payload, _ in found[:3])
    assert (odd["type"], odd["n"], odd["cause"]["cause"]) == ("odd", 1, "1 is odd")
    assert odd["messages"] == {"l/q": {"id": "1", "payload": {"n": 1}, "headers": {}}}
    assert odd["config"]["errors"] == "l/errors"
    assert (unwritten["type"], unwritten["messages"]["l/o"]["payload"]) == ("processor", {"n": "nan"})
    assert "returns 'outt', which is not one of the outputs; did you mean 'out'?" in unknown["cause"]["cause"]
    assert "l/q" in json.loads(found[0][2]["x-provenance"])


def test_a_row_that_fails_without_an_error_queue_fails_the_batch(spark):
    processor = Processor(fails, in_={"in": Input("q")}, out={"out": Place("o")}, rows=True)
    with pytest.raises(PythonException, match="1 is odd"):
        outputs_of(route(processor), frame(spark, [(message(str(n), "q", {"n": n}),) for n in (6, 1)], "in"))
