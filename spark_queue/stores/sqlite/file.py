"""Open a SQLite file, and check that a path still leads to the same file.

The same path is another file on another machine, or after the file was replaced.
"""

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
    """Return the kernel's boot id, which all containers of a machine share; else the host name."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return socket.gethostname()


@dataclass(frozen=True)
class FileId:
    """The identity of a file: the same in all containers that mount its folder.

    `host` is the host that read it. It is for error texts only and is not compared.
    """

    machine: str
    device: int
    inode: int
    host: str = field(compare=False)

    @classmethod
    def at(cls, path: str) -> FileId | None:
        """Return the identity of the file at a path; `None` if it is missing or not accessible."""
        place = _place(path)
        return None if place is None else cls(_machine(), *place, socket.gethostname())


def _place(path: str) -> tuple[int, int] | None:
    """Return the device and the inode of a file; `None` if it is missing or not accessible."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


class FileUrl(str):
    """The URL of a SQLite file with the identity of the driver's file: Spark's tasks get it.

    Only `SqliteStore` uses the identity. For all other code it is a plain URL.
    """

    file: FileId

    def __new__(cls, url: str, file: FileId) -> FileUrl:
        made = super().__new__(cls, url)
        made.file = file
        return made

    def __getnewargs__(self) -> Any:
        return str(self), self.file


def not_the_drivers(path: str, file: FileId) -> str:
    """Return why the file at a path is not the driver's file; an empty text if it is."""
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
    """The files of an open connection: the database, `-wal` and `-shm`."""

    def __init__(self, path: str) -> None:
        real = os.path.realpath(path)  # SQLite creates the other two beside the real file
        self._places = [(one, _place(one)) for one in (path, f"{real}-wal", f"{real}-shm")]

    def lost(self) -> str:
        """Return which file was deleted or replaced; an empty text if none was.

        No other process sees later writes to such a file.
        """
        for path, place in self._places:
            found = _place(path)
            if found != place:
                return f"the file {path!r} was {'deleted' if found is None else 'replaced'} while it was in use"
        return ""


class Connection(sqlite3.Connection):
    """A connection that tracks its cursors.

    A cursor with rows left keeps its snapshot, even after ROLLBACK.
    """

    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        self._cursors: WeakSet[sqlite3.Cursor] = WeakSet()

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        cursor = super().execute(sql, *values)
        self._cursors.add(cursor)
        return cursor

    def abandon(self) -> None:
        """Close all cursors, which an error may keep alive, and roll back the transaction."""
        for one in list(self._cursors):
            one.close()
        if self.in_transaction:
            self.execute("ROLLBACK")


def connect(path: str, *, create: bool, timeout: float) -> Connection:
    """Open a file. Any thread may use the connection; it begins no transaction by itself.

    A locked file is retried for `timeout` seconds. Raises `sqlite3.OperationalError` if the file
    does not exist, unless `create` is set.
    """
    return sqlite3.connect(
        f"file:{quote(path)}?mode={'rwc' if create else 'rw'}",
        uri=True,
        timeout=timeout,
        isolation_level=None,
        check_same_thread=False,
        factory=Connection,
    )
