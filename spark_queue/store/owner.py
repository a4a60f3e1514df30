"""The note of a consumer: the process that runs it, and the batch that was started last.

A consumer is a name and the epoch of its checkpoint, `name/epoch`. Its note says which process runs it, how many
processes have run it so far, and which batch was started last. Everyone may read the note; only that process
changes it (`ownership.py`).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from spark_queue.errors import StoreError
from spark_queue.store.base import Store
from spark_queue.store.facts import Note, about

#: ms that an owner counts as living after it was last heard of, and seconds between two signs of life.
LIFE, BEAT = 10_000, 2.5

VERSION = 2
OWNER = "consumer"  #: the kind of note


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

    `boot`: the last start of its machine, and its PID namespace; only there `pid` means this process. `until`: when
    it counts as gone, ms since 1970 by the database's clock. `leaves`: it is about to end.
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
        host, boot = _machine() or (socket.gethostname(), "")
        pid = os.getpid()
        return cls(token, host, boot, pid, _started(pid), now + LIFE, leaves)

    def lives(self, now: int) -> bool:
        """Whether it counts as living at this moment (ms)."""
        return self.until > now and not self.gone

    @property
    def gone(self) -> bool:
        """Whether the process is known to be gone: only processes of this machine and PID namespace are known."""
        here = _machine()
        return here is not None and (self.host, self.boot) == here and _started(self.pid) != self.started

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


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
        if version != VERSION:
            raise StoreError(
                f"the owner of a consumer was noted by version {version!r}, this version of spark_queue reads "
                f"{VERSION}: upgrade spark_queue"
            )
        started, owner = facts["started"], facts["owner"]
        return cls(facts["number"], started and Batch(*started), owner and Owner(**owner))

    @property
    def value(self) -> dict[str, Any]:
        """The note that says this."""
        owner = self.owner and asdict(self.owner)
        return {"v": VERSION, "number": self.number, "started": self.started and list(self.started), "owner": owner}

    def living(self, now: int) -> Owner | None:
        """The owner, if it counts as living at this moment (ms)."""
        return self.owner if self.owner is not None and self.owner.lives(now) else None


def life() -> float:
    """Return the seconds for which an owner that is silent counts as living."""
    return LIFE / 1000


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


def _machine() -> tuple[str, str] | None:
    """Return the name of this machine, and an id of its last start with that of the PID namespace.

    `None` if there are namespaces and this one is unknown: then no process is known to be gone. Two containers of one
    machine may have the same host name, and other processes under the same numbers.
    """
    host, boot = socket.gethostname(), Path("/proc/sys/kernel/random/boot_id")
    if not boot.exists():  # not Linux
        return host, ""
    try:
        return host, f"{boot.read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None


def _started(pid: int) -> int:
    """Return when a process started; 0 if there is no such process. Processes may have the same number in turn.

    In ticks since the machine started; 1 on systems without /proc, which know just whether it lives.
    """
    if not Path("/proc/self/stat").exists():
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return 0
        except PermissionError:
            return 1
        return 1
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])
