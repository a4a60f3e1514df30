"""Queues wired into a graph by declarations: namespaces, exchanges, destinations, links.

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

The same in Python: `Graph(namespaces={...}, exchanges={"by_delay": Exchange(...)})`, where a selector may also be a
Column or a callable. This module knows what a graph is and what is wrong with one, and does nothing with it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, ClassVar, Literal

import networkx as nx
from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from spark_queue.errors import GraphError, near
from spark_queue.options import AT_MOST_ONCE, EXACTLY_ONCE, duration, name_of_consumer

#: Hops after which a message counts as lost in a cycle.
MAX_HOPS = 17

#: Failures in a row after which an exchange that is drained gives up.
RESTARTS = 8

#: Queues, in the namespace of an exchange's source, for what it cannot route.
NO_ROUTE, TOO_MANY_HOPS = "__no_route__", "__too_many_hops__"

_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_FORBID = ConfigDict(extra="forbid", revalidate_instances="always", coerce_numbers_to_str=True)


def _place(value: Any) -> Any:
    """`ns/queue`, or a queue of the namespace that goes without saying."""
    if not isinstance(value, str):
        return value
    ns, slash, queue = value.partition("/")
    return {"ns": ns, "queue": queue} if slash else {"queue": value}


def _namespace(value: Any) -> Any:
    return {"url": value} if isinstance(value, str) else value


def _expression(value: Any) -> Any:
    """SQL text, a Column, or a callable that makes one. Numbers and truth values of a file are SQL, too."""
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    if isinstance(value, str) and not value.strip():
        raise ValueError("not empty")
    if isinstance(value, str) or type(value).__name__ == "Column" or callable(value):
        return value
    raise ValueError("SQL text, a Column, or a callable that makes a Column")


def _entry(value: Any) -> Any:
    return "NULL" if value is None else _expression(value)


def _listed(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [value]


def _process(value: Any) -> Any:
    """A function, or where it is: `module:function`."""
    if value is None or callable(value) or (isinstance(value, str) and _FUNCTION.fullmatch(value)):
        return value
    raise ValueError("a function, or module:function")


def _pause(value: Any) -> Any:
    return value if isinstance(value, int) else duration(str(value))


def _folder(text: str) -> str:
    """A name that is a consumer's, and a folder's on any file system of Spark's."""
    with suppress(ValueError):
        if ":" not in text and text.strip("."):
            return name_of_consumer(text)
    raise ValueError("1 to 100 letters, digits and _ . @ -, for it names a folder, too")


Expression = Annotated[Any, BeforeValidator(_expression)]
Entries = dict[str, Annotated[Any, BeforeValidator(_entry)]]
Name = Annotated[str, BeforeValidator(lambda value: name_of_consumer(str(value)))]
NameOfExchange = Annotated[str, BeforeValidator(lambda value: _folder(str(value)))]


@dataclass(frozen=True)
class Namespace:
    """A store by a name.

    `options` are those of `format("queue")`, for the exchanges that read here; `retryTimeout` holds for what these
    write, too.
    """

    __pydantic_config__ = _FORBID

    url: str = field(repr=False)
    options: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Place:
    """A queue in a namespace; where that is not told, in the one that goes without saying."""

    __pydantic_config__ = _FORBID

    queue: Annotated[str, Field(min_length=1)]
    ns: str = ""

    @property
    def place(self) -> Place:
        """Itself, as of a `Destination`."""
        return self

    def __str__(self) -> str:
        return f"{self.ns}/{self.queue}"


@dataclass(frozen=True)
class Changes:
    """What a destination changes of a message that goes there, for the destinations after it, too.

    `payload` becomes the value of an expression; `headers` and `state` keep what is not named, and lose what becomes
    NULL.
    """

    __pydantic_config__ = _FORBID

    payload: Expression | None = None
    headers: Entries = field(default_factory=dict)
    state: Entries = field(default_factory=dict)


@dataclass(frozen=True)
class Destination:
    """A queue, and who goes there: those for which the selector is true, or a struct (`mature`, `delay`, `tries`)."""

    __pydantic_config__ = _FORBID

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


