"""Queues wired into a graph by declarations: namespaces, exchanges, links, processors.

    namespaces:
      local: sqlite:///queues.db
      air: {url: "mongodb://${MONGO_USER}:${MONGO_PASSWORD}@db/air"}
    exchanges:
      by_delay:
        src: local/departures
        dst:
          - queue: late                              # of the namespace of src, unless told
            selector: payload:dep_delay::int > 60    # SQL; absent: always
            set: {headers: {class: "'late'"}}        # seen by the destinations after it
          - air/all
    links:                                           # each message moves on, to one queue: see `Link`
      clean:
        src: air/raw
        dst: air/clean
        process: work.flights:clean
    processors:                                      # functions that compute: see `processor.py`
      match:
        in: {flight: air/clean, weather: air/weather}
        out: {matched: air/matched}
        fn: work.flights:match
        rows: true

The same in Python: `Graph(namespaces={...}, exchanges={"by_delay": Exchange(...)})`, where a selector may also be a
Column or a callable. This module knows what a graph is, `validation.py` what is wrong with one, and each step answers
for itself (`step.py`); none of them does anything with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, ClassVar, get_args, get_type_hints

import networkx as nx
from pydantic import BeforeValidator, Field

from spark_queue.graph.exchange import NO_ROUTE, TOO_MANY_HOPS, Changes, Destination, Exchange
from spark_queue.graph.link import Link, Moves, Retry
from spark_queue.graph.parts import (
    FORBID,
    AtPlace,
    ConsumerSettings,
    Name,
    NameOfStep,
    Namespace,
    OfStore,
    Origin,
    Path,
    Place,
    function_of,
)
from spark_queue.graph.processor import Input, Processor
from spark_queue.graph.step import Step
from spark_queue.options.renamed import renamed

__all__ = [
    "NO_ROUTE",
    "TOO_MANY_HOPS",
    "Changes",
    "ConsumerSettings",
    "Destination",
    "Exchange",
    "Graph",
    "Input",
    "Link",
    "Moves",
    "Namespace",
    "Origin",
    "Path",
    "Place",
    "Processor",
    "Retry",
    "Step",
    "isomorphic",
]

__getattr__ = renamed(__name__, Consumer=ConsumerSettings)

#: Hops after which a message counts as lost in a cycle.
MAX_HOPS = 17

#: Failures in a row after which a step that is drained gives up.
RESTARTS = 8


def _system(value: Any) -> Any:
    if isinstance(value, Mapping):
        return value
    with suppress(ValueError):
        return function_of(value)
    raise ValueError("a mapping, or a function (module:function) that returns one")


#: Marks a field of `Graph` that has steps, by name. Their class is a `Step`, and this all that makes it known.
STEPS: Mapping[str, bool] = {"steps": True}


def sections(graph: type[Graph] | Graph) -> list[str]:
    """Return the fields of a graph that have steps."""
    return [one.name for one in fields(graph) if one.metadata.get("steps")]


@dataclass(frozen=True)
class Graph:
    """Namespaces, exchanges, links and processors, by name. `max_hops`: how many exchanges a message may go through.

    For processors: `system` is what their functions share, a mapping, or a function (`module:function`) that makes
    it, once in each process of Python. `errors`: the error queue of those that name none and work on rows.
    `provenance`: whether what they make tells where it comes from, in the header `x-provenance`.
    """

    __pydantic_config__ = FORBID

    namespaces: dict[Name, OfStore] = field(repr=False)  # until it is checked, it may hold bare URLs
    exchanges: dict[NameOfStep, Exchange] = field(default_factory=dict, metadata=STEPS)
    max_hops: Annotated[int, Field(ge=1)] = MAX_HOPS
    links: dict[NameOfStep, Link] = field(default_factory=dict, metadata=STEPS)
    processors: dict[NameOfStep, Processor] = field(default_factory=dict, metadata=STEPS)
    system: Annotated[Any, BeforeValidator(_system)] = field(default=None, repr=False)  # it may hold secrets
    errors: AtPlace | None = None
    provenance: bool = True
    origin: ClassVar[Origin] = Origin()  # of a graph from a file: its own; nothing that can be said about a graph

    @property
    def declared(self) -> dict[str, Step]:
        """All steps by name, and after those that run the sources."""
        found = {name: one for section in sections(self) for name, one in getattr(self, section).items()}
        return dict(sorted(found.items(), key=lambda one: one[1].entry is not None))

    @property
    def steps(self) -> dict[str, Step]:
        """All that takes messages from queues, by name: exchanges, links, and processors that are no sources."""
        return {name: one for name, one in self.declared.items() if one.entry is None}

    @property
    def entries(self) -> dict[str, Place]:
        """The queues that messages are sent to, by the name of their source."""
        return {name: place for name, one in self.declared.items() if (place := one.entry)}

    def queues(self) -> list[Place]:
        """All queues that the graph names, in the order in which it does."""
        places = [place for one in self.steps.values() for place in (*one.sources, *(to.place for to in one.dst))]
        places += [place for one in self.declared.values() for place in one.others()]
        return list(dict.fromkeys([*places, *self.entries.values()]))

    def leftovers(self) -> list[Place]:
        """The queues of what exchanges could not route."""
        return list(dict.fromkeys(place for one in self.steps.values() for place in one.leftovers))

    def cycles(self) -> list[list[str]]:
        """Steps that feed each other, by cycles: one for each set of queues that reach one another.

        Each begins with the one that is declared first. They are legal: the hop limit ends a message that goes
        round and round through exchanges.
        """
        wires, names = self._wires(), list(self.steps)
        knots = (wires.subgraph(one) for one in nx.strongly_connected_components(wires))
        rings = ([wires.edges[edge]["step"] for edge in nx.find_cycle(one)] for one in knots if one.number_of_edges())
        turned = []
        for ring in rings:
            first = ring.index(min(ring, key=names.index))
            turned.append(ring[first:] + ring[:first])
        return sorted(turned, key=lambda ring: names.index(ring[0]))

    def loops(self) -> dict[str, set[Place]]:
        """The destinations from which messages can come back, of those steps that have some."""
        knots = nx.strongly_connected_components(self._wires())
        home = {place: number for number, knot in enumerate(knots) for place in knot}
        back = {
            name: {to.place for to in one.dst if any(home[to.place] == home[src] for src in one.sources)}
            for name, one in self.steps.items()
        }
        return {name: places for name, places in back.items() if places}

    def _wires(self) -> nx.DiGraph[Place]:
        """The queues, and which step leads from one to another."""
        wires: nx.DiGraph[Place] = nx.DiGraph()
        for name, step in self.steps.items():
            wires.add_nodes_from(step.sources)
            for src in step.sources:
                for one in step.dst:
                    wires.add_edge(src, one.place, step=name)
        return wires

    def topology(self) -> nx.DiGraph[str]:
        """The graph as one of networkx: its nodes are the names of steps and sources, and queues as `ns/queue`.

        Each node has its `kind`: `queue`, `exchange`, `link`, or that of a processor. Edges tell by `role` whether a
        queue is an input (`in`), an output (`out`) or where errors go (`errors`).
        """
        made: nx.DiGraph[str] = nx.DiGraph()
        for place in self.queues():
            made.add_node(str(place), kind="queue")
        for name, step in self.declared.items():
            made.add_node(name, kind=step.kind)
            made.add_edges_from(((str(one.place), name) for one in step.arrows_in()), role="in")
            for one in step.arrows_out():
                made.add_edge(name, str(one.place), role=one.role)
        return made


def kinds(graph: type[Graph]) -> dict[str, type[Step]]:
    """Return what a graph has steps of, by the fields that have them."""
    hints = get_type_hints(graph)
    return {section: get_args(hints[section])[1] for section in sections(graph)}


def nouns(graph: type[Graph]) -> dict[str, str]:
    """Return what one of those is called that a graph declares by name, by the field that has them."""
    return {"namespaces": "namespace", **{section: kind.noun for section, kind in kinds(graph).items()}}


def isomorphic(one: Graph, other: Graph) -> bool:
    """Whether two graphs are the same but for the names of their queues, steps and stores."""
    return bool(
        nx.is_isomorphic(
            one.topology(),
            other.topology(),
            node_match=lambda a, b: a["kind"] == b["kind"],
            edge_match=lambda a, b: a["role"] == b["role"],
        )
    )
