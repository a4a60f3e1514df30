"""Which file of SQLite a path leads to: on another machine, or after somebody replaced it, that is another one."""

from __future__ import annotations

import os
import socket
import sqlite3
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote
from weakref import WeakSet

_BOOT = Path("/proc/sys/kernel/random/boot_id")


@cache
def _machine() -> str:
    """What all containers of this machine have in common: the boot of its kernel. If it has none, the host name."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return socket.gethostname()


@dataclass(frozen=True)
class FileId:
    """Which file: the same wherever its folder is mounted. `host`: who says so, for messages."""

    machine: str
    device: int
    inode: int
    host: str = field(compare=False)

    @classmethod
    def at(cls, path: str) -> FileId | None:
        """Return which file this is; `None` if there is none."""
        place = _place(path)
        return None if place is None else cls(_machine(), *place, socket.gethostname())


def _place(path: str) -> tuple[int, int] | None:
    """The device and the inode of a file; `None` if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


class FileUrl(str):
    """The URL of a SQLite file, and which file that is on the driver: what tasks get.

    `SqliteStore` alone looks at the file. For all others it is a URL.
    """

    file: FileId

    def __new__(cls, url: str, file: FileId) -> FileUrl:
        made = super().__new__(cls, url)
        made.file = file
        return made

    def __getnewargs__(self) -> Any:
        return str(self), self.file


def not_the_drivers(path: str, file: FileId) -> str:
    """Return why a task cannot use what it finds at a path, where the driver has this file; empty if it is that."""
    found = FileId.at(path)
    if found == file:
        return ""
    if _machine() != file.machine:
        why = "a SQLite file is for the processes of one machine"
    else:
        why = "either the file was replaced meanwhile, or this container does not share the folder of the driver"
    return (
        f"option 'url': the driver, on host {file.host!r}, has a file {path!r}, and this task, on host "
        f"{socket.gethostname()!r}, finds {'another one' if found else 'none'} there: {why}. On a cluster use a "
        "server: mongodb://… or redis://…"
    )


class InUse:
    """The files that an open connection uses, as they are found by their names: the database, `-wal` and `-shm`."""

    def __init__(self, path: str) -> None:
        real = os.path.realpath(path)  # SQLite has the others beside that one
        self._places = [(one, _place(one)) for one in (path, f"{real}-wal", f"{real}-shm")]

    def lost(self) -> str:
        """Return what has become of one that is no longer where it was: what is written to it nobody will see."""
        for path, place in self._places:
            found = _place(path)
            if found != place:
                return f"the file {path!r} was {'deleted' if found is None else 'replaced'} while it was in use"
        return ""


class Connection(sqlite3.Connection):
    """A connection that knows its cursors: one that has rows left keeps its snapshot, even after ROLLBACK."""

    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        self._cursors: WeakSet[sqlite3.Cursor] = WeakSet()

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        cursor = super().execute(sql, *values)
        self._cursors.add(cursor)
        return cursor

    def abandon(self) -> None:
        """End what was begun: its cursors, which an error may keep alive, and its transaction."""
        for one in list(self._cursors):
            one.close()
        if self.in_transaction:
            self.execute("ROLLBACK")


def connect(path: str, *, create: bool, timeout: float) -> Connection:
    """Open a file.

    Raises `sqlite3.OperationalError` if it is not there, unless `create` is set.
    """
    return sqlite3.connect(
        f"file:{quote(path)}?mode={'rwc' if create else 'rw'}",
        uri=True,
        timeout=timeout,
        isolation_level=None,
        check_same_thread=False,
        factory=Connection,
    )
