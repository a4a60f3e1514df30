"""Pictures of a graph: for Graphviz, for Mermaid, and as a tree of text.

Queues are boxes, exchanges boxes with round corners, links hexagons, processors components with their kind, and
sources arrows. An edge has the selector of its destination, or the name of a processor's input or output; a dashed
edge is for errors and for messages without a route. Cycles are bold. Sizes of queues and counts of messages are
drawn if they are known.
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
from spark_queue.graph.model import (
    NO_ROUTE,
    TOO_MANY_HOPS,
    Destination,
    Exchange,
    Graph,
    Link,
    Place,
    Processor,
    Step,
)
from spark_queue.graph.selector_words import selector_text


class Sizes(Protocol):
    """How many messages of a queue are in which state."""

    @property
    def ready(self) -> int:
        """Mature and free."""

    @property
    def scheduled(self) -> int:
        """Not mature yet."""

    @property
    def reserved(self) -> int:
        """Held by someone."""


class Moved(Protocol):
    """How many messages went through a step; `pushed`: by destination (`ns/queue`)."""

    @property
    def received(self) -> int: ...  # noqa: D102

    @property
    def pushed(self) -> Mapping[str, int]: ...  # noqa: D102

    @property
    def no_route(self) -> int: ...  # noqa: D102

    @property
    def too_many_hops(self) -> int: ...  # noqa: D102


#: The states of messages that a picture counts.
STATES = ("ready", "scheduled", "reserved")

#: Most characters of a selector on one line of text, and in a drawing, where a line of it has so many.
LONG, LONG_DRAWN, LINE = 40, 120, 18

#: The width in pixels up to which a drawing is readable in a page.
WIDE = 800

#: Colors of queues, by namespace.
COLORS = ("#e3edf7", "#e6f3e2", "#f3e6f1", "#f6f1d5", "#e2f1f0", "#f1e7df")

#: Runs Graphviz without its programs. A process of its own, because its libraries write warnings to stderr.
BUNDLED = """
import pygraphviz, sys
sys.stdout.buffer.write(pygraphviz.AGraph(sys.stdin.read()).draw(format="svg", prog="dot"))
"""


def dot(
    graph: Graph,
    sizes: Mapping[Place, Sizes] | None = None,
    moved: Mapping[str, Moved] | None = None,
    *,
    direction: str = "LR",
) -> graphviz.Digraph:
    """Return the graph for Graphviz: `.source` is its text.

    `moved`: what went through each step, by its name. `direction`: `LR`, from left to right, or `TB`, downwards.
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
    taken = {place for step in graph.steps.values() for place, _ in _taken(step)}
    bold = {"penwidth": "2.2", "color": "#c2410c"}
    for name, step in _drawn(graph).items():
        shape, color, style = _SHAPES[_form(step)][:3]
        made.node(f"x {name}", graphviz.escape(_named(name, step)), shape=shape, style=style, fillcolor=color)
        inputs, outputs = _taken(step), [*_given(step, LONG_DRAWN), *_lost(name, step, moved)]
        for src, label in inputs:
            number = _counted(moved, name, None) if len(inputs) == 1 else ""
            made.edge(_id(src), f"x {name}", label=_beside(number, [label]), **(bold if name in cyclic else {}))
        last = [place for place, _, _ in outputs if place not in taken]
        lower = set(last[1::2]) if direction == "TB" else set()  # two rows of them are narrower
        for place, label, role in outputs:
            looks = bold if role == "out" and place in cyclic.get(name, ()) else {}
            looks = (
                looks | ({} if role == "out" else {"style": "dashed"}) | ({"minlen": "3"} if place in lower else {})
            )
            text = _beside(_counted(moved, name, place), _wrapped(label))
            made.edge(f"x {name}", _id(place), label=text, **looks)
    return made


