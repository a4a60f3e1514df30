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
Column or a callable. This module knows what a graph is, `validation.py` what is wrong with one; neither does
anything with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, ClassVar

import networkx as nx
from pydantic import BeforeValidator, Field

from spark_queue.graph.parts import (
    FORBID,
    AtPlace,
    Consumer,
    Delivery,
    Entries,
    Every,
    Expression,
    Function,
    Name,
    NameOfStep,
    Namespace,
    OfStore,
    Origin,
    Path,
    Place,
    function_of,
    listed,
    place_of,
)
from spark_queue.graph.processor import Input, Processor
from spark_queue.options.values import AT_MOST_ONCE, EXACTLY_ONCE

__all__ = [
    "Changes",
    "Consumer",
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

#: Hops after which a message counts as lost in a cycle.
MAX_HOPS = 17

#: Failures in a row after which a step that is drained gives up.
RESTARTS = 8

#: Queues, in the namespace of an exchange's source, for what it cannot route.
NO_ROUTE, TOO_MANY_HOPS = "__no_route__", "__too_many_hops__"


@dataclass(frozen=True)
class Changes:
    """What a destination changes of a message that goes there, for the destinations after it, too.

    `payload` becomes the value of an expression; `headers` and `state` keep what is not named, and lose what becomes
    NULL.
    """

    __pydantic_config__ = FORBID

    payload: Expression | None = None
    headers: Entries = field(default_factory=dict)
    state: Entries = field(default_factory=dict)


@dataclass(frozen=True)
class Destination:
    """A queue, and who goes there: those for which the selector is true, or a struct (`mature`, `delay`, `tries`)."""

    __pydantic_config__ = FORBID

    queue: Annotated[str, Field(min_length=1)]
    selector: Expression | None = None
    set: Changes = field(default_factory=Changes)
    ns: str = ""

    @property
    def place(self) -> Place:
        """Where it is."""
        return Place(self.queue, self.ns)

    def __str__(self) -> str:
        return str(self.place)


class _OneSource:
    """What a step with one source is asked, whatever kind it is."""

    src: Place
    dst: Sequence[Destination | Place]

    @property
    def sources(self) -> list[Place]:
        """The queues that it takes from."""
        return [self.src]

    @property
    def needs_all(self) -> bool:
        """Whether each of these must have messages."""
        return True

    @property
    def written(self) -> list[Place]:
        """The queues that its messages go to."""
        return [one.place for one in self.dst]


@dataclass(frozen=True)
class Exchange(_OneSource):
    """From one queue to any number of others.

    `delivery`: exactly once, unless `consumer.reserve` is false, which is at most once. `every`: ms from the start of
    a batch to that of the next; 0: as soon as there is something. `options`: those of `format("queue")` to read the
    source, before those of its namespace; `retryTimeout` and `allowEviction` hold for the destinations, too.
    """

    __pydantic_config__ = FORBID

    section: ClassVar[str] = "exchanges"
    runner: ClassVar[str] = "spark_queue.runner.exchange:ExchangeStep"

    src: AtPlace
    dst: list[Annotated[Destination, BeforeValidator(place_of)]]
    consumer: Consumer = field(default_factory=Consumer)
    delivery: Delivery | None = None
    every: Every = 0
    options: dict[str, str] = field(default_factory=dict)

    @property
    def guarantee(self) -> str:
        """The delivery that holds."""
        return self.delivery or (EXACTLY_ONCE if self.consumer.reserve else AT_MOST_ONCE)

    def namespaces(self) -> list[str]:
        """Where it writes, that of its source first."""
        return list(dict.fromkeys([self.src.ns, *(one.ns for one in self.dst)]))


@dataclass(frozen=True)
class Moves:
    """What a link changes of a message, by expressions: as `Changes`, and when it can be reserved there."""

    __pydantic_config__ = FORBID

    payload: Expression | None = None
    headers: Entries = field(default_factory=dict)
    mature: Expression | None = None
    delay: Expression | None = None
    tries: Expression | None = None


@dataclass(frozen=True)
class Retry:
    """After how many seconds a message that failed comes again: `base`, and `factor` for each failure before."""

    __pydantic_config__ = FORBID

    base: Annotated[float, Field(ge=0)] = 1.0
    factor: Annotated[float, Field(ge=0)] = 2.0


@dataclass(frozen=True)
class Link(_OneSource):
    """From a queue to one of others that lie in the same collection of MongoDB (`layout=pl-mongo`), or to none.

    A message is changed and moved in one step of the database, so it is in one of the queues at every moment, and
    goes on exactly once whatever dies. Without destination it is done when it is worked on; with several, `to` names
    the queue, or gives its number from 0. What becomes of a message is told by expressions, `drop` (true: it ends
    here), `to` and `set`, or by `process`, a function of Python (see `graph/link_function.py`). One that fails comes
    again, after `retry`, until the option `maxTries` ends that. `every`, `consumer`, `options`: as of an exchange.
    """

    __pydantic_config__ = FORBID

    section: ClassVar[str] = "links"
    runner: ClassVar[str] = "spark_queue.runner.link:LinkStep"

    src: AtPlace
    dst: Annotated[list[AtPlace], BeforeValidator(listed)] = field(default_factory=list)
    process: Function = None
    drop: Expression | None = None
    to: Expression | None = None
    set: Moves = field(default_factory=Moves)
    retry: Retry = field(default_factory=Retry)
    consumer: Consumer = field(default_factory=Consumer)
    every: Every = 0
    options: dict[str, str] = field(default_factory=dict)

    @property
    def guarantee(self) -> str:
        """The delivery that holds, by construction."""
        return EXACTLY_ONCE

    def namespaces(self) -> list[str]:
        """Where it writes."""
        return [self.src.ns]


def _system(value: Any) -> Any:
    if isinstance(value, Mapping):
        return value
    with suppress(ValueError):
        return function_of(value)
    raise ValueError("a mapping, or a function (module:function) that returns one")


#: What takes messages from queues.
Step = Exchange | Link | Processor


#: Marks a field of `Graph` that has steps, by name. Their class says in `runner` what runs them.
STEPS: Mapping[str, bool] = {"steps": True}


def sections(graph: type[Graph] | Graph) -> list[str]:
    """The fields of a graph that have steps."""
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
    def steps(self) -> dict[str, Step]:
        """All that takes messages from queues, by name: exchanges, links, and processors that are no sources."""
        all_of_them = {name: one for section in sections(self) for name, one in getattr(self, section).items()}
        return {
            name: one for name, one in all_of_them.items() if not isinstance(one, Processor) or one.kind != "source"
        }

    @property
    def entries(self) -> dict[str, Place]:
        """The queues that messages are sent to, by the name of their source."""
        return {name: one.dst[0] for name, one in self.processors.items() if one.kind == "source"}

    def queues(self) -> list[Place]:
        """All queues that the graph names, in the order in which it does."""
        places = [place for one in self.steps.values() for place in (*one.sources, *(to.place for to in one.dst))]
        places += [place for one in self.processors.values() for place in one.others()]
        return list(dict.fromkeys([*places, *self.entries.values()]))

    def leftovers(self) -> list[Place]:
        """The queues of what exchanges could not route."""
        spaces = dict.fromkeys(one.src.ns for one in self.exchanges.values())
        return [Place(queue, ns) for ns in spaces for queue in (NO_ROUTE, TOO_MANY_HOPS)]

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
        for name, step in (self.steps | self.processors).items():
            kind = step.kind if isinstance(step, Processor) else type(step).__name__.lower()
            made.add_node(name, kind=kind)
            made.add_edges_from(((str(src), name) for src in step.sources), role="in")
            made.add_edges_from(((name, str(to.place)) for to in step.dst), role="out")
            if isinstance(step, Processor):
                made.add_edges_from(((str(place), name) for place in step.tailers.values()), role="in")
                made.add_edges_from(((name, str(place)) for place in step.appenders.values()), role="out")
                made.add_edges_from(((name, str(place)) for place in [step.errors] if place), role="errors")
        return made


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
