"""The command line: `spark-queue --help`. It parses, calls what decides, prints, and decides nothing.

Results go to stdout, as tables and sentences or, with `--json`, as JSON; what else is to be said goes to stderr. Exit
codes are those of the jobs: see `CODES` in `params.py`. One module per subject; `params.py` says how one is added.
"""

from __future__ import annotations

import sys

try:
    from spark_queue.cli import (
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
    from spark_queue.cli.params import app
except ModuleNotFoundError as missing:
    if (missing.name or "").startswith("spark_queue"):
        raise
    print(f"spark-queue: {missing}; install it with: pip install 'spark-queue[cli]'", file=sys.stderr)
    sys.exit(2)

__all__ = [
    "app", "deadletter", "doctor", "event", "graph", "history", "layout", "ledger", "log", "main",
    "messages", "queues", "reservations", "rfq", "serve", "version", "watch",
]  # fmt: skip


def main() -> None:
    """Run the command that `sys.argv` asks for, and end the process with its exit code."""
    app(prog_name="spark-queue")
