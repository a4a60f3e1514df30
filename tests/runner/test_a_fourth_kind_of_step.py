"""Another kind of step is one file and one field of a graph; no other code knows the kinds."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from textwrap import dedent
from typing import Any, ClassVar, Self, get_args

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_queue import ExchangeGraph, GraphError, Queue
from spark_queue.graph import file_mistakes, rendering, validation
from spark_queue.graph.file_mistakes import Mistake
from spark_queue.graph.loader import load_graph, parse_graph
from spark_queue.graph.model import STEPS, Graph, Namespace, step_classes
from spark_queue.graph.parts import (
    DECLARATION_CONFIG,
    ConsumerSettings,
    FieldPath,
    Place,
    PlaceOrText,
    StepName,
    get_field,
)
from spark_queue.graph.processor import Kind
from spark_queue.graph.step import Outline, QueueReference, SingleSourceStep, Step
from spark_queue.options.values import EXACTLY_ONCE
from spark_queue.runner import graph as runner_graph
from spark_queue.runner.step import RunnableStep


@dataclass(frozen=True)
class Tap(SingleSourceStep):
    """Copies each message of a queue to another, with where it came from."""

    __pydantic_config__ = DECLARATION_CONFIG

    section: ClassVar[str] = "taps"
    noun: ClassVar[str] = "tap"
    runner: ClassVar[str] = f"{__name__}:TapStep"
    guarantee: ClassVar[str] = EXACTLY_ONCE
    outline: ClassVar[Outline] = Outline("invhouse", "#ffffff", "filled")

    src: PlaceOrText
    to: PlaceOrText
    consumer: ConsumerSettings = field(default_factory=ConsumerSettings)
    options: dict[str, str] = field(default_factory=dict)
    every: int = 0

    @property
    def dst(self) -> list[Place]:
        return [self.to]

    @classmethod
    def queue_references(cls, raw: Any) -> Iterator[QueueReference]:
        yield from super().queue_references(raw)
        yield QueueReference(("to",), get_field(raw, "to"), namespace_required=False)

    def with_defaults(self, name: str, default_namespace: str, errors: Place | None) -> Self:
        src = replace(self.src, ns=self.src.ns or default_namespace)
        return replace(self, src=src, to=replace(self.to, ns=self.to.ns or src.ns))

    def contradictions(self) -> Iterator[tuple[FieldPath, str]]:
        if self.to.queue == self.src.queue:
            yield ("to",), "this is the source of the tap: name another queue"


class TapStep(RunnableStep[Tap]):
    """Runs it."""

    def _build(self, spark: SparkSession, *, readable: bool) -> list[Mistake]:
        return []

    def pipeline(self, messages: DataFrame) -> tuple[DataFrame, dict[str, str]]:
        headers = F.create_map(F.lit("from"), F.lit(str(self.step.src)))
        copies = messages.select(
            F.lit(self.step.to.ns).alias("ns"),
            F.lit(self.step.to.queue).alias("queue"),
            "payload",
            headers.alias("headers"),
        )
        return copies, self._push_options(exactly_once=True)

    def batch_metrics(self, progress: Mapping[str, Any]) -> dict[str, Any] | None:
        return {"received": progress["numInputRows"], "pushed_0": progress["numInputRows"]}


@dataclass(frozen=True)
class TapGraph(Graph):
    """A graph with one more field."""

    taps: dict[StepName, Tap] = field(default_factory=dict, metadata=STEPS)


def test_a_fourth_kind_of_step_runs_beside_the_others(spark, sqlite_url, tmp_path):
    with Queue(sqlite_url, "a") as queue:
        queue.push_many([1, 2, 3])
    one, two = Tap(Place("a", "l"), Place("b", "l")), Tap(Place("b", "l"), Place("c", "l"))
    graph = ExchangeGraph(
        TapGraph({"l": Namespace(sqlite_url)}, taps={"one": one, "two": two}), f"{tmp_path}/checkpoints"
    )
    graph.drain(spark)
    found = graph.status()
    assert {name: (one.state, one.traffic.received) for name, one in found.items()} == {
        "one": ("finished", 3), "two": ("finished", 3),
    }  # fmt: skip
    assert [(one.payload, one.headers) for one in graph.messages("l/c")] == [(n, {"from": "l/b"}) for n in (1, 2, 3)]
    graph.remove("two")
    graph.add("three", Tap(Place("c", "l"), Place("d", "l")))
    graph.drain(spark)
    assert [one.payload for one in graph.messages("l/d")] == [1, 2, 3]


# --- read, checked and drawn ----------------------------------------------------------------------

FILE = """\
namespaces: {l: "sqlite:///q.db", m: "sqlite:///m.db"}
exchanges: {split: {src: l/a, dst: [b]}}
taps:
  one: {src: l/b, to: c}
  two: {src: l/c, to: m/a}
