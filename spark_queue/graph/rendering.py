"""Drawings of a graph: for Graphviz, and as a tree of text.

Queues are boxes, exchanges boxes with round corners, and links hexagons. Processors are components
with their kind, and sources are arrows. An edge shows the selector of its destination, or the name
of a processor's input or output. A dashed edge is for errors, and for messages without a route.
Cycles are bold. Sizes of queues and counts of messages are shown if they are known.
"""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping
from html import escape
from importlib.util import find_spec
from typing import Any, Protocol

import graphviz

from spark_queue.errors import UsageError
from spark_queue.graph.model import Graph, sections
from spark_queue.graph.parts import Place
from spark_queue.graph.step import Edge, Step


class CountsByState(Protocol):
    """The numbers of messages of a queue, by state."""

    @property
    def ready(self) -> int:
        """Messages that are due and free."""

    @property
    def scheduled(self) -> int:
        """Messages that are due later."""

    @property
    def reserved(self) -> int:
        """Messages under a lease."""


class StepTraffic(Protocol):
    """The numbers of messages that a step has received and pushed.

    `pushed`: by destination (`ns/queue`). For each counter in `Step.unrouted_queues` there is a
    property of that name.
    """

    @property
    def received(self) -> int: ...  # noqa: D102

    @property
    def pushed(self) -> Mapping[str, int]: ...  # noqa: D102


#: The sizes of queues, and the traffic of steps by name, if they are known.
SizesByQueue = Mapping[Place, CountsByState]
TrafficByStep = Mapping[str, StepTraffic]

#: The states of messages that a picture counts.
COUNTED_STATES = ("ready", "scheduled", "reserved")

#: The maximum length of a selector in a tree and in a drawing, and of its lines in a drawing.
LONGEST_SELECTOR, LONGEST_DRAWN_SELECTOR, LABEL_WIDTH = 40, 120, 18

#: The maximum width in pixels of a drawing that is readable in a page.
PAGE_WIDTH = 800

#: Colors of queues, by namespace.
NAMESPACE_COLORS = ("#e3edf7", "#e6f3e2", "#f3e6f1", "#f6f1d5", "#e2f1f0", "#f1e7df")

#: A program that draws without the programs of Graphviz. It runs in another process, because the
#: libraries of Graphviz write warnings to stderr.
PYGRAPHVIZ_PROGRAM = """
import pygraphviz, sys
sys.stdout.buffer.write(pygraphviz.AGraph(sys.stdin.read()).draw(format="svg", prog="dot"))
"""


def dot(
    graph: Graph, sizes: SizesByQueue | None = None, traffic: TrafficByStep | None = None, *, direction: str = "LR"
) -> graphviz.Digraph:
    """Return the graph as a drawing for Graphviz; `.source` is its text.

    `direction`: `LR`, from left to right, or `TB`, from top to bottom.
    """
    sizes, traffic = sizes or {}, traffic or {}
    looks = {"rankdir": direction, "bgcolor": "white", "nodesep": "0.12", "ranksep": "0.25"}
    made = graphviz.Digraph("exchanges", graph_attr=looks)
    font = {"fontname": "Helvetica,Arial,sans-serif"}
    made.attr("node", **font, fontsize="13", style="filled", color="#5b6770", margin="0.08,0.04", height="0.3")
    made.attr("edge", **font, fontsize="12", fontcolor="#374151", color="#5b6770", arrowsize="0.7")
    colors = dict(zip(graph.namespaces, NAMESPACE_COLORS * len(graph.namespaces), strict=False))
    for place in _queues_to_draw(graph, sizes, traffic):
        small = f'<font point-size="10" color="#52606d">{escape(place.ns)}/</font>'
        lines = [small, f"<b>{escape(place.queue)}</b>", _sizes_text(place, sizes)]
        label = "<br/>".join(filter(None, lines))
        made.node(_node_id(place), f"<{label}>", shape="box", fillcolor=colors[place.ns])
    loops = graph.cyclic_destinations()
    taken = {one.place for step in graph.steps.values() for one in step.edges_in()}
    bold = {"penwidth": "2.2", "color": "#c2410c"}
    for name, step in graph.all_steps.items():
        form, color, style = step.outline
        text = f"{name}\n{step.caption}" if step.caption else name
        made.node(f"x {name}", graphviz.escape(text), shape=form, style=style, fillcolor=color)
        inputs, outputs = step.edges_in(), [*step.edges_out(), *_unrouted_edges(name, step, traffic)]
        received = f"{traffic[name].received:,}" if name in traffic and len(inputs) == 1 else ""
        cyclic = loops.get(name, ())
        for one in inputs:
            text = _edge_label(received, [one.name])
            made.edge(_node_id(one.place), f"x {name}", label=text, **(bold if cyclic else {}))
        last = [one.place for one in outputs if one.place not in taken]
        lower = set(last[1::2]) if direction == "TB" else set()  # two rows are narrower
        for one in outputs:
            looks = dict(bold) if _is_cyclic(one, cyclic) else {}
            looks |= {} if one.role == "out" else {"style": "dashed"}
            looks |= {"minlen": "3"} if one.place in lower else {}
            pushed = _pushed_text(traffic, name, step, one.place)
            text = _edge_label(pushed, _wrap_label(_edge_text(one, LONGEST_DRAWN_SELECTOR)))
            made.edge(f"x {name}", _node_id(one.place), label=text, **looks)
    return made


