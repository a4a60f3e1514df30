"""The command line as tests call it: in this process, or as a program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner

from spark_queue.cli import app


class Run:
    """One call of the command line."""

    def __init__(self, *args: object, input: str | None = None, env: dict[str, str] | None = None) -> None:
        done = CliRunner().invoke(app, [str(one) for one in args], input=input, env=env, prog_name="spark-queue")
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        self.code, self.out, self.err = done.exit_code, done.stdout, done.stderr

    @property
    def json(self):
        return json.loads(self.out)

    @property
    def rows(self) -> list[list[str]]:
        """The cells of a table, without its head."""
        return [line.split() for line in self.out.splitlines()[2:]]


def program(*args, code=None):
    run = [sys.executable, *(["-c", code] if code else ["-m", "spark_queue.cli"]), *args]
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    return subprocess.run(run, capture_output=True, text=True, env=env, check=False, timeout=300)


def arguments() -> list[str]:
    """The program, as another process runs it."""
    return [sys.executable, "-m", "spark_queue.cli"]


def announcing() -> list[str]:
    """Return the same, which prints a line when it waits for a message for the first time."""
    code = (
        "from spark_queue.stores.base import Store\n"
        "from spark_queue.cli import main\n"
        "real = Store.wait\n"
        "def wait(*args, **how):\n"
        "    print('waiting', flush=True)\n"
        "    Store.wait = real\n"
        "    return real(*args, **how)\n"
        "Store.wait = wait\n"
        "main()"
    )
    return [sys.executable, "-c", code]
