"""Scenarios: traces of the model that the real code follows on real stores, step by step (see `real`).

Two steps of a trace, one after the other, are a pair: `(who, one, other)`. `one` and `other` are the kinds of the
steps: what is done, without numbers of batches, tags, epochs and queries. `who` says whether the same process takes
both, or two processes do, or something outside takes part. All pairs that occur in the states of `WORLDS` are wanted.
For each of them there is a trace: the shortest way to it, and then a way to a quiet end.

The model lets some things happen that the code never does, or does in one order only. `possible` leaves them out.

`python -m tests.protocol.scenarios` writes all traces anew. With the numbers of some, it shows these.
"""

from __future__ import annotations

import re
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tests.protocol.model import moves
from tests.protocol.possible import possible
from tests.protocol.rules import Rules
from tests.protocol.state import State, Step, World, drained, initial

FILE = Path(__file__).with_name("scenarios.txt")

#: How many of the traces `make test` follows: those that come first.
FEW = 20

ALL = Rules()

WORLDS = {
    "crashes": World(crashes=2, ends=1, takers=1),
    "batches of two": World(most=2, crashes=1, ends=1, takers=1),
    "a takeover": World(drivers=2, takeovers=1, ends=1),
    "a lost publish": World(crashes=1, failovers=1),
    "a new checkpoint": World(crashes=1, ends=1, fresh=1),
    "a copy": World(crashes=1, copies=1, ends=1),
    "a lost end": World(crashes=1, cuts=2),
    "an aged note": World(copies=1, aged=1, crashes=1),
}

NUMBERS = re.compile(r" (of )?(\d+/\d+\.\d+|batch \d+|epoch \d+|query \d+)")


class Pair(NamedTuple):
    """Two steps, one after the other."""

    who: str
    one: str
    other: str


@dataclass(frozen=True)
class Scenario:
    """A trace, and the name of its world."""

    world: str
    steps: tuple[str, ...]

    @property
    def pairs(self) -> set[Pair]:
        """All pairs of the trace."""
        return {pair(one, other) for one, other in zip(self.steps, self.steps[1:], strict=False)}

    @property
    def kinds(self) -> set[str]:
        """The kinds of its steps."""
        return set(map(kind, self.steps))


def kind(step: str) -> str:
    """Return what a step does, without numbers."""
    actor, _, action = step.partition(": ")
    return NUMBERS.sub("", action if actor.startswith("driver") else step)


def pair(one: str, other: str) -> Pair:
    """Return the pair of two steps."""
    actors = one.partition(":")[0], other.partition(":")[0]
    inside = [one.startswith("driver") for one in actors]
    who = "outside" if not all(inside) else "the same" if actors[0] == actors[1] else "another"
    return Pair(who, kind(one), kind(other))


def scenario_moves(state: State, world: World) -> Iterator[tuple[Step, State]]:
    """Yield the steps that real code can take."""
    found = list(moves(state, world, ALL))
    for step, after in found:
        if possible(state, step, [one for one, _ in found], world):
            yield step, after


class Graph:
    """All states of a world, the shortest way to each, and the shortest way from each to a quiet end."""

    def __init__(self, world: World) -> None:
        first = initial(world)
        number = {first: 0}
        self.states = [first]
        self.out: list[list[tuple[str, int, bool]]] = []
        self._before = [(-1, "")]
        for state in self.states:
            at, out = len(self.out), []
            for step, after in scenario_moves(state, world):
                there = number.setdefault(after, len(self.states))
                if there == len(self.states):
                    self.states.append(after)
                    self._before.append((at, str(step)))
                out.append((str(step), there, step.fault))
            self.out.append(out)
        self._onward = self._ways([drained(one, world) for one in self.states])
        idle = self._ways([not any(one.drivers) for one in self.states])
        self._onward = [one or other for one, other in zip(self._onward, idle, strict=True)]

    def _ways(self, good: list[bool]) -> list[tuple[str, int] | None]:
        """Return for each state the first step of a shortest way to a good one, without faults."""
        into: list[list[tuple[int, str]]] = [[] for _ in self.states]
        for at, out in enumerate(self.out):
            for step, there, fault in out:
                if not fault:
                    into[there].append((at, step))
        onward: list[tuple[str, int] | None] = [("", at) if one else None for at, one in enumerate(good)]
        waiting = deque(at for at, one in enumerate(good) if one)
        while waiting:
            there = waiting.popleft()
            for at, step in into[there]:
                if onward[at] is None:
                    onward[at] = (step, there)
                    waiting.append(at)
        return onward

    def way_to(self, at: int) -> list[str]:
        """Return the steps to a state."""
        steps = []
        while at:
            at, step = self._before[at]
            steps.append(step)
        return steps[::-1]

    def way_from(self, at: int) -> list[str]:
        """Return the steps from a state to a quiet end."""
        steps = []
        while (onward := self._onward[at]) is not None and onward[0]:
            steps.append(onward[0])
            at = onward[1]
        return steps

    def pairs(self) -> dict[Pair, tuple[int, str, str, int]]:
        """Return each pair, and where it occurs first: a state, the two steps from there, and where they lead."""
        found: dict[Pair, tuple[int, str, str, int]] = {}
        for at, out in enumerate(self.out):
            for one, there, _ in out:
                for other, end, _ in self.out[there]:
                    found.setdefault(pair(one, other), (at, one, other, end))
        return found


def wanted() -> tuple[set[Pair], list[Scenario]]:
    """Return all pairs, and traces that cover them."""
    covered: set[Pair] = set()
    made: list[Scenario] = []
    for name, world in WORLDS.items():
        graph = Graph(world)
        for one, (at, first, second, end) in reversed(graph.pairs().items()):  # a long trace covers short ones
            if one not in covered:
                made.append(Scenario(name, (*graph.way_to(at), first, second, *graph.way_from(end))))
                covered |= made[-1].pairs
    return covered, made
