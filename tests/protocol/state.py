"""What a state of the protocol is made of, and what must hold in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class World:
    """What exists, and how often something may happen to it."""

    messages: int = 2
    most: int = 1  # messages of a batch
    endless: bool = True  # a started batch is held without end (exactly-once); else under a lease
    sink: str = "queue"  # "queue": stages and a ledger; "files": goes by the number of a batch alone
    foreign: bool = False  # the source is a log of another program, from which nothing is removed
    queues: int = 1  # inputs of the query; message n lies in queue n % queues
    combine: str = "alts"  # of several queues: "alts": a batch has messages of one; "zip": as many of each
    empty: bool = False  # a query that finds nothing at its start has a batch without messages; of one process only
    old_calls: bool = False  # those of Spark 4.0 and 4.1: no start for `latestOffset`, no question after a run
    queries: int = 1  # that read the queues at the same time, each with a checkpoint of its own
    drivers: int = 1  # of all queries together: the first is of the first query, the second of the second one, …
    cut: bool = False  # each message is a partition: claimed, held, read and removed alone; a crash may come between
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
    backs: int = 0  # queues whose database goes back to a copy
    aborts: int = 0  # writes that fail, and are aborted
    away: int = 0  # databases of the sink that cannot be read then
    databases: int = 1  # of the sink; with several, each run has other rows in each
    noted: bool = False  # whether a note of reserved messages is a step: it decides how far a database goes back
    counting: bool = True  # whether tries are searched, too, if that is possible

    @property
    def notes_reserved(self) -> bool:
        """Whether it is a step that a process notes which batch it has reserved."""
        return self.endless and not self.foreign and bool(self.noted or self.backs)

    @property
    def in_order(self) -> bool:
        """Whether the n-th message of one queue must come with the n-th of the other."""
        return (
            self.combine == "zip"
            and self.drivers == 1
            and not (self.takers or self.ends or self.damaged or self.fresh or self.backs)
        )

    @property
    def counted(self) -> bool:
        """Whether it is searched for tries that no task has used. Where others take messages, they count them."""
        quiet = not (self.takers or self.ends or self.damaged or self.fresh or self.foreign or self.backs)
        return self.counting and self.drivers == 1 and quiet

    @property
    def damaged(self) -> bool:
        """Whether something happens that no operator should do and no server should let happen."""
        return bool(self.copies or self.cuts or self.aged)


class Step(NamedTuple):
    """A step: an actor and its act. `fault`: it need not happen for messages to arrive."""

    actor: str
    action: str
    fault: bool = False

    def __str__(self) -> str:
        return f"{self.actor}: {self.action}"


#: Steps after which a process has refused to go on: with a checkpoint that does not fit, and without its consumer.
REFUSED, FENCED = "is refused", "is fenced"
WENT_BACK = REFUSED + ": the database went back"


class Tag(NamedTuple):
    """The name of a reservation; the number of its queue is not a part of the name."""

    epoch: int
    seq: int
    by: int
    queue: int = 0

    def __str__(self) -> str:
        return f"{self.epoch}/{self.seq}.{self.by}{of_queue(self.queue)}"

    def before(self, other: Tag | None) -> bool:
        """Return whether `other` was started later, or is another batch of that number."""
        return other is not None and (self.seq < other.seq or (self.seq == other.seq and self != other))


def of_queue(queue: int) -> str:
    """Return the name of a queue for the name of a step; the first one is not named."""
    return f" of input {queue + 1}" if queue else ""


class Held(NamedTuple):
    """A message that is reserved."""

    tag: Tag
    lease: str  # "ends", "never", or "ended": then it can be taken, and is its holder's until then


LATER, FREE, GONE, ELSEWHERE = "later", "free", "gone", "elsewhere"

#: Where a message is: not sent yet, free, held, removed, or with the other consumer.
Where = str | Held


class Note(NamedTuple):
    """What a database knows of an epoch: one note for each queue."""

    owner: int  # the number of the process that runs it
    started: Tag | None = None  # the batch that was started last
    reserved: Tag | None = None  # the batch that was reserved last, if that is noted


class Offset(NamedTuple):
    """A place in the source: after the batch of these tags, one by queue; in a foreign source, `seq` messages."""

    tags: tuple[Tag, ...]
    rows: frozenset[int] = frozenset()

    @property
    def epoch(self) -> int:
        return self.tags[0].epoch

    @property
    def seq(self) -> int:
        return self.tags[0].seq

    @property
    def initial(self) -> bool:
        return self.seq == 0

    def queues(self) -> list[int]:
        """Return the queues that have messages of the batch."""
        return sorted({n % len(self.tags) for n in self.rows})


def beginning(epoch: int, queues: int) -> Offset:
    """Return the offset before the first batch of an epoch."""
    return Offset(tuple(Tag(epoch, 0, 0, queue) for queue in range(queues)))


class Disk(NamedTuple):
    """A checkpoint: offsets by batch, and the last batch that is finished."""

    query: int
    offsets: tuple[Offset, ...] = ()
    finished: int = -1


class Stage(NamedTuple):
    """Rows that no client can see yet."""

    key: int  # of the sink: its query
    batch: int
    attempt: int
    rows: frozenset[int]


class Ledger(NamedTuple):
    """The batch that a sink has decided on last."""

    batch: int = -1
    attempt: int = 0
    rows: frozenset[int] = frozenset()


#: The number of looks of a process that looks no more.
TIDIED = 4


class Driver(NamedTuple):
    """A process that runs the query; `step` is the one that it takes next, in the queue of that number."""

    step: str
    query: int
    batch: int
    start: Offset
    end: Offset
    by: tuple[int, ...] = ()  # its number in each queue, as far as it has become the owner there
    queue: int = 0
    planned: Offset | None = None  # with old calls: the end that `partitions` was given last
    fresh: bool = False  # whether this process has reserved `end`
    removed: int = -1  # the epoch whose owner it has just removed
    tidied: int = 0  # how far it has looked for what earlier ones had reserved: two looks in each queue, or TIDIED
    rows: frozenset[int] = frozenset()
    attempt: int = -1

    @property
    def epoch(self) -> int:
        return self.end.epoch

    @property
    def ended(self) -> bool:
        """Whether its run has ended, and nothing is left but to drain the query."""
        return self.step == "drain"


class Copy(NamedTuple):
    """What a copy of the queues' database has; each queue has a database of its own."""

    messages: tuple[Where, ...]
    notes: tuple[tuple[Note | None, ...], ...]
    bound: tuple[tuple[int, ...], ...]


