"""What a state of the protocol is made of, and what must hold in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class World:
    """What exists, and how often something may happen to it."""

    messages: int = 2
    most: int = 1  # messages of a batch
    endless: bool = True  # a started batch is held without end (exactly-once); else under a lease
    sink: str = "queue"  # "queue": stages and a ledger; "files": goes by the number of a batch alone
    foreign: bool = False  # the source is a log of somebody else's, from which nothing is removed
    drivers: int = 1
    cut: bool = False  # a claim takes one message at a time (several updates), and may be cut off
    ahead: bool = False  # the next batch is reserved while one is worked on
    crashes: int = 0  # of a driver
    ends: int = 0  # leases that end although their holder lives: it stands still
    takers: int = 0  # messages that another consumer takes
    takeovers: int = 0  # processes that are taken for dead and go on
    copies: int = 0  # copies of the checkpoint that are restored
    cuts: int = 0  # checkpoints that lose their end
    fresh: int = 0  # new checkpoints
    failovers: int = 0  # publishes that are lost
    aged: int = 0  # notes of a consumer that are removed

    @property
    def damaged(self) -> bool:
        """Whether something happens that no operator should do and no server should let happen."""
        return bool(self.copies or self.cuts or self.aged)


class Tag(NamedTuple):
    """The name of a reservation."""

    epoch: int
    seq: int
    by: int

    def __str__(self) -> str:
        return f"{self.epoch}/{self.seq}.{self.by}"


class Held(NamedTuple):
    """A message that is reserved."""

    tag: Tag
    lease: str  # "ends", "never", or "ended": then it can be taken, and is its holder's until then


LATER, FREE, GONE, ELSEWHERE = "later", "free", "gone", "elsewhere"

#: Where a message is: not sent yet, free, held, removed, or with the other consumer.
Where = str | Held


class Note(NamedTuple):
    """What the database knows of an epoch."""

    owner: int  # the number of the process that runs it
    started: Tag | None = None  # the batch that was started last


class Offset(NamedTuple):
    """A place in the source: after the batch of this tag; in a foreign source, after `seq` messages."""

    tag: Tag
    rows: frozenset[int] = frozenset()

    @property
    def initial(self) -> bool:
        return self.tag.seq == 0


class Disk(NamedTuple):
    """A checkpoint: offsets by batch, and the last batch that is finished."""

    query: int
    offsets: tuple[Offset, ...] = ()
    finished: int = -1


class Stage(NamedTuple):
    """Rows that nobody can see yet."""

    key: int  # of the sink: its query
    batch: int
    attempt: int
    rows: frozenset[int]


class Ledger(NamedTuple):
    """The batch that a sink has decided on last."""

    batch: int = -1
    attempt: int = 0
    rows: frozenset[int] = frozenset()


class Driver(NamedTuple):
    """A process that runs the query; `step` is the one that it takes next."""

    step: str
    query: int
    batch: int
    start: Offset
    end: Offset
    by: int = 0
    fresh: bool = False  # whether this process has reserved `end`
    tidied: bool = False  # whether it may no longer give back what earlier ones had reserved
    rows: frozenset[int] = frozenset()
    attempt: int = -1


FAULTS = ("crashes", "ends", "takers", "takeovers", "copies", "cuts", "fresh", "failovers", "aged")


class State(NamedTuple):
    """All that can change."""

    messages: tuple[Where, ...]
    disk: Disk
    drivers: tuple[Driver | None, ...]
    notes: tuple[Note | None, ...]  # by epoch
    bound: tuple[int, ...]  # by query: the epoch that it reads, -1 if none yet
    ledgers: tuple[Ledger, ...]  # by query
    stages: frozenset[Stage]
    visible: tuple[int, ...]  # how often each message was written
    copy: Disk | None
    faults: tuple[int, ...]  # how many of each may still happen, as in FAULTS

    # --- questions

    def held(self, tag: Tag) -> list[int]:
        """Return the messages that a tag holds."""
        return [n for n, one in enumerate(self.messages) if isinstance(one, Held) and one.tag == tag]

    def claimable(self, *, everything: bool = False) -> list[int]:
        """Return the messages that can be claimed; `everything`: those that others hold, too."""
        return [
            n
            for n, one in enumerate(self.messages)
            if one == FREE or (isinstance(one, Held) and (everything or one.lease == "ended"))
        ]

    def owns(self, driver: Driver) -> bool:
        """Return whether the epoch of a process is still its own."""
        epoch = driver.end.tag.epoch
        note = self.notes[epoch] if epoch < len(self.notes) else None
        return note is None or note.owner == driver.by or not driver.by

    def unused(self, epoch: int) -> int:
        """Return a number that no process of the epoch has, as far as anything says: the real one just counts on."""
        tags = [one.tag for one in self.messages if isinstance(one, Held)]
        for disk in filter(None, (self.disk, self.copy)):
            tags += [one.tag for one in disk.offsets]
        for driver in filter(None, self.drivers):
            tags += [driver.start.tag, driver.end.tag, Tag(driver.end.tag.epoch, 0, driver.by)]
        note = self.notes[epoch]
        tags += [Tag(epoch, 0, note.owner), *([note.started] if note.started else [])] if note else []
        used = {one.by for one in tags if one.epoch == epoch}
        return next(n for n in range(1, 99) if n not in used)

    def names(self, stage: Stage) -> bool:
        """Return whether a ledger names this stage."""
        ledger = self.ledgers[stage.key]
        return (stage.batch, stage.attempt) == (ledger.batch, ledger.attempt)

    def has(self, fault: str) -> bool:
        """Return whether a fault may still happen."""
        return self.faults[FAULTS.index(fault)] > 0

    # --- changes

    def put(self, changed: dict[int, Where]) -> State:
        """Return the state with these messages elsewhere."""
        return self._replace(messages=tuple(changed.get(n, where) for n, where in enumerate(self.messages)))

    def with_driver(self, place: int, driver: Driver | None) -> State:
        """Return the state with another process at this place."""
        return self._replace(drivers=(*self.drivers[:place], driver, *self.drivers[place + 1 :]))

    def with_note(self, epoch: int, note: Note | None) -> State:
        """Return the state with another note of an epoch."""
        return self._replace(notes=(*self.notes[:epoch], note, *self.notes[epoch + 1 :]))

    def decide(self, driver: Driver, attempt: int) -> State:
        """Return the state in which the ledger has the batch of a process."""
        ledger = Ledger(driver.batch, attempt, driver.rows)
        return self._replace(ledgers=(*self.ledgers[: driver.query], ledger, *self.ledgers[driver.query + 1 :]))

    def show(self, rows: frozenset[int]) -> State:
        """Return the state in which these messages were written once more."""
        return self._replace(visible=tuple(n + (row in rows) for row, n in enumerate(self.visible)))

    def less(self, fault: str) -> State:
        """Return the state after a fault."""
        place = FAULTS.index(fault)
        return self._replace(faults=(*self.faults[:place], self.faults[place] - 1, *self.faults[place + 1 :]))


def initial(world: World) -> State:
    """Return the state in which nothing has happened."""
    return State(
        messages=(LATER,) * world.messages,
        disk=Disk(0),
        drivers=(None,) * world.drivers,
        notes=(),
        bound=(-1,),
        ledgers=(Ledger(),),
        stages=frozenset(),
        visible=(0,) * world.messages,
        copy=None,
        faults=tuple(getattr(world, name) for name in FAULTS),
    )


def breach(state: State, world: World) -> str:
    """Return which promise is broken: `LOST`, `DOUBLED`, or none."""
    decided = {row for stage in state.stages if state.names(stage) for row in stage.rows}
    passed: set[int] = set()
    if world.foreign and len(state.disk.offsets) - 1 == state.disk.finished >= 0:
        passed = set(range(state.disk.offsets[-1].tag.seq))
    for number, where in enumerate(state.messages):
        written = state.visible[number] + (where == ELSEWHERE)
        if written > 1 and world.endless and not world.foreign:
            return "DOUBLED"
        if not written and (where == GONE or number in passed) and number not in decided:
            return "LOST"
    return ""


def drained(state: State) -> bool:
    """Return whether all messages have arrived, and nothing is held, or decided and not published."""
    arrived = all(where in (GONE, ELSEWHERE) for where in state.messages)
    return arrived and not any(map(state.names, state.stages))
