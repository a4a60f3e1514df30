"""Ctrl-C ends a command wherever it comes."""

from __future__ import annotations

import signal
import subprocess
import sys

PROGRAM = """
import signal
from spark_queue.cli.interrupts import keep_interrupts

class Slow:
    def __del__(self):
        print("deleting", flush=True)
        signal.pause()

keep_interrupts()
try:
    Slow()
    print("lost", flush=True)
    signal.pause()
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_an_interrupt_within_a_destructor_is_not_lost():
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True) as process:  # fmt: skip
        assert process.stdout is not None and process.stdout.readline() == "deleting\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=50)
    assert out.splitlines()[-1] == "interrupted" and err == ""