FAULTS = (
    "crashes", "ends", "takers", "takeovers", "copies", "cuts", "fresh", "failovers", "aged", "backs", "aborts",
    "away",
)  # fmt: skip


class State(NamedTuple):
    """All that can change."""

    messages: tuple[Where, ...]
    disks: tuple[Disk, ...]  # the checkpoint of each query
    drivers: tuple[Driver | None, ...]
    notes: tuple[tuple[Note | None, ...], ...]  # by epoch and queue
    bound: tuple[tuple[int, ...], ...]  # by query and queue: the epoch that it reads, -1 if none yet
    ledgers: tuple[Ledger, ...]  # by query
    stages: frozenset[Stage]
    visible: tuple[int, ...]  # how often each message was written
    copy: Disk | None
    backup: Copy | None
    seen: frozenset[int]  # messages that a task has read, where tries are counted
    tried: bool  # whether a try was counted of a message that no task has read
    faults: tuple[int, ...]  # how many of each may still happen, as in FAULTS

    # --- questions

    @property
    def disk(self) -> Disk:
        """The checkpoint of the first query, to which operators do something."""
        return self.disks[0]

    def disk_of(self, place: int) -> Disk:
        """Return the checkpoint of the process at this place."""
        return self.disks[place % len(self.disks)]

    def idle(self, query: int | None = None) -> bool:
        """Return whether no process runs; `query`: on the checkpoint of that place."""
        return not any(self.drivers if query is None else self.drivers[query :: len(self.disks)])

    def held(self, *tags: Tag) -> list[int]:
        """Return the messages that tags hold."""
        return [n for n, one in enumerate(self.messages) if isinstance(one, Held) and one.tag in tags]

    def claimable(self, queue: int, *, everything: bool = False) -> list[int]:
        """Return the messages of a queue that can be claimed; `everything`: those that others hold, too."""
        return [
            n
            for n, one in enumerate(self.messages)
            if n % self.queues == queue
            and (one == FREE or (isinstance(one, Held) and (everything or one.lease == "ended")))
        ]

    @property
    def queues(self) -> int:
        return len(self.bound[0])

    def note(self, epoch: int, queue: int) -> Note | None:
        """Return what is known of an epoch in a queue."""
        return self.notes[epoch][queue] if epoch < len(self.notes) else None

    def owns(self, driver: Driver) -> bool:
        """Return whether the epoch of a process is still its own, in all queues where it was."""
        notes = [self.note(driver.epoch, queue) for queue in range(len(driver.by))]
        return all(note is None or note.owner == by for note, by in zip(notes, driver.by, strict=True))

    def runs(self, epoch: int, queue: int | None = None, owner: int = 0) -> bool:
        """Return whether a process runs this epoch; `queue`: as its owner there, of that number."""
        return any(
            one.epoch == epoch and (queue is None or one.by[queue : queue + 1] == (owner,))
            for one in self.drivers
            if one and not one.ended
        )

    def unused(self, epoch: int, queue: int, *, last: bool = False) -> int:
        """Return a number that no process of the epoch has, as far as anything says: the real one just counts on.

        `last`: one that is higher than all others.
        """
        held = (*self.messages, *(self.backup.messages if self.backup else ()))
        tags = [one.tag for one in held if isinstance(one, Held)]
        for disk in filter(None, (*self.disks, self.copy)):
            tags += [tag for one in disk.offsets for tag in one.tags]
        for driver in filter(None, self.drivers):
            tags += [*driver.start.tags, *driver.end.tags]
            tags += [Tag(driver.epoch, 0, by, place) for place, by in enumerate(driver.by)]
        if note := self.note(epoch, queue):
            # A number of which nothing is left but the note may come again: else there are always more states.
            tags += [] if last else [Tag(epoch, 0, note.owner, queue)]
            tags += [*filter(None, (note.started, note.reserved))]
        used = {one.by for one in tags if (one.epoch, one.queue) == (epoch, queue)}
        return max(used, default=0) + 1 if last else next(n for n in range(1, 99) if n not in used)

    def names(self, stage: Stage) -> bool:
        """Return whether a ledger names this stage: its own one, or that of another database of its sink."""
        ledgers = [self.ledgers[stage.key]] if len(self.ledgers) == len(self.bound) else self.ledgers
        return any((stage.batch, stage.attempt) == (one.batch, one.attempt) for one in ledgers)

    def has(self, fault: str) -> bool:
        """Return whether a fault may still happen."""
        return self.faults[FAULTS.index(fault)] > 0

    # --- changes

    def with_disk(self, disk: Disk, place: int = 0) -> State:
        """Return the state with another checkpoint for the process at this place."""
        place %= len(self.disks)
        return self._replace(disks=(*self.disks[:place], disk, *self.disks[place + 1 :]))

    def put(self, changed: dict[int, Where]) -> State:
        """Return the state with these messages elsewhere."""
        return self._replace(messages=tuple(changed.get(n, where) for n, where in enumerate(self.messages)))

    def with_driver(self, place: int, driver: Driver | None) -> State:
        """Return the state with another process at this place."""
        return self._replace(drivers=(*self.drivers[:place], driver, *self.drivers[place + 1 :]))

    def with_note(self, epoch: int, queue: int, note: Note | None) -> State:
        """Return the state with another note of an epoch in a queue."""
        notes = self.notes[epoch] if epoch < len(self.notes) else (None,) * self.queues
        notes = (*notes[:queue], note, *notes[queue + 1 :])
        return self._replace(notes=(*self.notes[:epoch], notes, *self.notes[epoch + 1 :]))

    def bind(self, query: int, queue: int, epoch: int) -> State:
        """Return the state in which a query reads this epoch of a queue."""
        bound = self.bound[query]
        bound = (*bound[:queue], epoch, *bound[queue + 1 :])
        return self._replace(bound=(*self.bound[:query], bound, *self.bound[query + 1 :]))

    def decide(self, key: int, driver: Driver, attempt: int) -> State:
        """Return the state in which a ledger has the batch of a process."""
        ledger = Ledger(driver.batch, attempt, driver.rows)
        return self._replace(ledgers=(*self.ledgers[:key], ledger, *self.ledgers[key + 1 :]))

    def show(self, rows: frozenset[int]) -> State:
        """Return the state in which these messages were written once more."""
        return self._replace(visible=tuple(n + (row in rows) for row, n in enumerate(self.visible)))

    def claim(self, held: dict[int, Held], world: World) -> State:
        """Return the state in which a process has claimed messages. The end of a lease counts as a try."""
        wrong = any(self.messages[n] != FREE and n not in self.seen for n in held) and world.counted
        return self.put(dict(held))._replace(tried=self.tried or wrong)

    def read(self, rows: frozenset[int], world: World) -> State:
        """Return the state in which a task has read messages."""
        return self._replace(seen=self.seen | rows) if world.counted else self

    def less(self, fault: str) -> State:
        """Return the state after a fault."""
        place = FAULTS.index(fault)
        return self._replace(faults=(*self.faults[:place], self.faults[place] - 1, *self.faults[place + 1 :]))


