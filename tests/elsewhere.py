"""Processes for which a folder is another one, as on another machine or in another container.

They get a mount namespace and a host name of their own (`unshare`), as root or in a user namespace. Where a system
forbids both, the path leads through `/proc/self/cwd`, and they run in another folder: for them, too, it names another
file. So they see the same, but for the host name and the id of the machine.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

HOST = "elsewhere"

_BOOT = "/proc/sys/kernel/random/boot_id"
_TRY = f"mount -t tmpfs none /mnt && mount --bind /dev/null {_BOOT} && hostname {HOST}"


@cache
def namespaces() -> list[str]:
    """The command that makes namespaces here; empty if that is forbidden."""
    for command in (["unshare", "-mu"], ["unshare", "-rmu"]):
        try:
            done = subprocess.run([*command, "sh", "-c", _TRY], capture_output=True, check=False)
        except FileNotFoundError:
            return []
        if done.returncode == 0:
            return command
    return []


class Place:
    """A folder that is shared with processes elsewhere, or is another one for them.

    `machine`: whether they also find the boot id of another machine.
    """

    def __init__(self, home: Path, *, shared: bool = False, machine: bool = False) -> None:
        self.home, self.shared, self.machine = home / "data", shared, machine
        self.home.mkdir()
        self.other = home / "data elsewhere"
        self.other.mkdir()
        (home / "boot_id").write_text("another machine\n")
        self._boot = home / "boot_id"

    @property
    def url(self) -> str:
        """The URL of a file in it."""
        folder = self.home if namespaces() or self.shared else "/proc/self/cwd"
        return f"sqlite:///{folder}/queues.db"

    def command(self, *then: str) -> list[str]:
        """The command of a process elsewhere."""
        found = self.home if self.shared else self.other
        if not namespaces():
            return ["sh", "-c", f'cd {shlex.quote(str(found))} && exec "$@"', "sh", *then]
        steps = [f"mount --bind {shlex.quote(str(found))} {shlex.quote(str(self.home))}", f"hostname {HOST}"]
        steps += [f"mount --bind {shlex.quote(str(self._boot))} {_BOOT}"] if self.machine else []
        return [*namespaces(), "sh", "-c", f'{" && ".join(steps)} && exec "$@"', "sh", *then]

    def python(self, folder: Path) -> Path:
        """An interpreter for Spark: tasks run elsewhere, and what plans runs here."""
        made = folder / "python"
        command = " ".join(map(shlex.quote, self.command(sys.executable)))
        made.write_text(
            "#!/bin/sh\n"
            f'case "$*" in *" pyspark.worker") exec {command} "$@";; esac\n'
            f'exec {shlex.quote(sys.executable)} "$@"\n'
        )
        made.chmod(0o755)
        return made

    def run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a program of Python elsewhere."""
        command = self.command(sys.executable, "-c", program, *arguments)
        env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