def svg(graph: Graph, sizes: SizesByQueue | None = None, traffic: TrafficByStep | None = None) -> str:
    """Return the graph as SVG, in the direction that fits into a page. Needs Graphviz.

    Raises `UsageError` if neither the program `dot` nor the package `pygraphviz` is installed.
    """
    drawn = [_render_svg(dot(graph, sizes, traffic, direction=one)) for one in ("TB", "LR")]
    return min(drawn, key=lambda one: (max(one[0], PAGE_WIDTH), one[1]))[2]


def _render_svg(made: graphviz.Digraph) -> tuple[int, int, str]:
    """Return the width and height of a drawing in pixels, and its SVG.

    Its letters are as large as those of a page. Raises `UsageError` if Graphviz is not installed.
    """
    try:
        text = str(made.pipe("svg", encoding="utf-8"))
    except graphviz.ExecutableNotFound:
        if find_spec("pygraphviz") is None:
            raise UsageError(
                "SVG needs Graphviz: install it (apt-get install graphviz, brew install graphviz, or pip install "
                "pygraphviz), or choose another format"
            ) from None
        run = [sys.executable, "-c", PYGRAPHVIZ_PROGRAM]
        done = subprocess.run(run, input=made.source.encode(), check=True, capture_output=True)
        text = done.stdout.decode()
    width, height = map(int, re.findall(r'(?:width|height)="(\d+)pt"', text)[:2])
    return width, height, re.sub(r'="(\d+)pt"', r'="\1"', text, count=2)


def to_json(graph: Graph, sizes: SizesByQueue | None = None) -> dict[str, Any]:
    """Return the graph as a JSON object, without URLs."""
    loops = graph.cyclic_destinations()
    sizes = sizes or {}
    return {
        "queues": [{"queue": str(place), **_counts(place, sizes)} for place in _queues_to_draw(graph, sizes, {})],
        **{
            section: [
                {"name": name, **one.to_json(loops.get(name, ()))} for name, one in getattr(graph, section).items()
            ]
            for section in sections(graph)
        },
        "max_hops": graph.max_hops,
    }


def tree(graph: Graph, sizes: SizesByQueue | None = None) -> Iterator[tuple[int, str]]:
    """Yield the graph as lines of text with their depths.

    Below a queue are the steps that read it, and below a step its destinations. A step with several
    inputs is below the first one, and names the others.
    """
    sizes = sizes or {}
    loops, steps = graph.cyclic_destinations(), graph.all_steps
    inputs = {name: [one.place for one in step.edges_in()] for name, step in steps.items()}
    for name, step in steps.items():
        if not inputs[name]:
            yield 0, _tree_text(name, step)
            yield from _destination_lines(step, 1, loops.get(name, ()), sizes)
    sources = dict.fromkeys(place for places in inputs.values() for place in places[:1])
    for src in sources:
        yield 0, _queue_text(src, sizes)
        for name, step in steps.items():
            if inputs[name][:1] != [src]:
                continue
            others = " and ".join(map(str, inputs[name][1:]))
            how = "with" if step.needs_all else "or from"
            yield 1, f"{_tree_text(name, step)}{f', {how} {others}' if others else ''}"
            yield from _destination_lines(step, 2, loops.get(name, ()), sizes)
    shown = {*sources, *(one.place for step in steps.values() for one in step.edges_out())}
    for place in _queues_to_draw(graph, sizes, {}):
        if place not in shown:
            yield 0, _queue_text(place, sizes)


