"""A program of another project as a child process that obeys JSON lines: a command per line, an answer per line."""

from __future__ import annotations

import json
import os
import select
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

FOLDER = Path(__file__).parent
NODE = FOLDER / "keuss_driver"
PATIENCE = 120  # s for an answer; some of them retry forever what they cannot reach


class DriverError(Exception):
    """It refused a command, or died."""


class Driver:
    """Runs as long as the `with` block."""

    name = "the program"

    def __init__(self, *command: str, cwd: Path = FOLDER) -> None:
        self._command, self._cwd = command, cwd

    def unavailable(self) -> str | None:
        """Why it cannot run here and what to do about it; None when it can."""
        return None

    def __enter__(self) -> Self:
        if reason := self.unavailable():
            raise DriverError(reason)
        self._child = subprocess.Popen(self._command, cwd=self._cwd, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            self.begin()
        except BaseException:  # nothing may return into the tests
            self._end()
            raise
        return self

    def begin(self) -> None:
        """The first thing to do."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def send(self, act: str, **given: Any) -> None:
        """Send a command; `answer` returns the answer."""
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps({"do": act, **given}).encode() + b"\n")
        self._child.stdin.flush()

    def answer(self, act: str, patience: float = PATIENCE) -> dict[str, Any]:
        """The answer to the command that was sent."""
        assert self._child.stdout is not None
        # Commands and answers alternate, so that the pipe holds at most this one answer.
        if not select.select([self._child.stdout], [], [], patience)[0]:
            raise DriverError(f"{self.name}: no answer to {act!r} within {patience:g} s")
        line = self._child.stdout.readline()
        if not line:
            raise DriverError(f"{self.name} ended at {act!r} with exit code {self._child.wait()}; see its stderr")
        answer: dict[str, Any] = json.loads(line)
        if not answer.pop("ok"):
            raise DriverError(f"{act}: {answer['error']}")
        return answer

    def do(self, act: str, *, patience: float = PATIENCE, **given: Any) -> dict[str, Any]:
        """Send a command and give its answer."""
        self.send(act, **given)
        return self.answer(act, patience)

    def kill(self) -> None:
        """End it in the middle of whatever it does."""
        self._child.kill()
        self._child.wait()

    def _end(self) -> None:
        """Closing its stdin makes it close its connections and exit; one that hangs is killed."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        try:
            self._child.stdin.close()
            self._child.wait(5)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self.kill()
        finally:
            self._child.stdout.close()


def required(reason):
    """Skip where something cannot run, for that reason; fail in CI."""
    if reason and os.environ.get("CI"):
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)
