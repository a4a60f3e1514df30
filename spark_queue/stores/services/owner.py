"""The note of a consumer: the process that runs it, and the batch that was started last.

A consumer is a name and the epoch of its checkpoint, `name/epoch`. Its note says which process runs it, how many
processes have run it so far, and which batch was started last. Everyone may read the note; only that process
changes it (`ownership.py`).
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from spark_queue.errors import StoreError
from spark_queue.stores.base import Store
from spark_queue.stores.types import Note, about

#: ms that an owner counts as living after it was last heard of, and seconds between two signs of life.
LIFE, BEAT = 10_000, 2.5

OWNER_VERSION = 2
OWNER = "consumer"  #: the kind of note

UNKNOWN = "?"  #: where it cannot be known which processes are seen from here
HIDDEN_START = -1  #: the start of a process that lives, of which no more is shown


class Batch(NamedTuple):
    """A batch of one consumer: its number, and the number of the process that reserved it.

    That is what a tag names: `NAME/EPOCH/SEQ.BY`. `by` is 0 in offsets of version 1, which had no such number, and
    at the place where a consumer begins.
    """

    seq: int
    by: int = 0

    def __str__(self) -> str:
        return f"{self.seq}.{self.by}" if self.by else str(self.seq)

    @property
    def initial(self) -> bool:
        """Whether it is the place where a consumer begins."""
        return not self.seq


@dataclass(frozen=True, slots=True)
class Owner:
    """A process that runs a consumer.

    `boot`: where its number is valid, see `_boot`. `until`: ms since 1970 at which it counts as gone, by the
    database's clock. `leaves`: it is about to end.
    """

    token: str
    host: str
    boot: str
    pid: int
    started: int
    until: int
    leaves: bool = False

    @classmethod
    def here(cls, token: str, now: int, leaves: bool = False) -> Owner:
        """The process that asks, heard of at this moment (ms)."""
        pid = os.getpid()
        return cls(token, socket.gethostname(), _boot(), pid, _started(pid), now + LIFE, leaves)

    def lives(self, now: int) -> bool:
        """Whether it counts as living at this moment (ms).

        If the database's clock was set back, this holds long after its end: whoever waits for it has a `Watch`. If
        it was set forward, this ends early, until the next sign of life: the owner is then fenced, nothing is lost.
        """
        return self.until > now and not self.gone

    @property
    def gone(self) -> bool:
        """Whether the process is known to be gone; the heartbeat decides about processes that are not seen from here.

        Those are the processes of other machines, and of other PID namespaces: two containers may have the same
        host name. An older note does not say its namespace, so the heartbeat decides there too.
        """
        boot = _boot()
        if boot == UNKNOWN or (self.host, self.boot) != (socket.gethostname(), boot):
            return False
        return _started(self.pid) not in (self.started, HIDDEN_START)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


class Watch:
    """How long something stays the same, by the clock of the process that watches it: no other clock counts.

    The clock of a database may be set back, and then what it says about the end of an owner is far in the future.
    """

    def __init__(self) -> None:
        self._seen: object = None
        self._since = 0.0

    def silent(self, what: object) -> bool:
        """Whether this has not changed for LIFE since it was seen first. Asked again and again."""
        now = time.monotonic()
        if what != self._seen:
            self._seen, self._since = what, now
        return now - self._since >= LIFE / 1000


@dataclass(frozen=True, slots=True)
class Standing:
    """What the note of a consumer says.

    `number`: how many processes have run it. `started`: the batch that was started last, `None` for none yet.
    `owner`: the process that runs it, or ran it last; `None` once it was released manually.
    """

    number: int = 0
    started: Batch | None = None
    owner: Owner | None = None

    @classmethod
    def read(cls, note: Note) -> Standing:
        """What a note says. Raises `StoreError` for one that a newer version wrote."""
        facts = dict(note.value)
        version = facts.pop("v", None)
        if version == 1:  # an owner and nothing else
            return cls(owner=Owner(**facts))
        if version != OWNER_VERSION:
            raise StoreError(
                f"the owner of a consumer was noted by version {version!r}, this version of spark_queue reads "
                f"{OWNER_VERSION}: upgrade spark_queue"
            )
        started, owner = facts["started"], facts["owner"]
        return cls(facts["number"], started and Batch(*started), owner and Owner(**owner))

    @property
    def value(self) -> dict[str, Any]:
        """The note that says this."""
        owner = self.owner and asdict(self.owner)
        return {
            "v": OWNER_VERSION,
            "number": self.number,
            "started": self.started and list(self.started),
            "owner": owner,
        }

    def living(self, now: int) -> Owner | None:
        """The owner, if it counts as living at this moment (ms)."""
        return self.owner if self.owner is not None and self.owner.lives(now) else None


def standing_of(store: Store, queue: str, consumer: str) -> Standing | None:
    """What is noted of a consumer, `None` where nothing is."""
    note = store.note(about(queue, OWNER, consumer))
    return None if note is None else Standing.read(note)


def owner_of(store: Store, queue: str, consumer: str) -> Owner | None:
    """Return the process that runs a consumer, `None` if none is known to live."""
    standing = standing_of(store, queue, consumer)
    return None if standing is None else standing.living(store.now())


def consumers(store: Store, queue: str | None = None) -> Iterator[tuple[str, str, Owner | None]]:
    """Yield each known consumer: queue, `name/epoch`, and the process that runs it, if one is known to live."""
    now = store.now()
    for key, note in store.notes("queue/" if queue is None else about(queue, OWNER, "")).items():
        _, name, kind, *consumer = key.split("/", 3)
        if kind == OWNER:
            yield unquote(name), consumer[0], Standing.read(note).living(now)


def started_batches(store: Store, queue: str, name: str) -> list[str]:
    """Return the tags `NAME/EPOCH/SEQ.BY` of the batches that queries of this name were given last.

    Each epoch of the name may have one. Those of processes that count as living are returned, else, since a process
    may not have reached its database for some seconds, those of processes that are not known to be gone.
    """
    now, known, living = store.now(), [], []
    for key, note in store.notes(about(queue, OWNER, f"{name}/")).items():
        consumer, standing = key.removeprefix(about(queue, OWNER, "")), Standing.read(note)
        if standing.started is None or standing.started.initial or standing.owner is None or standing.owner.gone:
            continue
        tag = f"{consumer}/{standing.started}"
        known.append(tag)
        if standing.living(now):
            living.append(tag)
    return living or known


def revoke(store: Store, queue: str, consumer: str) -> None:
    """Take the consumer away from its process, which fails when it reads the note next.

    Its number and the batch started last stay in the note.
    """
    key = about(queue, OWNER, consumer)
    while (note := store.note(key)) is not None:
        if store.set_note(key, replace(Standing.read(note), owner=None).value, note.version):
            return


def _boot() -> str:
    """Return an id of the processes that this one sees: the last start of the machine, and the namespaces.

    `UNKNOWN` if they cannot be known. Namespaces are part of this id, and no field of their own, so that earlier
    versions read the note: they compare the id, and go by the heartbeat.
    """
    if sys.platform != "linux":
        return ""  # no namespaces
    try:
        if os.readlink("/proc/self") != str(os.getpid()):
            return UNKNOWN  # /proc shows the processes of another namespace
        start = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        spaces = [os.readlink("/proc/self/ns/pid")]
        if os.path.lexists("/proc/self/ns/time"):  # which shifts when processes started; not in Linux before 5.6
            spaces.append(os.readlink("/proc/self/ns/time"))
    except OSError:
        return UNKNOWN
    return " ".join([start, *spaces])


def _started(pid: int) -> int:
    """Return when a process started; 0 if there is no such process. Processes may have the same number in turn.

    In ticks since the machine started; 1 on systems without /proc, which know just whether it lives.
    `HIDDEN_START` for the process of another user, where /proc is mounted with `hidepid`.
    """
    if not Path("/proc/self/stat").exists():
        return 1 if _exists(pid) else 0
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return HIDDEN_START if _exists(pid) else 0
    return 0 if fields[0] in "ZX" else int(fields[19])


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