"""


def test_it_is_declared_in_a_file(tmp_path):
    file = tmp_path / "graph.yaml"
    file.write_text(FILE)
    graph = load_graph(file, graph_class=TapGraph)
    assert isinstance(graph, TapGraph)
    assert graph.taps == {
        "one": Tap(Place("b", "l"), Place("c", "l")), "two": Tap(Place("c", "l"), Place("a", "m")),
    }  # fmt: skip
    assert [list(graph.steps), list(map(str, graph.queues()))] == [
        ["split", "one", "two"], ["l/a", "l/b", "l/c", "m/a"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("right", "wrong", "expected"),
    [
        ("to: c", "too: c", "line 4, tap 'one': 'to' is missing"),
        ("to: c", "too: c", "line 4, tap 'one', too: unknown key; did you mean 'to'?"),
        ("to: c", "to: {queue: c, nss: m}", "line 4, tap 'one', to.nss: unknown key; did you mean 'ns'?"),
        ("l/b, to", "k/b, to", "line 4, tap 'one', src: unknown namespace 'k'; the graph has 'l', 'm'"),
        ("m/a", "k/a", "line 5, tap 'two', to: unknown namespace 'k'; the graph has 'l', 'm'"),
        ("src: l/c", "src: c",
         "line 5, tap 'two', src: the namespace is missing: write namespace/queue; the graph has 'l', 'm'"),
        ("to: c", "to: c, every: soon", "line 4, tap 'one', every: must be a whole number"),
        ("to: c", "to: c, options: {url: x}",
         "line 4, tap 'one', options.url: this option is not allowed here: set the URL of the namespace instead"),
        ("to: c", "to: b", "line 4, tap 'one', to: this is the source of the tap: name another queue"),
        ("two:", "split:", "line 5, tap 'split': an exchange has the same name: rename one"),
        ("two:", "one:", "line 5, tap 'one': this key is declared twice, first in line 4"),
        ("taps:", "taps: &a\n  x: {src: *a}", "line 4, tap 'x', src: this anchor contains itself"),
        ("taps:", "processors: {p: {in: l/b, fn: 'm:f'}}\ntaps:",
         "line 3, processor 'p', in.b: tap 'one' reads the same queue, and each message would go to only one of "
         "them: to share it, use processors with {queue: …, mode: log}"),
    ],
)  # fmt: skip
def test_a_mistake_in_it_is_reported_with_its_section_and_name(right, wrong, expected):
    with pytest.raises(GraphError) as caught:
        parse_graph(FILE.replace(right, wrong), "graph.yaml", str, graph_class=TapGraph)
    assert expected in caught.value.mistakes


def test_it_is_drawn():
    graph = parse_graph(FILE, "", str, graph_class=TapGraph)
    assert "x one" in (source := rendering.dot(graph).source)
    assert source.count("shape=invhouse") == 2
    assert '"q l/b" -> "x one"' in source and '"x two" -> "q m/a"' in source
    assert [text for _, text in rendering.tree(graph)] == [
        "l/a", "split", "→ l/b", "l/b", "one (tap)", "→ l/c", "l/c", "two (tap)", "→ m/a",
    ]  # fmt: skip
    assert rendering.to_json(graph)["taps"] == [
        {"name": "one", "src": "l/b", "dst": [{"queue": "l/c", "cycle": False}]},
        {"name": "two", "src": "l/c", "dst": [{"queue": "m/a", "cycle": False}]},
    ]


def test_it_is_in_the_topology():
    made = parse_graph(FILE, "", str, graph_class=TapGraph).topology()
    assert {name: made.nodes[name]["kind"] for name in ("split", "one", "two")} == {
        "split": "exchange", "one": "tap", "two": "tap",
    }  # fmt: skip
    assert made.edges["l/b", "one"]["role"] == "in" and made.edges["one", "l/c"]["role"] == "out"
    turned = parse_graph(FILE.replace("m/a", "l/b"), "", str, graph_class=TapGraph)
    assert turned.cycles() == [["one", "two"]]


# --- no other code knows the kinds ----------------------------------------------------------------

#: What handles steps of any kind. The model knows only which fields it has.
ANY_KIND = [validation, rendering, file_mistakes, runner_graph]

#: Names of kinds in code, words for them as whole strings, and attributes that not every step has.
CLASSES = {kind.__name__ for kind in step_classes(Graph).values()}
MODULES = {kind.__module__ for kind in step_classes(Graph).values()}
WORDS = set(step_classes(Graph)) | {kind.noun for kind in step_classes(Graph).values()} | set(get_args(Kind))
OF_STEPS = {node.name for node in ast.walk(ast.parse(inspect.getsource(Step))) if isinstance(node, ast.FunctionDef)}
OF_ALL = OF_STEPS | ({one.name for one in fields(Graph)} - set(step_classes(Graph)))
OWN = set(step_classes(Graph)) | (
    {one.name for kind in step_classes(Graph).values() for one in fields(kind)} - OF_ALL
)


def kinds_named(source: str) -> list[str]:
    """Return the kinds that a source names, and the attributes of one kind; docstrings may."""
    tree = ast.parse(source)
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.alias(name=name) if name in CLASSES:
                found.append(name)
            case ast.ImportFrom(module=str(name)) if name in MODULES:
                found.append(name)
            case ast.Attribute(attr=name) | ast.keyword(arg=str(name)) if name in OWN:
                found.append(name)
            case ast.Constant(value=str(name)) if name in WORDS and id(node) not in prose:
                found.append(name)
    return found


@pytest.mark.parametrize("module", ANY_KIND, ids=lambda module: module.__name__)
def test_what_handles_steps_names_no_kind_of_them(module):
    source = inspect.getsource(module)
    assert kinds_named(source.replace('Digraph("exchanges"', 'Digraph("any"')) == [], "a drawing is called so"


@pytest.mark.parametrize(
    "planted",
    [
        "from spark_queue.graph.model import Graph, Link",
        "from spark_queue.graph.processor import parse_bindings",
        "if isinstance(step, graph_model.Processor | Exchange): ...",
        "KINDS = {'exchanges': 1}",
        "match path:\n    case ('links', name): ...",
        "for one in graph.exchanges.values(): ...",
        "replace(graph, links={})",
        "how = 'or from' if step.alts else 'with'",
        "source = step.kind == 'source'",
    ],
)
def test_a_kind_that_is_named_is_seen(planted):
    assert kinds_named(planted)


@pytest.mark.parametrize("method", ["queues", "unrouted_queues", "cycles", "cyclic_destinations", "topology"])
def test_a_graph_asks_each_step(method):
    assert kinds_named(dedent(inspect.getsource(getattr(Graph, method)))) == []
