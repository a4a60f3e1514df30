"""A reader notes that it ends in order, unless its driver has died. Without Spark: other processes take its place."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from spark_queue import Queue, open_store
from spark_queue.stores.conformance.waiting import wait_until
from spark_queue.stores.services.owner import OWNER_NOTE, ConsumerState
from spark_queue.stores.types import queue_note_key

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only Linux shows these processes")

READER = """
import os, sys
from spark_queue.spark.data_source import QueueDataSource
from spark_queue.spark.read import queue_stream

queue_stream.main_module = lambda: queue_stream._READER_PROCESS
source = QueueDataSource({"url": sys.argv[1], "queue": sys.argv[2], "numPartitions": "1"})
stream = source.streamReader(source.schema())
try:
    start = stream.initialOffset()
    stream.plan_tasks(start, stream.planner.next(start, 100))
    with open(sys.argv[3], "w") as file:
        print(os.getpid(), os.getppid(), file=file)
    sys.stdin.read()  # as it waits for Spark
    raise EOFError
finally:
    stream.stop()
"""

#: Starts the program in its arguments, and waits for it.
STARTER = "import subprocess, sys; subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE).wait()"


def is_gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


@pytest.mark.parametrize(
    ("dies", "ended"), [("nothing", True), ("the program", False), ("the JVM", False)], ids=lambda one: str(one)
)
def test_a_reader_ends_in_order_unless_its_driver_died(sqlite_url, name, tmp_path, dies, ended):
    with Queue(sqlite_url, name) as queue:
        queue.push_many([{"n": n} for n in range(10)])
    pids = tmp_path / "pids"
    reader = [sys.executable, "-c", READER, sqlite_url, name, str(pids)]
    jvm = [sys.executable, "-c", STARTER]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    program = subprocess.Popen([sys.executable, "-c", STARTER, *jvm, *reader], env=environment)
    try:
        wait_until(lambda: pids.exists() and pids.read_text().split()[1:], 120)
        pid, jvm_pid = map(int, pids.read_text().split())
        if dies == "the program":
            program.kill()
            program.wait()
        if dies == "the JVM":
            os.kill(jvm_pid, signal.SIGKILL)
        else:
            os.kill(pid, signal.SIGTERM)
        wait_until(lambda: is_gone(pid), 60)
    finally:
        program.kill()
        program.wait()
    with open_store(sqlite_url) as store:
        (note,) = store.notes(queue_note_key(name, OWNER_NOTE, "")).values()
    state = ConsumerState.from_note(note)
    assert state.ended is ended
    assert state.started is not None and state.started.seq == 1