def svg(graph: Graph, sizes: Mapping[Place, Sizes] | None = None, moved: Mapping[str, Moved] | None = None) -> str:
    """Return the graph as SVG, drawn in the direction in which it fits into a page. Needs Graphviz.

    Raises `UsageError` if neither the program `dot` nor the package `pygraphviz` is installed.
    """
    drawn = [_svg(dot(graph, sizes, moved, direction=one)) for one in ("TB", "LR")]
    return min(drawn, key=lambda one: (max(one[0], WIDE), one[1]))[2]


def _svg(made: graphviz.Digraph) -> tuple[int, int, str]:
    """Return width, height and SVG of a drawing, in pixels: its letters are as large as those of a page."""
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


def facts(graph: Graph, sizes: Mapping[Place, Sizes] | None = None) -> dict[str, Any]:
    """The graph as a JSON object, without URLs."""
    loops = graph.loops()
    known = sizes or {}
    return {
        "queues": [
            {"queue": str(place)} | ({word: getattr(known[place], word) for word in STATES} if place in known else {})
            for place in _shown(graph, sizes)
        ],
        "exchanges": [
            {
                "name": name,
                "src": str(exchange.src),
                "delivery": exchange.guarantee,
                "dst": [
                    {
                        "queue": str(to),
                        "selector": selector_text(to.selector) or None,
                        "cycle": to.place in loops.get(name, ()),
                    }
                    for to in exchange.dst
                ],
            }
            for name, exchange in graph.exchanges.items()
        ],
        "links": [
            {
                "name": name,
                "src": str(link.src),
                "dst": [{"queue": str(to), "cycle": to in loops.get(name, ())} for to in link.dst],
            }
            for name, link in graph.links.items()
        ],
        "processors": [
            {"name": name, "kind": one.kind}
            | {key: value for key, value in one.config().items() if isinstance(value, dict)}
            | {"errors": str(one.errors) if one.errors else None, "delivery": one.delivery}
            | {"cycle": sorted(str(place) for place in loops.get(name, ()))}
            for name, one in graph.processors.items()
        ],
        "max_hops": graph.max_hops,
    }


def mermaid(graph: Graph, sizes: Mapping[Place, Sizes] | None = None) -> str:
    """The graph as Mermaid text, which GitHub and notebooks draw."""
    ids = {place: f"q{number}" for number, place in enumerate(_shown(graph, sizes))}
    lines = ["flowchart LR"]
    for number, ns in enumerate(graph.namespaces):
        lines.append(f'  subgraph n{number}["{_quoted(ns)}"]')
        for place in (one for one in ids if one.ns == ns):
            lines.append(f'    {ids[place]}["{_quoted("<br/>".join([place.queue, *_sized(place, sizes)]))}"]')
        lines.append("  end")
    cyclic, edges = graph.loops(), 0
    bold: list[int] = []
    for number, (name, step) in enumerate(_drawn(graph).items()):
        left, right = _SHAPES[_form(step)][3:]
        lines.append(f'  x{number}{left}"{_quoted("<br/>".join(_named(name, step).splitlines()))}"{right}')
        for src, label in _taken(step):
            lines.append(f"  {ids[src]} -->{_on_arrow(label)} x{number}")
            bold += [edges] * (name in cyclic)
            edges += 1
        for place, label, role in _given(step):
            lines.append(f"  x{number} {'-.->' if role == 'errors' else '-->'}{_on_arrow(label)} {ids[place]}")
            bold += [edges] * (role == "out" and place in cyclic.get(name, ()))
            edges += 1
    if bold:
        lines.append(f"  linkStyle {','.join(map(str, bold))} stroke:#c2410c,stroke-width:3px")
    return "\n".join(lines) + "\n"


