"""Measure one version of the code, as one side of a comparison. bench/commits.py starts it.

    python bench/side.py CODE BENCH FOLDER

CODE is the folder of the packages to measure, BENCH that of the benchmarks, FOLDER that of their
output. All lines of stdin and stdout are JSON:

* The first line of stdout has the `ways`, and the spark_queue that each process `imported`.
* Each line of stdin is a request, {"store", "url", "way", "messages"}. The answer has its `rate`.
* If BENCH uses names that CODE does not have, a line names the first in `lacks`, and it exits.

It exits at the end of stdin.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: The way from queue to queue through Spark, which bench/delivery.py measures.
MOVE = "Spark, queue to queue"
#: Measured batches of a query. They are smaller than those of bench/run.py, because the fixed cost
#: of a batch counts, too.
BATCHES = 4
#: Messages are a multiple of this, so that each batch has whole buckets, as in bench/common.py.
STEP = BATCHES * 1_000
#: Exceptions that occur if the benchmarks are newer than the code.
TOO_NEW = (ImportError, AttributeError, NameError, TypeError)


def main() -> int:
    # Only answers go to stdout. The output of Spark's processes goes to stderr.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(**facts: Any) -> None:
        print(json.dumps(facts), file=answers, flush=True)

    try:
        code, bench, folder = (Path(word).resolve() for word in sys.argv[1:])
        serve(code, bench, folder, answer)
    except TOO_NEW as exc:
        traceback.print_exc()
        answer(lacks=f"{type(exc).__name__}: {exc}")
        return 1
    return 0


def serve(code: Path, bench: Path, folder: Path, answer: Callable[..., None]) -> None:
    """Start Spark with this code, and answer requests."""
    # An older commit may have benchmarks of its own, so this folder comes last.
    path = [str(code), str(bench), str(Path(__file__).resolve().parent)]
    sys.path[:] = [*path, *(one for one in sys.path if one not in path)]
    # bench/common.py puts its own checkout first on the path: a copy without packages.
    from common import session

    import pyspark_queue  # noqa: F401
    from spark_queue import __version__

    os.environ["PYTHONPATH"] = os.pathsep.join(path)
    spark = session()
    from loaded import imported, imported_by_spark

    found = {"driver": imported(), **imported_by_spark(spark, folder)}
    wanted = f"{__version__} {code / 'spark_queue'}"
    if wrong := {process: one for process, one in found.items() if one != wanted}:
        raise SystemExit(f"processes must import {wanted}, but have imported {wrong}")
    side = Side(spark, folder)
    answer(ways=names(), imported=found)
    for line in sys.stdin:
        answer(rate=side.measure(**json.loads(line)))
    spark.stop()


def names() -> list[str]:
    """Return the names of all our ways that the benchmarks on the path can measure."""
    import ways

    pushes_and_drains = [f"{who}, {what}" for what in ("push", "drain") for who in ways.OURS]
    return [*pushes_and_drains, *(f"{MOVE}, {how}" for how in ways.BOTH)]


class Side:
    """Measures ways by name."""

    def __init__(self, spark: Any, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self._stores: dict[str, Any] = {}

    def measure(self, store: str, url: str, way: str, messages: int) -> float:
        """Return messages per second."""
        who, _, what = way.rpartition(", ")
        return self._move(what, url, messages) if who == MOVE else self._way(who, what, store, url, messages)

    def _way(self, who: str, what: str, store: str, url: str, n: int) -> float:
        import ways

        ways.TRIGGER = n // BATCHES
        if store not in self._stores:
            self._stores[store] = ways.Ways(self.spark, store, url, self.folder)
        return float(self._stores[store].measure(ways.Way(who, what), n).rate)

    def _move(self, delivery: str, url: str, n: int) -> float:
        import delivery as moves

        moves.BATCH = n // BATCHES
        took = moves.measure(self.spark, url, self.folder, n, delivery)
        return float(moves.BATCH / took["triggerExecution"] * 1000)


if __name__ == "__main__":
    sys.exit(main())
