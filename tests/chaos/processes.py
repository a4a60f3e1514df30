"""Programs to be killed, and how."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import nullcontext, suppress
from pathlib import Path

from spark_queue.stores.conformance.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).with_name("programs.py")


def start(program, *, output=None, launcher=(), env=None, **arguments):
    """Run a program of programs.py, in a session of its own: signals to the tests do not reach it.

    `output`: a file for what it prints, which is shown otherwise. `launcher`: what runs it, instead of Python itself.
    `env`: more of its environment.
    """
    with open(output, "ab") if output else nullcontext() as file:
        return subprocess.Popen(
            [*(launcher or [sys.executable]), str(PROGRAMS), program, json.dumps(arguments)],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable} | (env or {}),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )


def kill(process):
    """SIGKILL for a single process that we started."""
    process.kill()
    process.wait()


def descendants(root):
    """Processes below `root`, as {pid: command line}."""
    ask = ["ps", "-A", "-ww", "-o", "pid=,ppid=,stat=,command="]
    shown = subprocess.run(ask, capture_output=True, text=True, check=True)
    children, commands = {}, {}
    for line in shown.stdout.splitlines():
        pid, parent, state, command = line.split(None, 3)
        if not state.startswith("Z"):
            children.setdefault(int(parent), []).append(int(pid))
            commands[int(pid)] = command
    found, left = {}, [root]
    while left:
        for pid in children.get(left.pop(), ()):
            found[pid] = commands[pid]
            left.append(pid)
    return found


def kill_tree(process):
    """SIGKILL for a process and all below it, as if at one moment: they stand still first, so that none sees it."""
    standing = set()
    while fresh := {process.pid, *descendants(process.pid)} - standing:
        for pid in fresh:
            send(pid, signal.SIGSTOP)
        standing |= fresh
    for pid in standing:
        send(pid, signal.SIGKILL)
    process.wait()
    wait_until(lambda: not any(alive(pid) for pid in standing), 10)


def send(pid, number):
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def alive(pid):
    if Path("/proc/self").exists():  # faster than asking ps
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return False
    else:
        state = _ask(pid, "stat")
    return bool(state) and state[0] not in "ZX"


def command_of(pid):
    """The command line of a process; empty if there is none."""
    return _ask(pid, "command")


def _ask(pid, what):
    ask = ["ps", "-ww", "-p", str(pid), "-o", f"{what}="]
    return subprocess.run(ask, capture_output=True, text=True, check=False).stdout.strip()


def read_log(log):
    """What a program has written to its log: JSON lines, of which the last may be cut off by its death."""
    lines = Path(log).read_text().split("\n")[:-1] if Path(log).exists() else []
    return [json.loads(line) for line in lines]
