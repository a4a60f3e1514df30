"""The process of looks: it starts at the first look, and ends with the server.

Each thread of the server that looks has a connection to it, and each connection has a thread there.
A message is a look and its arguments, the answer is its result or its error. If the process ends,
its looks fail with 503, and the next look starts another process.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from queue import LifoQueue
from threading import Lock, Thread
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from spark_queue.errors import QueueError
from spark_queue.rest.errors import Overloaded
from spark_queue.rest.looks.contents import Contents, Setup

P = ParamSpec("P")
T = TypeVar("T")

#: The result of a look, or its error.
Reply = tuple[Any, Exception | None]

#: By how much the process is less important than others: see nice(2).
NICENESS = 5

#: Settings of its memory: large pages come and go in several threads. They save 50 MB.
ENVIRONMENT = {"MALLOC_ARENA_MAX": "2", "ARROW_DEFAULT_MEMORY_POOL": "system"}

#: How long the process may take to end after its connections have ended (s).
END_TIMEOUT = 2.0

#: What the process runs. It imports from where the server does.
PROGRAM = """
import sys
sys.path[:] = {path!r}
from spark_queue.rest.looks.process import answer
answer({connections!r})
"""


class Looks(Protocol):
    """Runs looks, in the thread that calls it."""

    def run(self, look: Callable[Concatenate[Contents, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of a look. Raises its error."""

    def close(self) -> None:
        """End what was started."""


class LocalLooks:
    """Runs looks in this process, with the contents of the server."""

    def __init__(self, contents: Contents) -> None:
        self._contents = contents

    def run(self, look: Callable[Concatenate[Contents, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of a look. Raises its error."""
        return look(self._contents, *args, **kwargs)

    def close(self) -> None:
        """Do nothing: the contents are those of the server."""


class ProcessLooks:
    """Runs looks in a process of their own. It needs POSIX."""

    def __init__(self, setup: Setup, threads: int) -> None:
        """Start nothing yet. At most `threads` of the server look at the same time."""
        self._setup, self._threads = setup, threads
        self._lock = Lock()
        self._process: _Process | None = None

    def run(self, look: Callable[Concatenate[Contents, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of a look. Raises its error.

        Raises `Overloaded` if the process has ended, or cannot start.
        """
        with self._lock:
            process = self._process = self._process or self._start()
        try:
            result, error = process.call(look, args, kwargs)
        except (EOFError, OSError):
            with self._lock:
                if self._process is process:
                    self._process = None
            process.end()
            raise Overloaded("the process that looks has ended: try again, and another one starts") from None
        if error is not None:
            raise error
        found: T = result
        return found

    def _start(self) -> _Process:
        try:
            return _Process(self._setup, self._threads)
        except OSError as error:  # no memory, files or processes are left; reads and writes go on
            raise Overloaded(f"the process that looks cannot start ({error}): try again later") from error

    def close(self) -> None:
        """End the process."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.end()


class _Process:
    """A process that runs looks, and the connections to it."""

    def __init__(self, setup: Setup, threads: int) -> None:
        pipes = [Pipe() for _ in range(threads)]
        numbers = [theirs.fileno() for _, theirs in pipes]
        program = PROGRAM.format(path=sys.path, connections=numbers)
        run, env = [sys.executable, "-c", program], os.environ | ENVIRONMENT
        self._process = subprocess.Popen(run, stdin=subprocess.PIPE, pass_fds=numbers, env=env)
        self._connections = [ours for ours, _ in pipes]
        self._free: LifoQueue[Connection] = LifoQueue()
        for ours, theirs in pipes:
            theirs.close()
            self._free.put(ours)
        stdin = self._process.stdin
        if stdin is not None:
            with suppress(BrokenPipeError), stdin:  # the first look says that it has ended
                stdin.write(pickle.dumps(setup))

    def call(self, look: Callable[..., Any], args: Sequence[object], kwargs: dict[str, object]) -> Reply:
        """Return the reply to a look. Raises `EOFError` or `OSError` if the process has ended."""
        connection = self._free.get()
        try:
            connection.send((look, args, kwargs))
            found: Reply = connection.recv()
        finally:
            self._free.put(connection)
        return found

    def end(self) -> None:
        """End the process, and what runs in it."""
        for one in self._connections:
            one.close()
        try:
            self._process.wait(END_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()  # it only reads
            self._process.wait()


def answer(connections: Sequence[int]) -> None:
    """Run looks for the server until it closes the connections, or has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which then ends this process
    os.nice(NICENESS)
    contents = Contents(pickle.load(sys.stdin.buffer))
    threads = [Thread(target=_answer, args=(contents, Connection(number))) for number in connections]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    contents.close()


def _answer(contents: Contents, connection: Connection) -> None:
    with suppress(EOFError, OSError):  # the server has closed it, or has ended
        while True:
            look, args, kwargs = connection.recv()
            connection.send(_reply_to(contents, look, args, kwargs))


def _reply_to(
    contents: Contents, look: Callable[..., Any], args: Sequence[object], kwargs: dict[str, object]
) -> Reply:
    """Return what a look returns or raises, so that it can be pickled."""
    try:
        return look(contents, *args, **kwargs), None
    except QueueError as error:
        return None, error
    except Exception as error:  # noqa: BLE001  a defect, which the server logs
        return None, RuntimeError("".join(traceback.format_exception(error)))
