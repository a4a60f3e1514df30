"""Makes one request of a client to its database fail: the first, the second, … of whatever it does.

MongoDB and Redis are spoken to through a `Proxy`, which counts the requests and cuts the
connection. SQLite has no server: there each statement counts, by `watched` connections.
"""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import struct
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from typing import Any, BinaryIO, NamedTuple, Protocol

import bson

from spark_queue.stores.mongodb.bson_json import CODEC
from spark_queue.stores.sqlite.file import Connection


class Way(Enum):
    """How a request fails.

    A client that is killed before a request is one that was killed after the one before.

    A statement of SQLite is not UNANSWERED: it is done or it fails.
    """

    LOST = "never reaches the server"
    UNANSWERED = "is done, and its answer is lost"
    KILLED = "is done, and then the client is killed"


class Plan:
    """Which request is to fail, and what was requested until then."""

    def __init__(self) -> None:
        self.arm(0)
        self.watching = False
        self.opening = False  #: whether the statements count that open a file of SQLite

    def arm(self, at: int, way: Way = Way.LOST, meanwhile: Callable[[], object] | None = None) -> None:
        """Let request number `at` (from 1) fail, once.

        `meanwhile` happens before the client learns of it.
        """
        self._at, self.way, self._meanwhile = at, way, meanwhile
        self.seen: list[str] = []
        self.struck = False
        self.victim: int | None = None  #: the process to kill
        self.trouble: BaseException | None = None

    @contextmanager
    def watch(self) -> Iterator[None]:
        """What is requested in here counts."""
        self.watching = True
        try:
            yield
        finally:
            self.watching = False
        if self.trouble:
            raise self.trouble

    def fails(self, name: str) -> bool:
        """Count a request, and return whether it is the one."""
        if not self.watching:
            return False
        self.seen.append(name)
        return len(self.seen) == self._at

    def strike(self) -> None:
        """The request fails now."""
        self.struck = True
        try:
            if self._meanwhile:
                self._meanwhile()
        except BaseException as error:  # noqa: BLE001  # we are in a thread of the proxy: `watch` raises it
            self.trouble = error
        if self.way is Way.KILLED:
            os.kill(self.victim or os.getpid(), signal.SIGKILL)


def killed(work: Callable[[], object], plan: Plan) -> bool:
    """Do the work in a process of its own, and return whether that was killed."""
    ready, go = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads do not matter to the child
        child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(go)
            os.read(ready, 1)  # until the parent knows whom to kill
            work()
            status = 0
        except BaseException:  # noqa: BLE001  # nothing may return into the tests
            traceback.print_exc()
        finally:
            os._exit(status)
    plan.victim = child
    os.close(ready)
    os.write(go, b"!")
    os.close(go)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0, "see what the process wrote"
    return False


# --- SQLite ---------------------------------------------------------------------------------------


def watched(plan: Plan) -> type[Connection]:
    """Connections whose statements count."""

    class Watched(Connection):
        def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
            return self._watch(super().execute, sql, *values)

        def executemany(self, sql: str, *values: Any) -> sqlite3.Cursor:
            return self._watch(super().executemany, sql, *values)

        def _watch(self, execute: Callable[..., sqlite3.Cursor], sql: str, *values: Any) -> sqlite3.Cursor:
            counts = plan.opening or not sql.startswith("PRAGMA")
            fails = counts and plan.fails(" ".join(sql.split()[:3]))
            if fails and plan.way is Way.LOST:
                if sql == "COMMIT":
                    execute("ROLLBACK")  # as SQLite does with what it cannot commit
                plan.strike()
                locked = sqlite3.OperationalError("database is locked")
                locked.sqlite_errorcode = sqlite3.SQLITE_BUSY
                raise locked
            done = execute(sql, *values)
            if fails:
                plan.strike()
            return done

    return Watched


# --- servers --------------------------------------------------------------------------------------


class Request(NamedTuple):
    """A request as it came, and its name where it counts."""

    data: bytes
    name: str | None


class Wire(Protocol):
    """How clients and a server speak; both give nothing at the end of a connection."""

    def request(self, file: BinaryIO) -> Request | None: ...

    def answer(self, file: BinaryIO, request: Request) -> bytes: ...


