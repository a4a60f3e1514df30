"""Who runs a consumer: one process at a time.

A consumer is a name and the epoch of its checkpoint, `name/epoch`. The process that runs it says so in a note, and
says it again every few seconds. Another one takes over at once where that process is gone from the same machine, else
as soon as it has been silent for LIFE; while it lives, the other is refused. One that is about to end says so, and is
waited for. Whoever is taken over learns it at its next look at the note.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from copy import copy
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import unquote

from spark_queue.errors import FencedError, StoreError
from spark_queue.store.base import Store
from spark_queue.store.facts import Note, about

#: ms that an owner counts as living after it was last heard of, and seconds between two signs of life.
LIFE, BEAT = 10_000, 2.5

VERSION = 1
OWNER = "consumer"  #: the kind of note

#: Seconds between two looks of a process that waits to take over.
LOOK = 0.1


@dataclass(frozen=True, slots=True)
class Owner:
    """A process that runs a consumer.

    `until`: ms since 1970 at which it counts as gone, by the database's clock. `leaves`: it is about to end.
    """

    token: str
    host: str
    boot: str
    pid: int
    started: int
    until: int
    leaves: bool = False

    @classmethod
    def read(cls, note: Note | None) -> Owner | None:
        """The owner in a note. Raises `StoreError` for one that a newer version wrote."""
        if note is None:
            return None
        facts = dict(note.value)
        version = facts.pop("v", None)
        if version != VERSION:
            raise StoreError(
                f"the owner of a consumer was noted by version {version!r}, this version of spark_queue reads "
                f"{VERSION}: upgrade spark_queue"
            )
        return cls(**facts)

    @classmethod
    def here(cls, token: str, now: int, leaves: bool = False) -> Owner:
        """The process that asks, heard of at this moment (ms)."""
        host, boot = _machine()
        pid = os.getpid()
        return cls(token, host, boot, pid, _started(pid), now + LIFE, leaves)

    def lives(self, now: int) -> bool:
        """Whether it counts as living at this moment (ms)."""
        return self.until > now and not self.gone

    @property
    def gone(self) -> bool:
        """Whether the process is known to be gone: only processes of this machine are known."""
        return (self.host, self.boot) == _machine() and _started(self.pid) != self.started

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def owner_of(store: Store, queue: str, consumer: str) -> Owner | None:
    """The process that runs a consumer just now, as far as anybody knows."""
    return _living(store.note(about(queue, OWNER, consumer)), store.now())


def consumers(store: Store, queue: str | None = None) -> Iterator[tuple[str, str, Owner | None]]:
    """All consumers that have been run: queue, `name/epoch`, and who runs it just now."""
    now = store.now()
    for key, note in store.notes("queue/" if queue is None else about(queue, OWNER, "")).items():
        _, name, kind, *consumer = key.split("/", 3)
        if kind == OWNER:
            yield unquote(name), consumer[0], _living(note, now)


def revoke(store: Store, queue: str, consumer: str) -> None:
    """Let nobody run the consumer: a process that does learns it at its next look."""
    while (note := store.note(about(queue, OWNER, consumer))) is not None:
        if store.set_note(about(queue, OWNER, consumer), None, note.version):
            return


class Ownership:
    """The claim of this process to a consumer.

    Used by one thread at a time; another thread takes a copy with a store of its own (`on`).
    """

    def __init__(self, store: Store, queue: str, consumer: str) -> None:
        self._store = store
        self._queue = queue
        self._consumer = consumer
        self._key = about(queue, OWNER, consumer)
        self._token = uuid.uuid4().hex
        self._leaves = threading.Event()

    def on(self, store: Store) -> Ownership:
        """The same claim, for another thread."""
        same = copy(self)
        same._store = store
        return same

    def leave(self) -> None:
        """Say with each sign of life from now on that this process is about to end."""
        self._leaves.set()

    def take(self) -> None:
        """Become the owner, once one that is about to end has ended.

        Raises `FencedError` where another process runs the consumer.
        """
        seen: Note | None = None
        while True:
            note = self._store.note(self._key)
            owner = _living(note, self._store.now())
            if owner is None or owner.gone or owner.token == self._token:
                if self._write(note):
                    return
                continue
            if seen is not None and note != seen and not owner.leaves:  # it has given a sign of life meanwhile
                raise FencedError(
                    f"consumer {self._consumer} of queue {self._queue!r} is run by {owner}: a second query on a copy "
                    "of its checkpoint would take the same messages. Stop one of them, or start this one with "
                    "a new checkpoint",
                    queue=self._queue,
                    consumer=self._consumer,
                )
            seen = note
            time.sleep(LOOK)

    def renew(self) -> None:
        """Give a sign of life. Raises `FencedError` where the consumer is no longer this process's."""
        note = self._store.note(self._key)
        self._check(note)
        if not self._write(note):
            self._check(self._store.note(self._key))

    def check(self) -> None:
        """Raise `FencedError` where the consumer is no longer this process's."""
        self._check(self._store.note(self._key))

    def _check(self, note: Note | None) -> None:
        if note is not None and note.value.get("token") == self._token:
            return
        taker = "it was released manually" if note is None else f"{Owner.read(note)} has taken over"
        raise FencedError(
            f"this query no longer runs consumer {self._consumer} of queue {self._queue!r}: {taker}. What it had "
            "reserved is not committed; started again, the query goes on with what its checkpoint still holds",
            queue=self._queue,
            consumer=self._consumer,
        )

    def _write(self, note: Note | None) -> bool:
        me = Owner.here(self._token, self._store.now(), self._leaves.is_set())
        return self._store.set_note(self._key, {"v": VERSION, **asdict(me)}, note.version if note else 0)


def _living(note: Note | None, now: int) -> Owner | None:
    owner = Owner.read(note)
    return owner if owner is not None and owner.lives(now) else None


def _machine() -> tuple[str, str]:
    """The name of this machine, and what tells this run of it from others."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return socket.gethostname(), boot.read_text().strip() if boot.exists() else ""


def _started(pid: int) -> int:
    """What tells a process from an earlier one with the same number; 0 where there is none.

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
