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

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from operator import eq
from typing import Annotated, Any, ClassVar, get_args, get_type_hints

import networkx as nx
from pydantic import BeforeValidator, Field

from spark_queue.graph.exchange import Changes as Changes
from spark_queue.graph.exchange import Destination as Destination
from spark_queue.graph.exchange import Exchange as Exchange
from spark_queue.graph.link import Link as Link
from spark_queue.graph.link import LinkChanges as LinkChanges
from spark_queue.graph.link import Retry as Retry
from spark_queue.graph.parts import DECLARATION_CONFIG, Name, NamespaceOrUrl, PlaceOrText, StepName, check_function
from spark_queue.graph.parts import ConsumerSettings as ConsumerSettings
from spark_queue.graph.parts import Namespace as Namespace
from spark_queue.graph.parts import Place as Place
from spark_queue.graph.parts import SourceLocation as SourceLocation
from spark_queue.graph.processor import Input as Input
from spark_queue.graph.processor import Processor as Processor
from spark_queue.graph.step import Step

#: The default of `max_hops`.
MAX_HOPS = 17

#: The default of `restarts` for `drain`: the maximum number of restarts in a row.
DRAIN_RESTARTS = 8


def _check_system(value: Any) -> Any:
    try:
        return value if isinstance(value, Mapping) else check_function(value)
    except ValueError:
        raise ValueError("a mapping, or a function (module:function) that returns one") from None


#: The metadata of a field of `Graph` that has steps, by name. Their class implements `Step`, and is
#: registered nowhere else.
STEPS: Mapping[str, bool] = {"steps": True}


def sections(graph: type[Graph] | Graph) -> list[str]:
    """Return the names of the fields that hold the steps of a graph."""
    return [one.name for one in fields(graph) if one.metadata.get("steps")]


@dataclass(frozen=True)
class Graph:
    """Namespaces, exchanges, links and processors, by name.

    `max_hops`: the number of exchanges that a message may go through. `system`: a mapping that all
    functions of processors share, or a function (or its `module:function`) that returns it, which
    is called once in each Python process. `errors`: the default error queue of processors that work
    on rows. `provenance`: whether processors set the header `x-provenance` on their messages.
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
    is_checked: ClassVar[bool] = False  # as `origin`
    check: ClassVar[Callable[[Graph], Graph]]  # `check_graph`; its module, which needs this one, sets it

    def checked(self) -> Graph:
        """Return the graph with its defaults filled in; it may be declared with bare texts.

        Raises `GraphError` with all its mistakes.
        """
        return self if self.is_checked else Graph.check(self)

    @property
    def all_steps(self) -> dict[str, Step]:
        """All steps by name, sources last. Raises `GraphError` as `checked`."""
        graph = self.checked()
        found = {name: one for section in sections(graph) for name, one in getattr(graph, section).items()}
        return dict(sorted(found.items(), key=lambda one: one[1].entry is not None))

    @property
    def steps(self) -> dict[str, Step]:
        """The steps that read queues, by name: all except sources. Raises `GraphError`."""
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
        cycles = []
        for queues in nx.strongly_connected_components(queue_graph):
            component = queue_graph.subgraph(queues)
            if component.number_of_edges():
                ring = [queue_graph.edges[edge]["step"] for edge in nx.find_cycle(component)]
                first = ring.index(min(ring, key=names.index))
                cycles.append(ring[first:] + ring[:first])
        return sorted(cycles, key=lambda ring: names.index(ring[0]))

    def cyclic_destinations(self) -> dict[str, set[Place]]:
        """Return the destinations from which messages can come back, by the name of their step."""
        components = nx.strongly_connected_components(self._queue_graph())
        component_of = {place: number for number, knot in enumerate(components) for place in knot}
        cyclic: dict[str, set[Place]] = {}
        for name, one in self.steps.items():
            own = {component_of[src] for src in one.sources}
            if places := {to.place for to in one.dst if component_of.get(to.place) in own}:
                cyclic[name] = places
        return cyclic

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
    return bool(nx.is_isomorphic(one.topology(), other.topology(), node_match=eq, edge_match=eq))
