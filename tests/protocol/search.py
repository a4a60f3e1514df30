"""Search all states of a world, breadth first: what is found has a shortest trace.

`python -m tests.protocol.search` writes the traces of the errors without a rule.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.protocol.model import moves
from tests.protocol.rules import Rules
from tests.protocol.state import REFUSED, State, World, breach, drained, initial
from tests.protocol.worlds import LATER, WITHOUT, without

#: What goes wrong without a rule, and the shortest way to it; one file for each rule.
TRACES = Path(__file__).parent / "traces"


@dataclass
class Found:
    """What a search found."""

    states: int = 0
    fault: str = ""
    trace: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return "\n  ".join([f"{self.fault or 'holds'}, {self.states:,} states", *self.trace])


def search(world: World, rules: Rules, begin: Sequence[str] = (), *, most: int = 10_000_000) -> Found:
    """Search a world, from where these steps lead, for what may not be.

    That is a breach; in a world without damage also a dead end, and a refusal if just one process of each query runs:
    of several, one may have read a checkpoint that is older by now, and goes on when it is started again. Once a
    database went back, a refusal is what should be.
    """
    first, strict = follow(world, rules, begin), not world.damaged and world.drivers == world.queries
    number = {first: 0}
    states, before = [first], [(-1, "")]
    into: list[list[int]] = [[]]  # states from which a step that is no fault leads here
    refused: list[int] = []  # states in which a process refuses to go on
    waiting = deque([0])
    while waiting:
        at = waiting.popleft()
        for step, after in moves(states[at], world, rules):
            if step.action.startswith(REFUSED):
                if strict and (not world.backs or states[at].has("backs")):
                    return Found(len(states), "FALSE ALARM", [*begin, *_trace(before, at), str(step)])
                refused.append(at)
            there = number.setdefault(after, len(states))
            if there == len(states):
                states.append(after)
                before.append((at, str(step)))
                into.append([])
                if fault := breach(after, world):
                    return Found(len(states), fault, [*begin, *_trace(before, there)])
                if len(states) > most:
                    return Found(len(states), "TOO MANY STATES", [*begin, *_trace(before, there)])
                waiting.append(there)
            if not step.fault:
                into[there].append(at)
    if not world.damaged and not world.foreign and (stuck := _stuck(states, into, world, refused)) is not None:
        return Found(len(states), "STUCK", [*begin, *_trace(before, stuck)])
    return Found(len(states))


def follow(world: World, rules: Rules, steps: Sequence[str]) -> State:
    """Return the state to which these steps lead. Raises `LookupError` for one that cannot be taken."""
    state = initial(world)
    for wanted in steps:
        found = next((after for step, after in moves(state, world, rules) if str(step) == wanted), None)
        if found is None:
            raise LookupError(wanted)
        state = found
    return state


def one_batch(world: World, rules: Rules) -> list[str]:
    """Return the steps in which the first process finishes one batch and waits for the next message."""
    steps = ["producer: pushes", "driver 1: starts"]
    while True:
        state = follow(world, rules, steps)
        mine = [str(step) for step, _ in moves(state, world, rules) if step.actor == "driver 1" and not step.fault]
        if not mine:
            return steps
        steps += mine


def steps_to(rule: str) -> list[str]:
    """Return the steps from which a search begins for what goes wrong without a rule."""
    world, _ = WITHOUT[rule]
    return one_batch(world, without(rule)) if rule in LATER else []


def trace_of(rule: str) -> tuple[str, list[str]]:
    """Return what goes wrong without a rule, and the steps to it, as they are stored."""
    fault, *steps = (TRACES / f"{rule}.txt").read_text().splitlines()
    return fault, steps


def _stuck(states: list[State], into: list[list[int]], world: World, refused: list[int]) -> int | None:
    """Return the first state from which no drained one can be reached without another fault.

    `refused`: states in which a process refuses, which is as good if the database went back.
    """
    good = [drained(one, world) for one in states]
    for at in refused if world.backs else ():
        good[at] = True
    waiting = deque(at for at, is_good in enumerate(good) if is_good)
    while waiting:
        for at in into[waiting.popleft()]:
            if not good[at]:
                good[at] = True
                waiting.append(at)
    return next((at for at, is_good in enumerate(good) if not is_good), None)


def _trace(before: list[tuple[int, str]], at: int) -> list[str]:
    steps = []
    while at > 0:
        at, step = before[at]
        steps.append(step)
    return steps[::-1]


if __name__ == "__main__":  # write all traces anew
    TRACES.mkdir(exist_ok=True)
    for rule, (world, _) in WITHOUT.items():
        found = search(world, without(rule), steps_to(rule))
        print(f"{rule}: {found.fault} after {len(found.trace)} steps, {found.states:,} states")
        (TRACES / f"{rule}.txt").write_text("\n".join([found.fault, *found.trace]) + "\n")
