"""The protocol of exactly-once as a transition system: a state, and the steps that lead from it.

One query reads a queue and writes to a sink. It has a checkpoint, and up to three driver processes at a time. A
process stands still while others take steps. Another consumer takes messages of the queue, too. A step is what a
database or a file system does at once: a statement, a script, a compare-and-set, a new file.

`breach` says what the protocol promises. Each rule that it needs for that is a flag of `Rules`. So a search can leave
one out, and show what goes wrong then: a check that never fails proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from tests.protocol.rules import Rules
from tests.protocol.state import (
    ELSEWHERE,
    FREE,
    GONE,
    LATER,
    Disk,
    Driver,
    Held,
    Ledger,
    Note,
    Offset,
    Stage,
    State,
    Tag,
    Where,
    World,
)  # fmt: skip


class Step(NamedTuple):
    """What happens: who does what. `fault`: it need not happen for messages to arrive."""

    actor: str
    action: str
    fault: bool = False

    def __str__(self) -> str:
        return f"{self.actor}: {self.action}"


#: Steps after which a process has refused to go on: with a checkpoint that does not fit, and without its consumer.
REFUSED, FENCED = "is refused", "is fenced"


def moves(state: State, world: World, rules: Rules) -> Iterator[tuple[Step, State]]:
    """Yield all steps that can be taken, and the states to which they lead."""
    yield from _outside(state, world)
    for place, driver in enumerate(state.drivers):
        name = f"driver {place + 1}"
        if driver is None:
            if place == state.drivers.index(None):  # they are alike
                yield Step(name, "starts"), state.with_driver(place, _started(state))
            continue
        if state.has("crashes"):
            yield Step(name, "crashes", True), state.with_driver(place, None).less("crashes")
        if not state.owns(driver) and driver.step not in ("own", "start"):
            yield Step(name, "ends, since it was taken over"), state.with_driver(place, None)
        for action, after in STEPS[driver.step](state, place, driver, world, rules):
            yield Step(name, action), after
        if world.ahead and driver.step in BUSY:
            tag = driver.end.tag._replace(seq=driver.end.tag.seq + 1, by=driver.by)
            free = [] if state.held(tag) else state.claimable()[: world.most]
            if free:
                yield Step(name, f"claims {tag} ahead"), state.put(dict.fromkeys(free, Held(tag, "ends")))


# --- what happens around the query ----------------------------------------------------------------------------------


def _outside(state: State, world: World) -> Iterator[tuple[Step, State]]:
    disk, copy, messages = state.disk, state.copy, state.messages
    later = next((n for n, where in enumerate(messages) if where == LATER), None)
    if later is not None:
        yield Step("producer", "pushes"), state.put({later: FREE})
    if (taken := state.claimable()[:1]) and state.has("takers"):
        yield Step("other", "takes a message", True), state.put({taken[0]: ELSEWHERE}).less("takers")
        yield Step("other", "gives a message back", True), state.put({taken[0]: FREE}).less("takers")
    for tag in sorted({one.tag for one in messages if isinstance(one, Held) and one.lease == "ends"}):
        ended = state.put({n: Held(tag, "ended") for n in state.held(tag)})
        if not any(one and _renews(one, tag) for one in state.drivers):
            yield Step("time", f"ends the lease of {tag}"), ended
        elif state.has("ends"):
            yield Step("time", f"ends the lease of {tag}", True), ended.less("ends")
    if world.copies and copy is None and disk.offsets:
        yield Step("operator", "copies the checkpoint", True), state._replace(copy=disk)
    if state.has("copies") and copy not in (None, disk):
        yield Step("operator", "restores the copy", True), state._replace(disk=copy).less("copies")
    if state.has("cuts") and disk.offsets and not any(state.drivers):
        cut = Disk(disk.query, disk.offsets[:-1], min(disk.finished, len(disk.offsets) - 2))
        yield Step("operator", "loses the end of the checkpoint", True), state._replace(disk=cut).less("cuts")
    if state.has("fresh") and not any(state.drivers) and disk.offsets:
        bound, ledgers = (*state.bound, -1), (*state.ledgers, Ledger())
        new = state._replace(disk=Disk(len(state.bound)), bound=bound, ledgers=ledgers).less("fresh")
        yield Step("operator", "begins a new checkpoint", True), new
    for epoch in range(len(state.notes) if disk.query else 0):  # if the operator has given one up
        if not any(one.tag.epoch == epoch for one in (*disk.offsets, *(copy.offsets if copy else ()))):
            yield from _recovered(state, epoch)
    for key in {one.key for one in state.stages if state.names(one)}:
        yield Step("operator", f"completes the sink of query {key}"), _published(state, key, Rules())
    if state.has("aged"):
        for epoch, note in enumerate(state.notes):
            if note and not any(one and one.end.tag.epoch == epoch for one in state.drivers):
                aged = state.with_note(epoch, None).less("aged")
                yield Step("time", f"removes the note of epoch {epoch}", True), aged
    if state.has("failovers"):
        for key, ledger in enumerate(state.ledgers):
            lost = Stage(key, ledger.batch, ledger.attempt, ledger.rows)
            # Of a server that fails, only what it wrote last is lost.
            last = not any(one.key == key and one.batch > ledger.batch for one in state.stages)
            if last and ledger.rows and lost not in state.stages and all(state.visible[row] for row in ledger.rows):
                visible = tuple(n - (row in ledger.rows) for row, n in enumerate(state.visible))
                after = state._replace(stages=state.stages | {lost}, visible=visible)
                yield Step("server", "loses the last publish", True), after.less("failovers")


def _recovered(state: State, epoch: int) -> Iterator[tuple[Step, State]]:
    """Recover an abandoned epoch: commit the messages that its query has written, release the others."""
    held = {n for n, one in enumerate(state.messages) if isinstance(one, Held) and one.tag.epoch == epoch}
    note = state.notes[epoch]
    if not held or any(one and one.end.tag.epoch == epoch for one in state.drivers) or note is None:
        return
    changed: dict[int, Where] = dict.fromkeys(held, FREE)
    for query, bound in enumerate(state.bound):
        if bound == epoch and note.started:
            started = set(state.held(note.started))
            changed |= dict.fromkeys(started & state.ledgers[query].rows, GONE)
    yield Step("operator", f"recovers epoch {epoch}"), state.put(changed)


def _renews(driver: Driver, tag: Tag) -> bool:
    """Whether a process renews this lease while it lives."""
    own = (driver.end.tag.epoch, driver.by) == (tag.epoch, tag.by)
    return own or (driver.step != "own" and driver.end.tag == tag)


# --- the source -----------------------------------------------------------------------------------------------------

Moves = Iterator[tuple[str, State]]


def _started(state: State) -> Driver:
    """A process that has just read the checkpoint."""
    disk, last = state.disk, len(state.disk.offsets) - 1
    new = Offset(Tag(len(state.notes), 0, 0))  # a fresh epoch, which counts where the checkpoint has no offset yet
    if last == disk.finished:
        start = disk.offsets[-1] if disk.offsets else new
        return Driver("own", disk.query, last + 1, start, start)
    end = disk.offsets[-1]
    start = disk.offsets[-2] if last else Offset(Tag(end.tag.epoch, 0, 0))
    return Driver("own", disk.query, last, start, end)


def _own(state: State, place: int, driver: Driver, world: World, rules: Rules) -> Moves:
    epoch = driver.end.tag.epoch
    again = driver.end != driver.start
    after = driver._replace(step="plan" if again else "ask")
    if world.foreign:
        yield "reads the checkpoint", state.with_driver(place, after)
        return
    if epoch == len(state.notes):  # a new checkpoint
        yield "becomes the first owner", state.with_note(epoch, Note(1)).with_driver(place, after._replace(by=1))
        return
    if epoch > len(state.notes):  # somebody else has begun an epoch since: it begins another
        return
    note = state.notes[epoch]
    if note is None and rules.absent and not driver.end.initial:
        yield REFUSED + ": the consumer is unknown", state.with_driver(place, None)
        return
    if note is not None and driver.start.initial and driver.end.initial:  # two began at once: each has its own epoch
        own = Offset(Tag(len(state.notes), 0, 0))
        yield "begins another epoch", state.with_driver(place, driver._replace(start=own, end=own))
        return
    living = note and any(one and one.end.tag.epoch == epoch and one.by == note.owner for one in state.drivers)
    if living and not state.has("takeovers"):
        return  # it waits
    by = 1 if note is None else state.unused(epoch)
    owned = state.with_note(epoch, (note or Note(0))._replace(owner=by)).with_driver(place, after._replace(by=by))
    yield ("takes over" if living else "becomes the owner"), owned.less("takeovers") if living else owned


def _ask(state: State, place: int, driver: Driver, world: World, rules: Rules) -> Moves:
    """`latestOffset(start)`: first, whether the checkpoint is the newest."""
    start = driver.start
    if not world.foreign and rules.floor and not start.initial:
        note = state.notes[start.tag.epoch]
        if note is None or note.started != start.tag:
            yield REFUSED + ": the checkpoint is an older one", state.with_driver(place, None)
            return
    after = driver._replace(step="claim" if start.initial or world.foreign else "commit")
    yield "asks for the newest offset, and the checkpoint fits", state.with_driver(place, after)


def _commit(state: State, place: int, driver: Driver, world: World, rules: Rules) -> Moves:
    tag = driver.start.tag
    gone = dict.fromkeys(state.held(tag), GONE)
    if not rules.tagged:  # by id, even if another process holds the message
        gone |= {n: GONE for n in driver.start.rows if state.messages[n] != ELSEWHERE}
    yield f"commits {tag}", state.put(gone).with_driver(place, driver._replace(step="claim"))


def _claim(state: State, place: int, driver: Driver, world: World, rules: Rules) -> Moves:
    start = driver.start
    if world.foreign:
        there = sum(where != LATER for where in state.messages)
        end = Offset(Tag(0, min(there, start.tag.seq + world.most), 0))
        if end == start:
            return
        yield "finds messages", state.with_driver(place, driver._replace(step="log", end=end, fresh=True))
        return
    tag = Tag(start.tag.epoch, start.tag.seq + 1, driver.by if rules.by else 0)
    held = state.held(tag)
    if not driver.tidied and (given := [n for n, one in enumerate(state.messages) if _left(one, driver, rules)]):
        tidied = state.put(dict.fromkeys(given, FREE)).with_driver(place, driver._replace(tidied=True))
        yield "gives back what was not started", tidied
    free = [] if held and not driver.fresh else state.claimable(everything=not rules.leased)
    room = world.most - len(held) if world.cut or not held else 0
    took = free[: min(room, 1) if world.cut else room]
    lease = "ends" if rules.short or not world.endless else "never"
    after = state.put({n: Held(tag, lease) for n in took})
    if took and world.cut and len(held) + len(took) < world.most and len(free) > 1:
        yield f"claims a part of {tag}", after.with_driver(place, driver._replace(fresh=True, tidied=True))
        return
    end = Offset(tag, frozenset((*held, *took)))
    if end.rows:
        claimed = driver._replace(step="log", end=end, fresh=True, tidied=True)
        yield f"claims {tag}", after.with_driver(place, claimed)


def _left(where: Where, driver: Driver, rules: Rules) -> bool:
    """Whether an earlier process has reserved this message and not started it: its lease ends, but for this rule."""
    if not isinstance(where, Held) or where.tag == driver.start.tag or where.tag.epoch != driver.start.tag.epoch:
        return False
    return where.tag.by != driver.by and (where.lease != "never" or not rules.strays)


def _log(state: State, place: int, driver: Driver, world: World, rules: Rules) -> Moves:
    """Spark writes the offset to its log: a file that must not be there."""
    disk = state.disk
    if disk.query != driver.query or len(disk.offsets) != driver.batch:
        yield "fails: another query has written this offset", state.with_driver(place, None)
        return
    disk = disk._replace(offsets=(*disk.offsets, driver.end))
    yield f"logs batch {driver.batch}", state._replace(disk=disk).with_driver(place, driver._replace(step="plan"))


def _plan(state: State, place: int, driver: Driver, world: World, rules: Rules) -> Moves:
    """`partitions(start, end)`: the batch is started, in one compare-and-set."""
    after = driver._replace(step="hold")
    if world.foreign:
        yield f"starts batch {driver.batch}", state.with_driver(place, driver._replace(step="read"))
        return
    tag = driver.end.tag
    note = state.notes[tag.epoch]
    if rules.owner and (note is None or note.owner != driver.by):
        yield FENCED, state.with_driver(place, None)
        return
    if rules.floor and note is not None:
        known = note.started
        if known is not None and (tag.seq < known.seq or (tag.seq == known.seq and tag != known)):
            yield REFUSED + ": the batch was started before", state.with_driver(place, None)
            return
        state = state.with_note(tag.epoch, note._replace(started=tag))
    yield f"starts {tag}", state.with_driver(place, after)


def _hold(state: State, place: int, driver: Driver, world: World, rules: Rules) -> Moves:
    tag = driver.end.tag
    lease = "never" if world.endless else "ends"
    after = state.put({n: Held(tag, lease) for n in state.held(tag)})
    yield f"holds {tag}", after.with_driver(place, driver._replace(step="bind" if rules.bound else "read"))


def _bind(state: State, place: int, driver: Driver, world: World, rules: Rules) -> Moves:
    epoch, known = driver.end.tag.epoch, state.bound[driver.query]
    if known not in (-1, epoch):
        yield REFUSED + ": the query reads another epoch", state.with_driver(place, None)
        return
    bound = (*state.bound[: driver.query], epoch, *state.bound[driver.query + 1 :])
    yield "binds the query", state._replace(bound=bound).with_driver(place, driver._replace(step="read"))


def _read(state: State, place: int, driver: Driver, world: World, rules: Rules) -> Moves:
    if world.foreign:
        rows = frozenset(range(driver.start.tag.seq, driver.end.tag.seq))
    else:
        rows = frozenset(state.held(driver.end.tag))
        if driver.fresh and rows != driver.end.rows:
            yield FENCED + ": rows are missing", state.with_driver(place, None)
            return
    if not rules.late:
        state = state.put(dict.fromkeys(rows, GONE))
    after = driver._replace(step="stage" if world.sink == "queue" else "write", rows=rows)
    yield f"reads batch {driver.batch}", state.with_driver(place, after)


# --- the sink -------------------------------------------------------------------------------------------------------


def _write(state: State, place: int, driver: Driver, world: World, rules: Rules) -> Moves:
    """Files go by the number of a batch: one that is there is not written again."""
    ledger = state.ledgers[driver.query]
    if driver.batch > ledger.batch:
        state = state.show(driver.rows).decide(driver, 0)
    yield f"writes batch {driver.batch}", state.with_driver(place, driver._replace(step="finish"))


def _stage(state: State, place: int, driver: Driver, world: World, rules: Rules) -> Moves:
    ledger = state.ledgers[driver.query]
    if driver.batch < ledger.batch or driver.batch > ledger.batch + 1:
        yield REFUSED + ": the sink is at another batch", state.with_driver(place, None)
    elif driver.batch == ledger.batch:
        fits = driver.rows <= ledger.rows if rules.subset else driver.rows == ledger.rows
        if rules.rows and not fits:
            yield REFUSED + ": rows were never written", state.with_driver(place, None)
        else:
            yield "skips what is written", state.with_driver(place, driver._replace(step="publish"))
    else:
        used = {one.attempt for one in state.stages if (one.key, one.batch) == (driver.query, driver.batch)}
        used |= {one.attempt for one in state.drivers if one and one.batch == driver.batch}
        attempt = next(n for n in range(9) if n not in used)
        stage = Stage(driver.query, driver.batch, attempt, driver.rows)
        staged = driver._replace(step="complete", attempt=attempt)
        yield f"stages batch {driver.batch}", state._replace(stages=state.stages | {stage}).with_driver(place, staged)


def _published(state: State, key: int, rules: Rules) -> State:
    """What the ledger names becomes visible, and leaves its stage."""
    for one in [one for one in state.stages if one.key == key and state.names(one)]:
        state = (state._replace(stages=state.stages - {one}) if rules.leave else state).show(one.rows)
    return state


def _complete(state: State, place: int, driver: Driver, world: World, rules: Rules) -> Moves:
    after = _published(state, driver.query, rules) if rules.complete else state
    step = "decide" if rules.decide else "publish"
    yield "publishes what was decided before", after.with_driver(place, driver._replace(step=step))


def _decide(state: State, place: int, driver: Driver, world: World, rules: Rules) -> Moves:
    ledger = state.ledgers[driver.query]
    if driver.batch < ledger.batch:
        yield REFUSED + ": the sink is at another batch", state.with_driver(place, None)
        return
    if driver.batch > ledger.batch:
        stage = Stage(driver.query, driver.batch, driver.attempt, driver.rows)
        if stage not in state.stages and rules.decide:
            yield "fails: another process has discarded its rows", state.with_driver(place, None)
            return
        state = state.decide(driver, driver.attempt)
    step = "publish" if rules.decide else "sweep"
    yield f"decides batch {driver.batch}", state.with_driver(place, driver._replace(step=step))


def _publish(state: State, place: int, driver: Driver, world: World, rules: Rules) -> Moves:
    if rules.decide:
        after = _published(state, driver.query, rules)
    else:
        mine = Stage(driver.query, driver.batch, driver.attempt, driver.rows)
        there = mine in state.stages
        after = state._replace(stages=state.stages - {mine}).show(driver.rows) if there else state
    step = "sweep" if rules.decide else "decide"
    yield f"publishes batch {driver.batch}", after.with_driver(place, driver._replace(step=step))


def _sweep(state: State, place: int, driver: Driver, world: World, rules: Rules) -> Moves:
    kept = frozenset(
        one
        for one in state.stages
        if one.key != driver.query or one.batch > driver.batch or (rules.keep and state.names(one))
    )
    yield "discards what is left", state._replace(stages=kept).with_driver(place, driver._replace(step="finish"))


def _finish(state: State, place: int, driver: Driver, world: World, rules: Rules) -> Moves:
    disk = state.disk
    if disk.query != driver.query or len(disk.offsets) <= driver.batch:
        yield "fails: the checkpoint has changed", state.with_driver(place, None)
        return
    after = state._replace(disk=disk._replace(finished=max(disk.finished, driver.batch)))
    idle = Driver("ask", driver.query, driver.batch + 1, driver.end, driver.end, driver.by, tidied=driver.tidied)
    yield f"finishes batch {driver.batch}", after.with_driver(place, idle)


STEPS: dict[str, Callable[[State, int, Driver, World, Rules], Moves]] = {
    "own": _own, "ask": _ask, "commit": _commit, "claim": _claim, "log": _log, "plan": _plan, "hold": _hold,
    "bind": _bind, "read": _read, "write": _write, "stage": _stage, "complete": _complete,
    "decide": _decide, "publish": _publish, "sweep": _sweep, "finish": _finish,
}  # fmt: skip


#: Steps during which the next batch may be reserved ahead.
BUSY = ("hold", "bind", "read", "write", "stage", "complete", "decide", "publish", "sweep", "finish")
