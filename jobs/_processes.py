"""Python processes that Spark has started for its streaming queries."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

#: A part of the command line of the process that reserves and commits the messages of a query.
READER = "python_streaming_source_runner"


def readers() -> set[int]:
    """Return the ids of processes below this one that reserve and commit messages of queries."""
    parents, found = {}, set()
    for pid, parent, command in _processes():
        parents[pid] = parent
        if READER in command:
            found.add(pid)
    return {pid for pid in found if _below(pid, os.getpid(), parents)}


def _below(pid: int, root: int, parents: dict[int, int]) -> bool:
    while pid in parents:
        pid = parents[pid]
        if pid == root:
            return True
    return False


def _processes() -> list[tuple[int, int, str]]:
    """Return pid, parent and command of each process.

    It reads `/proc`, because small Linux images have no `ps`, and calls `ps` on macOS.
    """
    if Path("/proc/self/stat").exists():
        return [one for path in Path("/proc").glob("[0-9]*") if (one := _from_proc(path))]
    listed = ["ps", "-A", "-ww", "-o", "pid=,ppid=,command="]
    lines = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.splitlines()
    return [(int(pid), int(parent), command) for pid, parent, command in (line.split(None, 2) for line in lines)]


def _from_proc(path: Path) -> tuple[int, int, str] | None:
    try:
        parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
        return int(path.name), parent, (path / "cmdline").read_text(errors="replace").replace("\0", " ")
    except (FileNotFoundError, ProcessLookupError):  # the process has ended
        return None
