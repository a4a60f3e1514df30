"""Queues wired into a graph by declarations: namespaces, exchanges, links, processors.

    namespaces:
      local: sqlite:///queues.db
      air: {url: "mongodb://${MONGO_USER}:${MONGO_PASSWORD}@db/air"}
    exchanges:
      by_delay:
        src: local/departures
        dst:
          - queue: late                              # default: the namespace of src
            selector: payload:dep_delay::int > 60    # SQL; absent: always
            set: {headers: {class: "'late'"}}        # the destinations below see it
          - air/all
    links:                                           # move each message to one queue: see `Link`
      clean:
        src: air/raw
        dst: air/clean
        process: work.flights:clean
    processors:                                      # compute messages: see `processor.py`
      match:
        in: {flight: air/clean, weather: air/weather}
        out: {matched: air/matched}
        fn: work.flights:match
        rows: true

The same in Python: `Graph(namespaces={...}, exchanges={"by_delay": Exchange(...)})`. There a
selector may also be a Column or a callable. This module has the classes of a graph; `validation.py`
checks a graph, with the rules of each step (`step.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, ClassVar, get_args, get_type_hints

import networkx as nx
from pydantic import BeforeValidator, Field

from spark_queue.graph.exchange import NO_ROUTE, TOO_MANY_HOPS, Changes, Destination, Exchange
from spark_queue.graph.link import Link, LinkChanges, Retry
from spark_queue.graph.parts import (
    DECLARATION_CONFIG,
    ConsumerSettings,
    FieldPath,
    Name,
    Namespace,
    NamespaceOrUrl,
    Place,
    PlaceOrText,
    SourceLocation,
    StepName,
    check_function,
)
from spark_queue.graph.processor import Input, Processor
from spark_queue.graph.step import Step

__all__ = [
    "NO_ROUTE",
    "TOO_MANY_HOPS",
    "Changes",
    "ConsumerSettings",
    "Destination",
    "Exchange",
    "FieldPath",
    "Graph",
    "Input",
    "Link",
    "LinkChanges",
    "Namespace",
    "Place",
    "Processor",
    "Retry",
    "SourceLocation",
    "Step",
    "isomorphic",
]

#: The default of `max_hops`.
MAX_HOPS = 17

#: The default of `restarts` for `drain`: the maximum number of restarts in a row.
DRAIN_RESTARTS = 8


def _check_system(value: Any) -> Any:
    if isinstance(value, Mapping):
        return value
    with suppress(ValueError):
        return check_function(value)
    raise ValueError("a mapping, or a function (module:function) that returns one")


#: The metadata of a field of `Graph` that has steps, by name. Their class implements `Step`, and is
#: registered nowhere else.
STEPS: Mapping[str, bool] = {"steps": True}


def sections(graph: type[Graph] | Graph) -> list[str]:
    """Return the names of the fields of a graph that have steps."""
    return [one.name for one in fields(graph) if one.metadata.get("steps")]


@dataclass(frozen=True)
class Graph:
    """Namespaces, exchanges, links and processors, by name.

    `max_hops`: the number of exchanges that a message may go through. `system`: a mapping that all
    functions of processors share, or a function that returns it. A `module:function` is called once
    in each Python process. `errors`: the default error queue of processors that work on rows.
    `provenance`: whether processors set the header `x-provenance` on their messages.
    """

    __pydantic_config__ = DECLARATION_CONFIG

    namespaces: dict[Name, NamespaceOrUrl] = field(repr=False)  # may hold bare URLs until checked
    exchanges: dict[StepName, Exchange] = field(default_factory=dict, metadata=STEPS)
    max_hops: Annotated[int, Field(ge=1)] = MAX_HOPS
    links: dict[StepName, Link] = field(default_factory=dict, metadata=STEPS)
    processors: dict[StepName, Processor] = field(default_factory=dict, metadata=STEPS)
    system: Annotated[Any, BeforeValidator(_check_system)] = field(default=None, repr=False)  # it may hold secrets
    errors: PlaceOrText | None = None
    provenance: bool = True
    origin: ClassVar[SourceLocation] = SourceLocation()  # set on the instance; not a key of a file

    @property
    def all_steps(self) -> dict[str, Step]:
        """All steps by name, sources last."""
        found = {name: one for section in sections(self) for name, one in getattr(self, section).items()}
        return dict(sorted(found.items(), key=lambda one: one[1].entry is not None))

    @property
    def steps(self) -> dict[str, Step]:
        """The steps that read queues, by name: all except sources."""
        return {name: one for name, one in self.all_steps.items() if one.entry is None}

    @property
    def entries(self) -> dict[str, Place]:
        """The queues that `send` pushes to, by the name of their source."""
        return {name: place for name, one in self.all_steps.items() if (place := one.entry)}

    def queues(self) -> list[Place]:
        """Return all queues of the graph without duplicates, inputs and outputs first."""
        places = [place for one in self.steps.values() for place in (*one.sources, *(to.place for to in one.dst))]
        places += [place for one in self.all_steps.values() for place in one.other_queues()]
        return list(dict.fromkeys([*places, *self.entries.values()]))

    def unrouted_queues(self) -> list[Place]:
        """Return the queues for messages that exchanges cannot route."""
        return list(dict.fromkeys(place for one in self.steps.values() for place in one.unrouted_queues))

    def cycles(self) -> list[list[str]]:
        """Return the cycles of the graph. Each is a list of steps, the one declared first in front.

        There is one cycle for each set of queues that reach one another. A cycle is legal:
        `max_hops` ends a message that goes around through exchanges.
        """
        queue_graph, names = self._queue_graph(), list(self.steps)
        components = (queue_graph.subgraph(one) for one in nx.strongly_connected_components(queue_graph))
        found_cycles = (
            [queue_graph.edges[edge]["step"] for edge in nx.find_cycle(one)]
            for one in components
            if one.number_of_edges()
        )
        rotated = []
        for ring in found_cycles:
            first = ring.index(min(ring, key=names.index))
            rotated.append(ring[first:] + ring[:first])
        return sorted(rotated, key=lambda ring: names.index(ring[0]))

    def cyclic_destinations(self) -> dict[str, set[Place]]:
        """Return the destinations from which messages can come back, by the name of their step."""
        components = nx.strongly_connected_components(self._queue_graph())
        component_of = {place: number for number, knot in enumerate(components) for place in knot}
        cyclic = {
            name: {
                to.place for to in one.dst if any(component_of[to.place] == component_of[src] for src in one.sources)
            }
            for name, one in self.steps.items()
        }
        return {name: places for name, places in cyclic.items() if places}

    def _queue_graph(self) -> nx.DiGraph[Place]:
        """Return a graph of the queues; an edge has the `step` that leads from one to the other."""
        queue_graph: nx.DiGraph[Place] = nx.DiGraph()
        for name, step in self.steps.items():
            queue_graph.add_nodes_from(step.sources)
            for src in step.sources:
                for one in step.dst:
                    queue_graph.add_edge(src, one.place, step=name)
        return queue_graph

    def topology(self) -> nx.DiGraph[str]:
        """Return the graph for networkx. Its nodes are steps, by name, and queues, as `ns/queue`.

        Each node has its `kind`: `queue`, `exchange`, `link`, or the kind of a processor. Each edge
        has the `role` of the queue: input (`in`), output (`out`) or error queue (`errors`).
        """
        made: nx.DiGraph[str] = nx.DiGraph()
        for place in self.queues():
            made.add_node(str(place), kind="queue")
        for name, step in self.all_steps.items():
            made.add_node(name, kind=step.kind)
            made.add_edges_from(((str(one.place), name) for one in step.edges_in()), role="in")
            for one in step.edges_out():
                made.add_edge(name, str(one.place), role=one.role)
        return made


def step_classes(graph: type[Graph]) -> dict[str, type[Step]]:
    """Return the class of the steps in each field of a graph."""
    hints = get_type_hints(graph)
    return {section: get_args(hints[section])[1] for section in sections(graph)}


def section_nouns(graph: type[Graph]) -> dict[str, str]:
    """Return the noun for one entry of each field, such as `link` for `links`."""
    return {"namespaces": "namespace", **{section: kind.noun for section, kind in step_classes(graph).items()}}


def isomorphic(one: Graph, other: Graph) -> bool:
    """Return whether two graphs are equal except for the names of queues, steps and stores."""
    return bool(
        nx.is_isomorphic(
            one.topology(),
            other.topology(),
            node_match=lambda a, b: a["kind"] == b["kind"],
            edge_match=lambda a, b: a["role"] == b["role"],
        )
    )