@dataclass(frozen=True)
class Consumer:
    """How an exchange reads: `parallel` tasks, at most `wsize` messages at a time, with or without a reservation."""

    __pydantic_config__ = _FORBID

    parallel: Annotated[int, Field(ge=1, le=1024)] | None = None
    wsize: Annotated[int, Field(ge=1, lt=2**31)] = 10_000
    reserve: bool = True


@dataclass(frozen=True)
class Exchange:
    """From one queue to any number of others.

    `delivery`: exactly once, unless `consumer.reserve` is false, which is at most once. `every`: ms from the start of
    a batch to that of the next; 0: as soon as there is something. `options`: those of `format("queue")` to read the
    source, before those of its namespace; `retryTimeout` holds for the destinations, too.
    """

    __pydantic_config__ = _FORBID

    src: Annotated[Place, BeforeValidator(_place)]
    dst: list[Annotated[Destination, BeforeValidator(_place)]]
    consumer: Consumer = field(default_factory=Consumer)
    delivery: Literal["exactly-once", "at-least-once", "at-most-once"] | None = None
    every: Annotated[int, BeforeValidator(_pause)] = 0
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

    __pydantic_config__ = _FORBID

    payload: Expression | None = None
    headers: Entries = field(default_factory=dict)
    mature: Expression | None = None
    delay: Expression | None = None
    tries: Expression | None = None


@dataclass(frozen=True)
class Retry:
    """After how many seconds a message that failed comes again: `base`, and `factor` for each failure before."""

    __pydantic_config__ = _FORBID

    base: Annotated[float, Field(ge=0)] = 1.0
    factor: Annotated[float, Field(ge=0)] = 2.0


@dataclass(frozen=True)
class Link:
    """From a queue to one of others that lie in the same collection of MongoDB (`layout=pl-mongo`), or to none.

    A message is changed and moved in one step of the database, so it is in one of the queues at every moment, and
    goes on exactly once whatever dies. Without destination it is done when it is worked on; with several, `to` names
    the queue, or gives its number from 0. What becomes of a message is told by expressions, `drop` (true: it ends
    here), `to` and `set`, or by `process`, a function of Python (see `spark_queue.outcome`). One that fails comes
    again, after `retry`, until the option `maxTries` ends that. `every`, `consumer`, `options`: as of an exchange.
    """

    __pydantic_config__ = _FORBID

    src: Annotated[Place, BeforeValidator(_place)]
    dst: Annotated[list[Annotated[Place, BeforeValidator(_place)]], BeforeValidator(_listed)] = field(
        default_factory=list
    )
    process: Annotated[Any, BeforeValidator(_process)] = None
    drop: Expression | None = None
    to: Expression | None = None
    set: Moves = field(default_factory=Moves)
    retry: Retry = field(default_factory=Retry)
    consumer: Consumer = field(default_factory=Consumer)
    every: Annotated[int, BeforeValidator(_pause)] = 0
    options: dict[str, str] = field(default_factory=dict)

    @property
    def guarantee(self) -> str:
        """The delivery that holds, by construction."""
        return EXACTLY_ONCE

    def namespaces(self) -> list[str]:
        """Where it writes."""
        return [self.src.ns]