#: What a process may do next.
Moves = Iterator[tuple[str, State]]


def initial(world: World) -> State:
    """Return the state in which nothing has happened."""
    return State(
        messages=(LATER,) * world.messages,
        disks=tuple(map(Disk, range(world.queries))),
        drivers=(None,) * world.drivers,
        notes=(),
        bound=((-1,) * world.queues,) * world.queries,
        ledgers=(Ledger(),) * max(world.databases, world.queries),
        stages=frozenset(),
        visible=(0,) * world.messages,
        copy=None,
        backup=None,
        seen=frozenset(),
        tried=False,
        faults=tuple(getattr(world, name) for name in FAULTS),
    )


def breach(state: State, world: World) -> str:
    """Return which promise is broken: `LOST`, `DOUBLED`, `UNPAIRED`, `TRIED`, or none."""
    if state.tried:
        return "TRIED"
    for driver in filter(None, state.drivers if world.in_order else ()):
        first, second = ({n // 2 for n in driver.rows if n % 2 == queue} for queue in range(2))
        if first != second:
            return "UNPAIRED"
    decided = {row for stage in state.stages if state.names(stage) for row in stage.rows}
    passed: set[int] = set()
    if world.foreign and len(state.disk.offsets) - 1 == state.disk.finished >= 0:
        passed = set(range(state.disk.offsets[-1].seq))
    for number, where in enumerate(state.messages):
        written = state.visible[number] + (where == ELSEWHERE)
        if written > 1 and world.endless and not world.foreign:
            return "DOUBLED"
        if not written and (where == GONE or number in passed) and number not in decided:
            return "LOST"
    return ""


def drained(state: State, world: World) -> bool:
    """Return whether all messages have arrived, and nothing is held, or decided and not published.

    With `zip`, messages of one queue may be free: the other has none to go with them.
    """
    left = {n % world.queues for n, where in enumerate(state.messages) if where not in (GONE, ELSEWHERE)}
    free = (
        world.combine == "zip"
        and len(left) == 1
        and not any(isinstance(one, Held) and one.lease != "ended" for one in state.messages)
    )
    return (not left or free) and not any(map(state.names, state.stages))
