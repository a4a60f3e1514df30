"""Measure the time of a message by stage: client, micro-batch, and Spark's Python processes.

    python bench/stages.py                           all three stores
    python bench/stages.py --only redis --docs       one store; --docs updates docs/benchmarks.md

The client's calls are timed one by one, with the CPU of client and server. Spark reports the phases
of a micro-batch (`durationMs`). py-spy samples the Python processes of a query, its reader and its
workers, a hundred times a second. A sample of a process at work counts for the deepest function
that RULES matches.
"""

from __future__ import annotations

import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from common import STORES, arguments, check, databases, documents, fill, keep, payloads, say, session, setup
from meter import Meter, python_processes, server_cpu
from pyspark.sql import SparkSession
from raw import BATCH, batches
from report import Table, aligned, piped, renew
from ways import SCALES, TRIGGER

from spark_queue import open_store
from spark_queue.stores.base import Store

#: Samples per second, and the minimum number of them for a table.
SAMPLES_PER_S, MIN_SAMPLES = 100, 50

#: Kinds of work, by the file of a function. The first rule that matches the deepest frame counts.
RULES = {
    "rows into Arrow": r"stores/\w+/(documents|records)\.py|spark_queue/messages/|bson/|orjson",
    "columns of the DataFrame": r"spark_queue/spark/(schema|typed_json)\.py",
    "the database's driver": r"redis/|hiredis|pymongo/|spark_queue/stores/",
    "planning": r"spark_queue/",
    "handing over to Spark": r"pyspark/|py4j/|pyarrow/",
}
OTHER = "Python itself"

#: Descriptions of Spark's phases of a micro-batch.
PHASES = {
    "latestOffset": "commit the last batch, reserve the next",
    "addBatch": "the tasks: fetch, hand over, the sink",
    "queryPlanning": "Spark plans the batch",
    "walCommit": "Spark writes the offset",
    "commitOffsets": "Spark writes that the batch is done",
    "triggerExecution": "all",
}


@dataclass
class Stages:
    """Results: microseconds per message, and shares of samples."""

    calls: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    phases: dict[str, float] = field(default_factory=dict)
    samples: dict[str, dict[str, float]] = field(default_factory=dict)


def calls(url: str, n: int) -> dict[str, tuple[float, float, float]]:
    """Return microseconds per message of each client call: wall-clock, client CPU, server CPU."""
    queue, server = f"bench{uuid.uuid4().hex[:8]}", server_cpu(url)
    spent: dict[str, list[float]] = {name: [0.0, 0.0, 0.0] for name in ("push", "reserve", "fetch", "commit")}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        with Meter(server, tree=False) as meter:
            found = work()
        for i, taken in enumerate((meter.seconds, meter.client, meter.server)):
            spent[name][i] += taken / n * 1e6
        return found

    with open_store(url) as store:
        try:
            made = [documents(part) for part in batches(payloads(n))]
            timed("push", lambda: [store.push(queue, batch) for batch in made])
            done = sequence = 0
            while timed("reserve", partial(store.reserve, queue, f"b/{sequence}", BATCH)):
                done += timed("fetch", partial(fetched, store, queue, f"b/{sequence}/0"))
                timed("commit", partial(store.commit, queue, f"b/{sequence}"))
                sequence += 1
            check(done, n)
        finally:
            store.drop(queue)
    return {name: (clock, client, of_server) for name, (clock, client, of_server) in spent.items()}


def fetched(store: Store, queue: str, tag: str) -> int:
    """Read the messages of a tag, and return their number."""
    return sum(page.num_rows for page in store.fetch(queue, tag))


def drain(
    spark: SparkSession, url: str, folder: Path, n: int, trigger: int
) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """Drain `n` messages through Spark. Return the phases of batches, and the work of processes."""
    queue = f"bench{uuid.uuid4().hex[:8]}"
    with open_store(url) as store:
        try:
            fill(store, queue, payloads(n))
            options: dict[str, Any] = {"url": url, "queue": queue, "numPartitions": 2}
            stream = spark.readStream.format("queue").options(**options, maxRecordsPerTrigger=trigger).load()
            checkpoint = str(folder / f"checkpoint-{uuid.uuid4().hex[:8]}")
            writer = stream.writeStream.format("noop").option("checkpointLocation", checkpoint)
            query = writer.trigger(availableNow=True).start()
            while query.isActive and not query.recentProgress:
                time.sleep(0.05)
            samplers = {name: Sampler(pid, folder) for name, pid in python_processes()}
            query.awaitTermination()
            seen = {name: sampler.shares() for name, sampler in samplers.items()}
            steady = [one for one in query.recentProgress if one["numInputRows"]][1:]
            check(store.sizes(queue).total, 0)
        finally:
            store.drop(queue)
    phases = {
        text: statistics.median(one["durationMs"].get(name, 0) / one["numInputRows"] * 1000 for one in steady)
        for name, text in PHASES.items()
    }
    return phases, seen


