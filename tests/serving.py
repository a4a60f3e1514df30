"""`spark-queue serve` as a process of its own, for tests and benchmarks."""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from spark_queue.stores.conformance.waiting import wait_until

ROOT = Path(__file__).parents[1]


class Serving:
    """A server: its address, its output, and its process."""

    def __init__(self, folder: Path, *args: object, env: dict[str, str] | None = None) -> None:
        self._said = folder / f"serve-{time.monotonic_ns()}.log"
        run = [
            sys.executable,
            "-m",
            "spark_queue.cli",
            "serve",
            "--port",
            "0",
            *map(str, args),
        ]  # the last --port counts
        around = os.environ | {"PYTHONPATH": str(ROOT)} | (env or {})
        with self._said.open("w") as out:
            self.process = subprocess.Popen(run, stdout=out, stderr=out, env=around)
        self.url = self._listening()

    @property
    def said(self) -> str:
        return self._said.read_text()

    def _listening(self) -> str:
        def has_started() -> bool:
            return "serving at " in self.said or self.process.poll() is not None

        with suppress(AssertionError):  # its output says more
            wait_until(has_started)
        for line in self.said.splitlines():
            if line.startswith("serving at "):
                return line.removeprefix("serving at ")
        self.kill()
        raise AssertionError(f"no server: {self.said}")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """Ask it to end, and give its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@contextmanager
def serving(folder: Path, *args: object, env: dict[str, str] | None = None) -> Iterator[Serving]:
    started = Serving(folder, *args, env=env)
    try:
        yield started
    finally:
        started.kill()


def basic(text):
    return {"authorization": f"Basic {base64.b64encode(text.encode()).decode()}"}
