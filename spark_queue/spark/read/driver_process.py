"""Distinguish the end of a query from the death of its driver, in the driver's reader process.

If a query ends, Spark sends its reader a signal: after `query.stop()`, `spark.stop()` or an error
of the query. It does so also while it shuts down because the Python program was killed. So the
reader looks whether the processes that it works for are alive: Spark's JVM, the process that
started the JVM, and the program that registered the data source. A batch during which one of them
died may be the cause: it may be too large for the memory.
"""

from __future__ import annotations

import os
from pathlib import Path

from spark_queue.stores.services.owner import Owner, stat_fields

#: A flag of Linux for a process that has begun to exit: its parent may not know it yet.
_EXITING = 0x4

#: The program that registered the data source, if it did.
_program: Owner | None = None


def set_program(program: Owner | None) -> None:
    """Set the program that registered the data source, for all readers of this process."""
    global _program
    _program = program


class DriverProcess:
    """The processes that a reader works for, as they are when it is created."""

    def __init__(self) -> None:
        self._jvm = os.getppid()
        self._starter = _parent_of(self._jvm)
        self._program = _program

    def is_alive(self) -> bool:
        """Return whether all of them live. On a system without /proc, only the JVM is known."""
        return (
            os.getppid() == self._jvm
            and _is_running(self._jvm)
            and _parent_of(self._jvm) == self._starter
            and (self._starter is None or _is_running(self._starter))
            and not (self._program is not None and self._program.is_dead)
        )


def _fields_of(pid: int) -> list[str]:
    """Return the fields of `stat_fields`; none if the process is unknown."""
    try:
        return stat_fields(pid)
    except (OSError, ValueError):
        return []


def _parent_of(pid: int) -> int | None:
    fields = _fields_of(pid)
    return int(fields[1]) if fields else None


def _is_running(pid: int) -> bool:
    """Return whether a process runs, or is unknown."""
    fields = _fields_of(pid)
    if not fields:
        return not Path("/proc/self/stat").exists() or Path(f"/proc/{pid}").exists()
    return fields[0] not in "ZX" and not int(fields[6]) & _EXITING