def tree(graph: Graph, sizes: Mapping[Place, Sizes] | None = None) -> Iterator[tuple[int, str]]:
    """The graph as lines of text with their depths: what takes from a queue below it, destinations below that.

    What takes from several queues stands below the first, and tells the others.
    """
    cyclic, steps = graph.loops(), _drawn(graph)
    for name, step in steps.items():
        if not _taken(step):
            yield 0, _titled(name, step)
            yield from _destinations(name, step, 1, cyclic, sizes)
    sources = dict.fromkeys(place for one in steps.values() for place, _ in _taken(one)[:1])
    for src in sources:
        yield 0, " ".join([str(src), *_sized(src, sizes, "({})")])
        for name, step in steps.items():
            taken = _taken(step)
            if not taken or taken[0][0] != src:
                continue
            others = " and ".join(str(place) for place, _ in taken[1:])
            how = "or from" if isinstance(step, Processor) and step.alts else "with"
            yield 1, f"{_titled(name, step)}{f', {how} {others}' if others else ''}"
            yield from _destinations(name, step, 2, cyclic, sizes)
    told = {place for one in steps.values() for place in (*(src for src, _ in _taken(one)[:1]), *_places_given(one))}
    for place in _shown(graph, sizes):
        if place not in told:
            yield 0, " ".join([str(place), *_sized(place, sizes, "({})")])


def _destinations(
    name: str, step: Step, depth: int, cyclic: Mapping[str, set[Place]], sizes: Mapping[Place, Sizes] | None
) -> Iterator[tuple[int, str]]:
    for place, label, role in _given(step):
        parts = [f"→ {place}", *_sized(place, sizes, "({})")]
        if isinstance(step, Processor):
            parts += ["errors"] if role == "errors" else []
        else:
            parts += ["if"] * bool(label and not label.startswith("[sets")) + [label] * bool(label)
        parts += ["↻ cycle"] if role == "out" and place in cyclic.get(name, ()) else []
        yield depth, " ".join(parts)


def _shown(
    graph: Graph, sizes: Mapping[Place, Sizes] | None, moved: Mapping[str, Moved] | None = None
) -> list[Place]:
    """Return the queues of a picture: those of the graph, and those of messages without a route that hold some."""
    known = sizes or {}
    filled = [one for one in graph.leftovers() if one in known and any(getattr(known[one], word) for word in STATES)]
    lost = [place for name, step in graph.steps.items() for place, _, _ in _lost(name, step, moved)]
    return list(dict.fromkeys([*graph.queues(), *filled, *lost]))


#: How a step is drawn: Graphviz' shape, color and style, and what stands around its name for Mermaid.
_SHAPES = {
    "exchange": ("box", "#ffe9c7", "filled,rounded", "([", "])"),
    "link": ("hexagon", "#ffe9c7", "filled", "{{", "}}"),
    "source": ("cds", "#d9efdc", "filled", ">", "]"),
    "sink": ("component", "#e6dcf2", "filled", "[[", "]]"),
    "processor": ("component", "#d9efdc", "filled", "[[", "]]"),
}


def _form(step: Step) -> str:
    if isinstance(step, Processor):
        return step.kind if step.kind in _SHAPES else "processor"
    return "link" if isinstance(step, Link) else "exchange"


def _named(name: str, step: Step) -> str:
    """Its name, and below that of a processor its kind."""
    return f"{name}\n{step.kind}" if isinstance(step, Processor) and step.kind != "source" else name


def _titled(name: str, step: Step) -> str:
    kind = step.kind if isinstance(step, Processor) else "link" if isinstance(step, Link) else ""
    return f"{name} ({kind})" if kind else name


def _drawn(graph: Graph) -> dict[str, Step]:
    """All steps, and the sources, which take nothing."""
    return {**graph.steps, **{name: one for name, one in graph.processors.items() if one.kind == "source"}}


def _taken(step: Step) -> list[tuple[Place, str]]:
    """The queues that it takes from, and what is written on the arrows: the names of several."""
    if not isinstance(step, Processor):
        return [(src, "") for src in step.sources]
    inputs: dict[str, Place] = {**step.inputs, **step.tailers}
    several = len(inputs) > 1
    order = [f"{number}. " if step.alts else "" for number in range(1, len(inputs) + 1)]
    return [
        (place.place, f"{number}{name}" if several else "")
        for number, (name, place) in zip(order, inputs.items(), strict=True)
    ]


