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
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tests.protocol.model import moves
from tests.protocol.possible import named, possible
from tests.protocol.rules import Rules
from tests.protocol.search import trace_of
from tests.protocol.state import State, Step, World, drained, initial

FILE = Path(__file__).with_name("scenarios.txt")

#: How many of the traces `make test` follows: those that come first.
FEW = 31

#: How many steps a trace has that looks for no further pair; and how many states are looked at for one.
LONG, NEAR = 60, 1000

ALL = Rules()

WORLDS = {
    "crashes": World(crashes=2, ends=1, takers=1),
    "batches of two": World(most=2, crashes=1, ends=1, takers=1),
    "a takeover": World(drivers=2, takeovers=1, ends=1),
    "a lost publish": World(crashes=1, failovers=1),
    "a new checkpoint": World(crashes=1, ends=1, fresh=1),
    "a copy": World(crashes=1, copies=1, ends=1),
    "a lost end": World(crashes=1, cuts=2),
    "two databases": World(databases=2, most=2, crashes=1, aborts=1, away=1),
    "two databases, a lost publish": World(databases=2, crashes=1, failovers=1),
    "a database goes back": World(crashes=1, backs=1),
    "two queries": World(queries=2, drivers=2, crashes=1),
    "an aged note": World(copies=1, aged=1, crashes=1),
    "a claim is cut off": World(cut=True, most=2, crashes=1, ends=1, takers=1),
    "calls of Spark 4.0": World(old_calls=True, crashes=1, ends=1, takers=1),
    "calls of Spark 4.0, a copy": World(old_calls=True, crashes=1, copies=1),
    "a first batch without messages": World(empty=True, crashes=1, ends=1, takers=1),
    "a first batch without messages, a lost end": World(empty=True, crashes=1, cuts=2),
    "one of two queues": World(queues=2, crashes=1, ends=1, takers=1),
    "one of two queues, a copy": World(queues=2, crashes=1, copies=1),
    "two queues": World(queues=2, combine="zip", crashes=1, ends=1, takers=1),
    "two queues, a copy": World(queues=2, combine="zip", crashes=1, copies=1),
    "two queues, a lost end": World(queues=2, combine="zip", crashes=1, cuts=2, ends=1),
}

#: Too large to look at all states: a process that stands still while two others come and go.
THREE = "three processes"
ALL_WORLDS = {**WORLDS, THREE: World(messages=3, drivers=3, takeovers=2)}

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
            yield named(state, step), after


class Graph:
    """All states of a world, the shortest way to each, and the shortest way from each to a quiet end."""

    def __init__(self, world: World) -> None:
        first = initial(world)
        number = {first: 0}
        states = [first]
        self.out: list[list[tuple[str, int]]] = []  #: steps from each state, and where they lead
        self._before = [(-1, "")]
        into: list[list[tuple[int, str]]] = [[]]  # steps that are no faults
        for state in states:
            at, out = len(self.out), []
            for step, after in scenario_moves(state, world):
                there = number.setdefault(after, len(states))
                if there == len(states):
                    states.append(after)
                    self._before.append((at, str(step)))
                    into.append([])
                out.append((str(step), there))
                if not step.fault:
                    into[there].append((at, str(step)))
            self.out.append(out)
        arrived = _ways([drained(one, world) for one in states], into)
        given_up = _ways([not any(one.drivers) for one in states], into)
        self._onward = [one or other for one, other in zip(arrived, given_up, strict=True)]

    def way_to(self, at: int) -> list[str]:
        """Return the steps to a state."""
        steps = []
        while at:
            at, step = self._before[at]
            steps.append(step)
        return steps[::-1]

    def way_from(self, at: int) -> list[str]:
        """Return the steps from a state to a quiet end: all has arrived, or no process is left."""
        steps = []
        while (onward := self._onward[at]) is not None and onward[0]:
            step, at = onward
            steps.append(step)
        return steps

    def pairs(self) -> dict[Pair, tuple[int, str, str, int]]:
        """Return each pair, and where it occurs first: a state, the two steps from there, and where they lead."""
        found: dict[Pair, tuple[int, str, str, int]] = {}
        for at, out in enumerate(self.out):
            for one, there in out:
                for other, end in self.out[there]:
                    found.setdefault(pair(one, other), (at, one, other, end))
        return found

    def further(self, taken: list[str], at: int, covered: set[Pair]) -> tuple[list[str], int] | None:
        """Return a shortest way to a further pair, after the steps that lead to a state, and where it ends."""
        covered = covered | Scenario("", tuple(taken)).pairs
        before: dict[int, tuple[str, int]] = {at: (taken[-1], -1)}
        waiting = deque([at])
        while waiting and len(before) < NEAR:
            here = waiting.popleft()
            for step, there in self.out[here]:
                if pair(before[here][0], step) not in covered:
                    steps, place = [step], here
                    while place != at:
                        steps.append(before[place][0])
                        place = before[place][1]
                    return steps[::-1], there
                if there not in before:
                    before[there] = step, here
                    waiting.append(there)
        return None