class MongoWire:
    """Length-prefixed messages."""

    def __init__(self) -> None:
        self.transactions: dict[bytes, Any] = {}  #: the sessions of those that are open

    def request(self, file: BinaryIO) -> Request | None:
        data = self._message(file)
        if not data:
            return None
        command = self._command(data)
        name = next(iter(command), None)
        # Drivers say hello to a server without a session; a store that asks for the time has one.
        counts = name != "endSessions" and "lsid" in command
        return Request(data, name if counts else None)

    def answer(self, file: BinaryIO, request: Request) -> bytes:
        command = self._command(request.data)
        if command.get("autocommit") is False:
            session = command["lsid"]
            self.transactions[bytes(session["id"])] = session
        data = self._message(file)
        if request.name in ("commitTransaction", "abortTransaction"):
            self.transactions.pop(bytes(command["lsid"]["id"]), None)
        return data

    @staticmethod
    def _message(file: BinaryIO) -> bytes:
        length = file.read(4)
        if len(length) < 4:
            return b""
        return length + file.read(struct.unpack("<i", length)[0] - 4)

    @staticmethod
    def _command(data: bytes) -> dict[str, Any]:
        """The command of an OP_MSG: its first section. Only handshakes have other messages."""
        if struct.unpack("<i", data[12:16]) != (2013,):
            return {}
        (size,) = struct.unpack("<i", data[21:25])
        return bson.decode(data[21 : 21 + size], CODEC)


class RedisWire:
    """RESP2: arrays of words, and answers of several kinds."""

    def __init__(self, scripts: Callable[[], dict[str, tuple[str, str]]]) -> None:
        self._scripts = scripts

    def request(self, file: BinaryIO) -> Request | None:
        data = file.readline()
        if not data:
            return None
        words = []
        for _ in range(int(data[1:])):
            head = file.readline()
            word = file.read(int(head[1:]) + 2)
            data += head + word
            words.append(word[:-2].decode(errors="replace"))
        command = words[0].upper()
        if command in ("CLIENT", "SELECT", "AUTH"):
            return Request(data, None)
        if command in ("EVALSHA", "EVAL"):
            names = {key: name for name, keys in self._scripts().items() for key in keys}
            command += f" {names.get(words[1], 'another script')}"
        return Request(data, command)

    def answer(self, file: BinaryIO, request: Request) -> bytes:
        data = file.readline()
        if data[:1] == b"$" and data[1:2] != b"-":
            data += file.read(int(data[1:]) + 2)
        elif data[:1] == b"*":
            data += b"".join(self.answer(file, request) for _ in range(int(data[1:])))
        return data


class Proxy:
    """Stands in front of a server on a port of its own."""

    def __init__(self, host: str, port: int, wire: Wire, plan: Plan) -> None:
        self._server = host, port
        self._wire, self._plan = wire, plan
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        self._closing = False
        self._serving: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def close(self) -> None:
        """End all connections."""
        self._closing = True
        socket.create_connection(("127.0.0.1", self.port)).close()  # wakes the thread that accepts
        self._accepting.join()
        self._listener.close()
        for one in list(self._open):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._serving:
            thread.join()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            if self._closing:
                client.close()
                return
            self._serving = [one for one in self._serving if one.is_alive()]
            self._serving.append(threading.Thread(target=self._serve, args=(client,), daemon=True))
            self._serving[-1].start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError), socket.create_connection(self._server) as server:
            both = {client, server}
            self._open |= both
            try:
                self._relay(client, server)
            finally:
                self._open -= both
                for one in both:
                    with suppress(OSError):
                        one.shutdown(socket.SHUT_RDWR)

    def _relay(self, client: socket.socket, server: socket.socket) -> None:
        """Hand on requests and answers until one of them is the one to fail."""
        for one in (client, server):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with client.makefile("rb") as asked, server.makefile("rb") as answered:
            while request := self._wire.request(asked):
                fails = request.name is not None and self._plan.fails(request.name)
                if not (fails and self._plan.way is Way.LOST):
                    server.sendall(request.data)
                    answer = self._wire.answer(answered, request)
                if fails:
                    self._plan.strike()
                    return
                client.sendall(answer)
