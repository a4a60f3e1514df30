"""Exchanges that callers declare at run time, kept in the database of their source.

All servers of the database see them, and they are there after a restart. The note of an exchange
has its declaration, and whether it is stopped. A step of a graph file has a note only if it was
stopped or started; the file has its declaration.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from spark_queue.errors import GraphError, StoreError, StoreUnavailable
from spark_queue.graph.exchange import Exchange
from spark_queue.graph.model import Graph
from spark_queue.graph.parts import FROM_HTTP, SourceLocation
from spark_queue.graph.step import Step
from spark_queue.graph.validation import build_graph, with_step
from spark_queue.stores.base import Store
from spark_queue.stores.types import Note

DECLARED_VERSION = 1
DECLARED_PREFIX = "declared-exchange/"


def parse_declaration(graph: Graph, name: str, declaration: Any) -> Exchange:
    """Return the exchange of a declaration that came over HTTP.

    The rules are those of graph files, but it may not name functions of Python. Raises `GraphError`
    with all its mistakes, or those that it would bring into the graph.
    """
    raw = {"namespaces": dict(graph.namespaces), "exchanges": {name: declaration}}
    [found] = build_graph(raw, SourceLocation(f"exchange {name!r}"), [], Graph, FROM_HTTP).exchanges.values()
    with_step(graph, name, found)
    return found


class _Declared(NamedTuple):
    """What a note says: the declaration of an exchange, `None` for a step of a graph file."""

    ns: str
    declaration: dict[str, Any] | None
    stopped: bool


@dataclass(frozen=True, slots=True)
class KnownStep:
    """A step of a graph file, or an exchange that was declared at run time.

    `ns`: the namespace that has its notes, which is that of its source. `step`: `None` if the
    declaration has mistakes, which `mistakes` names then. `declared`: whether it was declared at
    run time. `stopped`: whether it is not to run.
    """

    name: str
    ns: str
    step: Step | None
    declared: bool = False
    stopped: bool = False
    mistakes: str = ""

    @property
    def checkpoint(self) -> str:
        """The name of the folder of its checkpoint.

        An exchange that is declared anew with the same source continues where the one before ended.
        """
        if not self.declared or self.step is None:
            return self.name
        return f"{self.name}@{hashlib.sha256(str(self.step.src).encode()).hexdigest()[:12]}"


class DeclaredExchanges:
    """The steps of a graph, and the exchanges that are declared in its namespaces.

    Its methods may block. Each change is one atomic write.
    """

    def __init__(self, graph: Graph, stores: Mapping[str, Store]) -> None:
        self.graph, self._stores = graph, stores
        self._before: dict[str, dict[str, Note]] = {}  # the notes of each namespace
        self._parsed: dict[str, tuple[dict[str, Any], Exchange | str]] = {}  # declarations that were read before

    def load(self, *, patient: bool = False) -> dict[str, KnownStep]:
        """Return all steps by name, those of the graph first, then others in the order of names.

        `patient`: if a database cannot be reached, use what it had before. Raises `StoreError`.
        """
        notes = self._load_notes(patient)
        found: dict[str, KnownStep] = {}
        for name, step in self.graph.steps.items():
            one = notes.pop(name, None)
            stopped = step.disable if one is None or one.declaration is not None else one.stopped
            found[name] = KnownStep(name, step.home.ns, step, stopped=stopped)
        for name, one in sorted(notes.items()):
            if one.declaration is None:
                continue  # a step that the file had once
            parsed = self._parse(name, one.declaration)
            known = KnownStep(name, one.ns, None, declared=True, stopped=one.stopped)
            facts: dict[str, Any] = {"mistakes": parsed} if isinstance(parsed, str) else {"step": parsed}
            found[name] = replace(known, **facts)
        return found

    def _parse(self, name: str, declaration: dict[str, Any]) -> Exchange | str:
        """Return the exchange of a note, or its mistakes.

        The server that declared it may have other namespaces, or a newer version.
        """
        before = self._parsed.get(name)
        if before is not None and before[0] == declaration:
            return before[1]
        try:
            parsed: Exchange | str = parse_declaration(self.graph, name, declaration)
        except GraphError as error:
            parsed = str(error)
        self._parsed[name] = declaration, parsed
        return parsed

    def _load_notes(self, patient: bool) -> dict[str, _Declared]:
        """Return what the notes say. Of two with the same name, the first namespace counts.

        Raises `StoreError`.
        """
        found: dict[str, _Declared] = {}
        for ns, store in self._stores.items():
            try:
                notes = store.notes(DECLARED_PREFIX)
            except StoreUnavailable:
                if not patient:
                    raise
                notes = self._before.get(ns, {})
            self._before[ns] = notes
            for key, note in notes.items():
                name = key.removeprefix(DECLARED_PREFIX)
                found.setdefault(name, _from_note(name, ns, note))
        return found

    def add(self, name: str, ns: str, declaration: dict[str, Any], *, stopped: bool) -> bool:
        """Declare an exchange. Return whether the database had none of that name before."""
        return self._stores[ns].set_note(DECLARED_PREFIX + name, _note_value(declaration, stopped), 0)

    def set_stopped(self, one: KnownStep, stopped: bool) -> bool:
        """Set whether a step is stopped. Return whether it is still there."""

        def change(value: dict[str, Any] | None) -> dict[str, Any] | None:
            if one.declared and value is None:
                return None  # it was removed meanwhile
            declaration = value["declaration"] if value is not None else None
            return _note_value(declaration, stopped)

        return self._stores[one.ns].change_note(DECLARED_PREFIX + one.name, change) is not None

    def remove(self, one: KnownStep) -> None:
        """Remove a declared exchange, if it is there."""
        self._stores[one.ns].change_note(DECLARED_PREFIX + one.name, lambda _: None)


def _note_value(declaration: dict[str, Any] | None, stopped: bool) -> dict[str, Any]:
    # If a reply is lost, `set_note` finds its write by the value, which must be unique.
    return {"v": DECLARED_VERSION, "declaration": declaration, "stopped": stopped, "by": uuid.uuid4().hex}


def _from_note(name: str, ns: str, note: Note) -> _Declared:
    value = note.value
    if value.get("v") != DECLARED_VERSION:
        raise StoreError(
            f"the declaration of exchange {name!r} has version {value.get('v')!r}, this version of spark_queue "
            f"reads {DECLARED_VERSION}: upgrade spark_queue",
            exchange=name,
        )
    return _Declared(ns, value["declaration"], value["stopped"])
