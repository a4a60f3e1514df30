"""Processes that fork, and programs beside them."""

from __future__ import annotations

import os
import pickle
import select
import signal
import subprocess
import sys
import traceback
import warnings
from pathlib import Path

ROOT = Path(__file__).parents[1]

#: Another program that has a queue open: it pushes a message, and ends when its input does.
BESIDE = """
import sys
from spark_queue import Queue
with Queue(sys.argv[1], sys.argv[2]) as queue:
    queue.push("beside")
    print("open", flush=True)
    sys.stdin.read()
"""


class Gate:
    """Lets processes wait for each other: each `open` lets one pass."""

    def __init__(self):
        self._out, self._in = os.pipe()

    def wait(self):
        assert select.select([self._out], [], [], 60)[0], "it stays shut"
        assert os.read(self._out, 1)

    def open(self, times=1):
        os.write(self._in, b"!" * times)


class Child:
    """A forked process, and what came of its work."""

    def __init__(self, work, fork=os.fork):
        out, into = os.pipe()
        sys.stdout.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of other threads: some tests are about them
            self.pid = fork()
        if self.pid == 0:
            try:
                os.close(out)
                _write(into, _outcome(work))
            finally:
                os._exit(0)
        os.close(into)
        self._out = out

    def result(self):
        """What its work has returned. Raises its error."""
        if not select.select([self._out], [], [], 20)[0]:
            os.kill(self.pid, signal.SIGKILL)
        with os.fdopen(self._out, "rb") as file:
            returned, value = pickle.load(file)  # a daemon that it has started has the pipe, too
        os.waitpid(self.pid, 0)
        if returned:
            return value
        raise value


def _outcome(work):
    try:
        return True, work()
    except BaseException as error:  # noqa: BLE001  # its parent raises it
        traceback.print_exc()
        return False, error


def _write(file, outcome):
    with os.fdopen(file, "wb") as into:
        into.write(pickle.dumps(outcome))


def in_child(work):
    """What some work returns in a forked process. Raises its error."""
    return Child(work).result()


class Beside:
    """Another program that has opened a queue, until the end of a `with`."""

    def __init__(self, url, queue):
        self._program = [sys.executable, "-c", BESIDE, url, queue]

    def __enter__(self):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(self._program, env=environment(), text=True, **pipes)
        assert self.process.stdout.readline() == "open\n"
        return self

    def __exit__(self, *_):
        self.process.communicate()
        assert self.process.returncode == 0


def run(program, *arguments):
    """Run a program of Python, whose only thread is its own; return what it printed."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def environment():
    return os.environ | {"PYTHONPATH": str(ROOT)}
