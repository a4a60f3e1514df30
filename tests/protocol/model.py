"""The protocol of exactly-once as a transition system: a state, and the steps that lead from it.

One query reads a queue, or several in one `load()`, and writes to a sink. It has a checkpoint, and up to three driver
processes at a time. A second query with its own checkpoint may read the same queues. A process stands still while
others take steps. Another consumer takes messages of the queue, too. A step is what a database or a file system does
at once: a statement, a script, a compare-and-set, a new file. Here is what a process does; `sink` has its steps at
the sink, `databases` those at a sink of several databases, `outside` has what happens around it.

`breach` says what the protocol promises. Each rule that it needs for that is a flag of `Rules`. So a search can leave
one out, and show what goes wrong then: a check that never fails proves nothing.

The model does not have: `delivery=at-most-once`; batches that fail and are isolated, dead letters and settled
messages; `mode=log`; a claim of several queues that is cut off in the middle of one, or made ahead; three queues; two
`load()`s in one query; several sinks; a database of a queue that goes back while a process runs; checkpoints and
notes of version 1; processes that end in good order, and give back what they have reserved ahead; and Spark's own
`commit`, which repeats what is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from tests.protocol import databases, sink
from tests.protocol.outside import outside
from tests.protocol.rules import Rules
from tests.protocol.state import (
    ELSEWHERE,
    FENCED,
    FREE,
    GONE,
    LATER,
    REFUSED,
    TIDIED,
    WENT_BACK,
    Driver,
    Held,
    Moves,
    Note,
    Offset,
    State,
    Step,
    Tag,
    Where,
    World,
    beginning,
    of_queue,
)  # fmt: skip


def moves(state: State, world: World, rules: Rules) -> Iterator[tuple[Step, State]]:
    """Yield all steps that can be taken, and the states to which they lead."""
    yield from outside(state, world, rules)
    for place, driver in enumerate(state.drivers):
        name = f"driver {place + 1}"
        if driver is None:
            if all(state.drivers[place % world.queries : place : world.queries]):  # those of a query are alike
                yield Step(name, "starts"), state.with_driver(place, _started(state, place, world))
            continue
        if state.has("crashes"):
            yield Step(name, "crashes", True), state.with_driver(place, None).less("crashes")
        if not state.owns(driver) and not driver.ended:
            yield Step(name, "ends, since it was taken over"), state.with_driver(place, None)
        steps = STEPS | databases.STEPS if world.databases > 1 else STEPS
        for action, after in steps[driver.step](state, place, driver, world, rules):
            yield Step(name, action), after
        if state.has("aborts") and driver.step in databases.FAILING:
            for done, after in databases.abort(state, place, driver, rules):
                yield Step(name, done, True), after.less("aborts")
        if world.ahead and driver.step in BUSY:
            tag = driver.end.tags[0]._replace(seq=driver.end.seq + 1, by=driver.by[0])
            free = [] if state.held(tag) else state.claimable(0)[: world.most]
            if free:
                yield Step(name, f"claims {tag} ahead"), state.put(dict.fromkeys(free, Held(tag, "ends")))


def _next(driver: Driver, world: World, then: str, among: Sequence[int] = ()) -> Driver:
    """Return the process before this step in its next queue, or behind the last one, before the step `then`.

    `among`: the queues that have it. A process becomes the owner in a queue when it first comes there.
    """
    for queue in among or range(world.queues):
        if queue > driver.queue:
            return driver._replace(step=driver.step if queue < len(driver.by) else "own", queue=queue)
    return driver._replace(step=then, queue=0)


# --- becoming the owner ---------------------------------------------------------------------------------------------


def _started(state: State, place: int, world: World) -> Driver:
    """A process that has just read the checkpoint."""
    disk = state.disk_of(place)
    last = len(disk.offsets) - 1
    # A fresh epoch counts where the checkpoint has no offset yet.
    new = beginning(len(state.notes), world.queues)
    if last == disk.finished:
        start = disk.offsets[-1] if disk.offsets else new
        return Driver("own", disk.query, last + 1, start, start)
    end = disk.offsets[-1]
    start = disk.offsets[-2] if last else beginning(end.epoch, world.queues)
    return Driver("own", disk.query, last, start, end)


def _own(state: State, place: int, driver: Driver, world: World, rules: Rules) -> Moves:
    """What names an offset of the checkpoint first: with old calls, `partitions(end, end)`, which does no more."""
    epoch, queue, end = driver.epoch, driver.queue, driver.end
    offsets = state.disk_of(place).offsets
    logged = end in offsets[driver.batch :]  # a first batch without messages is, and leads nowhere
    again = end != driver.start or logged
    after = driver._replace(step="plan" if again else "ask", planned=end if world.old_calls else None)
    if again and world.combine == "zip" and not end.initial:  # in all queues, so that none changes while it looks
        after = after._replace(step="own", queue=queue + 1)
        if queue + 1 == world.queues:
            after = after._replace(step="unread", queue=0)
    if world.foreign:
        yield "reads the checkpoint", state.with_driver(place, after)
        return
    note = state.note(epoch, queue)
    if epoch == len(state.notes) or (queue and note is None and end.initial):  # a new checkpoint
        owned = state.with_note(epoch, queue, Note(1)).with_driver(place, after._replace(by=(*driver.by, 1)))
        yield f"becomes the first owner{of_queue(queue)}", owned
        return
    if epoch > len(state.notes):  # another process has begun an epoch since: it begins another
        return
    if note is None and rules.absent and not end.initial:
        yield REFUSED + ": the consumer is unknown", state.with_driver(place, None)
        return
    if note is not None and end.initial and end not in offsets:  # two began at once: each its own
        new = beginning(len(state.notes), world.queues)
        yield "begins another epoch", state.with_driver(place, driver._replace(start=new, end=new))
        return
    if note is not None and rules.floor and end.tags[queue].before(note.started):
        yield REFUSED + ": the checkpoint is an older one", state.with_driver(place, None)
        return
    if note is not None and _is_unknown(end, queue, note, world, rules):
        yield WENT_BACK, state.with_driver(place, None)
        return
    living = note and state.runs(epoch, queue, note.owner)
    if living and not state.has("takeovers"):
        return  # it waits
    by = 1 if note is None else state.unused(epoch, queue, last=world.notes_reserved)
    owned = state.with_note(epoch, queue, (note or Note(0))._replace(owner=by))
    owned = owned.with_driver(place, after._replace(by=(*driver.by, by)))
    done = ("takes over" if living else "becomes the owner") + of_queue(queue)
    yield done, owned.less("takeovers") if living else owned


# --- asking for the newest offset -----------------------------------------------------------------------------------


def _begin(driver: Driver) -> Offset:
    """Where `latestOffset` begins: Spark 4.0 and 4.1 do not say."""
    return driver.start if driver.planned is None else driver.planned


def _ask(state: State, place: int, driver: Driver, world: World, rules: Rules) -> Moves:
    """`latestOffset(start)`: first, whether the checkpoint is the newest, in all queues."""
    start, queue = _begin(driver), driver.queue
    if not world.foreign and rules.floor and not start.initial:
        note = state.note(start.epoch, queue)
        if note is None or note.started != start.tags[queue]:
            yield REFUSED + ": the checkpoint is an older one", state.with_driver(place, None)
            return
    if world.old_calls and not start.initial and not queue:
        yield "ends its run", state.with_driver(place, driver._replace(step="drain"))
    after = _next(driver, world, "claim" if start.initial or world.foreign else "commit")
    if after.step == "commit":
        after = after._replace(queue=start.queues()[0])
    fits = f"asks for the newest offset{of_queue(queue)}, and the checkpoint fits"
    yield fits, state.with_driver(place, after)


def _commit(state: State, place: int, driver: Driver, world: World, rules: Rules) -> Moves:
    start = _begin(driver)
    tag = start.tags[driver.queue]
    held = state.held(tag)
    if world.cut and len(held) > 1:
        yield f"commits a part of {tag}", state.put({held[0]: GONE})
    gone = dict.fromkeys(held, GONE)
    if not rules.tagged:  # by id, even if another process holds the message
        gone |= {n: GONE for n in start.rows if state.messages[n] != ELSEWHERE}
    yield f"commits {tag}", state.put(gone).with_driver(place, _next(driver, world, "claim", start.queues()))


def _drain(state: State, place: int, driver: Driver, world: World, rules: Rules) -> Moves:
    """After a run with old calls: `drain(query)` commits the last batch, or the next start does."""
    queues = driver.start.queues()
    tag = driver.start.tags[max(driver.queue, queues[0])]
    after = _next(driver, world, "", queues)
    drained = state.put(dict.fromkeys(state.held(tag), GONE)).with_driver(place, after if after.step else None)
    yield f"drains {tag}", drained
    yield "is not drained", state.with_driver(place, None)


def _claim(state: State, place: int, driver: Driver, world: World, rules: Rules) -> Moves:
    start, queue = _begin(driver), driver.queue
    if world.foreign:
        there = sum(where != LATER for where in state.messages)
        end = Offset((Tag(0, min(there, start.seq + world.most), 0),))
        if end == start:
            return
        yield "finds messages", state.with_driver(place, driver._replace(step="log", end=end, fresh=True))
        return
    free_of = [state.claimable(one, everything=not rules.leased) for one in range(world.queues)]
    if world.combine == "alts" and world.queues > 1:  # the first that has some
        queue = next((one for one, free in enumerate(free_of) if free), 0)
    tags = tuple(Tag(start.epoch, start.seq + 1, by if rules.by else 0, one) for one, by in enumerate(driver.by))
    tag, held = tags[queue], state.held(*tags) if world.combine == "alts" else state.held(tags[queue])
    for one in range(driver.tidied // 2, world.queues):
        if given_back := list(_tidy(state, driver, rules, one)):
            for done, after, later in given_back:
                more = any(any(_tidy(after, later, rules, queue)) for queue in range(world.queues))
                yield done, after.with_driver(place, later if more else later._replace(tidied=TIDIED))
            if rules.first:
                return
            break
    if world.empty and not driver.batch and not any(free_of):
        yield "finds nothing, and Spark begins", state.with_driver(place, driver._replace(step="log"))
    if world.combine == "zip":
        if queue or all(free_of):
            yield from _claim_of_each(state, place, driver, world, tags, free_of[queue])
        return
    if world.ahead and held and not driver.fresh:
        yield _give_back_ahead(state, place, driver, held)
    free = [] if held and not driver.fresh else free_of[queue]
    room = world.most - len(held) if world.cut or not held else 0
    took = free[: min(room, 1) if world.cut else room]
    after = state.claim({n: Held(tag, _lease(world, rules)) for n in took}, world)
    if took and world.cut and len(held) + len(took) < world.most and len(free) > 1:
        yield f"claims a part of {tag}", after.with_driver(place, driver._replace(fresh=True, tidied=TIDIED))
        return
    end = Offset(tags, frozenset((*held, *took)))
    if end.rows:
        claimed = _reserved(driver._replace(end=end, fresh=True, tidied=TIDIED), world)
        yield f"claims {tag}", after.with_driver(place, claimed)


def _tidy(state: State, driver: Driver, rules: Rules, queue: int) -> Iterator[tuple[str, State, Driver]]:
    """Give back in one queue what earlier processes have not started, and what other epochs have abandoned.

    An epoch is abandoned if no batch of it was started, and its process is dead. Its owner is removed first; then
    what it holds goes back, even if a new process of its query is the owner by then. Yields the process, too.
    """
    places = [(n, one) for n, one in enumerate(state.messages) if n % state.queues == queue]
    left = [n for n, one in places if _left(one, driver, rules)]
    if left and driver.tidied <= 2 * queue:
        freed = state.put(dict.fromkeys(left, FREE))
        yield f"gives back what was not started{of_queue(queue)}", freed, driver._replace(tidied=2 * queue + 1)
        return
    after_it = driver._replace(tidied=2 * queue + 1, removed=-1)
    if driver.removed >= 0 and driver.tidied == 2 * queue + 1:
        owner = (state.note(driver.removed, queue) or Note(0)).owner
        held = [(n, one) for n, one in places if isinstance(one, Held) and one.tag.epoch == driver.removed]
        left = [n for n, one in held if one.tag.by != owner and one.lease != "never"]
        freed = state.put(dict.fromkeys(left, FREE))
        yield f"gives back what epoch {driver.removed} has abandoned{of_queue(queue)}", freed, after_it
        return
    for epoch, notes in enumerate(state.notes if rules.abandoned and driver.tidied <= 2 * queue + 1 else ()):
        note = notes[queue]
        left = [n for n, one in places if isinstance(one, Held) and one.tag.epoch == epoch and one.lease != "never"]
        if epoch == driver.epoch or note is None or note.started or not left:
            continue
        silent = note.owner and state.runs(epoch, queue, note.owner)
        if silent and not state.has("takeovers"):
            continue
        if note.owner:
            after = state.with_note(epoch, queue, note._replace(owner=0))
            done = f"removes the owner of epoch {epoch}{of_queue(queue)}"
            yield done, after.less("takeovers") if silent else after, after_it._replace(removed=epoch)
        else:
            after = state.put(dict.fromkeys(left, FREE))
            yield f"gives back what epoch {epoch} has abandoned{of_queue(queue)}", after, after_it


def _give_back_ahead(state: State, place: int, driver: Driver, held: list[int]) -> tuple[str, State]:
    """What was reserved ahead is more than a batch may have by now: the process takes another number, too."""
    back, note = state.put(dict.fromkeys(held, FREE)), state.note(driver.epoch, 0)
    if note is None or note.owner != driver.by[0]:
        return FENCED, back.with_driver(place, None)
    by = state.unused(driver.epoch, 0)
    renumbered = back.with_note(driver.epoch, 0, note._replace(owner=by))
    return "gives back what it reserved ahead", renumbered.with_driver(place, driver._replace(by=(by,)))


def _claim_of_each(
    state: State, place: int, driver: Driver, world: World, tags: tuple[Tag, ...], free: list[int]
) -> Moves:
    """As many messages of each queue: what one gives beyond that goes back before Spark learns of the batch."""
    queue, before = driver.queue, driver.end.rows if driver.queue else frozenset()
    took = free[: len(before) if queue else world.most]
    claimed = state.claim({n: Held(tags[queue], "ends") for n in took}, world)
    end = Offset(tags, before | frozenset(took))
    after = _next(driver._replace(end=end, fresh=True, tidied=TIDIED), world, "keep")
    if after.step == "keep" and len(took) == len(before):
        after = _reserved(after, world)
    yield f"claims {tags[queue]}" if took else f"finds nothing{of_queue(queue)}", claimed.with_driver(place, after)


def _keep(state: State, place: int, driver: Driver, world: World, rules: Rules) -> Moves:
    first = sorted(n for n in driver.end.rows if not n % world.queues)
    beyond = first[len(driver.end.rows) - len(first) :]
    end = driver.end._replace(rows=driver.end.rows - set(beyond))
    kept = driver._replace(step="claim", end=_begin(driver), fresh=False)
    if end.rows:
        kept = _reserved(driver._replace(end=end), world)
    back = set(beyond) & set(state.held(driver.end.tags[0]))
    yield "gives back what is too much", state.put(dict.fromkeys(back, FREE)).with_driver(place, kept)


def _reserved(driver: Driver, world: World) -> Driver:
    """Return the process that has reserved a batch."""
    if not world.notes_reserved:
        return driver._replace(step="log", queue=0)
    return driver._replace(step="note", queue=driver.end.queues()[0])


def _note(state: State, place: int, driver: Driver, world: World, rules: Rules) -> Moves:
    """The note says which batch is reserved before Spark may log it."""
    queue, tag = driver.queue, driver.end.tags[driver.queue]
    note = state.note(tag.epoch, queue)
    if note is None or note.owner != driver.by[queue]:
        yield FENCED, state.with_driver(place, None)
        return
    noted = state.with_note(tag.epoch, queue, note._replace(reserved=tag))
    yield (
        f"notes that it has reserved {tag}",
        noted.with_driver(place, _next(driver, world, "log", driver.end.queues())),
    )


def _lease(world: World, rules: Rules) -> str:
    return "ends" if rules.short or not world.endless else "never"


def _left(where: Where, driver: Driver, rules: Rules) -> bool:
    """Whether an earlier process has reserved this message and not started it: its lease ends, but for this rule."""
    start = _begin(driver)
    if not isinstance(where, Held) or where.tag in start.tags or where.tag.epoch != start.epoch:
        return False
    return where.tag.by != driver.by[where.tag.queue] and (where.lease != "never" or not rules.strays)


# --- working on a batch ---------------------------------------------------------------------------------------------


def _log(state: State, place: int, driver: Driver, world: World, rules: Rules) -> Moves:
    """Spark writes the offset to its log: a file that must not be there."""
    disk = state.disk_of(place)
    if disk.query != driver.query or len(disk.offsets) != driver.batch:
        yield "fails: another query has written this offset", state.with_driver(place, None)
        return
    disk = disk._replace(offsets=(*disk.offsets, driver.end))
    yield f"logs batch {driver.batch}", state.with_disk(disk, place).with_driver(place, driver._replace(step="plan"))


def _unread(state: State, place: int, driver: Driver, world: World, rules: Rules) -> Moves:
    """Of several queues, a batch that was not started in each was never read: if it is not whole, it goes back."""
    begun = [note and note.started for note in state.notes[driver.epoch]]
    started = all(one and one.seq >= driver.end.seq for one in begun)
    if started or set(state.held(*driver.end.tags)) >= driver.end.rows:
        yield "finds a batch to repeat", state.with_driver(place, driver._replace(step="plan"))
    elif rules.unread:
        yield "finds what is left of an unread batch", state.with_driver(place, driver._replace(step="release"))
    elif world.endless:
        yield REFUSED + ": a person has to settle a batch that nobody read", state.with_driver(place, None)
    else:
        yield "finds what is left of a batch", state.with_driver(place, driver._replace(step="plan"))


def _release(state: State, place: int, driver: Driver, world: World, rules: Rules) -> Moves:
    tag = driver.end.tags[driver.queue]
    left = [n for n in state.held(tag) if state.messages[n] != Held(tag, "never")]
    released = state.put(dict.fromkeys(left, FREE)).with_driver(place, _next(driver, world, "plan"))
    yield f"gives back what is left of {tag}", released


def _plan(state: State, place: int, driver: Driver, world: World, rules: Rules) -> Moves:
    """`partitions(start, end)`: the batch is started, in one compare-and-set for each queue."""
    if world.foreign:
        yield f"starts batch {driver.batch}", state.with_driver(place, driver._replace(step="read"))
        return
    if driver.end.initial:
        empty = driver._replace(step="bind" if rules.empty_bound else "read")
        yield "plans no messages", state.with_driver(place, empty)
        return
    queue, tag = driver.queue, driver.end.tags[driver.queue]
    note = state.note(tag.epoch, queue)
    if rules.owner and (note is None or note.owner != driver.by[queue]):
        yield FENCED, state.with_driver(place, None)
        return
    if rules.behind and not driver.fresh and any(map(partial(_unfinished, tag, note), state.messages)):
        yield WENT_BACK + ", and holds an earlier batch", state.with_driver(place, None)
        return
    if note is not None and _is_unknown(driver.end, queue, note, world, rules):
        yield WENT_BACK, state.with_driver(place, None)
        return
    if note is not None and (rules.every or queue in driver.end.queues()):
        if rules.floor and tag.before(note.started):
            yield REFUSED + ": the batch was started before", state.with_driver(place, None)
            return
        state = state.with_note(tag.epoch, queue, note._replace(started=tag))
    after = _next(driver, world, "hold")
    if after.step == "hold":
        after = after._replace(queue=driver.end.queues()[0])
    if world.old_calls and rules.planned:
        after = after._replace(planned=driver.end)
    yield f"starts {tag}", state.with_driver(place, after)


def _is_unknown(end: Offset, queue: int, note: Note, world: World, rules: Rules) -> bool:
    """Whether a batch neither was started last nor is the next one that was reserved: the database has lost that."""
    tag, following = end.tags[queue], (note.started.seq if note.started else 0) + 1
    if tag.seq > following:
        return rules.follows
    noted = rules.noted and world.notes_reserved and queue in end.queues()
    return noted and tag.seq == following and (note.reserved is None or note.reserved < tag)


def _unfinished(tag: Tag, note: Note | None, where: Where) -> bool:
    """Whether a message is still held for an earlier batch, which was removed before this one was reserved."""
    if not isinstance(where, Held) or (where.lease != "never" and not (note and where.tag == note.started)):
        return False
    return (where.tag.epoch, where.tag.queue) == (tag.epoch, tag.queue) and where.tag.seq < tag.seq


def _hold(state: State, place: int, driver: Driver, world: World, rules: Rules) -> Moves:
    tag, queues = driver.end.tags[driver.queue], driver.end.queues()
    lease = "never" if world.endless else "ends"
    changes = [n for n in state.held(tag) if state.messages[n] != Held(tag, lease)]
    if world.cut and len(changes) > 1:
        yield f"holds a part of {tag}", state.put({changes[0]: Held(tag, lease)})
    held = state.put(dict.fromkeys(changes, Held(tag, lease)))
    whole = "whole" if world.combine == "zip" and not driver.fresh else "bind"
    after = _next(driver, world, whole if rules.bound else "read", queues)
    if after.step == "bind":
        after = after._replace(queue=0 if rules.all_bound else queues[0])
    yield f"holds {tag}", held.with_driver(place, after)


def _whole(state: State, place: int, driver: Driver, world: World, rules: Rules) -> Moves:
    """Of several queues, messages belong together: where some are gone, the others go back, or wait for a person."""
    rows = set(state.held(*driver.end.tags))
    if rows >= driver.end.rows:
        yield "finds all of the batch", state.with_driver(place, driver._replace(step="bind"))
    elif rows and world.endless:
        yield FENCED + ": a part of the batch is missing", state.with_driver(place, None)
    else:
        empty = driver._replace(step="bind" if rules.empty_bound else "read")
        yield "gives back what is left of the batch", state.put(dict.fromkeys(rows, FREE)).with_driver(place, empty)


def _bind(state: State, place: int, driver: Driver, world: World, rules: Rules) -> Moves:
    epoch, queue = driver.epoch, driver.queue
    if state.bound[driver.query][queue] not in (-1, epoch):
        yield REFUSED + ": the query reads another epoch", state.with_driver(place, None)
        return
    after = _next(driver, world, "read", () if rules.all_bound else driver.end.queues())
    bound = state.bind(driver.query, queue, epoch).with_driver(place, after)
    yield f"binds the query{of_queue(queue)}", bound


def _read(state: State, place: int, driver: Driver, world: World, rules: Rules) -> Moves:
    if world.foreign:
        rows = frozenset(range(driver.start.seq, driver.end.seq))
    else:
        held = frozenset(state.held(*driver.end.tags))
        rows = held | driver.rows
        if world.cut and len(held - driver.rows) > 1:
            first = driver._replace(rows=driver.rows | {min(held - driver.rows)})
            yield f"reads a part of batch {driver.batch}", state.with_driver(place, first)
        if driver.fresh and rows != driver.end.rows:
            yield FENCED + ": rows are missing", state.with_driver(place, None)
            return
    if not rules.late:
        state = state.put(dict.fromkeys(rows, GONE))
    state = state.read(rows, world)
    after = driver._replace(step="stage" if world.sink == "queue" else "write", rows=rows)
    yield f"reads batch {driver.batch}", state.with_driver(place, after)


def _finish(state: State, place: int, driver: Driver, world: World, rules: Rules) -> Moves:
    disk, end = state.disk_of(place), driver.end
    if disk.query != driver.query or len(disk.offsets) <= driver.batch:
        yield "fails: the checkpoint has changed", state.with_driver(place, None)
        return
    after = state.with_disk(disk._replace(finished=max(disk.finished, driver.batch)), place)
    idle = Driver(
        "ask", driver.query, driver.batch + 1, end, end, driver.by, planned=driver.planned, tidied=driver.tidied
    )
    yield f"finishes batch {driver.batch}", after.with_driver(place, idle)


STEPS: dict[str, Callable[[State, int, Driver, World, Rules], Moves]] = {
    "own": _own, "ask": _ask, "commit": _commit, "drain": _drain, "claim": _claim, "keep": _keep, "note": _note,
    "log": _log, "unread": _unread, "release": _release, "plan": _plan, "hold": _hold, "whole": _whole, "bind": _bind,
    "read": _read, "write": sink.write, "stage": sink.stage, "complete": sink.complete, "decide": sink.decide,
    "publish": sink.publish, "sweep": sink.sweep, "finish": _finish,
}  # fmt: skip


#: Steps during which the next batch may be reserved ahead.
BUSY = ("hold", "bind", "read", "write", "stage", "complete", "decide", "publish", "sweep", "finish")
