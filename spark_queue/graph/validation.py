"""Mistakes of a graph: all at once, each with its place.

Types are checked first, then missing namespaces, then contradictions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from spark_queue.errors import near
from spark_queue.graph.file_mistakes import KINDS, Mistake, mistake_of, refusal
from spark_queue.graph.model import TOO_MANY_HOPS, Changes, Destination, Exchange, Graph, Link, Moves, Retry, sections
from spark_queue.graph.parts import Consumer, Namespace, Origin, Path, Place, place_of
from spark_queue.graph.processor import Input, Processor, bound
from spark_queue.options.masking import quoted, shown_as
from spark_queue.options.values import AT_MOST_ONCE

_P = TypeVar("_P", bound=Place)

#: The keys of a processor below which queues are bound to names.
_BOUND = ("in", "alts", "out", "tailers", "appenders")


def checked(graph: Graph) -> Graph:
    """Return the graph with its defaults filled in. Raises `GraphError` with all its mistakes."""
    return read(graph, graph.origin)


def with_step(graph: Graph, name: str, step: Exchange | Link | Processor) -> Graph:
    """Return the graph with one more step. Raises `GraphError`."""
    return _replaced(graph, step.section, {**getattr(graph, step.section), name: step})


def without_step(graph: Graph, name: str) -> Graph:
    """Return the graph without a step."""
    kind = next(kind for kind in sections(graph) if name in getattr(graph, kind))
    return _replaced(graph, kind, {other: one for other, one in getattr(graph, kind).items() if other != name})


def _replaced(graph: Graph, kind: str, steps: Mapping[str, Any]) -> Graph:
    facts: dict[str, Any] = {kind: steps}
    made = replace(graph, **facts)
    object.__setattr__(made, "origin", graph.origin)
    return checked(made)


def read(raw: Any, origin: Origin | None = None, found: Iterable[Mistake] = ()) -> Graph:
    """Return the graph that these facts describe. `found`: mistakes known so far. Raises `GraphError` with all."""
    origin = origin or Origin()
    mistakes = list(found)
    try:
        known = _GRAPH if not isinstance(raw, Graph) or type(raw) is Graph else TypeAdapter(type(raw))
        graph = known.validate_python(raw)
    except ValidationError as error:
        mistakes += [mistake_of(one, keys_at) for one in error.errors(include_url=False)]
        graph = None
    mistakes += _strangers(raw if graph is None else graph)
    if graph is not None:
        mistakes += _contradictions(graph)
    if graph is None or mistakes:
        raise refusal(mistakes, origin)
    graph = _with_namespaces(graph)
    object.__setattr__(graph, "origin", origin)
    return graph


def keys_at(path: Path) -> list[str]:
    """Return the keys that are allowed at a path."""
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
    """Fill in defaults: the only namespace, and for a destination that of its source."""
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
    """Return a processor with its namespaces, the default queue of a source, and the error queue of the graph."""
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
    """Return whether its function is called for each row of messages."""
    return one.kind == "imperative" or (one.rows and one.kind != "source")


def _strangers(raw: Any) -> Iterator[Mistake]:
    """Yield namespaces that do not exist. Values of a wrong type are reported elsewhere."""
    known = _inside(raw, "namespaces")
    names = list(map(str, known)) if isinstance(known, dict) else []
    hint = f"; the graph has {', '.join(map(quoted, names))}" if names else "; the graph has none"
    for path, place, needed in _places(raw):
        ns = _inside(place_of(place), "ns")
        if ns and ns not in names:
            whole = place if isinstance(place, str) else f"{ns}/{_inside(place, 'queue')}"
            shown = quoted(str(ns)) if shown_as(whole) == whole else f"in {quoted(whole)}"  # a URL in the wrong place
            text = f"unknown namespace {shown}{near(str(ns), names) or hint}"
            yield Mistake(path, text)
        elif not ns and needed and place and len(names) != 1:
            yield Mistake(path, f"the namespace is missing: write namespace/queue{hint}")


def _inside(what: Any, key: str) -> Any:
    return what.get(key) if isinstance(what, dict) else getattr(what, key, None)


def _places(raw: Any) -> Iterator[tuple[Path, Any, bool]]:
    """Yield where the steps of a graph name queues, how, and whether they need a namespace."""
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
            continue  # reported elsewhere
        for binding, place in places.items():
            yield (key, binding), place, key in ("in", "alts") or not reads
    if not any(given.values()):
        yield (), name, True
    if (errors := _inside(step, "errors")) is not None:
        yield ("errors",), errors, not reads


#: Options of `format("queue")` that a step sets itself, and where.
_OWN = {
    "url": "set the URL of the namespace instead",
    "queue": "set `src` instead",
    "consumer": "the name of the step is the consumer",
    "delivery": "set `delivery` of the step instead",
    "maxRecordsPerTrigger": "set `consumer: {wsize: …}` instead",
    "numPartitions": "set `consumer: {parallel: …}` instead",
    "payloadFormat": "selectors and functions on rows read JSON",
    "layout": "set ?layout= in the URL of the namespace instead",
    "inputs": "set `in` or `alts` of a processor instead",
    "combine": "set `in` or `alts` of a processor instead",
    "urls": "set `namespaces` instead",
    "mode": "set `mode` of an input of a processor instead",
}


def _contradictions(graph: Graph) -> Iterator[Mistake]:
    options: list[tuple[Path, dict[str, str]]] = [
        *((("namespaces", name, "options"), one.options) for name, one in graph.namespaces.items()),
        *(
            ((section, name, "options"), one.options)
            for section in sections(graph)
            for name, one in getattr(graph, section).items()
        ),
    ]
    for path, given in options:
        told = _of_frames(_OWN) if path[0] == "processors" and not _by_row(graph.processors[str(path[1])]) else _OWN
        for key in given:
            for own, by in told.items():
                if key.lower() == own.lower():
                    yield Mistake((*path, key), f"this option is not allowed here: {by}")
    for name, one in graph.exchanges.items():
        if one.src.queue == TOO_MANY_HOPS:
            yield Mistake(
                ("exchanges", name, "src"),
                f"messages of {TOO_MANY_HOPS} have no hops left and would come back forever: push them again without "
                "the header x-hop-count instead",
            )
        if not one.consumer.reserve and one.guarantee != AT_MOST_ONCE:
            yield Mistake(
                ("exchanges", name, "consumer", "reserve"),
                f"delivery {one.delivery} needs reservations: leave this out, or set delivery: {AT_MOST_ONCE}",
            )
    for name, link in graph.links.items():
        for path, text in _misuses(link):
            yield Mistake(("links", name, *path), text)
        if name in graph.exchanges:
            yield Mistake(("links", name), "an exchange has the same name: rename one")
    yield from _of_processors(graph)


def _misuses(link: Link) -> Iterator[tuple[Path, str]]:
    """Yield settings of a link that contradict each other."""
    told = {"to": link.to, "drop": link.drop, "set": None if link.set == Moves() else link.set}
    for key, value in told.items():
        if value is not None and link.process is not None:
            yield (key,), "give either this or `process`: its function decides this"
    if len(link.dst) < 2 and link.to is not None:
        yield ("to",), "it chooses a destination, and the link has fewer than two: leave it out"
    if len(link.dst) > 1 and link.to is None and link.process is None:
        yield (), "'to' is missing: it chooses among several destinations"
    if not link.dst and link.set != Moves():
        yield ("set",), "the link has no destination, so it changes nothing: leave this out"
    if link.set.mature is not None and link.set.delay is not None:
        yield ("set", "delay"), "give either mature or delay, not both"
    for number, to in enumerate(link.dst):
        if to.ns and link.src.ns and to.ns != link.src.ns:
            yield (
                ("dst", number),
                "a link stays within one namespace: use an exchange to copy messages to another",
            )
        if to.queue == link.src.queue:
            yield ("dst", number), "this is the source of the link: name another queue"
    if not link.consumer.reserve:
        yield ("consumer", "reserve"), "a link needs reservations: leave this out"


def _of_frames(own: Mapping[str, str]) -> dict[str, str]:
    """Leave out what a processor on DataFrames may set itself: the form of payloads."""
    return {key: by for key, by in own.items() if key != "payloadFormat"}


def _of_processors(graph: Graph) -> Iterator[Mistake]:
    for name, one in graph.processors.items():
        for path, text in _misshapen(one):
            yield Mistake(("processors", name, *path), text)
        for kind, steps in (("an exchange", graph.exchanges), ("a link", graph.links)):
            if name in steps:
                yield Mistake(("processors", name), f"{kind} has the same name: rename one")
    yield from _rivals(graph)


def _misshapen(one: Processor) -> Iterator[tuple[Path, str]]:
    """Yield mistakes of one processor."""
    if one.in_ and one.alts:
        yield ("alts",), "give either `in` (a message of every input) or `alts` (of one input), not both"
    if len(one.alts) == 1:
        yield ("alts",), "needs at least two queues: for one, use `in`"
    for key in _BOUND:
        bound_to: dict[Place, str] = {}
        for binding, place in getattr(one, "in_" if key == "in" else key).items():
            if (other := bound_to.setdefault(place.place, binding)) != binding:
                yield (key, binding), f"this is also the queue of {other!r}: name another"
    if one.kind == "source":
        yield from _misused_source(one)
        return
    if one.fn is None:
        yield (), "'fn' is missing: the function, as module:function"
    if one.kind == "imperative" and len(one.out) > 1:
        yield (
            ("out",),
            "with `tailers` or `appenders` there is at most one output: move the others to `appenders`",
        )
    if one.errors is not None and not _by_row(one):
        yield ("errors",), "only functions on rows have an error queue: set `rows: true`, or leave this out"
    if not one.consumer.reserve:
        yield ("consumer", "reserve"), f"set delivery: {AT_MOST_ONCE} instead"
    if not one.inputs and (one.types or one.topics):
        yield ("types" if one.types else "topics",), "the processor has no input to filter: leave this out"


def _misused_source(one: Processor) -> Iterator[tuple[Path, str]]:
    if one.fn is not None:
        yield ("fn",), "the processor has no input: add `in`, `alts` or `tailers`"
    elif len(one.out) > 1:
        yield ("out",), "a source has one queue: keep one, or add an input"
    else:
        plain = Processor(out=one.out)
        for field in fields(one):
            if getattr(one, field.name) != getattr(plain, field.name):
                yield (field.name,), "a source has only `out`: leave this out, or add `fn` and an input"


def _rivals(graph: Graph) -> Iterator[Mistake]:
    """Yield queues that a processor and another step read: each message would go to only one of them."""
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
                    f"{' and '.join(others)} {'reads' if len(others) == 1 else 'read'} the same queue, and each "
                    "message would go to only one of them: to share it, use processors with {queue: …, mode: log}",
                )


_GRAPH: TypeAdapter[Graph] = TypeAdapter(Graph)
