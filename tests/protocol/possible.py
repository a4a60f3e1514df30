"""What the model lets happen and the code does not, or does in one order only: scenarios leave it out."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tests.protocol.state import FENCED, FREE, Driver, Held, State, Step, World

#: Steps that the code takes at once in all inputs, or in all databases: nothing happens in between.
AT_ONCE = ("bind", "stage", "complete")

#: Steps of a process that has read the ledgers of several databases.
PUBLISHING = ("take", "publish", "sweep")


def possible(state: State, step: Step, others: Sequence[Step], world: World) -> bool:
    """Return whether real code can take this step. `others`: all that the model has here."""
    for place, one in enumerate(state.drivers):
        if one and one.step in AT_ONCE and one.queue and step.actor != f"driver {place + 1}":
            return False
    if step.actor.startswith("driver"):
        driver = _driver(state, step)
        if driver is None:
            return True
        if step.action == "crashes" or step.action.startswith("ends, since"):
            return driver.step not in AT_ONCE or not driver.queue
        if step.action.startswith("fails, and aborts"):
            return driver.step not in AT_ONCE or not driver.queue
        return _of_process(state, step, [one.action for one in others if one.actor == step.actor], driver, world)
    if step.actor == "other":
        return _in_turn(state, int(" of input 2" in step.action), 1)
    if step.action == "completes the sink":  # a process that publishes has looked, and does it for itself
        return state.idle()
    if step.action.startswith("loses what database"):  # the code goes by the ledgers as it has read them
        return not any(one and one.step in PUBLISHING for one in state.drivers)
    if step.action.startswith("completes the sink"):
        return _completes(state, int(step.action.split()[-1]))
    if step.action.startswith("recovers"):
        return not any(map(state.names, state.stages))  # the command would publish it as well
    return True


def named(state: State, step: Step) -> Step:
    """Return the step under the name that says where the code notices that a process was taken over.

    Elsewhere its heartbeat does, at any time: then the process just ends.
    """
    if not step.action.startswith("ends, since"):
        return step
    driver = _driver(state, step)
    assert driver is not None
    if driver.step == "ask" and not _asks(state, driver):
        return step._replace(action=f"{FENCED}: it asks, and was taken over")
    if driver.step == "commit" and not _commits(state, driver):
        return step._replace(action=f"{FENCED}: others have committed its batch")
    return step


def _driver(state: State, step: Step) -> Driver | None:
    return state.drivers[int(step.actor.removeprefix("driver ")) - 1]


def _of_process(state: State, step: Step, own: Sequence[str], driver: Driver, world: World) -> bool:
    if step.action.startswith(("holds a part", "reads a part", "commits a part")):
        return False  # most stores hold and remove all in one step; tasks read one after the other here
    ledger = state.ledgers[driver.query]
    pending = any(state.names(one) for one in state.stages if one.key == driver.query)
    if driver.step == "stage" and world.databases > 1:
        # A task refuses to go on if a database has lost the batch before; in the model, that is completed first.
        last = max(one.batch for one in state.ledgers)
        return last == driver.batch or all(one.batch == last for one in state.ledgers)
    if driver.step == "ask":
        return _asks(state, driver)
    if driver.step == "commit":
        return _commits(state, driver)
    if driver.step == "claim":
        if step.action.startswith(("gives back", "removes")):
            # Of several epochs, the code takes any first.
            return len(set(re.findall(r"epoch \d+", " ".join(own)))) < 2
        tag = driver.end.tags[0]._replace(seq=driver.start.seq + 1, by=driver.by[0])
        if any(one.startswith(("gives back", "removes")) for one in own):
            return False  # the code gives back first
        if driver.fresh and any(state.messages[n] == Held(tag, "ended") for n in state.held(tag)):
            return False  # a part of the batch: if it is taken a second time, the code counts it twice, and fails
        if world.combine == "zip" and world.queues > 1 and not driver.queue and not _ready(state, world):
            return False
        return all(_in_turn(state, queue, world.most) for queue in range(world.queues))
    if driver.step == "complete":
        # A sink that is ahead refuses the batch before it publishes what was decided.
        return ledger.batch <= driver.batch or not pending
    if driver.step == "publish":
        # The code looks again if it has skipped a batch; and it publishes its own batch alone.
        return ledger.batch == driver.batch or (driver.attempt >= 0 and not pending)
    return True


def _asks(state: State, driver: Driver) -> bool:
    """Whether a process owns its consumer when it asks, which the code looks up, but for the first batch."""
    note, start = state.note(driver.epoch, driver.queue), driver.planned or driver.start
    return start.initial or (note is not None and note.owner == driver.by[driver.queue])


def _commits(state: State, driver: Driver) -> bool:
    """Whether a process that commits what itself has reserved finds all of it: so the code demands.

    Where it was taken over, its successor may have committed the batch.
    """
    start = driver.planned or driver.start
    tag, rows = start.tags[driver.queue], [n for n in start.rows if n % state.queues == driver.queue]
    return tag.by != driver.by[driver.queue] or len(state.held(tag)) == len(rows)


def _in_turn(state: State, queue: int, most: int) -> bool:
    """Whether it is clear which messages are taken: of those whose lease has ended a store may say when they come."""
    free = state.claimable(queue)
    return len(free) <= most or all(state.messages[n] == FREE for n in free)


def _ready(state: State, world: World) -> bool:
    """Whether the first of several inputs has no more messages than the others: the code looks how many each has.

    Some stores free messages whose lease has ended when that is asked.
    """
    first, *others = [state.claimable(queue) for queue in range(world.queues)]
    free = all(state.messages[n] == FREE for other in others for n in other)
    return free and min(len(first), world.most) <= min(map(len, others))


def _completes(state: State, query: int) -> bool:
    """The command is for a query that has stopped: it discards what is merely staged."""
    staged = any(one.key == query and not state.names(one) for one in state.stages)
    return not staged and not any(one and one.query == query for one in state.drivers)
