"""Start, watch and stop the programs of a peer, and measure their CPU time and memory."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from pathlib import Path

PAGE = os.sysconf("SC_PAGE_SIZE")
STOP_TIMEOUT_S = 30  # before SIGKILL


class Program:
    """A program in a session with its children. `cpu` and `code` are set after its end."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], folder: Path) -> None:
        number = len(list(folder.glob("*.out")))
        self._stdout, self._stderr = folder / f"{number}.out", folder / f"{number}.err"
        with self._stdout.open("wb") as stdout, self._stderr.open("wb") as stderr:
            self._process = subprocess.Popen(
                command,
                env=environment,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
        self.pid = self._process.pid
        self.code: int | None = None
        self.cpu = 0.0  # s, including children that it has waited for

    def ended(self) -> bool:
        if self.code is None:
            pid, status, used = os.wait4(self.pid, os.WNOHANG)
            if pid:
                self.code = self._process.returncode = os.waitstatus_to_exitcode(status)
                self.cpu = used.ru_utime + used.ru_stime
        return self.code is not None

    def stop(self, number: signal.Signals) -> None:
        """Stop the program by a signal, or SIGKILL after STOP_TIMEOUT_S. Kill its children."""
        if not self.ended():
            os.kill(self.pid, number)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while not self.ended() and time.monotonic() < deadline:
            time.sleep(0.05)
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        while not self.ended():
            time.sleep(0.05)

    def stdout(self) -> str:
        """Return its stdout so far."""
        return self._stdout.read_text(errors="replace")

    def log(self) -> str:
        """Return the last lines of stdout and stderr."""
        return "\n".join((self.stdout() + self._stderr.read_text(errors="replace")).splitlines()[-25:])


def memory(leaders: Set[int]) -> int:
    """Return the resident bytes of all processes of these sessions, or 0 without /proc."""
    found = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # the name of the program, in parentheses, may contain anything
            facts = stat.read_text(errors="replace").rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(facts[3]) in leaders:
            found += int(facts[21]) * PAGE
    return found
