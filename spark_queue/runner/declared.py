"""Exchanges that callers declare at run time, kept in the database of their source.

All servers of the database see them, and they are there after a restart. One note has all those of
a namespace, since servers read it every second. It has the declaration of each, and whether it is
stopped. A step of a graph file is in a note only if it was stopped or started; the file has its
declaration. A removed exchange stays in the note until a server has settled its reservations.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from spark_queue.errors import GraphError, StoreUnavailable, UsageError
from spark_queue.graph.exchange import Exchange
from spark_queue.graph.model import Graph
from spark_queue.graph.parts import FROM_HTTP, SourceLocation
from spark_queue.graph.step import Step
from spark_queue.graph.validation import build_graph, with_step
from spark_queue.messages.json_text import dump_json
from spark_queue.runner.notes import check_version, note_value
from spark_queue.stores.base import Store

DECLARED_VERSION = 1
DECLARED_NOTE = "declared-exchanges"

#: Most bytes of the note of a namespace. The smallest limit of a database is 16 MB.
MAX_DECLARED = 4 << 20

#: What a note says, by name: `declaration` (`None`: that of the graph file), `stopped`, and an `id`
#: that no other one of this name has.
Entries = dict[str, dict[str, Any]]


def parse_declaration(graph: Graph, name: str, declaration: Any) -> Exchange:
    """Return the exchange of a declaration that came over HTTP.

    The rules are those of graph files, but it may not name functions of Python. Raises `GraphError`
    with all its mistakes, or those that it would bring into the graph.
    """
    raw = {"namespaces": dict(graph.namespaces), "exchanges": {name: declaration}}
    [found] = build_graph(raw, SourceLocation(f"exchange {name!r}"), [], Graph, FROM_HTTP).exchanges.values()
    with_step(graph, name, found)
    return found


@dataclass(frozen=True, slots=True)
class KnownStep:
    """A step of a graph file, or an exchange that was declared at run time.

    `ns`: the namespace that has its notes, which is that of its source. `step`: `None` if the
    declaration has mistakes, which `mistakes` names then. `id`: of the declaration, if it was
    declared at run time. `stopped`: whether it is not to run.
    """

    name: str
    ns: str
    step: Step | None
    id: str = ""
    stopped: bool = False
    mistakes: str = ""

    @property
    def declared(self) -> bool:
        """Whether it was declared at run time."""
        return bool(self.id)

    @property
    def key(self) -> str:
        """The name of its run, and of the folder of its checkpoint."""
        return f"{self.name}@{self.id}" if self.declared else self.name


class DeclaredExchanges:
    """The steps of a graph, and the exchanges that are declared in its namespaces.

    Its methods may block. Each change is one atomic write. `away`: the namespaces whose database
    could not be reached at the last patient `load`. `removed`: what was removed before that `load`,
    and is not settled.
    """

    def __init__(self, graph: Graph, stores: Mapping[str, Store]) -> None:
        self.graph, self._stores = graph, stores
        self.away: set[str] = set()
        self.removed: list[KnownStep] = []
        self._before: dict[str, Any] = {}  # the value of the note of each namespace, as it was last
        self._parsed: dict[str, tuple[dict[str, Any], Exchange | str]] = {}  # declarations that were read before

    def load(self, *, patient: bool = False, away: Collection[str] = ()) -> dict[str, KnownStep]:
        """Return all steps by name, those of the graph first, then others in the order of names.

        `patient`: if a database cannot be reached, use what it said before. `away`: namespaces for
        which that is known, so that they are not asked. Raises `StoreError`.
        """
        found: dict[str, KnownStep] = {}
        said, removed = self._load_entries(patient, away)
        for name, step in self.graph.steps.items():
            _, entry = said.pop(name, ("", {}))
            stopped = bool(entry.get("stopped", step.disable))
            found[name] = KnownStep(name, step.home.ns, step, stopped=stopped)
        for name, (ns, entry) in sorted(said.items()):
            if entry.get("declaration") is not None:  # else it is a step that the file had once
                found[name] = self._known(name, ns, entry)
        self.removed = [self._known(str(entry["name"]), ns, entry) for ns, entry in removed]
        return found

    def _known(self, name: str, ns: str, entry: Mapping[str, Any]) -> KnownStep:
        parsed = self._parse(name, entry["declaration"])
        known = KnownStep(name, ns, None, str(entry.get("id") or "?"), bool(entry.get("stopped")))
        facts: dict[str, Any] = {"mistakes": parsed} if isinstance(parsed, str) else {"step": parsed}
        return replace(known, **facts)

    def _parse(self, name: str, declaration: dict[str, Any]) -> Exchange | str:
        """Return the exchange of a declaration, or its mistakes.

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

    def _load_entries(
        self, patient: bool, known_away: Collection[str]
    ) -> tuple[dict[str, tuple[str, dict[str, Any]]], list[tuple[str, dict[str, Any]]]]:
        """Return what the notes say, each with its namespace: by name, and what was removed.

        Two namespaces may have the same database; the first one counts. Raises `StoreError`.
        """
        found: dict[str, tuple[str, dict[str, Any]]] = {}
        removed: dict[str, tuple[str, dict[str, Any]]] = {}  # by id
        away = set(known_away)
        for ns, store in self._stores.items():
            try:
                if ns not in known_away:
                    note = store.note(DECLARED_NOTE)
                    self._before[ns] = note and note.value
            except StoreUnavailable:
                if not patient:
                    raise
                away.add(ns)
            value = self._before.get(ns)
            for name, entry in _entries(ns, value).items():
                found.setdefault(name, (ns, entry))
            for entry in (value or {}).get("removed", ()):
                removed.setdefault(entry["id"], (ns, entry))
        self.away = away
        return found, list(removed.values())

    def add(self, name: str, ns: str, declaration: dict[str, Any], *, stopped: bool) -> bool:
        """Declare an exchange. Return whether the database had none of that name before.

        Raises `UsageError` if the database has too many.
        """
        added = False

        def change(entries: Entries) -> Entries:
            nonlocal added
            added = entries.get(name, {}).get("declaration") is None
            entry = {"declaration": declaration, "stopped": stopped, "id": uuid.uuid4().hex[:12]}
            made = entries | {name: entry} if added else entries
            if len(dump_json(made)) > MAX_DECLARED:
                raise UsageError(
                    f"the exchanges that callers created in namespace {ns} would take more than {MAX_DECLARED:,} "
                    "bytes: delete some",
                    ns=ns,
                )
            return made

        self._change(ns, change)
        return added

    def set_stopped(self, one: KnownStep, stopped: bool) -> bool:
        """Set whether a step is stopped. Return whether it is still there."""

        def change(entries: Entries) -> Entries:
            if one.declared and one.name not in entries:
                return entries  # it was removed meanwhile
            before = entries.get(one.name, {"declaration": None})
            return entries | {one.name: before | {"stopped": stopped}}

        return one.name in self._change(one.ns, change)

    def remove(self, one: KnownStep) -> None:
        """Remove a declared exchange, if it is there. It is in `removed` until `forget`."""
        self._change(one.ns, lambda entries: {name: entry for name, entry in entries.items() if name != one.name})

    def forget(self, one: KnownStep) -> None:
        """Forget an exchange that was removed: what it had reserved is settled."""
        self._change(one.ns, lambda entries: entries, one.id)

    def _change(self, ns: str, change: Callable[[Entries], Entries], forgotten: str = "") -> Entries:
        """Write the entries that `change` returns, unless they are equal, and return them.

        An entry with a declaration that is missing after it becomes a removed one.
        """

        def change_value(value: dict[str, Any] | None) -> dict[str, Any] | None:
            before, removed = _entries(ns, value), (value or {}).get("removed", [])
            after = change(before)
            gone = [{**one, "name": name} for name, one in before.items() if name not in after]
            now_removed = [one for one in removed + gone if one.get("declaration") and one.get("id")]
            now_removed = [one for one in now_removed if one["id"] != forgotten]
            if after == before and now_removed == removed:
                return value
            return note_value(DECLARED_VERSION, {"exchanges": after, "removed": now_removed})

        return _entries(ns, self._stores[ns].change_note(DECLARED_NOTE, change_value))


def _entries(ns: str, value: Mapping[str, Any] | None) -> Entries:
    if value is None:
        return {}
    check_version(value, (DECLARED_VERSION,), f"exchanges that callers created in namespace {ns}")
    return {name: entry for name, entry in value["exchanges"].items() if isinstance(entry, dict)}
