"""Drawings of a graph: for Graphviz, for Mermaid, and as a tree of text.

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
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from importlib.util import find_spec
from typing import Any, Protocol

import graphviz

from spark_queue.errors import UsageError
from spark_queue.graph.model import Graph, sections
from spark_queue.graph.parts import Place
from spark_queue.graph.step import Arrow, Step


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


class Moved(Protocol):
    """The numbers of messages that a step has received and pushed.

    `pushed`: by destination (`ns/queue`). For each counter in `Step.unrouted_queues` there is a
    property of that name.
    """

    @property
    def received(self) -> int: ...  # noqa: D102

    @property
    def pushed(self) -> Mapping[str, int]: ...  # noqa: D102


#: The states of messages that a picture counts.
COUNTED_STATES = ("ready", "scheduled", "reserved")

#: The maximum length of a selector in a tree and in a drawing, and of its lines in a drawing.
LONGEST_SELECTOR, LONGEST_DRAWN, LINE = 40, 120, 18

#: The maximum width in pixels of a drawing that is readable in a page.
PAGE_WIDTH = 800

#: Colors of queues, by namespace.
COLORS = ("#e3edf7", "#e6f3e2", "#f3e6f1", "#f6f1d5", "#e2f1f0", "#f1e7df")

#: A program that draws without the programs of Graphviz. It runs in another process, because the
#: libraries of Graphviz write warnings to stderr.
BUNDLED = """
import pygraphviz, sys
sys.stdout.buffer.write(pygraphviz.AGraph(sys.stdin.read()).draw(format="svg", prog="dot"))
"""


def dot(
    graph: Graph,
    sizes: Mapping[Place, CountsByState] | None = None,
    moved: Mapping[str, Moved] | None = None,
    *,
    direction: str = "LR",
) -> graphviz.Digraph:
    """Return the graph as a drawing for Graphviz; `.source` is its text.

    `traffic`: the traffic of each step, by its name. `direction`: `LR`, from left to right, or
    `TB`, from top to bottom.
    """
    looks = {"rankdir": direction, "bgcolor": "white", "nodesep": "0.12", "ranksep": "0.25"}
    made = graphviz.Digraph("exchanges", graph_attr=looks)
    font = {"fontname": "Helvetica,Arial,sans-serif"}
    made.attr("node", **font, fontsize="13", style="filled", color="#5b6770", margin="0.08,0.04", height="0.3")
    made.attr("edge", **font, fontsize="12", fontcolor="#374151", color="#5b6770", arrowsize="0.7")
    colors = dict(zip(graph.namespaces, COLORS * len(graph.namespaces), strict=False))
    for place in _shown(graph, sizes, moved):
        small = f'<font point-size="10" color="#52606d">{escape(place.ns)}/</font>'
        lines = [small, f"<b>{escape(place.queue)}</b>", *_sized(place, sizes)]
        made.node(_id(place), f"<{'<br/>'.join(lines)}>", shape="box", fillcolor=colors[place.ns])
    cyclic = graph.loops()
    taken = {one.place for step in graph.steps.values() for one in step.arrows_in()}
    bold = {"penwidth": "2.2", "color": "#c2410c"}
    for name, step in graph.declared.items():
        form, color, style = step.outline[:3]
        made.node(f"x {name}", graphviz.escape(_named(name, step)), shape=form, style=style, fillcolor=color)
        inputs, outputs = step.arrows_in(), [*step.arrows_out(), *_lost(name, step, moved)]
        for one in inputs:
            number = _received(moved, name) if len(inputs) == 1 else ""
            text = _beside(number, [one.name])
            made.edge(_id(one.place), f"x {name}", label=text, **(bold if name in cyclic else {}))
        last = [one.place for one in outputs if one.place not in taken]
        lower = set(last[1::2]) if direction == "TB" else set()  # two rows are narrower
        for one in outputs:
            looks = dict(bold) if _turns(name, one, cyclic) else {}
            looks |= {} if one.role == "out" else {"style": "dashed"}
            looks |= {"minlen": "3"} if one.place in lower else {}
            text = _beside(_pushed(moved, name, step, one.place), _wrapped(_label(one, LONGEST_DRAWN)))
            made.edge(f"x {name}", _id(one.place), label=text, **looks)
    return made


def svg(
    graph: Graph, sizes: Mapping[Place, CountsByState] | None = None, moved: Mapping[str, Moved] | None = None
) -> str:
    """Return the graph as SVG, in the direction that fits into a page. Needs Graphviz.

    Raises `UsageError` if neither the program `dot` nor the package `pygraphviz` is installed.
    """
    drawn = [_svg(dot(graph, sizes, moved, direction=one)) for one in ("TB", "LR")]
    return min(drawn, key=lambda one: (max(one[0], PAGE_WIDTH), one[1]))[2]


def _svg(made: graphviz.Digraph) -> tuple[int, int, str]:
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
        run = [sys.executable, "-c", BUNDLED]
        done = subprocess.run(run, input=made.source.encode(), check=True, capture_output=True)
        text = done.stdout.decode()
    width, height = map(int, re.findall(r'(?:width|height)="(\d+)pt"', text)[:2])
    return width, height, re.sub(r'="(\d+)pt"', r'="\1"', text, count=2)


def facts(graph: Graph, sizes: Mapping[Place, CountsByState] | None = None) -> dict[str, Any]:
    """Return the graph as a JSON object, without URLs."""
    loops = graph.loops()
    known = sizes or {}
    return {
        "queues": [
            {"queue": str(place)}
            | ({word: getattr(known[place], word) for word in COUNTED_STATES} if place in known else {})
            for place in _shown(graph, sizes)
        ],
        **{
            section: [
                {"name": name, **one.facts(loops.get(name, ()))} for name, one in getattr(graph, section).items()
            ]
            for section in sections(graph)
        },
        "max_hops": graph.max_hops,
    }


def mermaid(graph: Graph, sizes: Mapping[Place, CountsByState] | None = None) -> str:
    """Return the graph as Mermaid text, which GitHub and notebooks draw."""
    ids = {place: f"q{number}" for number, place in enumerate(_shown(graph, sizes))}
    lines = ["flowchart LR"]
    for number, ns in enumerate(graph.namespaces):
        lines.append(f'  subgraph n{number}["{_quoted(ns)}"]')
        for place in (one for one in ids if one.ns == ns):
            lines.append(f'    {ids[place]}["{_quoted("<br/>".join([place.queue, *_sized(place, sizes)]))}"]')
        lines.append("  end")
    cyclic, edges = graph.loops(), 0
    bold: list[int] = []
    for number, (name, step) in enumerate(graph.declared.items()):
        left, right = step.outline[3:]
        lines.append(f'  x{number}{left}"{_quoted("<br/>".join(_named(name, step).splitlines()))}"{right}')
        for one in step.arrows_in():
            lines.append(f"  {ids[one.place]} -->{_on_arrow(one)} x{number}")
            bold += [edges] * (name in cyclic)
            edges += 1
        for one in step.arrows_out():
            lines.append(f"  x{number} {'-.->' if one.role == 'errors' else '-->'}{_on_arrow(one)} {ids[one.place]}")
            bold += [edges] * _turns(name, one, cyclic)
            edges += 1
    if bold:
        lines.append(f"  linkStyle {','.join(map(str, bold))} stroke:#c2410c,stroke-width:3px")
    return "\n".join(lines) + "\n"


def tree(graph: Graph, sizes: Mapping[Place, CountsByState] | None = None) -> Iterator[tuple[int, str]]:
    """Yield the graph as lines of text with their depths.

    Below a queue are the steps that read it, and below a step its destinations. A step with several
    inputs is below the first one, and names the others.
    """
    cyclic, steps = graph.loops(), graph.declared
    inputs = {name: [one.place for one in step.arrows_in()] for name, step in steps.items()}
    for name, step in steps.items():
        if not inputs[name]:
            yield 0, _titled(name, step)
            yield from _destinations(name, step, 1, cyclic, sizes)
    for src in dict.fromkeys(place for places in inputs.values() for place in places[:1]):
        yield 0, " ".join([str(src), *_sized(src, sizes, "({})")])
        for name, step in steps.items():
            if inputs[name][:1] != [src]:
                continue
            others = " and ".join(map(str, inputs[name][1:]))
            how = "with" if step.needs_all else "or from"
            yield 1, f"{_titled(name, step)}{f', {how} {others}' if others else ''}"
            yield from _destinations(name, step, 2, cyclic, sizes)
    shown = {place for places in inputs.values() for place in places[:1]}
    shown |= {one.place for step in steps.values() for one in step.arrows_out()}
    for place in _shown(graph, sizes):
        if place not in shown:
            yield 0, " ".join([str(place), *_sized(place, sizes, "({})")])


def _destinations(
    name: str,
    step: Step,
    depth: int,
    cyclic: Mapping[str, set[Place]],
    sizes: Mapping[Place, CountsByState] | None,
) -> Iterator[tuple[int, str]]:
    for one in step.arrows_out():
        parts = [f"→ {one.place}", *_sized(one.place, sizes, "({})")]
        parts += ["if"] if one.selector else []
        parts += filter(None, [_label(one._replace(name="")), "errors" if one.role == "errors" else ""])
        parts += ["↻ cycle"] if _turns(name, one, cyclic) else []
        yield depth, " ".join(parts)


def _turns(name: str, arrow: Arrow, cyclic: Mapping[str, set[Place]]) -> bool:
    """Return whether a message that a step writes there can come back to it."""
    return arrow.role == "out" and arrow.place in cyclic.get(name, ())


def _shown(
    graph: Graph, sizes: Mapping[Place, CountsByState] | None, moved: Mapping[str, Moved] | None = None
) -> list[Place]:
    """Return the queues to draw; a queue for messages without a route only if it has some."""
    known = sizes or {}
    filled = [
        one for one in graph.leftovers() if one in known and any(getattr(known[one], word) for word in COUNTED_STATES)
    ]
    lost = [one.place for name, step in graph.steps.items() for one in _lost(name, step, moved)]
    return list(dict.fromkeys([*graph.queues(), *filled, *lost]))


def _named(name: str, step: Step) -> str:
    """Return the name of a step, with its caption on the next line."""
    return f"{name}\n{step.caption}" if step.caption else name


def _titled(name: str, step: Step) -> str:
    return f"{name} ({step.title})" if step.title else name


def _lost(name: str, step: Step, moved: Mapping[str, Moved] | None) -> list[Arrow]:
    """Return edges to the queues of messages that a step could not pass on, if there were some."""
    if moved is None or name not in moved:
        return []
    return [Arrow(place, "lost") for place, counter in step.leftovers.items() if getattr(moved[name], counter)]


def _received(moved: Mapping[str, Moved] | None, name: str) -> str:
    """Return the number of messages that a step has received, or an empty text if it is unknown."""
    return "" if moved is None or name not in moved else f"{moved[name].received:,}"


def _pushed(moved: Mapping[str, Moved] | None, name: str, step: Step, to: Place) -> str:
    """Return the number of messages that a step has written to a queue, or an empty text."""
    if moved is None or name not in moved:
        return ""
    counter = step.leftovers.get(to)
    number = getattr(moved[name], counter) if counter else moved[name].pushed.get(str(to))
    return "" if number is None else f"{number:,}"


def _on_arrow(arrow: Arrow) -> str:
    label = _label(arrow)
    return f'|"{_quoted(label)}"|' if label else ""


def _label(arrow: Arrow, longest: int = LONGEST_SELECTOR) -> str:
    """Return the text of an edge: its name, its selector, and the fields that change."""
    selector = arrow.selector if len(arrow.selector) <= longest else arrow.selector[: longest - 1] + "…"
    return " ".join(filter(None, [arrow.name, selector, f"[sets {', '.join(arrow.sets)}]" if arrow.sets else ""]))


def _sized(place: Place, sizes: Mapping[Place, CountsByState] | None, form: str = "{}") -> list[str]:
    """Return `1,200 ready, 3 reserved` in a list, which is empty if the sizes are unknown."""
    if sizes is None or place not in sizes:
        return []
    words = {word: getattr(sizes[place], word) for word in COUNTED_STATES}
    return [form.format(", ".join(f"{number:,} {word}" for word, number in words.items() if number) or "empty")]


def _id(place: Place) -> str:
    return f"q {place}".replace(":", "_")  # a colon would name a port


def _wrapped(label: str) -> list[str]:
    """Return the lines of a label: the selector, which may break before `::`, and the changes."""
    selector, mark, names = label.replace("::", " ::").partition("[sets")
    lines = textwrap.wrap(selector, LINE, break_long_words=False, break_on_hyphens=False)
    return [*(one.replace(" ::", "::") for one in lines), *([mark + names] if mark else [])]


def _beside(number: str, lines: Iterable[str]) -> str:
    """Return the label of an edge as HTML, aligned left, with the number in bold."""
    shown = [*([f"<b>{number}</b>"] if number else []), *(escape(one) for one in lines if one)]
    text = "".join(f'&#160;{one}&#160;<br align="left"/>' for one in shown)
    return f"<{text}>" if text else ""


def _quoted(text: str) -> str:
    """Return text that is safe inside of Mermaid's quotes."""
    parts = (one.replace("&", "#amp;").replace('"', "#quot;").replace("<", "#lt;") for one in text.split("<br/>"))
    return "<br/>".join(parts)
