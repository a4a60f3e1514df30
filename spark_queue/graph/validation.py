"""Validation of a graph: it finds all mistakes at once, each with its path.

Types are checked first, then unknown namespaces, then contradictions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from types import NoneType, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from spark_queue.errors import GraphError, did_you_mean
from spark_queue.graph.file_mistakes import Mistake, graph_error, mistake_from_pydantic
from spark_queue.graph.model import Graph, section_nouns, sections, step_classes
from spark_queue.graph.parts import (
    FROM_FILE,
    FieldPath,
    Place,
    SourceLocation,
    get_field,
    in_namespace,
    parse_place,
)
from spark_queue.graph.step import RESERVED_OPTIONS, QueueReference, Step
from spark_queue.options.masking import mask_if_url, masked_repr

_adapter = cache(TypeAdapter)


def check_graph(graph: Graph) -> Graph:
    """Return the graph with its defaults filled in. Raises `GraphError` with all its mistakes."""
    return build_graph(graph, graph.origin, [], type(graph))


Graph.check = staticmethod(check_graph)


def with_step(graph: Graph, name: str, step: Step) -> Graph:
    """Return the graph with one more step. Raises `GraphError` with all its mistakes."""
    return _replace_steps(graph, step.section, {**getattr(graph, step.section), name: step})


def without_step(graph: Graph, name: str) -> Graph:
    """Return the graph without a step.

    Raises `GraphError` if there is no such step, or with all mistakes of the graph.
    """
    for section in sections(graph):
        steps = dict(getattr(graph, section))
        if steps.pop(name, None):
            return _replace_steps(graph, section, steps)
    raise unknown_step("there is no step", name, graph.all_steps)


def _replace_steps(graph: Graph, section: str, steps: Mapping[str, Any]) -> Graph:
    facts: dict[str, Any] = {section: steps}
    return build_graph(replace(graph, **facts), graph.origin, [], type(graph))


def unknown_step(problem: str, name: str, known: Collection[str]) -> GraphError:
    """Return the error for an unknown name of a step, with similar names, or else all.

    `problem`: the text before the name.
    """
    hint = did_you_mean(name, known) or f"; there are {', '.join(known) or 'none'}"
    return GraphError(f"{problem} {name!r}{hint}", exchange=name)


def build_graph(
    raw: Any, origin: SourceLocation, mistakes: list[Mistake], graph_class: type[Graph], sent: str = FROM_FILE
) -> Graph:
    """Return the graph that a declaration describes. Raises `GraphError` with all mistakes.

    `raw`: a mapping from a file, or a graph of the class `graph_class`. `mistakes`: those that are
    known already. `sent`: where a mapping came from.
    """
    graph: Graph | None = None
    try:
        context = sent if isinstance(raw, Mapping) else None
        graph = _adapter(graph_class).validate_python(raw, context=context)  # type: ignore[arg-type]  # it is hashable
    except ValidationError as error:
        mistakes += [
            mistake_from_pydantic(one, lambda path: allowed_keys(path, graph_class))
            for one in error.errors(include_url=False)
        ]
    mistakes += _unknown_references(graph or raw, graph_class)
    if graph:
        mistakes += _contradictions(graph)
    if not graph or mistakes:
        raise graph_error(mistakes, origin, section_nouns(graph_class))
    graph = _fill_defaults(graph)
    for name, value in {"origin": origin, "is_checked": True}.items():
        object.__setattr__(graph, name, value)
    return graph


def allowed_keys(path: FieldPath, graph_class: type[Graph]) -> list[str]:
    """Return the keys that are allowed at a path."""
    kind: Any = graph_class
    for part in path:
        kind = _child_type(kind, str(part))
    return [one.name.rstrip("_") for one in fields(kind)]


def _child_type(kind: Any, part: str) -> Any:
    """Return the type of a key of a declaration, or of the values in a list or a mapping."""
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        found = hints[part if part in hints else f"{part}_"]
    else:
        found = get_args(kind)[-1]
    optional = get_origin(found) in (Union, UnionType)
    return next(one for one in get_args(found) if one is not NoneType) if optional else found


def _fill_defaults(graph: Graph) -> Graph:
    """Fill in the defaults of the graph and of its steps."""
    only = _default_namespace(graph)
    errors = in_namespace(graph.errors, only) if graph.errors else None
    facts: dict[str, Any] = {
        section: {name: one.with_defaults(name, only, errors) for name, one in getattr(graph, section).items()}
        for section in sections(graph)
    }
    return replace(graph, **facts, errors=errors)


def _default_namespace(graph: Graph) -> str:
    """Return the default namespace: the only one of the graph, or an empty text."""
    return next(iter(graph.namespaces)) if len(graph.namespaces) == 1 else ""


def _unknown_references(raw: Any, graph_class: type[Graph]) -> Iterator[Mistake]:
    """Yield queues whose namespace is unknown or missing.

    Values of a wrong type are reported elsewhere.
    """
    namespaces = get_field(raw, "namespaces")
    names = list(map(str, namespaces)) if isinstance(namespaces, dict) else []
    hint = f"; the graph has {', '.join(map(masked_repr, names))}" if names else "; the graph has none"
    for reference in _queue_references(raw, graph_class):
        path, place = reference.path, reference.place
        ns = get_field(parse_place(place), "ns")
        if ns and ns not in names:
            whole = place if isinstance(place, str) else f"{ns}/{get_field(place, 'queue')}"
            # A URL is masked as a whole.
            shown = masked_repr(str(ns)) if mask_if_url(whole) == whole else f"in {masked_repr(whole)}"
            yield Mistake(path, f"unknown namespace {shown}{did_you_mean(str(ns), names) or hint}")
        elif not ns and reference.namespace_required and place and len(names) != 1:
            yield Mistake(path, f"the namespace is missing: write namespace/queue{hint}")


def _queue_references(raw: Any, graph_class: type[Graph]) -> Iterator[QueueReference]:
    """Yield the queues that a graph names, with their paths from the root."""
    for section, kind in step_classes(graph_class).items():
        steps = get_field(raw, section)
        for name, step in steps.items() if isinstance(steps, dict) else ():
            for one in kind.queue_references(step):
                yield one._replace(path=(section, name, *one.path))
    if (errors := get_field(raw, "errors")) is not None:
        yield QueueReference(("errors",), errors, namespace_required=True)


def _contradictions(graph: Graph) -> Iterator[Mistake]:
    for name, namespace in graph.namespaces.items():
        yield from _misplaced_options(("namespaces", name, "options"), namespace.options, RESERVED_OPTIONS)
    before: dict[str, str] = {}
    for section, kind in step_classes(type(graph)).items():
        steps: Mapping[str, Step] = getattr(graph, section)
        for name, step in steps.items():
            yield from _misplaced_options((section, name, "options"), step.options, step.refused_options())
            for path, text in step.contradictions():
                yield Mistake((section, name, *path), text)
            for other, noun in before.items():
                if name in getattr(graph, other):
                    article = "an" if noun[0] in "aeiou" else "a"
                    yield Mistake((section, name), f"{article} {noun} has the same name: rename one")
        before[section] = kind.noun
    yield from _competing_steps(graph)


def _misplaced_options(path: FieldPath, options: Mapping[str, str], own: Mapping[str, str]) -> Iterator[Mistake]:
    """Yield options that a step sets itself."""
    for key in options:
        for one, by in own.items():
            if key.lower() == one.lower():
                yield Mistake((*path, key), f"this option is not allowed here: {by}")


class _Reader(NamedTuple):
    """A step that reads a queue, and the path of that queue in the graph."""

    name: str
    path: FieldPath
    shared: bool
    exclusive: bool


def _competing_steps(graph: Graph) -> Iterator[Mistake]:
    """Yield queues that several steps read, although one of these needs all their messages.

    Each message would go to only one of the steps.
    """
    only = _default_namespace(graph)
    readers: dict[Place, list[_Reader]] = {}
    for section, kind in step_classes(type(graph)).items():
        for name, step in getattr(graph, section).items():
            for path, place, shared in step.input_queues():
                one = _Reader(f"{kind.noun} {name!r}", (section, name, *path), shared, kind.exclusive)
                readers.setdefault(in_namespace(place, only), []).append(one)
    for found in readers.values():
        for one in found:
            others = [other.name for other in found if not (one.shared and other.shared)]
            others = [who for who in dict.fromkeys(others) if who != one.name]
            if one.exclusive and others:
                yield Mistake(
                    one.path,
                    f"{' and '.join(others)} {'reads' if len(others) == 1 else 'read'} the same queue, and each "
                    "message would go to only one of them: to share it, use processors with {queue: …, mode: log}",
                )
