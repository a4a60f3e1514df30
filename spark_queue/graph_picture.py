"""Pictures of a graph: for Graphviz, for Mermaid, and as a tree of text.

Queues are boxes, with their sizes where these are known, exchanges ellipses, links hexagons; an arrow says by which
selector messages go there. What belongs to a cycle is drawn bold. Queues of messages that could not be routed are
shown where there are some in them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import graphviz

from spark_queue.errors import UsageError
from spark_queue.graph import Destination, Graph, Link, Place


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


#: What is told of the messages of a queue.
STATES = ("ready", "scheduled", "reserved")

#: Most characters of a selector on an arrow.
LONG = 40


def dot(graph: Graph, sizes: Mapping[Place, Sizes] | None = None) -> graphviz.Digraph:
    """The graph for Graphviz: `.source` is its text, `.pipe("svg")` draws it where the program `dot` is installed."""
    made = graphviz.Digraph("exchanges", graph_attr={"rankdir": "LR", "bgcolor": "white"})
    made.attr("node", fontname="Helvetica", fontsize="11")
    made.attr("edge", fontname="Helvetica", fontsize="9", color="#5b6770")
    cyclic = graph.loops()
    for number, ns in enumerate(graph.namespaces):
        with made.subgraph(name=f"cluster_{number}") as room:
            room.attr(label=ns, style="rounded", color="#9aa5ab", fontname="Helvetica", fontsize="12")
            for place in (one for one in _shown(graph, sizes) if one.ns == ns):
                text = "\n".join([place.queue, *_sized(place, sizes)])
                room.node(_id(place), graphviz.escape(text), shape="box", style="filled", fillcolor="#eef3f6")
            for name, step in ((name, one) for name, one in graph.steps.items() if one.src.ns == ns):
                shape = "hexagon" if isinstance(step, Link) else "ellipse"
                room.node(f"x {name}", graphviz.escape(name), shape=shape, style="filled", fillcolor="#ffe9c7")
    for name, step in graph.steps.items():
        bold = {"penwidth": "2.2", "color": "#c2410c"}
        made.edge(_id(step.src), f"x {name}", **(bold if name in cyclic else {}))
        for to in step.dst:
            loops = bold if to.place in cyclic.get(name, ()) else {}
            made.edge(f"x {name}", _id(to.place), label=graphviz.escape(_label(to)), **loops)
    return made


def svg(graph: Graph, sizes: Mapping[Place, Sizes] | None = None) -> str:
    """The graph as SVG. Raises `UsageError` where Graphviz is not installed."""
    try:
        return str(dot(graph, sizes).pipe("svg", encoding="utf-8"))
    except graphviz.ExecutableNotFound:
        raise UsageError(
            "SVG needs Graphviz: install it (apt-get install graphviz, brew install graphviz), or take another format"
        ) from None


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
    for number, (name, step) in enumerate(graph.steps.items()):
        left, right = ("{{", "}}") if isinstance(step, Link) else ("([", "])")
        lines.append(f'  x{number}{left}"{_quoted(name)}"{right}')
        lines.append(f"  {ids[step.src]} --> x{number}")
        bold += [edges] * (name in cyclic)
        edges += 1
        for to in step.dst:
            label = f'|"{_quoted(_label(to))}"|' if _label(to) else ""
            lines.append(f"  x{number} -->{label} {ids[to.place]}")
            bold += [edges] * (to.place in cyclic.get(name, ()))
            edges += 1
    if bold:
        lines.append(f"  linkStyle {','.join(map(str, bold))} stroke:#c2410c,stroke-width:3px")
    return "\n".join(lines) + "\n"


def tree(graph: Graph, sizes: Mapping[Place, Sizes] | None = None) -> Iterator[tuple[int, str]]:
    """The graph as lines of text with their depths: what takes from a queue below it, destinations below that."""
    cyclic = graph.loops()
    sources = dict.fromkeys(one.src for one in graph.steps.values())
    for src in sources:
        yield 0, " ".join([str(src), *_sized(src, sizes, "({})")])
        for name, step in graph.steps.items():
            if step.src != src:
                continue
            yield 1, f"{name} (link)" if isinstance(step, Link) else name
            for to in step.dst:
                parts = [f"→ {to}", *_sized(to.place, sizes, "({})")]
                parts += ["if"] * (getattr(to, "selector", None) is not None) + [_label(to)] * bool(_label(to))
                parts += ["↻ cycle"] if to.place in cyclic.get(name, ()) else []
                yield 2, " ".join(parts)
    for place in _shown(graph, sizes)[len(graph.queues()) :]:
        yield 0, " ".join([str(place), *_sized(place, sizes, "({})")])


def selector_text(selector: Any) -> str:
    """A selector as people read it: the SQL, the name of a callable, what Spark prints of a Column."""
    if selector is None:
        return ""
    if isinstance(selector, str):
        return " ".join(selector.split())
    name: Callable[..., object] | str = getattr(selector, "__name__", "")
    return str(name) if name else str(selector).removeprefix("Column<'").removesuffix("'>")


def _shown(graph: Graph, sizes: Mapping[Place, Sizes] | None) -> list[Place]:
    """The queues that a picture has."""
    known = sizes or {}
    filled = (one for one in graph.leftovers() if one in known and any(getattr(known[one], word) for word in STATES))
    return list(dict.fromkeys([*graph.queues(), *filled]))


def _label(to: Destination | Place) -> str:
    if isinstance(to, Place):
        return ""
    text = selector_text(to.selector)
    changed = [name for name in ("payload", "headers", "state") if getattr(to.set, name)]
    text = text if len(text) <= LONG else text[: LONG - 1] + "…"
    return " ".join([text, f"[sets {', '.join(changed)}]"] if changed else [text]).strip()


def _sized(place: Place, sizes: Mapping[Place, Sizes] | None, form: str = "{}") -> list[str]:
    """`1,200 ready, 3 reserved`, in a list, which is empty where nothing is known."""
    if sizes is None or place not in sizes:
        return []
    words = {word: getattr(sizes[place], word) for word in STATES}
    return [form.format(", ".join(f"{number:,} {word}" for word, number in words.items() if number) or "empty")]


def _id(place: Place) -> str:
    return f"q {place}".replace(":", "_")  # a colon would name a port


def _quoted(text: str) -> str:
    """Text inside of Mermaid's quotes."""
    parts = (one.replace("&", "#amp;").replace('"', "#quot;").replace("<", "#lt;") for one in text.split("<br/>"))
    return "<br/>".join(parts)
