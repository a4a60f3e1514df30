"""The order of the steps of a graph: a step comes after those that write its messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import networkx as nx

from spark_queue.graph.parts import Place
from spark_queue.graph.step import Step


class StepOrder:
    """The order of steps. Those of a cycle have the same rank."""

    def __init__(self, steps: Mapping[str, Step]) -> None:
        flow: nx.DiGraph[str | Place] = nx.DiGraph()
        flow.add_nodes_from(steps)
        for name, one in steps.items():
            flow.add_edges_from((source, name) for source in one.sources)
            flow.add_edges_from((name, place) for place in (*one.written_queues, *one.unrouted_queues))
        self._groups: nx.DiGraph[Any] = nx.condensation(flow)  # a group for each cycle, and for each other node
        self._group_of: dict[str | Place, int] = self._groups.graph["mapping"]

    def sort(self, names: Iterable[str]) -> list[str]:
        """Return the names of steps in order. Those of a cycle keep theirs."""
        rank = {group: number for number, group in enumerate(nx.topological_sort(self._groups))}
        return sorted(names, key=lambda name: rank[self._group_of[name]])

    def first(self, names: Iterable[str]) -> list[str]:
        """Return those steps whose messages none of the others writes, except in a cycle."""
        names = list(names)
        groups = {self._group_of[name] for name in names}
        return [name for name in names if not groups & nx.ancestors(self._groups, self._group_of[name])]
