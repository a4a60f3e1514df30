"""What is wrong with a graph: every mistake with its place, all at once.

Facts are checked by their types first, then for namespaces that are not there, then for what contradicts itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from spark_queue.address import quoted, shown_as
from spark_queue.errors import GraphError, near
from spark_queue.graph import (
    TOO_MANY_HOPS,
    Changes,
    Destination,
    Exchange,
    Graph,
    Link,
    Moves,
    Retry,
)
from spark_queue.graph_parts import Consumer, Namespace, Origin, Path, Place, place_of
from spark_queue.options import AT_MOST_ONCE
from spark_queue.processor import Input, Processor, bound

_P = TypeVar("_P", bound=Place)

#: The keys of a processor below which queues are bound to names.
_BOUND = ("in", "alts", "out", "tailers", "appenders")

#: What the steps of a graph are called, by where they are declared.
KINDS = {"exchanges": "exchange", "links": "link", "processors": "processor"}


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
            words = [f"namespace {quoted(str(name))}"]
        case ("exchanges" | "links" as kind, name, "dst", int(number), *rest):
            words = [f"{KINDS[kind]} {quoted(str(name))}", f"destination {number + 1}"]
        case ("exchanges" | "links" | "processors" as kind, name, *rest):
            words = [f"{KINDS[kind]} {quoted(str(name))}"]
        case _:
            words, rest = [], list(path)
    told = ".".join("in" if part == "in_" else shown_as(str(part)) for part in rest)
    return ", ".join([*words, told] if rest else words)


def checked(graph: Graph) -> Graph:
    """The graph with its defaults filled in. Raises `GraphError` with all that is wrong with it."""
    return read(graph, graph.origin)


def with_step(graph: Graph, name: str, step: Exchange | Link | Processor) -> Graph:
    """The graph with one step more. Raises `GraphError`."""
    kind = next(kind for kind, one in _STEPS.items() if isinstance(step, one))
    return _replaced(graph, kind, {**getattr(graph, kind), name: step})


def without_step(graph: Graph, name: str) -> Graph:
    """The graph with one step less."""
    kind = next(kind for kind in _STEPS if name in getattr(graph, kind))
    return _replaced(graph, kind, {other: one for other, one in getattr(graph, kind).items() if other != name})


_STEPS: dict[str, Any] = {"exchanges": Exchange, "links": Link, "processors": Processor}


def _replaced(graph: Graph, kind: str, steps: Mapping[str, Any]) -> Graph:
    facts: dict[str, Any] = {kind: steps}
    made = replace(graph, **facts)
    object.__setattr__(made, "origin", graph.origin)
    return checked(made)


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
    kinds |= {"exchanges": Exchange, "set": Changes, "links": Link, "retry": Retry, "processors": Processor}
    if path[:1] == ("links",):
        kinds |= {"dst": Place, "set": Moves}
    if path[:1] == ("processors",):
        kinds |= {"in": Input, "in_": Input, "alts": Input, "out": Place, "errors": Place}
        kinds |= {"tailers": Place, "appenders": Place}
    last = next((str(part) for part in reversed(path) if part in kinds), "")
    return [one.name.rstrip("_") for one in fields(kinds.get(last, Graph))]


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
    errors = _in(only, graph.errors) if graph.errors else None
    processors = {name: _filled(name, one, only, errors) for name, one in graph.processors.items()}
    return replace(graph, exchanges=exchanges, links=links, processors=processors, errors=errors)


def _filled(name: str, one: Processor, only: str, errors: Place | None) -> Processor:
    """A processor with its namespaces, the queue of a source that names none, and the error queue of the graph."""
    in_, alts = ({key: _in(only, place) for key, place in places.items()} for places in (one.in_, one.alts))
    home = next((first.ns for first in [*in_.values(), *alts.values()]), only)
    out, tailers, appenders = (
        {key: _in(home, place) for key, place in places.items()} for places in (one.out, one.tailers, one.appenders)
    )
    if one.kind == "source" and not one.out:
        out = {name: Place(name, only)}
    own = errors if _by_row(one) else None
    own = _in(home, one.errors) if one.errors else own
    return replace(one, in_=in_, alts=alts, out=out, tailers=tailers, appenders=appenders, errors=own)


def _in(ns: str, place: _P) -> _P:
    return replace(place, ns=place.ns or ns)


def _by_row(one: Processor) -> bool:
    """Whether its function is called for each row of messages."""
    return one.kind == "imperative" or (one.rows and one.kind != "source")


def _strangers(raw: Any) -> Iterator[Mistake]:
    """Namespaces that are named and not there. Of what is not as it should be nothing is said here."""
    known = _inside(raw, "namespaces")
    names = list(map(str, known)) if isinstance(known, dict) else []
    hint = f"; there are {', '.join(map(quoted, names))}" if names else "; there are none"
    for path, place, needed in _places(raw):
        ns = _inside(place_of(place), "ns")
        if ns and ns not in names:
            text = f"unknown namespace {quoted(str(ns))}{near(str(ns), names) or hint}"
            yield Mistake(path, text)
        elif not ns and needed and place and len(names) != 1:
            yield Mistake(path, f"it does not tell its namespace{hint}")


def _inside(what: Any, key: str) -> Any:
    return what.get(key) if isinstance(what, dict) else getattr(what, key, None)


def _places(raw: Any) -> Iterator[tuple[Path, Any, bool]]:
    """Where the steps of a graph name queues, how, and whether a namespace belongs to that."""
    for kind in KINDS:
        steps = _inside(raw, kind)
        for name, step in steps.items() if isinstance(steps, dict) else ():
            if kind == "processors":
                for path, place, needed in _places_of_processor(name, step):
                    yield (kind, name, *path), place, needed
                continue
            to = _inside(step, "dst")
            to = [to] if kind == "links" and to and not isinstance(to, list) else to
            yield (kind, name, "src"), _inside(step, "src"), True
            for number, one in enumerate(to if isinstance(to, list) else ()):
                yield (kind, name, "dst", number), one, False
    if (errors := _inside(raw, "errors")) is not None:
        yield ("errors",), errors, True


def _places_of_processor(name: str, step: Any) -> Iterator[tuple[Path, Any, bool]]:
    given = {key: _inside(step, key) or _inside(step, f"{key}_") for key in _BOUND}
    reads = bool(given["in"] or given["alts"])
    for key, value in given.items():
        try:
            places = bound(value or {})
        except ValueError:
            continue  # which is said elsewhere
        for binding, place in places.items():
            yield (key, binding), place, key in ("in", "alts") or not reads
    if not any(given.values()):
        yield (), name, True
    if (errors := _inside(step, "errors")) is not None:
        yield ("errors",), errors, not reads


#: Options of `format("queue")` that a step sets itself, and what they are told by.
_OWN = {
    "url": "its namespace",
    "queue": "src",
    "consumer": "the name of the exchange",
    "delivery": "delivery",
    "maxRecordsPerTrigger": "consumer.wsize",
    "numPartitions": "consumer.parallel",
    "payloadFormat": "what selectors see, which is JSON",
    "layout": "the URL of its namespace",
    "inputs": "in or alts of a processor",
    "combine": "in or alts of a processor",
    "urls": "the namespaces",
    "mode": "the inputs of a processor",
}


def _contradictions(graph: Graph) -> Iterator[Mistake]:
    options: list[tuple[Path, dict[str, str]]] = [
        *((("namespaces", name, "options"), one.options) for name, one in graph.namespaces.items()),
        *((("exchanges", name, "options"), one.options) for name, one in graph.exchanges.items()),
        *((("links", name, "options"), one.options) for name, one in graph.links.items()),
        *((("processors", name, "options"), one.options) for name, one in graph.processors.items()),
    ]
    for path, given in options:
        told = _of_frames(_OWN) if path[0] == "processors" and not _by_row(graph.processors[str(path[1])]) else _OWN
        for key in given:
            for own, by in told.items():
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
    yield from _of_processors(graph)


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


def _of_frames(own: Mapping[str, str]) -> dict[str, str]:
    """What a processor on DataFrames may set itself: the form of payloads."""
    return {key: by for key, by in own.items() if key != "payloadFormat"}


def _of_processors(graph: Graph) -> Iterator[Mistake]:
    for name, one in graph.processors.items():
        for path, text in _misshapen(one):
            yield Mistake(("processors", name, *path), text)
        for kind, steps in (("an exchange", graph.exchanges), ("a link", graph.links)):
            if name in steps:
                yield Mistake(("processors", name), f"{kind} has this name, which is that of a consumer, too")
    yield from _rivals(graph)


def _misshapen(one: Processor) -> Iterator[tuple[Path, str]]:
    """What is wrong with a processor alone."""
    if one.in_ and one.alts:
        yield ("alts",), "`in` takes a message of every input, `alts` of one of them: leave one of the two out"
    if len(one.alts) == 1:
        yield ("alts",), "it chooses among at least two queues: of one, say `in`"
    for key in _BOUND:
        bound_to: dict[Place, str] = {}
        for binding, place in getattr(one, "in_" if key == "in" else key).items():
            if (other := bound_to.setdefault(place.place, binding)) != binding:
                yield (key, binding), f"it is the queue of {other!r}, too"
    if one.kind == "source":
        yield from _misused_source(one)
        return
    if one.fn is None:
        yield (), "'fn' is missing: its function, as module:function"
    if one.kind == "imperative" and len(one.out) > 1:
        yield ("out",), "a processor that writes by itself has one output at most: name the others in `appenders`"
    if one.errors is not None and not _by_row(one):
        yield ("errors",), "only a function on rows fails for one of them alone: say `rows: true`, or leave this out"
    if not one.consumer.reserve:
        yield ("consumer", "reserve"), f"say delivery={AT_MOST_ONCE} instead"
    if not one.inputs and (one.types or one.topics):
        yield ("types" if one.types else "topics",), "there is no input that it could hold for"


def _misused_source(one: Processor) -> Iterator[tuple[Path, str]]:
    if one.fn is not None:
        yield ("fn",), "it has no input to work on: give `in`, `alts`, or `tailers` that it reads by itself"
    elif len(one.out) > 1:
        yield ("out",), "a source is one queue: without an input there is nothing to fork"
    else:
        plain = Processor(out=one.out)
        for field in fields(one):
            if getattr(one, field.name) != getattr(plain, field.name):
                yield (field.name,), "a source has nothing but its queue, as `out`"


def _rivals(graph: Graph) -> Iterator[Mistake]:
    """Queues that a processor reads, and something else too: each message would go to one of them."""
    only = next(iter(graph.namespaces)) if len(graph.namespaces) == 1 else ""
    readers: dict[Place, list[tuple[str, Path, str]]] = {}
    for kind, steps in (("exchange", graph.exchanges), ("link", graph.links)):
        for name, step in steps.items():
            readers.setdefault(replace(step.src, ns=step.src.ns or only), []).append(
                (f"{kind} {name!r}", (), "queue")
            )
    for name, one in graph.processors.items():
        for key, inputs in (("in", one.in_), ("alts", one.alts)):
            for binding, place in inputs.items():
                at = replace(place.place, ns=place.ns or only)
                path: Path = ("processors", name, key, binding)
                readers.setdefault(at, []).append((f"processor {name!r}", path, place.mode))
    for found in readers.values():
        for number, (_, path, mode) in enumerate(found):
            others = [who for other, (who, _, how) in enumerate(found) if other != number and "queue" in (how, mode)]
            mine = found[number][0]
            others = [who for who in dict.fromkeys(others) if who != mine]
            if path and others:
                yield Mistake(
                    path,
                    f"{' and '.join(others)} {'reads' if len(others) == 1 else 'read'} this queue, too, and each "
                    "message would go to one of them: for each to get all, every one must be a processor with "
                    "{queue: …, mode: log} here",
                )


_GRAPH: TypeAdapter[Graph] = TypeAdapter(Graph)
