"""Pictures of a graph: for Graphviz, for Mermaid, and as a tree of text.

Queues are boxes, with their sizes where these are known, exchanges ellipses, links hexagons, processors components
that tell their kind, and sources arrows. An arrow says by which selector messages go there, or to which input and
from which output of a processor; a dashed one is for errors. What belongs to a cycle is drawn bold. Queues of what
could not be routed are shown where there is something in them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import graphviz

from spark_queue.errors import UsageError
from spark_queue.graph import Destination, Graph, Link, Place, Processor, Step


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
            for name, step in ((name, one) for name, one in _drawn(graph).items() if _home(one) == ns):
                shape, color = _SHAPES[_form(step)][:2]
                room.node(
                    f"x {name}", graphviz.escape(_named(name, step)), shape=shape, style="filled", fillcolor=color
                )
    bold = {"penwidth": "2.2", "color": "#c2410c"}
    for name, step in _drawn(graph).items():
        for src, label in _taken(step):
            made.edge(_id(src), f"x {name}", label=graphviz.escape(label), **(bold if name in cyclic else {}))
        for place, label, role in _given(step):
            loops = bold if role == "out" and place in cyclic.get(name, ()) else {}
            style = {"style": "dashed"} if role == "errors" else {}
            made.edge(f"x {name}", _id(place), label=graphviz.escape(label), **loops, **style)
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
        left, right = _SHAPES[_form(step)][2:]
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


#: How what works on messages is drawn: Graphviz' shape and color, and what stands around its name for Mermaid.
_SHAPES = {
    "exchange": ("ellipse", "#ffe9c7", "([", "])"),
    "link": ("hexagon", "#ffe9c7", "{{", "}}"),
    "source": ("cds", "#d9efdc", ">", "]"),
    "sink": ("component", "#e6dcf2", "[[", "]]"),
    "processor": ("component", "#d9efdc", "[[", "]]"),
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


def _given(step: Step) -> list[tuple[Place, str, str]]:
    """The queues that it gives to, what is written on the arrows, and what it gives: `out` or `errors`."""
    if not isinstance(step, Processor):
        return [(to.place, _label(to), "out") for to in step.dst]
    outputs = {**step.out, **step.appenders}
    given = [(place, name if len(outputs) > 1 else "", "out") for name, place in outputs.items()]
    return [*given, *([(step.errors, "errors", "errors")] if step.errors else [])]


def _places_given(step: Step) -> list[Place]:
    return [place for place, _, _ in _given(step)]


def _home(step: Step) -> str:
    """The namespace in which it is drawn."""
    return next(place.ns for place in (*(src for src, _ in _taken(step)), *_places_given(step)))


def _on_arrow(label: str) -> str:
    return f'|"{_quoted(label)}"|' if label else ""


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