def _destination_lines(
    step: Step, depth: int, cyclic: Collection[Place], sizes: SizesByQueue
) -> Iterator[tuple[int, str]]:
    for one in step.edges_out():
        parts = [f"→ {_queue_text(one.place, sizes)}"]
        parts += ["if"] if one.selector else []
        parts += filter(None, [_edge_text(one._replace(name="")), "errors" if one.role == "errors" else ""])
        parts += ["↻ cycle"] if _is_cyclic(one, cyclic) else []
        yield depth, " ".join(parts)


def _is_cyclic(arrow: Edge, cyclic: Collection[Place]) -> bool:
    """Return whether a message that a step writes there can come back to it."""
    return arrow.role == "out" and arrow.place in cyclic


def _queues_to_draw(graph: Graph, sizes: SizesByQueue, traffic: TrafficByStep) -> list[Place]:
    """Return the queues to draw; a queue for messages without a route only if it has some."""
    filled = [one for one in graph.unrouted_queues() if any(_counts(one, sizes).values())]
    lost = [one.place for name, step in graph.steps.items() for one in _unrouted_edges(name, step, traffic)]
    return list(dict.fromkeys([*graph.queues(), *filled, *lost]))


def _tree_text(name: str, step: Step) -> str:
    return f"{name} ({step.title})" if step.title else name


def _unrouted_edges(name: str, step: Step, traffic: TrafficByStep) -> list[Edge]:
    """Return edges to the queues of messages that a step could not pass on, if there were some."""
    if name not in traffic:
        return []
    return [Edge(place, "lost") for place, counter in step.unrouted_queues.items() if getattr(traffic[name], counter)]


def _pushed_text(traffic: TrafficByStep, name: str, step: Step, to: Place) -> str:
    """Return the number of messages that a step has written to a queue, or an empty text."""
    if name not in traffic:
        return ""
    counter = step.unrouted_queues.get(to)
    number = getattr(traffic[name], counter) if counter else traffic[name].pushed.get(str(to))
    return "" if number is None else f"{number:,}"


def _edge_text(arrow: Edge, longest: int = LONGEST_SELECTOR) -> str:
    """Return the text of an edge: its name, its selector, and the fields that change."""
    selector = arrow.selector if len(arrow.selector) <= longest else arrow.selector[: longest - 1] + "…"
    changes = f"[sets {', '.join(arrow.changed_fields)}]" if arrow.changed_fields else ""
    return " ".join(filter(None, [arrow.name, selector, changes]))


def _counts(place: Place, sizes: SizesByQueue) -> dict[str, int]:
    """Return the numbers of messages of a queue by state; empty if they are unknown."""
    return {word: getattr(sizes[place], word) for word in COUNTED_STATES} if place in sizes else {}


def _sizes_text(place: Place, sizes: SizesByQueue) -> str:
    """Return `1,200 ready, 3 reserved`, or an empty text if the sizes are unknown."""
    if place not in sizes:
        return ""
    counts = _counts(place, sizes)
    return ", ".join(f"{number:,} {word}" for word, number in counts.items() if number) or "empty"


def _queue_text(place: Place, sizes: SizesByQueue) -> str:
    """Return the name of a queue, with its sizes in parentheses if they are known."""
    return f"{place} ({_sizes_text(place, sizes)})" if place in sizes else str(place)


def _node_id(place: Place) -> str:
    return f"q {place}".replace(":", "_")  # a colon would name a port


def _wrap_label(label: str) -> list[str]:
    """Return the lines of a label: the selector, which may break before `::`, and the changes."""
    selector, mark, names = label.replace("::", " ::").partition("[sets")
    lines = textwrap.wrap(selector, LABEL_WIDTH, break_long_words=False, break_on_hyphens=False)
    return [*(one.replace(" ::", "::") for one in lines), *([mark + names] if mark else [])]


def _edge_label(number: str, lines: Iterable[str]) -> str:
    """Return the label of an edge as HTML, aligned left, with the number in bold."""
    shown = [*([f"<b>{number}</b>"] if number else []), *(escape(one) for one in lines if one)]
    text = "".join(f'&#160;{one}&#160;<br align="left"/>' for one in shown)
    return f"<{text}>" if text else ""
