"""Text of a file or a caller keeps its mark wherever it goes, and text of a program has none."""

from __future__ import annotations

import copy
import json
import logging
import pickle
from dataclasses import replace

import pytest
from pyspark.sql import functions as F

from spark_queue.graph.exchange import Destination, Exchange
from spark_queue.graph.loader import parse_graph
from spark_queue.graph.model import Graph, Namespace
from spark_queue.graph.parts import FROM_FILE, FROM_HTTP, ForeignSql
from spark_queue.graph.validation import check_graph, with_step
from spark_queue.runner.declared import parse_declaration
from spark_queue.runner.exchange import ExchangeStep
from spark_queue.runner.link import LinkStep

ATTACK = """(MAP 1 USING 'sh -c "id > /tmp/x; echo 1"' AS o) = '1'"""

FILE = {
    "namespaces": {"a": "sqlite:///q.db"},
    "exchanges": {"e": {"src": "q", "dst": [{"queue": "b", "selector": ATTACK, "set": {"headers": {"h": ATTACK}}}]}},
    "links": {"l": {"src": "p", "drop": ATTACK}},
}


def from_file():
    return parse_graph(json.dumps(FILE), "g.json", {}.__getitem__)


def foreign(graph):
    [to] = graph.exchanges["e"].dst
    return [to.selector, to.set.headers["h"], graph.links["l"].drop]


@pytest.mark.parametrize(
    "change",
    [
        lambda graph: graph,
        check_graph,
        lambda graph: check_graph(replace(graph, max_hops=3)),
        lambda graph: with_step(graph, "x", Exchange("o", [Destination("p2")])),
        lambda graph: pickle.loads(pickle.dumps(graph)),
        copy.deepcopy,
    ],
)
def test_text_of_a_file_keeps_its_mark(change):
    assert [(type(one), one.origin) for one in foreign(change(from_file()))] == [(ForeignSql, FROM_FILE)] * 3


def test_text_of_a_caller_has_one_and_that_of_a_program_has_none():
    graph = Graph({"a": Namespace("sqlite:///q.db")})
    declared = parse_declaration(graph, "e", {"src": "a/q", "dst": [{"queue": "b", "selector": "id = 'x'"}]})
    for one in (declared, with_step(graph, "e", declared).exchanges["e"]):
        selector = one.dst[0].selector
        assert isinstance(selector, ForeignSql) and selector.origin == FROM_HTTP
    own = check_graph(replace(graph, exchanges={"e": Exchange("q", [Destination("b", selector="f(id)")])}))
    assert type(own.exchanges["e"].dst[0].selector) is str


@pytest.mark.parametrize("kind", [ExchangeStep, LinkStep])
def test_a_step_of_a_file_does_not_start_with_what_is_not_listed(spark, kind):
    graph = from_file()
    name, step = ("e", graph.exchanges["e"]) if kind is ExchangeStep else ("l", graph.links["l"])
    said = [one.text for one in kind(spark, name, step, graph).mistakes]
    assert len([one for one in said if "a query is not one of them" in one]) == (2 if kind is ExchangeStep else 1)


def test_a_program_may_use_any_function(spark):
    spark.udf.register("own_function", lambda text: True, "boolean")
    graph = check_graph(
        Graph(
            {"a": Namespace("sqlite:///q.db")},
            exchanges={"e": Exchange("q", [Destination("b", selector="own_function(id)")])},
        )
    )
    assert ExchangeStep(spark, "e", graph.exchanges["e"], graph).mistakes == []


def test_with_spark_connect_a_file_has_the_quick_check_and_a_caller_is_refused(spark, monkeypatch, caplog):
    monkeypatch.setattr("spark_queue.runner.selector.can_check", lambda spark: False)
    graph = Graph({"a": Namespace("sqlite:///q.db")})
    declaration = {"src": "a/q", "dst": [{"queue": "b", "selector": "id = 'x'"}]}
    [mistake] = ExchangeStep(spark, "e", parse_declaration(graph, "e", declaration), graph).mistakes
    assert "Spark Connect has no check" in mistake.text
    graph = parse_graph(
        json.dumps({"namespaces": {"a": "sqlite:///q.db"}, "exchanges": {"e": declaration}}), "g.json", {}.__getitem__
    )
    with caplog.at_level(logging.WARNING):
        assert ExchangeStep(spark, "e", graph.exchanges["e"], graph).mistakes == []
    assert "is checked as text only, since this session is one of Spark Connect" in caplog.text


def test_a_change_that_grows_from_destination_to_destination_fails_when_it_is_large(spark, monkeypatch):
    """Each change triples the payload: after twenty of them, six bytes would be 20 GB."""
    monkeypatch.setattr("spark_queue.runner.selector.MAX_RESULT", 1_000)  # a constant of the sandbox
    graph = Graph({"a": Namespace("sqlite:///q.db")})
    change = {"payload": "parse_json(concat('[', payload, ',', payload, ',', payload, ']'))"}
    dst = [{"queue": f"b{n}", "set": {**change, "headers": {"h": "repeat(coalesce(headers['h'], 'x'), 3)"}}}
           for n in range(8)]  # fmt: skip
    step = ExchangeStep(spark, "e", parse_declaration(graph, "e", {"src": "a/q", "dst": dst}), graph)
    assert step.mistakes == []
    message = spark.sql("SELECT 'i' id, 'q' queue, '[1,22]' payload, map() headers, now() mature, 0 tries")
    copies = step.copies(message.withColumn("headers", F.col("headers").cast("map<string,string>"))).collect()
    sizes = [len(one["payload"]) for one in copies]
    assert sizes[0] < sizes[1] and 300 < max(sizes) <= 1_000 and len(sizes) < len(dst)
