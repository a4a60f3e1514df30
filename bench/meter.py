"""Measure time, memory, and CPU of the client's processes and the server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Self

import psutil

#: Seconds between two samples of the memory.
SAMPLE_S = 0.1

READER, WORKERS = "reader", "workers"


class Meter:
    """Measures its `with` block.

    `seconds` is wall-clock time, `client` and `server` are CPU seconds, and `peak` is the maximum
    resident memory in bytes. The client is this process and, if `tree` is true, all processes below
    it (Spark's JVM and Python processes). Memory that processes share counts for each. SQLite has
    no server: its work is part of the client's, and `server` is 0.
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
        """Return the CPU seconds so far. The parent of a process that ended reports its seconds."""
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
            if self._done.wait(SAMPLE_S):
                return


def python_processes() -> Iterator[tuple[str, int]]:
    """Yield Spark's Python processes: the READER of each query, and the parent of the WORKERS."""
    for one in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            command = " ".join(one.cmdline())
            if "python_streaming_source_runner" in command:
                yield READER, one.pid
            elif "pyspark.daemon" in command and (parent := one.parent()) and "java" in parent.name():
                yield WORKERS, one.pid


def server_cpu(url: str) -> Callable[[], float]:
    """Return a function that returns the CPU seconds of a server since its start."""
    scheme = url.partition(":")[0]
    if scheme == "redis":
        from redis import Redis

        return partial(redis_cpu, Redis.from_url(url, socket_timeout=60))  # a slow disk may block it
    if scheme == "mongodb":
        from pymongo import MongoClient

        return partial(mongodb_cpu, MongoClient(url))
    return lambda: 0.0


def redis_cpu(client: Any) -> float:
    """Return the CPU seconds of the server since its start, as it reports them."""
    info = client.info("cpu")
    return float(info["used_cpu_user"] + info["used_cpu_sys"])


def mongodb_cpu(client: Any) -> float:
    """Return the CPU seconds of the server since its start, as it reports them."""
    info = client.admin.command("serverStatus")["extra_info"]
    return float(info["user_time_us"] + info["system_time_us"]) / 1e6