#: Where something stands in a graph: ("exchanges", "by_delay", "dst", 0, "selector").
Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Origin:
    """The file that a graph comes from, and the line of each part of it, from 1."""

    file: str = ""
    lines: Mapping[Path, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Graph:
    """Namespaces, exchanges and links, by name. `max_hops`: how many exchanges a message may go through."""

    __pydantic_config__ = _FORBID

    namespaces: dict[Name, Annotated[Namespace, BeforeValidator(_namespace)]]
    exchanges: dict[NameOfExchange, Exchange] = field(default_factory=dict)
    max_hops: Annotated[int, Field(ge=1)] = MAX_HOPS
    links: dict[NameOfExchange, Link] = field(default_factory=dict)
    origin: ClassVar[Origin] = Origin()  # of a graph from a file: its own; nothing that can be said about a graph

    @property
    def steps(self) -> dict[str, Exchange | Link]:
        """All that takes messages from queues: exchanges and links, by name."""
        return {**self.exchanges, **self.links}

    def having(self, steps: Mapping[str, Exchange | Link]) -> Graph:
        """The graph with these exchanges and links in place of its own. Raises `GraphError`."""
        links = {name: one for name, one in steps.items() if isinstance(one, Link)}
        exchanges = {name: one for name, one in steps.items() if isinstance(one, Exchange)}
        made = replace(self, exchanges=exchanges, links=links)
        object.__setattr__(made, "origin", self.origin)
        return checked(made)

    def queues(self) -> list[Place]:
        """All queues that exchanges and links name, in the order in which they do."""
        places = [place for one in self.steps.values() for place in (one.src, *(to.place for to in one.dst))]
        return list(dict.fromkeys(places))

    def leftovers(self) -> list[Place]:
        """The queues of what exchanges could not route."""
        spaces = dict.fromkeys(one.src.ns for one in self.exchanges.values())
        return [Place(queue, ns) for ns in spaces for queue in (NO_ROUTE, TOO_MANY_HOPS)]

    def cycles(self) -> list[list[str]]:
        """Exchanges and links that feed each other, by cycles: one for each set of queues that reach one another.

        Each begins with the one that is declared first. They are legal: the hop limit ends a message that goes
        round and round.
        """
        wires, names = self._wires(), list(self.steps)
        knots = (wires.subgraph(one) for one in nx.strongly_connected_components(wires))
        rings = (
            [wires.edges[edge]["exchange"] for edge in nx.find_cycle(one)] for one in knots if one.number_of_edges()
        )
        turned = []
        for ring in rings:
            first = ring.index(min(ring, key=names.index))
            turned.append(ring[first:] + ring[:first])
        return sorted(turned, key=lambda ring: names.index(ring[0]))

    def loops(self) -> dict[str, set[Place]]:
        """The destinations from which messages can come back, of those exchanges and links that have some."""
        knots = nx.strongly_connected_components(self._wires())
        home = {place: number for number, knot in enumerate(knots) for place in knot}
        back = {
            name: {to.place for to in one.dst if home[to.place] == home[one.src]} for name, one in self.steps.items()
        }
        return {name: places for name, places in back.items() if places}

    def _wires(self) -> nx.DiGraph[Place]:
        """The queues, and which exchange or link leads from one to another."""
        wires: nx.DiGraph[Place] = nx.DiGraph()
        for name, step in self.steps.items():
            wires.add_node(step.src)
            for one in step.dst:
                wires.add_edge(step.src, one.place, exchange=name)
        return wires


# --- what is wrong with a graph -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mistake:
    """One mistake: where it is, and what is wrong. `line`: from 1; 0 where there is no file."""

    path: Path
    text: str
    line: int = 0

    def __str__(self) -> str:
        where = ", ".join(filter(None, [f"line {self.line}" if self.line else "", _words(self.path)]))
        return f"{where}: {self.text}" if where else self.text


def _words(path: Path) -> str:
    """A path as people say it."""
    match path:
        case ("namespaces", name, *rest):
            words = [f"namespace {name!r}"]
        case ("exchanges", name, "dst", int(number), *rest):
            words = [f"exchange {name!r}", f"destination {number + 1}"]
        case ("exchanges", name, *rest):
            words = [f"exchange {name!r}"]
        case ("links", name, "dst", int(number), *rest):
            words = [f"link {name!r}", f"destination {number + 1}"]
        case ("links", name, *rest):
            words = [f"link {name!r}"]
        case _:
            words, rest = [], list(path)
    return ", ".join([*words, ".".join(map(str, rest))] if rest else words)


def checked(graph: Graph) -> Graph:
    """The graph with its defaults filled in. Raises `GraphError` with all that is wrong with it."""
    return read(graph, graph.origin)


def read(raw: Any, origin: Origin | None = None, found: Iterable[Mistake] = ()) -> Graph:
    """The graph that these facts describe, of whose mistakes some are known already. Raises `GraphError`."""
    origin = origin or Origin()
    mistakes = list(found)
    try:
        graph = _GRAPH.validate_python(raw)
    except ValidationError as error:
        mistakes += [mistake_of(one) for one in error.errors(include_url=False)]
        graph = None
    mistakes += _strangers(raw if graph is None else graph)
    if graph is not None:
        mistakes += _contradictions(graph)
    if graph is None or mistakes:
        raise refusal(mistakes, origin)
    graph = _with_namespaces(graph)
    object.__setattr__(graph, "origin", origin)
    return graph


def refusal(mistakes: Iterable[Mistake], origin: Origin) -> GraphError:
    """The error that tells all mistakes, by line."""
    found = [replace(one, line=one.line or _line(origin.lines, one.path)) for one in mistakes]
    found.sort(key=lambda one: (one.line, [str(part) for part in one.path]))
    head = f"{origin.file or 'the graph'} has {'a mistake' if len(found) == 1 else f'{len(found)} mistakes'}:"
    told = [str(one) for one in found]
    return GraphError("\n  ".join([head, *told]), mistakes=told, file=origin.file)


def _line(lines: Mapping[Path, int], path: Path) -> int:
    """The line of what stands at the path, or around it."""
    return next((lines[path[:end]] for end in range(len(path), -1, -1) if path[:end] in lines), 0)


def mistake_of(error: Any, keys: Callable[[Path], list[str]] | None = None) -> Mistake:
    """A validation error, as people say it. `keys`: those that may stand at a path; of a graph, unless told."""
    path = tuple(part for part in error["loc"] if part != "[key]")
    kind, facts = error["type"], error.get("ctx", {})
    if kind in ("unexpected_keyword_argument", "extra_forbidden"):
        known = (keys or keys_at)(path[:-1])
        hint = near(str(path[-1]), known) or f"; known are {', '.join(known)}"
        return Mistake(path, f"unknown key{hint}")
    if kind in ("missing", "missing_argument"):
        return Mistake(path[:-1], f"{path[-1]!r} is missing")
    if kind == "value_error":
        return Mistake(path, f"it must be {facts['error']}")
    if kind in ("dataclass_type", "dict_type"):
        return Mistake(path, "it should be a mapping")
    return Mistake(path, "it" + str(error["msg"]).removeprefix("Input").removeprefix("String"))


def keys_at(path: Path) -> list[str]:
    """The keys that may stand at a path."""
    kinds: dict[str, Any] = {"namespaces": Namespace, "dst": Destination, "src": Place, "consumer": Consumer}
    kinds |= {"exchanges": Exchange, "set": Changes, "links": Link, "retry": Retry}
    if path[:1] == ("links",):
        kinds |= {"dst": Place, "set": Moves}
    last = next((str(part) for part in reversed(path) if part in kinds), "")
    return [one.name for one in fields(kinds.get(last, Graph))]


def _with_namespaces(graph: Graph) -> Graph:
    """Fill in what goes without saying: the only namespace, and for a destination that of its source."""
    only = next(iter(graph.namespaces)) if len(graph.namespaces) == 1 else ""
    exchanges = {}
    for name, one in graph.exchanges.items():
        src = replace(one.src, ns=one.src.ns or only)
        dst = [replace(to, ns=to.ns or src.ns) for to in one.dst]
        exchanges[name] = replace(one, src=src, dst=dst)
    links = {}
    for name, link in graph.links.items():
        src = replace(link.src, ns=link.src.ns or only)
        links[name] = replace(link, src=src, dst=[replace(to, ns=to.ns or src.ns) for to in link.dst])
    return replace(graph, exchanges=exchanges, links=links)


def _strangers(raw: Any) -> Iterator[Mistake]:
    """Namespaces that are named and not there. Of what is not as it should be nothing is said here."""

    def inside(what: Any, key: str) -> Any:
        return what.get(key) if isinstance(what, dict) else getattr(what, key, None)

    known = inside(raw, "namespaces")
    names = list(map(str, known)) if isinstance(known, dict) else []
    hint = f"; there are {', '.join(map(repr, names))}" if names else "; there are none"
    declared = {kind: inside(raw, kind) for kind in ("exchanges", "links")}
    steps = [(kind, *one) for kind, found in declared.items() if isinstance(found, dict) for one in found.items()]
    for kind, name, step in steps:
        to = inside(step, "dst")
        to = [to] if kind == "links" and to and not isinstance(to, list) else to
        places: list[tuple[Path, Any]] = [(("src",), inside(step, "src"))]
        places += [(("dst", number), one) for number, one in enumerate(to if isinstance(to, list) else ())]
        for path, place in places:
            ns = inside(_place(place), "ns")
            if ns and ns not in names:
                text = f"unknown namespace {ns!r}{near(str(ns), names) or hint}"
                yield Mistake((kind, name, *path), text)
            elif not ns and path == ("src",) and place and len(names) != 1:
                yield Mistake((kind, name, *path), f"it does not tell its namespace{hint}")


#: Options of `format("queue")` that an exchange sets itself, and what they are told by.
_OWN = {
    "url": "its namespace",
    "queue": "src",
    "consumer": "the name of the exchange",
    "delivery": "delivery",
    "maxRecordsPerTrigger": "consumer.wsize",
    "numPartitions": "consumer.parallel",
    "payloadFormat": "what selectors see, which is JSON",
    "layout": "the URL of its namespace",
}


def _contradictions(graph: Graph) -> Iterator[Mistake]:
    options: list[tuple[Path, dict[str, str]]] = [
        *((("namespaces", name, "options"), one.options) for name, one in graph.namespaces.items()),
        *((("exchanges", name, "options"), one.options) for name, one in graph.exchanges.items()),
        *((("links", name, "options"), one.options) for name, one in graph.links.items()),
    ]
    for path, given in options:
        for key in given:
            for own, by in _OWN.items():
                if key.lower() == own.lower():
                    yield Mistake((*path, key), f"not here: this is told by {by}")
    for name, one in graph.exchanges.items():
        if one.src.queue == TOO_MANY_HOPS:
            yield Mistake(
                ("exchanges", name, "src"),
                f"what is in {TOO_MANY_HOPS} has no hops left, so it would come back for ever: push it anew instead, "
                "without the header x-hop-count",
            )
        if not one.consumer.reserve and one.guarantee != AT_MOST_ONCE:
            yield Mistake(
                ("exchanges", name, "consumer", "reserve"),
                f"delivery={one.delivery} needs a reservation: leave this out, or set delivery={AT_MOST_ONCE}",
            )
    for name, link in graph.links.items():
        for path, text in _misuses(link):
            yield Mistake(("links", name, *path), text)
        if name in graph.exchanges:
            yield Mistake(("links", name), "an exchange has this name, which is that of a consumer, too")


def _misuses(link: Link) -> Iterator[tuple[Path, str]]:
    """What parts of a link have nothing to do with each other."""
    told = {"to": link.to, "drop": link.drop, "set": None if link.set == Moves() else link.set}
    for key, value in told.items():
        if value is not None and link.process is not None:
            yield (key,), "the function of `process` tells this, so leave one of the two out"
    if len(link.dst) < 2 and link.to is not None:
        yield ("to",), "it chooses among several destinations: there are fewer than two"
    if len(link.dst) > 1 and link.to is None and link.process is None:
        yield ("to",), "it is missing: it chooses among the destinations"
    if not link.dst and link.set != Moves():
        yield ("set",), "nothing goes on from here: there is no destination"
    if link.set.mature is not None and link.set.delay is not None:
        yield ("set", "delay"), "mature and delay exclude each other"
    for number, to in enumerate(link.dst):
        if to.ns and link.src.ns and to.ns != link.src.ns:
            yield ("dst", number), "a link moves messages within one namespace: an exchange copies them to another"
        if to.queue == link.src.queue:
            yield ("dst", number), "it is the source of the link"
    if not link.consumer.reserve:
        yield ("consumer", "reserve"), "a link moves what it has reserved: leave this out"


_GRAPH: TypeAdapter[Graph] = TypeAdapter(Graph)
