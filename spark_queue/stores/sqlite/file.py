"""Open a SQLite file, and check that a path still leads to the same file.

The same path is another file on another machine, or after the file was replaced.
"""

from __future__ import annotations

import ctypes
import os
import socket
import sqlite3
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote
from weakref import WeakSet

from spark_queue.messages.buckets import bytes_of
from spark_queue.stores.sqlite.forks import File, Process, current_process, sqlite_call

T = TypeVar("T")

#: The SQL function that returns the bytes of a bucket: see `messages/buckets.py`.
BYTES_OF = "spark_queue_bytes_of"

_increase_references = ctypes.pythonapi.Py_IncRef

_BOOT = Path("/proc/sys/kernel/random/boot_id")


@cache
def _machine_id() -> str:
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
    def from_path(cls, path: str) -> FileId | None:
        """Return the identity of the file at a path; `None` if it is missing or not accessible."""
        device_and_inode = _device_and_inode(path)
        return None if device_and_inode is None else cls(_machine_id(), *device_and_inode, socket.gethostname())


def _device_and_inode(path: str) -> tuple[int, int] | None:
    """Return the device and the inode of a file; `None` if it is missing or not accessible."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


class FileUrl(str):
    """The URL of a SQLite file with the identity of the driver's file: Spark's tasks get it.

    Only `SqliteStore` uses the identity. For all other code it is a plain URL.
    """

    file: FileId

    def __new__(cls, url: str, file: FileId) -> FileUrl:
        file_url = super().__new__(cls, url)
        file_url.file = file
        return file_url

    def __getnewargs__(self) -> Any:
        return str(self), self.file


def file_mismatch(path: str, expected: FileId) -> str:
    """Return why the file at a path is not the driver's file; an empty text if it is."""
    found = FileId.from_path(path)
    if found == expected:
        return ""
    if _machine_id() != expected.machine:
        reason = "a SQLite file is for the processes of one machine"
    else:
        reason = "either the file was replaced meanwhile, or this container does not share the folder of the driver"
    return (
        f"option 'url': the driver, on host {expected.host!r}, has a file {path!r}, and this task, on host "
        f"{socket.gethostname()!r}, finds {'another one' if found else 'none'} there: {reason}. On a cluster use a "
        "server: mongodb://… or redis://…"
    )


class OpenFiles:
    """The files of an open connection: the database, `-wal` and `-shm`."""

    def __init__(self, path: str) -> None:
        real_path = os.path.realpath(path)  # SQLite creates the other two beside the real file
        self._inodes = [(one, _device_and_inode(one)) for one in (path, f"{real_path}-wal", f"{real_path}-shm")]

    def fault(self) -> str:
        """Return which file was deleted or replaced; an empty text if none was.

        No other process sees later writes to such a file.
        """
        for path, inode in self._inodes:
            found = _device_and_inode(path)
            if found != inode:
                return f"the file {path!r} was {'deleted' if found is None else 'replaced'} while it was in use"
        return ""


class Connection(sqlite3.Connection):
    """A connection that closes before a fork, and tracks its cursors.

    A cursor with rows left keeps its snapshot, even after ROLLBACK, and keeps the file open, even
    after `close`.
    """

    url = ""
    file: File = (0, 0)
    is_snapshot = False  #: whether others see one state of the file here: it stays open at a fork
    files: OpenFiles | None = None  #: what must not be replaced
    _process: Process | None = None  # in which it is open

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._cursors: WeakSet[sqlite3.Cursor] = WeakSet()
        super().__init__(*args, **kwargs)
        self._process = current_process()

    @property
    def usable(self) -> bool:
        """Whether it is open, in this process."""
        return self._process is current_process()

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        self._check_usable()
        cursor = super().execute(sql, *values)
        self._cursors.add(cursor)
        return cursor

    def executemany(self, sql: str, *values: Any) -> sqlite3.Cursor:
        self._check_usable()
        return super().executemany(sql, *values)

    def _check_usable(self) -> None:
        """Raise `StoreError` if a fork has separated this process from the connection."""
        process = current_process()
        if self._process is not process and self._process is not None:
            process.check_file(self.url, self.file)

    def pages(self, pages: Generator[T]) -> Iterator[T]:
        """Yield what a generator reads from the connection; each step of it is a call."""
        try:
            while True:
                with sqlite_call(self.url):
                    self._check_usable()
                    page = next(pages, None)
                if page is None:
                    return
                yield page
        finally:
            if self.usable:
                with sqlite_call(self.url):
                    pages.close()

    def abandon(self) -> None:
        """Close all cursors, which an error may keep alive, and roll back the transaction."""
        if not self.usable:
            return
        for one in list(self._cursors):
            one.close()
        if self.in_transaction:
            self.execute("ROLLBACK")

    def close(self) -> None:
        """Roll back, and close. Do nothing in a process that has inherited the connection."""
        if not self.usable:
            return
        with sqlite_call(self.url):
            try:
                self.abandon()
            finally:
                super().close()
                current_process().connections.discard(self)
                self._process = None

    def keep(self) -> None:
        """Keep it without closing it, also at the end of the process: it belongs to the parent."""
        for one in (self, *self._cursors):
            _increase_references(ctypes.py_object(one))

    def __del__(self, getpid: Callable[[], int] = os.getpid) -> None:
        if self._process is None:
            return
        if self._process.pid != getpid():
            self.keep()
            return
        with self._process.call(waits=False):  # a thread that collects garbage may hold any lock
            super().close()


def _bytes_of(id: bytes, stored: int) -> int:
    """Return the bytes of a bucket; its id may be damaged."""
    return bytes_of(id.decode(errors="replace"), stored)


def connect(url: str, path: str, *, create: bool, timeout: float) -> Connection:
    """Open a file. Any thread may use the connection; it begins no transaction by itself.

    A locked file is retried for `timeout` seconds. Raises `sqlite3.OperationalError` if the file
    does not exist, unless `create` is set, and `StoreError` in a forked process that cannot use it.
    """
    current_process().check_file(url, _device_and_inode(path))
    opened = sqlite3.connect(
        f"file:{quote(path)}?mode={'rwc' if create else 'rw'}",
        uri=True,
        timeout=timeout,
        isolation_level=None,
        check_same_thread=False,
        factory=Connection,
    )
    opened.create_function(BYTES_OF, 2, _bytes_of, deterministic=True)
    opened.url, opened.file = url, _device_and_inode(path) or (0, 0)
    current_process().connections.add(opened)
    return opened
