"""The note of a consumer: the process that runs it, and the batch that was started last.

A consumer is a name and the epoch of its checkpoint, `name/epoch`. Its note names the process that
runs it, the number of processes that have run it so far, and the batch that was started last. Any
process may read the note; only the owner changes it (`ownership.py`).
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
from spark_queue.stores.limits import StoreLimits
from spark_queue.stores.types import Note, queue_note_key

OWNER_VERSION = 2
OWNER_NOTE = "consumer"  #: the kind of note

UNKNOWN_BOOT = "?"  #: the boot id if it is unknown which processes this one sees
HIDDEN_START = -1  #: the start of a live process that the system hides


class Batch(NamedTuple):
    """A batch of one consumer: its number, and the number of the process that reserved it.

    A tag names a batch: `NAME/EPOCH/SEQ.BY`. `by` is 0 in offsets of version 1, which had no such
    number, and for the initial batch.
    """

    seq: int
    by: int = 0

    def __str__(self) -> str:
        return f"{self.seq}.{self.by}" if self.by else str(self.seq)

    @property
    def initial(self) -> bool:
        """Whether it is the initial batch, before the first one of a consumer."""
        return not self.seq


@dataclass(frozen=True, slots=True)
class Owner:
    """A process that runs a consumer.

    `boot`: where `pid` is valid, see `_boot_id`. `started`: see `_start_time`. `until`: when it
    counts as dead (ms since 1970), by the database's clock. `leaves`: it is about to end.
    """

    token: str
    host: str
    boot: str
    pid: int
    started: int
    until: int
    leaves: bool = False

    @classmethod
    def current(
        cls, token: str, now: int, leaves: bool = False, timeout_ms: int = StoreLimits.owner_timeout_ms
    ) -> Owner:
        """Return this process, with a heartbeat at `now` (ms), after which it counts as alive."""
        pid = os.getpid()
        return cls(token, socket.gethostname(), _boot_id(), pid, _start_time(pid), now + timeout_ms, leaves)

    def is_alive(self, now: int) -> bool:
        """Return whether it counts as alive at `now` (ms).

        If the database's clock was set back, this is true long after the end of the process: a
        process that waits uses a `SilenceTimer`. If the clock was set forward, this is false until
        the next heartbeat: the owner is then fenced, and nothing is lost.
        """
        return self.until > now and not self.is_dead

    @property
    def is_dead(self) -> bool:
        """Whether the process is known to be dead.

        It is known only for processes that this one sees: on this machine, in this PID namespace
        (two containers may have the same host name), and not from an older note without a
        namespace. For the others, the heartbeat decides.
        """
        boot = _boot_id()
        if boot == UNKNOWN_BOOT or (self.host, self.boot) != (socket.gethostname(), boot):
            return False
        return _start_time(self.pid) not in (self.started, HIDDEN_START)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


class SilenceTimer:
    """A timer for how long a value has not changed, by the clock of this process.

    If the clock of a database was set back, an owner seems to be alive for a long time.
    """

    def __init__(self, timeout_ms: int) -> None:
        self._timeout = timeout_ms / 1000
        self._seen: object = None
        self._since = 0.0

    def is_silent(self, value: object) -> bool:
        """Return whether the value has not changed for the timeout. Call it repeatedly."""
        now = time.monotonic()
        if value != self._seen:
            self._seen, self._since = value, now
        return now - self._since >= self._timeout


@dataclass(frozen=True, slots=True)
class ConsumerState:
    """The state of a consumer, as its note has it.

    `number`: how many processes have run it. `started`: the batch that was started last, or `None`.
    `owner`: the process that runs it, or ran it last; `None` if it was released manually.
    `reserved`: the last batch that was reserved with exactly-once, or `None`. `deaths`: how many
    processes died while they worked on the batch `started`. `ended`: whether the owner has ended in
    order. Its end is no death then.
    """

    number: int = 0
    started: Batch | None = None
    owner: Owner | None = None
    reserved: Batch | None = None
    deaths: int = 0
    ended: bool = False

    @classmethod
    def from_note(cls, note: Note) -> ConsumerState:
        """Return the state in a note. Raises `StoreError` if a newer version wrote it."""
        facts = dict(note.value)
        version = facts.pop("v", None)
        if version == 1:  # an owner and nothing else
            return cls(owner=Owner(**facts))
        if version != OWNER_VERSION:
            raise StoreError(
                f"the note of a consumer has version {version!r}, this version of spark_queue reads "
                f"{OWNER_VERSION}: upgrade spark_queue"
            )
        started, owner, reserved = facts["started"], facts["owner"], facts.get("reserved")
        return cls(
            facts["number"], started and Batch(*started), owner and Owner(**owner), reserved and Batch(*reserved),
            facts.get("deaths", 0), facts.get("ended", False),
        )  # fmt: skip

    @property
    def note_value(self) -> dict[str, Any]:
        """The note with this state."""
        value: dict[str, Any] = {
            "v": OWNER_VERSION,
            "number": self.number,
            "started": self.started and list(self.started),
            "owner": self.owner and asdict(self.owner),
        }
        if self.reserved:
            value["reserved"] = list(self.reserved)
        if self.deaths:
            value["deaths"] = self.deaths
        return value | {"ended": True} if self.ended else value

    def alive_owner(self, now: int) -> Owner | None:
        """Return the owner if it counts as alive at `now` (ms), else `None`."""
        return self.owner if self.owner is not None and self.owner.is_alive(now) else None


def load_consumer_state(store: Store, queue: str, consumer: str) -> ConsumerState | None:
    """Return the state of a consumer, or `None` if it has no note."""
    note = store.note(queue_note_key(queue, OWNER_NOTE, consumer))
    return None if note is None else ConsumerState.from_note(note)


def consumers(store: Store, queue: str | None = None) -> Iterator[tuple[str, str, Owner | None]]:
    """Yield each known consumer: queue, `name/epoch`, and its live process or `None`."""
    now = store.now()
    for key, note in store.notes("queue/" if queue is None else queue_note_key(queue, OWNER_NOTE, "")).items():
        _, name, kind, *consumer = key.split("/", 3)
        if kind == OWNER_NOTE:
            yield unquote(name), consumer[0], ConsumerState.from_note(note).alive_owner(now)


def live_consumer(store: Store, queue: str, name: str) -> tuple[str, Owner] | None:
    """Return the consumer `name/epoch` of this name and its live process; `None` if none lives."""
    for _, consumer, owner in consumers(store, queue):
        if owner is not None and consumer.partition("/")[0] == name:
            return consumer, owner
    return None


def started_batches(store: Store, queue: str, name: str) -> list[str]:
    """Return the tags `NAME/EPOCH/SEQ.BY` of the last batches of queries of this name.

    Each epoch of the name may have one. If processes count as alive, only their tags are returned.
    Else those of processes not known to be dead: one may not have reached its database for some
    seconds.
    """
    now, tags, alive_tags = store.now(), [], []
    for key, note in store.notes(queue_note_key(queue, OWNER_NOTE, f"{name}/")).items():
        consumer, standing = key.removeprefix(queue_note_key(queue, OWNER_NOTE, "")), ConsumerState.from_note(note)
        if standing.started is None or standing.started.initial or standing.owner is None or standing.owner.is_dead:
            continue
        tag = f"{consumer}/{standing.started}"
        tags.append(tag)
        if standing.alive_owner(now):
            alive_tags.append(tag)
    return alive_tags or tags


def revoke(store: Store, queue: str, consumer: str) -> None:
    """Take the consumer from its process, which fails at its next read of the note.

    The note keeps the number of processes and the batch started last.
    """
    key = queue_note_key(queue, OWNER_NOTE, consumer)
    while (note := store.note(key)) is not None:
        if store.set_note(key, replace(ConsumerState.from_note(note), owner=None).note_value, note.version):
            return


def _boot_id() -> str:
    """Return an id for the processes that this one sees: the boot of the machine, and namespaces.

    UNKNOWN_BOOT if they cannot be known. The namespaces are part of the id, not a field, so that
    earlier versions can read the note: they compare the id, and then use the heartbeat.
    """
    if sys.platform != "linux":
        return ""  # no namespaces
    try:
        if os.readlink("/proc/self") != str(os.getpid()):
            return UNKNOWN_BOOT  # /proc shows the processes of another namespace
        start = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespaces = [os.readlink("/proc/self/ns/pid")]
        if os.path.lexists("/proc/self/ns/time"):  # it shifts start times; since Linux 5.6
            namespaces.append(os.readlink("/proc/self/ns/time"))
    except OSError:
        return UNKNOWN_BOOT
    return " ".join([start, *namespaces])


def _start_time(pid: int) -> int:
    """Return when a process started; 0 if it does not exist.

    This distinguishes processes with the same id over time. The unit is ticks since the machine
    started. It is 1 on systems without /proc, and HIDDEN_START for a process of another user if
    /proc is mounted with `hidepid`.
    """
    if not Path("/proc/self/stat").exists():
        return 1 if _process_exists(pid) else 0
    try:
        fields = stat_fields(pid)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return HIDDEN_START if _process_exists(pid) else 0
    return 0 if fields[0] in "ZX" else int(fields[19])


def stat_fields(pid: int) -> list[str]:
    """Return the fields of a process after its name, as Linux has them in /proc/PID/stat.

    Raises `OSError` if the process, or /proc, does not exist or is hidden.
    """
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _process_exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