def _given(step: Step, longest: int = LONG) -> list[tuple[Place, str, str]]:
    """Return the queues that it writes to, the labels of the edges, and what it writes: `out` or `errors`."""
    if not isinstance(step, Processor):
        return [(to.place, _label(to, longest), "out") for to in step.dst]
    outputs = {**step.out, **step.appenders}
    given = [(place, name if len(outputs) > 1 else "", "out") for name, place in outputs.items()]
    return [*given, *([(step.errors, "errors", "errors")] if step.errors else [])]


def _lost(name: str, step: Step, moved: Mapping[str, Moved] | None) -> list[tuple[Place, str, str]]:
    """Return the queues of messages that an exchange could not route, if there were some, as `_given` does."""
    if not isinstance(step, Exchange) or moved is None or name not in moved:
        return []
    counts = {NO_ROUTE: moved[name].no_route, TOO_MANY_HOPS: moved[name].too_many_hops}
    return [(Place(queue, step.src.ns), "", "lost") for queue, number in counts.items() if number]


def _counted(moved: Mapping[str, Moved] | None, name: str, to: Place | None) -> str:
    """Return how many messages a step received, or wrote to a queue; empty if that is unknown."""
    if moved is None or name not in moved:
        return ""
    one = moved[name]
    if to is None:
        return f"{one.received:,}"
    lost = {NO_ROUTE: one.no_route, TOO_MANY_HOPS: one.too_many_hops}
    number = lost[to.queue] if to.queue in lost else one.pushed.get(str(to))
    return "" if number is None else f"{number:,}"


def _places_given(step: Step) -> list[Place]:
    return [place for place, _, _ in _given(step)]


def _on_arrow(label: str) -> str:
    return f'|"{_quoted(label)}"|' if label else ""


def _label(to: Destination | Place, longest: int) -> str:
    if isinstance(to, Place):
        return ""
    text = selector_text(to.selector)
    changed = [name for name in ("payload", "headers", "state") if getattr(to.set, name)]
    text = text if len(text) <= longest else text[: longest - 1] + "…"
    return " ".join([text, f"[sets {', '.join(changed)}]"] if changed else [text]).strip()


def _sized(place: Place, sizes: Mapping[Place, Sizes] | None, form: str = "{}") -> list[str]:
    """`1,200 ready, 3 reserved`, in a list, which is empty where nothing is known."""
    if sizes is None or place not in sizes:
        return []
    words = {word: getattr(sizes[place], word) for word in STATES}
    return [form.format(", ".join(f"{number:,} {word}" for word, number in words.items() if number) or "empty")]


def _id(place: Place) -> str:
    return f"q {place}".replace(":", "_")  # a colon would name a port


def _wrapped(label: str) -> list[str]:
    """Return the lines of a label: of the selector, which may break before `::` too, and of what it sets."""
    selector, mark, names = label.replace("::", " ::").partition("[sets")
    lines = textwrap.wrap(selector, LINE, break_long_words=False, break_on_hyphens=False)
    return [*(one.replace(" ::", "::") for one in lines), *([mark + names] if mark else [])]


def _beside(number: str, lines: Iterable[str]) -> str:
    """Return the label of an edge, whose lines begin at its left; the number is bold."""
    shown = [*([f"<b>{number}</b>"] if number else []), *(escape(one) for one in lines if one)]
    text = "".join(f'&#160;{one}&#160;<br align="left"/>' for one in shown)
    return f"<{text}>" if text else ""


def _quoted(text: str) -> str:
    """Text inside of Mermaid's quotes."""
    parts = (one.replace("&", "#amp;").replace('"', "#quot;").replace("<", "#lt;") for one in text.split("<br/>"))
    return "<br/>".join(parts)