class Sampler:
    """py-spy on a process and its children, until they end or `shares` is called."""

    def __init__(self, pid: int, folder: Path) -> None:
        self._file = folder / f"samples-{pid}"
        program = [str(Path(sys.executable).with_name("py-spy")), "record", "--pid", str(pid), "--subprocesses"]
        program += [
            "--rate",
            str(SAMPLES_PER_S),
            "--duration",
            "3600",
            "--format",
            "raw",
            "--output",
            str(self._file),
        ]
        self._process = subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def shares(self) -> dict[str, float]:
        """Return the share of each kind of work, largest first, and the number of `samples`."""
        self._process.send_signal(signal.SIGINT)
        _, errors = self._process.communicate(timeout=60)
        if not self._file.exists():
            raise SystemExit(f"py-spy could not sample a Python process of Spark: {errors}")
        found: Counter[str] = Counter()
        for line in self._file.read_text().splitlines():
            stack, _, number = line.rpartition(" ")
            found[kind(stack.split(";"))] += int(number)
        total = sum(found.values())
        return {name: number / total for name, number in found.most_common()} | {"samples": total}


def kind(stack: list[str]) -> str:
    """Return the kind of work of a stack."""
    for frame in reversed(stack):
        for name, pattern in RULES.items():
            if re.search(pattern, frame):
                return name
    return OTHER


def tables(found: dict[str, Stages]) -> list[Table]:
    """Return the tables of the results, with a column for each store."""
    of_calls = {
        store: {name: ", ".join(f"{one:.2f}" for one in taken) for name, taken in with_sum(stages.calls).items()}
        for store, stages in found.items()
    }
    of_phases = {
        store: {name: f"{one:.2f}" for name, one in stages.phases.items()} for store, stages in found.items()
    }
    made = [
        side_by_side("the client's call, µs: by the clock, client CPU, server CPU", of_calls),
        side_by_side("phase of a micro-batch, µs", of_phases),
    ]
    for process in dict.fromkeys(name for stages in found.values() for name in stages.samples):
        shares = {
            store: {kind: f"{share:.0%}" for kind, share in stages.samples[process].items() if kind != "samples"}
            for store, stages in found.items()
            if process in stages.samples and stages.samples[process]["samples"] >= MIN_SAMPLES
        }
        if shares:
            made.append(side_by_side(f"the {process} at work", shares))
    return made


def with_sum(calls: dict[str, tuple[float, float, float]]) -> dict[str, tuple[float, ...]]:
    """Return the calls, and `all`: their sum."""
    return {**calls, "all": tuple(sum(column) for column in zip(*calls.values(), strict=True))}


def side_by_side(head: str, columns: dict[str, dict[str, str]]) -> Table:
    """Return a table with a column for each store. A row that a store lacks is empty there."""
    names = dict.fromkeys(name for column in columns.values() for name in column)
    return [(head, *columns), *((name, *(column.get(name, "") for column in columns.values())) for name in names)]


def main() -> int:
    parser = arguments(__doc__ or "", messages=200_000, rounds=1)
    parser.add_argument("--docs", action="store_true", help="update docs/benchmarks.md")
    args = parser.parse_args()
    spark = session()
    found: dict[str, Stages] = {}
    with tempfile.TemporaryDirectory(prefix="spark-queue-bench-") as name:
        folder = Path(name)
        for store, url in databases(name, args.only or list(STORES)).items():
            n, trigger = args.messages * SCALES[store], TRIGGER * SCALES[store]
            say(f"{store}: {args.messages:,} messages by the client, {n:,} through Spark")
            calls(url, BATCH)  # warm up
            phases, samples = drain(spark, url, folder, n + trigger, trigger)
            found[store] = Stages(calls(url, args.messages), phases, samples)
    ran = setup(spark)
    spark.stop()
    print(ran)
    lines = [f"Measured with {ran}; times are for one message."]
    for table in tables(found):
        print("", *aligned(table), sep="\n")
        lines += ["", *piped(table)]
    keep(args.json, {store: vars(stages) for store, stages in found.items()})
    if args.docs:
        renew("stages", "\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
