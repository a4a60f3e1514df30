"""One side of a comparison of commits: measures the ways of one version of the code. bench/commits.py starts it.

    python bench/side.py CODE BENCH FOLDER

CODE is the folder of the packages to be measured, BENCH that of the programs that measure, FOLDER is for what they
write. The first line
of the output says what is measured: `ways`, and the spark_queue that each process `imported`. Then each line of the
input is a request, {"store", "url", "way", "messages"}, and is answered by a line with its `rate`. It ends when its
input does. If BENCH needs what CODE lacks, a line names that, as `lacks`, and it ends as well.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: From queue to queue through Spark, which bench/delivery.py measures.
MOVE = "Spark, queue to queue"
#: Batches of a query that are measured. They are smaller than those of bench/run.py: what a batch costs counts, too.
BATCHES = 4
#: Messages come in multiples of this: a batch is then one of whole buckets, as bench/common.py fills them.
STEP = BATCHES * 1_000
#: What an exception looks like if the benchmarks are newer than the code.
TOO_NEW = (ImportError, AttributeError, NameError, TypeError)


def main() -> int:
    # Only answers go to stdout. What Spark's processes print goes to stderr.
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
    """Start Spark with this code, and measure what is asked for."""
    # An older commit may come with its own programs, so this folder comes last.
    path = [str(code), str(bench), str(Path(__file__).resolve().parent)]
    sys.path[:] = [*path, *(one for one in sys.path if one not in path)]
    # bench/common.py puts its own checkout first on the path. What is imported before that stays.
    from common import session

    import pyspark_queue  # noqa: F401
    from spark_queue import __version__

    os.environ["PYTHONPATH"] = os.pathsep.join(path)
    spark = session()
    from loaded import imported, imported_by_spark

    found = {"driver": imported(), **imported_by_spark(spark, folder)}
    wanted = f"{__version__} {code / 'spark_queue'}"
    if wrong := {process: one for process, one in found.items() if one != wanted}:
        raise SystemExit(f"processes have not imported {wanted} but {wrong}")
    side = Side(spark, folder)
    answer(ways=names(), imported=found)
    for line in sys.stdin:
        answer(rate=side.measure(**json.loads(line)))
    spark.stop()


def names() -> list[str]:
    """Return the names of all ways of ours that the benchmarks on the path can measure."""
    import ways

    pushes_and_drains = [f"{who}, {what}" for what in ("push", "drain") for who in ways.OURS]
    return [*pushes_and_drains, *(f"{MOVE}, {how}" for how in ways.BOTH)]


class Side:
    """Measures ways by their names."""

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
