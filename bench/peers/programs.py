"""Programs that a peer consists of: started, watched and ended, with what they used."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from pathlib import Path

PAGE = os.sysconf("SC_PAGE_SIZE")
ENDING = 30  # s a program may take to end in peace


class Program:
    """A program in a session of its own, which its children share. `cpu` and `code` are known once it has ended."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], folder: Path) -> None:
        number = len(list(folder.glob("*.out")))
        self._said, self._log = folder / f"{number}.out", folder / f"{number}.err"
        with self._said.open("wb") as said, self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                env=environment,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=log,
                start_new_session=True,
            )
        self.pid = self._process.pid
        self.code: int | None = None
        self.cpu = 0.0  # s, with those of its children that it has waited for

    def ended(self) -> bool:
        if self.code is None:
            pid, status, used = os.wait4(self.pid, os.WNOHANG)
            if pid:
                self.code = self._process.returncode = os.waitstatus_to_exitcode(status)
                self.cpu = used.ru_utime + used.ru_stime
        return self.code is not None

    def stop(self, number: signal.Signals) -> None:
        """End it by this signal; after some patience, by SIGKILL, as what it may have left behind."""
        if not self.ended():
            os.kill(self.pid, number)
        deadline = time.monotonic() + ENDING
        while not self.ended() and time.monotonic() < deadline:
            time.sleep(0.05)
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        while not self.ended():
            time.sleep(0.05)

    def said(self) -> str:
        """Its stdout so far."""
        return self._said.read_text(errors="replace")

    def log(self) -> str:
        """The end of what it wrote to stdout and stderr."""
        return "\n".join((self.said() + self._log.read_text(errors="replace")).splitlines()[-25:])


def memory(leaders: Set[int]) -> int:
    """Resident memory, in bytes, of all processes of these sessions, as far as there is a /proc to tell it."""
    found = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # the name of the program, in brackets, may hold anything
            facts = stat.read_text(errors="replace").rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(facts[3]) in leaders:
            found += int(facts[21]) * PAGE
    return found
