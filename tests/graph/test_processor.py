"""Processors as they are declared: their kinds, what is wrong with one, the shape of a graph."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import networkx as nx
import pytest

from spark_queue import GraphError, Message, Output, ProcessorContext
from spark_queue.graph.loader import load_graph, parse_graph
from spark_queue.graph.model import (
    ConsumerSettings,
    Destination,
    Exchange,
    Graph,
    Input,
    Namespace,
    Place,
    Processor,
    isomorphic,
)
from spark_queue.graph.validation import check_graph, with_step, without_step
from spark_queue.runner.selector import load_function


def no_secret(name):
    raise KeyError("it is not set")


def mistakes(text):
    with pytest.raises(GraphError) as caught:
        parse_graph(text, "conf/x.yaml", no_secret)
    return caught.value.mistakes


FILE = """\
namespaces: {local: sqlite:///queues.db, air: redis://host/0}
system: {limit: 60}
errors: local/errors
processors:
  s1: {out: local/s1}
  s2: {out: local/s2}
  add:
    in: {left: local/s1, right: {queue: s2, ns: local, mode: log}}
    out: {sum: sums, copy: air/copies}
    fn: work.numbers:add
    rows: true
    types: doc
    topics: [a, b]
    opts: {by: 2}
    every: 5s
    delivery: at-least-once
    consumer: {parallel: 4}
    options: {waitTimeout: 1s}
  store: {in: sums, fn: work.numbers:store}
"""


def test_a_file_declares_processors():
    graph = parse_graph(FILE.replace("in: sums", "in: local/sums"), "conf/x.yaml", no_secret)
    assert graph.processors["add"] == Processor(
        "work.numbers:add",
        {"left": Input("s1", "local"), "right": Input("s2", "local", mode="log")},
        out={"sum": Place("sums", "local"), "copy": Place("copies", "air")},
        rows=True,
        errors=Place("errors", "local"),
        types=["doc"],
        topics=["a", "b"],
        delivery="at-least-once",
        opts={"by": 2},
        consumer=ConsumerSettings(4),
        every=5_000,
        options={"waitTimeout": "1s"},
    )
    assert graph.processors["store"].in_ == {"sums": Input("sums", "local")}
    assert graph.processors["store"].errors is None, "the error queue of the graph is for functions on rows"
    assert {name: str(place) for name, place in graph.entries.items()} == {"s1": "local/s1", "s2": "local/s2"}
    assert [str(one) for one in graph.queues()] == [
        "local/s1", "local/s2", "local/sums", "air/copies", "local/errors"]  # fmt: skip
    assert graph.processors["add"].config() == {
        "in": {"left": "local/s1", "right": "local/s2"},
        "out": {"sum": "local/sums", "copy": "air/copies"},
        "types": ["doc"],
        "topics": ["a", "b"],
        "errors": "local/errors",
        "delivery": "at-least-once",
    }


def test_parse_processor_impl():
    """Cues' parse-processor-impl: the shape decides the kind."""
    i, o = Input("i"), Place("o")
    two, outs = {"a": i, "b": Input("i2")}, {"a": o, "b": Place("o2")}
    kinds = {
        "source": Processor(),
        "sink": Processor(in_={"i": i}),
        "pipe": Processor(in_={"i": i}, out={"o": o}),
        "join": Processor(in_=two, out={"o": o}),
        "alts": Processor(alts=two, out={"o": o}),
    }
    assert {one.kind for one in kinds.values()} == set(kinds)
    for kind, one in kinds.items():
        assert one.kind == kind
    forks = [Processor(in_={"i": i}, out=outs), Processor(in_=two, out=outs), Processor(alts=two, out=outs)]
    assert {one.kind for one in forks} == {"fork"}
    reads = {"t": i}
    imperative = [
        Processor(in_={"i": Input("j")}, appenders={"a": o}),
        Processor(tailers=reads),
        Processor(tailers=reads, appenders={"a": o}),
        Processor(tailers=reads, out={"o": o}),
    ]
    assert {one.kind for one in imperative} == {"imperative"}


def test_one_queue_and_lists_are_bound_to_their_names():
    text = "namespaces: {l: sqlite:///q.db}\nprocessors: {p: {in: [a, {queue: b, mode: log}], out: c, fn: m:f}}"
    made = parse_graph(text, "", no_secret).processors["p"]
    assert {name: str(one) for name, one in made.in_.items()} == {"a": "l/a", "b": "l/b"}
    assert [one.mode for one in made.in_.values()] == ["queue", "log"]
    assert made.out == {"c": Place("c", "l")}
    text = "namespaces: {l: sqlite:///q.db, m: sqlite:///r.db}\nprocessors: {p: {in: [l/a, m/a], fn: m:f}}"
    assert mistakes(text) == [
        "line 2, processor 'p', in: must be a mapping of names to queues, since two of these are called 'a'"
    ]


RIVAL = ", and each message would go to only one of them: to share it, use processors with {queue: …, mode: log}"


def test_all_mistakes_are_reported_at_once():
    text = """\
namespaces: {local: sqlite:///q.db}
exchanges:
  x: {src: shared, dst: [y]}
links: {x2: {src: somewhere, dst: []}}
processors:
  both: {in: {a: one}, alts: {b: two, c: three}, fn: m:f}
  one_alt: {alts: {b: four}, fn: m:f}
  no_fn: {in: {a: five}}
  same: {in: {a: six, b: six}, out: {c: seven, d: seven}, fn: m:f}
  x: {in: shared, fn: m:f}
  r1: {in: twice, fn: m:f}
  r2: {in: {a: {queue: twice, mode: log}}, fn: m:f}
  lonely: {fn: m:f}
  wide: {out: [e, f]}
  frame: {in: g, fn: m:f, errors: h, consumer: {reserve: false}}
  odd: {in: i, fun: m:f, delivery: once, options: {inputs: x}}
  hands: {tailers: {t: j}, out: [k, l], types: [q], fn: m:f}
  away: {in: locale/m, fn: "no function", out: {o: {queue: n, modus: log}}}
  payloads: {in: o, fn: m:f, options: {payloadFormat: variant}}
  payloads2: {in: p, fn: m:f, rows: true, options: {payloadFormat: variant}}
"""
    assert mistakes(text) == [
        "line 16, processor 'odd', delivery: must be one of exactly-once, at-least-once, at-most-once",
        "line 16, processor 'odd', fun: unknown key; did you mean 'fn'?",
        "line 18, processor 'away', fn: must be a function, or module:function",
        "line 18, processor 'away', in.m: unknown namespace 'locale'; did you mean 'local'?",
        "line 18, processor 'away', out.o.modus: unknown key; allowed are queue, ns",
    ]
    text = "\n".join(one for one in text.splitlines() if not one.startswith(("  odd", "  away")))
    assert mistakes(text) == [
        "line 6, processor 'both', alts: give either `in` (a message of every input) or `alts` (of one input), "
        "not both",
        "line 7, processor 'one_alt', alts: needs at least two queues: for one, use `in`",
        "line 8, processor 'no_fn': 'fn' is missing: the function, as module:function",
        "line 9, processor 'same', in.b: this is also the queue of 'a': name another",
        "line 9, processor 'same', out.d: this is also the queue of 'c': name another",
        "line 10, processor 'x': an exchange has the same name: rename one",
        "line 10, processor 'x', in.shared: exchange 'x' reads the same queue" + RIVAL,
        "line 11, processor 'r1', in.twice: processor 'r2' reads the same queue" + RIVAL,
        "line 12, processor 'r2', in.a: processor 'r1' reads the same queue" + RIVAL,
        "line 13, processor 'lonely', fn: the processor has no input: add `in`, `alts` or `tailers`",
        "line 14, processor 'wide', out: a source has one queue: keep one, or add an input",
        "line 15, processor 'frame', consumer.reserve: set delivery: at-most-once instead",
        "line 15, processor 'frame', errors: only functions on rows have an error queue: set `rows: true`, or leave "
        "this out",
        "line 16, processor 'hands', out: with `tailers` or `appenders` there is at most one output: move the "
        "others to `appenders`",
        "line 16, processor 'hands', types: the processor has no input to filter: leave this out",
        "line 18, processor 'payloads2', options.payloadFormat: this option is not allowed here: selectors and "
        "functions on rows read JSON",
    ]


def test_processors_with_a_cursor_each_may_share_a_queue():
    text = "namespaces: {l: sqlite:///q.db}\nprocessors:\n" + "".join(
        f"  p{n}: {{in: {{queue: all, mode: log}}, fn: m:f}}\n" for n in range(3)
    )
    assert [one.inputs["all"].mode for one in parse_graph(text, "", no_secret).processors.values()] == ["log"] * 3


def test_a_source_without_a_queue_has_one_of_its_name():
    graph = check_graph(Graph({"l": Namespace("sqlite:///q.db")}, processors={"orders": Processor()}))
    assert graph.entries == {"orders": Place("orders", "l")}
    assert list(graph.steps) == []
    two = {"l": Namespace("sqlite:///q.db"), "m": Namespace("sqlite:///r.db")}
    with pytest.raises(GraphError, match="'orders': the namespace is missing: write namespace/queue; the graph"):
        check_graph(Graph(two, processors={"orders": Processor()}))


def test_processors_come_and_go():
    graph = parse_graph(FILE.replace("in: sums", "in: local/sums"), "conf/x.yaml", no_secret)
    wider = with_step(graph, "more", Processor("m:f", in_={"a": Input("copies", "air")}))
    assert list(wider.processors) == [*graph.processors, "more"]
    assert without_step(wider, "more") == graph
    with pytest.raises(GraphError, match="there is no step 'mores'; did you mean 'more'"):
        without_step(wider, "mores")
    with pytest.raises(GraphError, match="there is no step 'x'; there are add, store, s1, s2"):
        without_step(graph, "x")
    with pytest.raises(GraphError, match=r"line 8, processor 'add', in\.left: processor 'more' reads the same"):
        with_step(graph, "more", Processor("m:f", in_={"a": Input("s1", "local")}))


# --- the shape of a graph -------------------------------------------------------------------------


def shape(prefix="", url="sqlite:///q.db", **changes):
    def at(*names, kind=Place):
        return {str(n): kind(prefix + name) for n, name in enumerate(names)}

    processors = {
        f"{prefix}s1": Processor(out=at("s1")),
        f"{prefix}s2": Processor(out=at("s2")),
        f"{prefix}join": Processor("m:f", in_=at("s1", "s2", kind=Input), out=at("q1", "q2"), rows=True),
        f"{prefix}sink": Processor("m:f", in_=at("q1", kind=Input), **changes),
    }
    return check_graph(Graph({"l": Namespace(url)}, processors=processors))


def test_topology():
    made = shape().topology()
    assert {node: made.nodes[node]["kind"] for node in made} == {
        "l/s1": "queue", "l/s2": "queue", "l/q1": "queue", "l/q2": "queue",
        "s1": "source", "s2": "source", "join": "fork", "sink": "sink",
    }  # fmt: skip
    assert set(made.edges) == {
        ("s1", "l/s1"), ("s2", "l/s2"), ("l/s1", "join"), ("l/s2", "join"),
        ("join", "l/q1"), ("join", "l/q2"), ("l/q1", "sink"),
    }  # fmt: skip
    assert isomorphic(shape(), shape("other.", "redis://host/0"))
    assert not isomorphic(shape(), shape(rows=True, errors=Place("errors")))
    assert not isomorphic(shape(), without_step(shape(), "sink"))


def test_deps_graph():
    """Cues' deps-graph: nodes, edges and the order in which messages flow."""
    made = shape().topology()
    order = list(nx.topological_sort(made))
    assert all(order.index(a) < order.index(b) for a, b in made.edges)
    assert list(check_graph(Graph({"l": Namespace("sqlite:///q.db")})).topology()) == []


def test_deps_in_and_out_node():
    """Cues' in-and-out-node: where messages come in, and where they end."""
    made = shape().topology()
    assert [node for node, degree in made.in_degree if not degree] == ["s1", "s2"]
    assert {node for node, degree in made.out_degree if not degree} == {"l/q2", "sink"}


def test_a_cycle_through_processors_is_seen():
    processors = {
        "there": Processor("m:f", in_={"a": Input("a"), "x": Input("x")}, out={"b": Place("b")}),
        "back": Processor("m:f", in_={"b": Input("b")}, out={"a": Place("a")}),
    }
    graph = check_graph(Graph({"l": Namespace("sqlite:///q.db")}, processors=processors))
    assert graph.cycles() == [["there", "back"]]
    assert graph.cyclic_destinations() == {"there": {Place("b", "l")}, "back": {Place("a", "l")}}


def test_exchanges_and_processors_are_one_graph():
    graph = Graph(
        {"l": Namespace("sqlite:///q.db")},
        {"x": Exchange(Place("a"), [])},
        processors={"p": Processor("m:f", in_={"b": Input("b")})},
    )
    assert list(check_graph(graph).steps) == ["x", "p"]


def test_the_example_of_conf(monkeypatch):
    conf = Path(__file__).parents[2] / "conf"
    monkeypatch.syspath_prepend(str(conf))
    graph = load_graph(conf / "runway.yaml")
    assert {name: one.kind for name, one in graph.processors.items()} == {
        "north": "source", "south": "source", "mean": "fork", "knots": "pipe", "alarm": "sink"}  # fmt: skip
    for one in graph.processors.values():
        assert one.fn is None or callable(load_function(one.fn))
    mean = import_module("runway").mean

    winds = {name: Message(name, name, {"wind": wind}) for name, wind in (("n", 60), ("s", 40))}
    made = mean(ProcessorContext("mean", system=graph.system), winds)
    assert made == {"mean": {"wind": 50.0}, "gusts": Output({"wind": 60}, {"by": "mean"})}


def test_a_graph_that_was_never_started_has_its_shape():
    """Its queues are bare texts, and its source has no name for its output."""

    def make(ns: str, raw: Any, *out: str) -> Graph:
        declared: Any = {"s": Processor(out=raw), "p": Processor(fn="os:getcwd", in_={"x": raw}, out=[*out])}
        return bare(ns, processors=declared)

    def bare(ns: str, **steps: Any) -> Graph:
        url: Any = {ns: "sqlite:///q.db"}
        return Graph(url, **steps)

    graph = make("a", "raw", "b", "c")
    assert graph.entries == {"s": Place("raw", "a")}
    assert set(graph.topology()) == {"a/raw", "a/b", "a/c", "s", "p"}
    renamed = make("z", "x", "d", "e")
    assert isomorphic(graph, renamed) and isomorphic(check_graph(graph), renamed)
    dst: Any = ["b", Destination("q")]
    src: Any = "q"
    exchange = bare("a", exchanges={"e": Exchange(src, dst)})
    assert list(map(str, exchange.queues())) == ["a/q", "a/b"] and exchange.cycles() == [["e"]]
    src = "b/q"
    with pytest.raises(GraphError, match="unknown namespace 'b'"):
        bare("a", exchanges={"e": Exchange(src, [])}).topology()
