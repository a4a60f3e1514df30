"""Spark's daemon of Python workers, without Spark: it has a queue open when it forks a worker.

As with a `spark.python.daemon.module` that loads the user's program: its workers inherit what that has opened.
Run as a program, this is the daemon; `Daemon` starts it, and asks it for workers as Spark does.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import types
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from pyspark import cloudpickle
from pyspark.serializers import UTF8Deserializer, read_int, write_with_length

from tests.forked import environment

SECRET = "secret"


class Daemon:
    """A daemon that has a queue open, and its workers. `busy`: a thread of it is in a call to the store."""

    def __init__(self, url: str, queue: str, *, busy: bool = False) -> None:
        command = [sys.executable, "-m", __name__, url, queue, *(["busy"] if busy else [])]
        env = environment() | {"PYTHON_WORKER_FACTORY_SECRET": SECRET, "SPARK_REUSE_WORKER": "1"}
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
        assert self._process.stdout is not None
        self._port = read_int(self._process.stdout)
        self._open = ExitStack()

    def worker(self) -> Callable[[Callable[[], Any]], Any]:
        """Fork a worker. Return a function that runs work there: it returns the result, or raises the error."""
        connection = self._open.enter_context(socket.create_connection(("127.0.0.1", self._port), timeout=60))
        file = self._open.enter_context(connection.makefile("rwb"))
        assert read_int(file) > 0, "it was not forked"
        write_with_length(SECRET.encode(), file)
        file.flush()
        assert UTF8Deserializer().loads(file) == "ok"

        def run(work: Callable[[], Any]) -> Any:
            cloudpickle.dump(work, file)
            file.flush()
            result, error = pickle.load(file)
            if error is not None:
                raise error
            return result

        return run

    def close_queue(self) -> None:
        """Let it close the queue; returns when it has."""
        assert self._process.stdout is not None
        self._process.send_signal(signal.SIGUSR1)
        assert self._process.stdout.read(1) == b"!"

    def __enter__(self) -> Daemon:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()
        self._process.communicate(timeout=60)  # Spark ends it in this way, too


def main(infile: Any, outfile: Any) -> None:
    """Do one piece of work, in a worker: what `pyspark.worker` does with a task."""
    work = pickle.load(infile)
    outcome: tuple[Any, Exception | None]
    try:
        outcome = work(), None
    except Exception as error:  # noqa: BLE001  # the test raises it
        outcome = None, error
    pickle.dump(outcome, outfile)


def _run(url: str, queue: str, *how: str) -> None:
    from pyspark.daemon import manager

    from spark_queue import Queue
    from spark_queue.stores.sqlite import forks

    opened = Queue(url, queue)
    opened.push("daemon")

    def close(*_: object) -> None:
        opened.store.close()
        os.write(1, b"!")

    signal.signal(signal.SIGUSR1, close)
    if how:
        forks.FORK_WAIT, entered = 0.02, threading.Event()

        def call() -> None:
            with forks.sqlite_call(url):
                entered.set()
                threading.Event().wait()

        threading.Thread(target=call, daemon=True).start()
        entered.wait()
    module: Any = types.ModuleType("pyspark_work")  # Spark's daemon imports nothing else
    module.main = main
    sys.modules[module.__name__] = module
    sys.argv[1:] = [module.__name__]
    manager()


if __name__ == "__main__":
    _run(*sys.argv[1:])
