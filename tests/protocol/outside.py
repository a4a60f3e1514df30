"""What happens around the query of the model: messages come and go, time passes, operators and servers act."""

from __future__ import annotations

from collections.abc import Iterator

from tests.protocol import databases
from tests.protocol.rules import Rules
from tests.protocol.sink import published
from tests.protocol.state import (
    ELSEWHERE,
    FREE,
    GONE,
    LATER,
    Copy,
    Disk,
    Driver,
    Held,
    Ledger,
    Stage,
    State,
    Step,
    Tag,
    Where,
    World,
    of_queue,
)  # fmt: skip


def outside(state: State, world: World, rules: Rules) -> Iterator[tuple[Step, State]]:
    disk, copy, messages = state.disk, state.copy, state.messages
    later = next((n for n, where in enumerate(messages) if where == LATER), None)
    if later is not None:
        yield Step("producer", "pushes"), state.put({later: FREE})
    for queue in range(world.queues if state.has("takers") else 0):
        for n in state.claimable(queue)[:1]:
            of = of_queue(queue)
            yield Step("other", f"takes a message{of}", True), state.put({n: ELSEWHERE}).less("takers")
            yield Step("other", f"gives a message back{of}", True), state.put({n: FREE}).less("takers")
    for tag in sorted({one.tag for one in messages if isinstance(one, Held) and one.lease == "ends"}):
        ended = state.put({n: Held(tag, "ended") for n in state.held(tag)})
        if not any(one and _renews(one, tag) for one in state.drivers):
            yield Step("time", f"ends the lease of {tag}"), ended
        elif state.has("ends"):
            yield Step("time", f"ends the lease of {tag}", True), ended.less("ends")
    if world.copies and copy is None and disk.offsets:
        yield Step("operator", "copies the checkpoint", True), state._replace(copy=disk)
    if state.has("copies") and copy not in (None, disk):
        yield Step("operator", "restores the copy", True), state.with_disk(copy).less("copies")
    if state.has("cuts") and disk.offsets and state.idle(0):
        cut = Disk(disk.query, disk.offsets[:-1], min(disk.finished, len(disk.offsets) - 2))
        yield Step("operator", "loses the end of the checkpoint", True), state.with_disk(cut).less("cuts")
    if state.has("fresh") and state.idle(0) and disk.offsets:
        bound, ledgers = (*state.bound, (-1,) * world.queues), (*state.ledgers, Ledger())
        new = state.with_disk(Disk(len(state.bound)))._replace(bound=bound, ledgers=ledgers).less("fresh")
        yield Step("operator", "begins a new checkpoint", True), new
    known = {one.epoch for disk in (*state.disks, *([copy] if copy else [])) for one in disk.offsets}
    for epoch in range(len(state.notes) if disk.query else 0):  # if the operator has given one up
        if epoch not in known:
            for queue in range(world.queues):
                yield from _recovered(state, epoch, queue)
    for disk in state.disks if world.combine == "zip" and not _went_back(state, world) else ():
        if len(disk.offsets) - 1 > disk.finished:
            end = disk.offsets[-1]
            if len(state.held(*end.tags)) < len(end.rows):  # they belong together: the query is refused
                for queue in range(world.queues):
                    yield from _recovered(state, end.epoch, queue, settled=rules.settled)
    if world.backs:
        yield from _backs(state, world)
    for key in {one.key for one in state.stages if state.names(one)} if world.databases == 1 else ():
        yield Step("operator", f"completes the sink of query {key}"), published(state, key, Rules())
    if state.has("aged"):
        for epoch, queue in ((epoch, queue) for epoch in range(len(state.notes)) for queue in range(world.queues)):
            if state.note(epoch, queue) and not state.runs(epoch):
                aged = state.with_note(epoch, queue, None).less("aged")
                yield Step("time", f"removes the note of epoch {epoch}{of_queue(queue)}", True), aged
    if world.databases > 1:
        yield from databases.completed(state, world)
    if state.has("failovers") and world.databases > 1:
        yield from databases.lost_takes(state, world)
    elif state.has("failovers"):
        for key, ledger in enumerate(state.ledgers):
            lost = Stage(key, ledger.batch, ledger.attempt, ledger.rows)
            # Of a server that fails, only what it wrote last is lost.
            last = not any(one.key == key and one.batch > ledger.batch for one in state.stages)
            if last and ledger.rows and lost not in state.stages and all(state.visible[row] for row in ledger.rows):
                visible = tuple(n - (row in ledger.rows) for row, n in enumerate(state.visible))
                after = state._replace(stages=state.stages | {lost}, visible=visible)
                yield Step("server", "loses the last publish", True), after.less("failovers")


def _recovered(state: State, epoch: int, queue: int, *, settled: bool = True) -> Iterator[tuple[Step, State]]:
    """Recover an epoch that no process runs: commit the messages that its query has written, release the others."""
    tags = [one.tag for one in state.messages if isinstance(one, Held)]
    held = state.held(*(tag for tag in tags if (tag.epoch, tag.queue) == (epoch, queue)))
    note = state.note(epoch, queue)
    if not held or state.runs(epoch) or note is None:
        return
    changed: dict[int, Where] = dict.fromkeys(held, FREE)
    for query, bound in enumerate(state.bound):
        if bound[queue] == epoch and note.started and settled:
            started = set(state.held(note.started))
            changed |= dict.fromkeys(started & state.ledgers[query].rows, GONE)
    yield Step("operator", f"recovers epoch {epoch}{of_queue(queue)}"), state.put(changed)


def _went_back(state: State, world: World) -> bool:
    """Whether a database has gone back: then an operator cannot go by what it says."""
    return bool(world.backs) and not state.has("backs")


def _backs(state: State, world: World) -> Iterator[tuple[Step, State]]:
    """Copy the databases of the queues; let one go back to its copy, while no process runs.

    The copy has all messages: those that were pushed after it are lost with the database that goes back.
    """
    backup = state.backup
    if backup is None:
        if LATER not in state.messages:
            copied = state._replace(backup=Copy(state.messages, state.notes, state.bound))
            yield Step("operator", "copies the database", True), copied
        return
    for queue in range(world.queues if state.idle() and state.has("backs") else 0):
        back = _back(state, backup, queue)
        if back != state:
            done = f"puts the database back to its copy{of_queue(queue)}"
            yield Step("operator", done, True), back._replace(backup=None).less("backs")


def _back(state: State, backup: Copy, queue: int) -> State:
    """Return the state in which the database of a queue is its copy."""
    changed = {n: where for n, where in enumerate(backup.messages) if n % state.queues == queue}
    after = state.put(changed)
    for epoch in range(len(state.notes)):
        after = after.with_note(epoch, queue, backup.notes[epoch][queue] if epoch < len(backup.notes) else None)
    for query in range(len(state.bound)):
        after = after.bind(query, queue, backup.bound[query][queue] if query < len(backup.bound) else -1)
    return after


def _renews(driver: Driver, tag: Tag) -> bool:
    """Whether a process renews this lease while it lives."""
    own = driver.by[tag.queue : tag.queue + 1]
    if not own or driver.ended:
        return False
    return driver.end.tags[tag.queue] == tag or (driver.epoch, *own) == (tag.epoch, tag.by)
