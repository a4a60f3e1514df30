"""SQLite in processes that fork: no file may be open at a fork.

SQLite keeps one state of a file for all connections of a process: its locks, and the index of the
write-ahead log. A fork copies that state, but not the locks, which stay with the parent. After the
parent has closed the file, other programs may begin a new log. The child does not notice, in new
connections either: its commits are lost.

So a fork first waits a moment for calls in progress, and closes all connections. Both processes
open the file again at their next call. If that was not possible, the child is refused: its first
call raises an error, before anything is opened or written. The child never closes an inherited
connection: SQLite would write to the file, and release locks of the process.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol
from weakref import WeakSet

from spark_queue.errors import StoreError

#: How long a fork waits for calls of other threads (s).
FORK_WAIT = 1.0

#: How long a call waits for a fork of another thread (s). It has an end: that thread may wait for
#: a lock which this one holds.
CALL_WAIT = 10.0

#: The pause between two looks of those that wait (s).
PAUSE = 0.0005

#: Device and inode.
File = tuple[int, int]

log = logging.getLogger(__name__)

_IN_A_CALL = "while its parent was in a call to a SQLite file"
_IN_A_READ = "while its parent was reading this file, for a `peek` or a batch read that had not ended"
_OPEN = "while its parent had this file open, and without the fork hooks of Python (by C code, such as uWSGI)"


class Inheritable(Protocol):
    """A connection, as a fork sees it.

    `file`: its file. `is_snapshot`: whether it reads one state of it, so it cannot be opened again.
    """

    file: File
    is_snapshot: bool

    def close(self) -> None: ...

    def keep(self) -> None:
        """Keep it without closing it, also at the end of the process."""


class Process:
    """SQLite in one process: what is open, which threads are in calls, and what is refused."""

    def __init__(self, parent: Process | None = None, *, hooked: bool = False) -> None:
        """`hooked`: whether Python's fork hooks have run in this child of `parent`."""
        self.pid = os.getpid()
        self.connections: WeakSet[Inheritable] = WeakSet()
        # Each by thread. Only the thread itself changes its entry, so no lock is needed.
        self._calls: dict[int, bool] = {}
        self._forks: dict[int, int] = {}
        self._refused = ""  # why SQLite cannot be used
        self._refused_files: dict[File, str] = {}  # why these files cannot
        if parent:
            self._inherit(parent, hooked)

    def _inherit(self, parent: Process, hooked: bool) -> None:
        self._refused, self._refused_files = parent._refused, dict(parent._refused_files)
        if parent._calls:  # it may hold a lock of SQLite, which no thread releases here
            self._refused = self._refused or _IN_A_CALL
        for one in parent.connections:
            one.keep()
            self._refused_files[one.file] = _IN_A_READ if hooked and one.is_snapshot else _OPEN

    def check(self, url: str) -> None:
        """Raise `StoreError` if this process cannot use SQLite."""
        if self._refused:
            raise _refusal(url, self._refused)

    def check_file(self, url: str, file: File | None) -> None:
        """Raise `StoreError` if this process cannot use SQLite, or not this file."""
        self.check(url)
        if file in self._refused_files:
            raise _refusal(url, self._refused_files[file])

    # --- calls ------------------------------------------------------------------------------------

    @contextmanager
    def call(self, *, waits: bool = True) -> Iterator[None]:
        """Use SQLite in here: a fork of another thread waits, and a call waits for that fork.

        Without `waits`, the call does not wait: the fork refuses its child if it is too late.
        """
        me = threading.get_ident()
        if me in self._calls:
            yield
            return
        try:
            self._calls[me] = True
            if waits and self._forks and me not in self._forks:
                self._wait_for_forks(me)
            yield
        finally:
            self._calls.pop(me, None)

    def _wait_for_forks(self, me: int) -> None:
        end = time.monotonic() + CALL_WAIT
        while self._forks and time.monotonic() < end:
            self._calls.pop(me)
            _wait(lambda: not self._forks, end)
            self._calls[me] = True  # before the next look: either this call or the fork sees the other

    # --- a fork -----------------------------------------------------------------------------------

    def begin_fork(self) -> None:
        """Wait for the calls of other threads, and close all connections."""
        me = threading.get_ident()
        self._forks[me] = self._forks.get(me, 0) + 1
        if me in self._calls:  # a signal handler forks
            return
        end = time.monotonic() + FORK_WAIT
        if not _wait(lambda: not self._calls, end):
            log.warning("a fork cannot wait longer for a call to a SQLite file: the child cannot use SQLite")
            return
        with self.call():
            for one in list(self.connections):
                if not one.is_snapshot:
                    _close(one)
        _wait(lambda: not self._calls, end)  # another thread forks, too, and closes

    def end_fork(self) -> None:
        """Let calls begin again, in the parent."""
        me = threading.get_ident()
        if left := self._forks.pop(me, 1) - 1:
            self._forks[me] = left


def _close(one: Inheritable) -> None:
    try:
        one.close()
    except sqlite3.Error as error:  # the child is refused then
        log.warning("a connection to a SQLite file cannot be closed before a fork: %s", error)


def _wait(condition: Callable[[], bool], end: float) -> bool:
    """Wait for a condition until a moment; return whether it came."""
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(PAUSE)
    return True


def _refusal(url: str, when: str) -> StoreError:
    return StoreError(
        f"{url}: this process was forked {when}. SQLite would lose what it writes, so this was refused, and nothing "
        "was written. Open the file after the fork, in the child only, or close it before; or start the process with "
        "'spawn' or 'forkserver' of multiprocessing",
        url=url,
    )


_process = Process()

#: A lock for each process id, of the moment at which a child without fork hooks is noticed.
_entering: dict[int, threading.Lock] = {}


def current_process() -> Process:
    """Return the state of this process."""
    return _process if _process.pid == os.getpid() else _enter_child()


def _enter_child() -> Process:
    global _process
    pid = os.getpid()
    with _entering.setdefault(pid, threading.Lock()):
        if _process.pid != pid:
            _process = Process(_process)
    return _process


def sqlite_call(url: str) -> AbstractContextManager[None]:
    """Use SQLite in here. Raises `StoreError` if a fork has made that impossible."""
    process = current_process()
    process.check(url)
    return process.call()


def _before_fork() -> None:
    current_process().begin_fork()


def _after_in_parent() -> None:
    current_process().end_fork()


def _after_in_child() -> None:
    global _process
    _process = Process(_process, hooked=True)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
