"""What a piece of work takes: time, CPU of the client's processes and of the server, memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Self

import psutil

#: Seconds between two looks at the memory.
LOOK = 0.1

READER, WORKERS = "reader", "workers"


class Meter:
    """Measures what happens inside of its `with` block.

    `seconds` by the clock; `client` and `server`: CPU seconds; `peak`: the most bytes of resident memory at a time.
    The client is this process, and all below it where `tree` is true (Spark's JVM and its Python processes). Pages
    that processes share count for each. A server of which nothing is known, SQLite's, takes 0 seconds: its work is
    the client's.
    """

    def __init__(self, server: Callable[[], float], *, tree: bool) -> None:
        self._server, self._tree, self._done = server, tree, threading.Event()
        self._me = psutil.Process()
        self.seconds = self.client = self.server = 0.0
        self.peak = 0

    def __enter__(self) -> Self:
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()
        self.server, self.client, self.seconds = -self._server(), -self._cpu(), -time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.seconds += time.perf_counter()
        self.client += self._cpu()
        self.server += self._server()
        self._done.set()
        self._watcher.join()

    def _processes(self) -> list[psutil.Process]:
        return [self._me, *(self._me.children(recursive=True) if self._tree else ())]

    def _cpu(self) -> float:
        """CPU seconds so far; those of a process that has ended are told by its parent."""
        total = 0.0
        for one in self._processes():
            with suppress(psutil.NoSuchProcess):
                times = one.cpu_times()
                total += times.user + times.system
                if self._tree:
                    total += times.children_user + times.children_system
        return total

    def _watch(self) -> None:
        while True:
            resident = 0
            for one in self._processes():
                with suppress(psutil.NoSuchProcess):
                    resident += one.memory_info().rss
            self.peak = max(self.peak, resident)
            if self._done.wait(LOOK):
                return


def python_processes() -> Iterator[tuple[str, int]]:
    """Spark's Python processes below this one: the READER of each query, and the one whose children are WORKERS."""
    for one in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            command = " ".join(one.cmdline())
            if "python_streaming_source_runner" in command:
                yield READER, one.pid
            elif "pyspark.daemon" in command and (parent := one.parent()) and "java" in parent.name():
                yield WORKERS, one.pid


def server_cpu(url: str) -> Callable[[], float]:
    """What tells the CPU seconds that the server at this URL has taken since it started."""
    scheme = url.partition(":")[0]
    if scheme == "redis":
        from redis import Redis

        return partial(redis_cpu, Redis.from_url(url, socket_timeout=60))  # a disk may stop it for a while
    if scheme == "mongodb":
        from pymongo import MongoClient

        return partial(mongodb_cpu, MongoClient(url))
    return lambda: 0.0


def redis_cpu(client: Any) -> float:
    """CPU seconds that the server of this client says to have taken since it started."""
    told = client.info("cpu")
    return float(told["used_cpu_user"] + told["used_cpu_sys"])


def mongodb_cpu(client: Any) -> float:
    """CPU seconds that the server of this client says to have taken since it started."""
    told = client.admin.command("serverStatus")["extra_info"]
    return float(told["user_time_us"] + told["system_time_us"]) / 1e6
