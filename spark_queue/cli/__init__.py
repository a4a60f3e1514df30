"""The command line: `spark-queue --help`.

It parses arguments, calls other packages, and prints results. Results go to stdout: tables and
sentences, or JSON with `--json`. Notes and errors go to stderr. Exit codes are the same as those of
the jobs: see `EXIT_CODES` in `params.py`. There is one module per subject; `params.py` says how to
add a command.
"""

from __future__ import annotations

import sys

try:
    from spark_queue.cli import (
        adoption,
        deadletter,
        doctor,
        event,
        graph,
        history,
        layout,
        ledger,
        log,
        messages,
        queues,
        reservations,
        rfq,
        serve,
        version,
        watch,
    )
    from spark_queue.cli.interrupts import keep_interrupts
    from spark_queue.cli.params import app
except ModuleNotFoundError as missing:
    if (missing.name or "").startswith("spark_queue"):
        raise
    print(f"spark-queue: {missing}; install it with: pip install 'spark-queue[cli]'", file=sys.stderr)
    sys.exit(2)

__all__ = [
    "adoption", "app", "deadletter", "doctor", "event", "graph", "history", "layout", "ledger", "log", "main",
    "messages", "queues", "reservations", "rfq", "serve", "version", "watch",
]  # fmt: skip


def main() -> None:
    """Run the command in `sys.argv`, and end the process with its exit code."""
    keep_interrupts()
    app(prog_name="spark-queue")
