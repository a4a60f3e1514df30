"""Measure the memory of a drain through Spark: it should not grow with the backlog or the batch.

    python bench/memory.py                           all three stores
    python bench/memory.py --only redis --docs       one store; --docs updates docs/benchmarks.md

A query drains messages of 100 bytes in batches of several sizes. The benchmark samples the resident
memory of its Python processes: the reader, which plans and reserves, and the workers, which fetch.
Each drain has its own Spark session, because a worker keeps memory of earlier work.
"""

from __future__ import annotations

import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import psutil
from common import STORES, arguments, check, databases, keep, push_documents, say, session, setup, turns
from curves import Point
from meter import READER, WORKERS, python_processes
from report import Table, aligned, piped, renew

#: Seconds between two samples of the memory.
SAMPLE_S = 0.05

#: `maxRecordsPerTrigger`.
BATCHES = ("auto", "10000", "50000", "250000")

#: Divisors of --messages for the smaller and the larger backlog. MongoDB is slow to fill.
PARTS = dict.fromkeys(STORES, (10, 1)) | {"mongodb": (10, 5)}

#: Backlog and `maxRecordsPerTrigger`.
Size = tuple[int, str]

#: Peak bytes of READER, and of the largest of the WORKERS.
Peaks = dict[str, int]


def drain(url: str, folder: Path, backlog: int, batch: str) -> tuple[str, Peaks]:
    """Drain `backlog` messages in batches. Return the setup and the peaks."""
    peaks: Peaks = {READER: 0, WORKERS: 0}
    spark = session()
    with closing(Point(url, folder)) as point:
        push_documents(point.store, point.queue, backlog)
        options: dict[str, Any] = {"url": point.url, "queue": point.queue, "numPartitions": 2}
        stream = spark.readStream.format("queue").options(**options, maxRecordsPerTrigger=batch).load()
        writer = stream.writeStream.format("noop").option("checkpointLocation", str(folder / point.queue))
        query = writer.trigger(availableNow=True).start()
        while query.isActive:
            for name, size in resident():
                peaks[name] = max(peaks[name], size)
            time.sleep(SAMPLE_S)
        query.awaitTermination()  # raises its error
        check(point.store.sizes(point.queue).total, 0)
    ran = setup(spark)
    spark.stop()
    return ran, peaks


def resident() -> Iterator[tuple[str, int]]:
    """Yield name and resident bytes of each Python process of Spark."""
    for name, pid in python_processes():
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            for one in process.children() if name == WORKERS else [process]:
                yield name, one.memory_info().rss


# --- results --------------------------------------------------------------------------------------


def table(found: dict[str, dict[Size, Peaks]]) -> Table:
    """Return the peaks of each store by backlog and batch, and the ratio of largest to smallest."""
    made: Table = [("peak", "backlog", "maxRecordsPerTrigger", "the reader", "the largest worker")]
    for store, peaks in found.items():
        for (backlog, batch), one in peaks.items():
            sizes = (f"{one[name] / 2**20:,.0f} MB" for name in (READER, WORKERS))
            made.append((store, f"{backlog:,}", batch, *sizes))
        times = (f"{one:.2f}" for one in spread(peaks).values())
        made.append((f"{store}: largest to smallest", "", "", *times))
    return made


def spread(peaks: dict[Size, Peaks]) -> dict[str, float]:
    """Return the ratio of the largest to the smallest peak of each process."""
    sizes = {name: [one[name] for one in peaks.values()] for name in (READER, WORKERS)}
    return {name: max(of) / min(of) for name, of in sizes.items()}


def median(rounds: list[dict[Size, Peaks]]) -> dict[Size, Peaks]:
    """Return the medians of all rounds, ordered by size."""
    return {
        size: {name: round(statistics.median(one[size][name] for one in rounds)) for name in (READER, WORKERS)}
        for size in sorted(rounds[0], key=lambda one: (one[0], BATCHES.index(one[1])))
    }


def main() -> int:
    parser = arguments(__doc__ or "", messages=1_000_000, rounds=1, of="messages of the largest backlog")
    parser.add_argument("--docs", action="store_true", help="update docs/benchmarks.md")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # cleans up, as Ctrl-C does
    rounds: dict[str, list[dict[Size, Peaks]]] = {}
    with tempfile.TemporaryDirectory(prefix="spark-queue-bench-") as name:
        for store, url in databases(name, args.only or list(STORES)).items():
            sizes = list(product((args.messages // part for part in PARTS[store]), BATCHES))
            drain(url, Path(name), *sizes[0])  # warm up
            for number in range(args.rounds):
                peaks = {}
                for size in turns(sizes, number):
                    ran, peaks[size] = drain(url, Path(name), *size)
                    shown = ", ".join(f"{one} {taken / 2**20:,.0f} MB" for one, taken in peaks[size].items())
                    say(f"round {number + 1} {store}: {size[0]:,} in batches of {size[1]}: {shown}")
                rounds.setdefault(store, []).append(peaks)
    found = {store: median(of_store) for store, of_store in rounds.items()}
    print(ran, *aligned(table(found)), sep="\n")
    by_name = {store: {f"{n} by {batch}": one for (n, batch), one in peaks.items()} for store, peaks in found.items()}
    keep(args.json, {"setup": ran, "bytes": by_name, "spread": {one: spread(peaks) for one, peaks in found.items()}})
    if args.docs:
        renew("memory", "\n".join([f"Measured with {ran}.", "", *piped(table(found))]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
