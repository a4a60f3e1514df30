"""A query in another PID namespace (a container) with the same host name: its process number says nothing here."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from spark_queue import FencedError, open_store
from spark_queue.store import owner
from spark_queue.store.ownership import Ownership
from tests.chaos.processes import kill_tree

pytestmark = pytest.mark.every_store

#: Owns the consumer, says so, and gives a sign of life every 50 ms until it is killed.
LIVES = """
import sys, time
from spark_queue import open_store
from spark_queue.store.ownership import Ownership
with open_store(sys.argv[1]) as store:
    mine = Ownership(store, sys.argv[2], "etl/1")
    mine.take()
    print("taken", flush=True)
    while True:
        time.sleep(0.05)
        mine.renew()
"""


def in_a_namespace():
    """The command that runs a process in a PID namespace of its own, as root or by a user namespace."""
    for how in ("--pid", "-r --pid"):
        command = ["unshare", *how.split(), "--fork", "--mount-proc"]
        if subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0:
            return command
    raise AssertionError("no PID namespaces here: allow unshare --pid, as root or with -r")


@contextmanager
def living_query(url, queue):
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    command = [*in_a_namespace(), sys.executable, "-c", LIVES, url, queue]
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout:
        try:
            assert process.stdout.readline() == "taken\n"
            yield process
        finally:
            kill_tree(process)


def test_a_query_in_another_pid_namespace_lives_until_it_is_silent(url, name, monkeypatch):
    with open_store(url) as store:
        with living_query(url, name):
            with pytest.raises(FencedError, match=r"consumer etl/1 of queue .* is run by process"):
                Ownership(store, name, "etl/1").take()
            assert owner.owner_of(store, name, "etl/1") is not None
        monkeypatch.setattr(owner, "LIFE", 300)  # it gives no more signs of life
        Ownership(store, name, "etl/1").take()
        store.drop(name)