def _ways(good: list[bool], into: list[list[tuple[int, str]]]) -> list[tuple[str, int] | None]:
    """Return for each state the first step of a shortest way to a good one, and where it leads."""
    onward: list[tuple[str, int] | None] = [("", at) if one else None for at, one in enumerate(good)]
    waiting = deque(at for at, one in enumerate(good) if one)
    while waiting:
        there = waiting.popleft()
        for at, step in into[there]:
            if onward[at] is None:
                onward[at] = (step, there)
                waiting.append(at)
    return onward


def made() -> tuple[set[Pair], list[Scenario]]:
    """Return all pairs, and scenarios that have them."""
    covered: set[Pair] = set()
    found: list[Scenario] = []
    for name, world in reversed(WORLDS.items()):  # the last ones have most of the pairs of the first ones
        graph = Graph(world)
        for one, (at, first, second, end) in reversed(graph.pairs().items()):  # a long way has many pairs
            if one in covered:
                continue
            steps = [*graph.way_to(at), first, second]
            while len(steps) < LONG and (more := graph.further(steps, end, covered)) is not None:
                steps += more[0]
                end = more[1]
            found.append(Scenario(name, (*steps, *graph.way_from(end))))
            covered |= found[-1].pairs
    return covered, [_three(), *_first(_needed(found))]


def _three() -> Scenario:
    """Return the trace without the rule `strays`, up to the step that this rule forbids, and a way on."""
    _, steps = trace_of("strays")
    forbidden = steps.index("driver 2: gives back what was not started")
    steps = [*steps[:forbidden], "producer: pushes", "driver 2: claims 0/2.2"]
    world = ALL_WORLDS[THREE]
    state = initial(world)
    for wanted in steps:
        state = next(after for step, after in scenario_moves(state, world) if str(step) == wanted)
    while not drained(state, world):
        found = [(step, after) for step, after in scenario_moves(state, world) if not step.fault]
        step, state = min(found, key=lambda one: not str(one[0]).startswith("driver 3"))
        steps.append(str(step))
    return Scenario(THREE, tuple(steps))


def _needed(found: list[Scenario]) -> list[Scenario]:
    """Leave those out whose pairs all others have."""
    times = Counter(pair for one in found for pair in one.pairs)
    needed = []
    for one in sorted(found, key=lambda one: -len(one.steps)):
        if all(times[pair] > 1 for pair in one.pairs):
            times -= Counter(one.pairs)
        else:
            needed.append(one)
    return [one for one in found if one in needed]


def _first(found: list[Scenario]) -> list[Scenario]:
    """Put those first that have all kinds of steps in few steps, and then pairs: with the one before them, FEW."""
    left, kinds, pairs = list(found), set[str](), set[Pair]()

    def new(one: Scenario) -> tuple[float, float]:
        return len(one.kinds - kinds) / len(one.steps), len(one.pairs - pairs) / len(one.steps)

    for _ in range(FEW - 1):
        best = max(left, key=new)
        kinds |= best.kinds
        pairs |= best.pairs
        left.remove(best)
    return [one for one in found if one not in left] + left


# --- the file -------------------------------------------------------------------------------------------------------


def written(scenarios: list[Scenario]) -> str:
    """Return the text of the file: all steps, a line for each, and then scenarios as numbers of these lines."""
    steps = sorted({step for one in scenarios for step in one.steps})
    number = {step: str(place) for place, step in enumerate(steps)}
    lines = [" ".join([f"{one.world}:", *(number[step] for step in one.steps)]) for one in scenarios]
    return "\n".join([*steps, "", *lines, ""])


def stored() -> list[Scenario]:
    """Return the scenarios of the file."""
    head, _, rest = FILE.read_text().partition("\n\n")
    steps, found = head.splitlines(), []
    for line in rest.splitlines():
        world, _, numbers = line.partition(": ")
        found.append(Scenario(world, tuple(steps[int(one)] for one in numbers.split())))
    return found


def known(scenarios: list[Scenario]) -> list[int]:
    """Return for each scenario with how many steps of an earlier one it begins."""
    seen: set[tuple[str, tuple[str, ...]]] = set()
    found = []
    for one in scenarios:
        ways = [(one.world, one.steps[:length]) for length in range(len(one.steps) + 1)]
        found.append(sum(way in seen for way in ways[1:]))
        seen.update(ways)
    return found


if __name__ == "__main__":
    if sys.argv[1:]:
        for one in map(int, sys.argv[1:]):
            print("\n  ".join([f"{one}: {stored()[one].world}", *stored()[one].steps]))
    else:
        pairs, scenarios = made()
        FILE.write_text(written(scenarios))
        print(f"{len(pairs)} pairs, {len(scenarios)} scenarios, {sum(len(one.steps) for one in scenarios)} steps")
