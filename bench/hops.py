"""Measure how long a message takes through exchanges when little flows.

    # all three stores, 2 rounds of 20 messages after a warm-up
    python bench/hops.py
    # one store; --docs updates docs/benchmarks.md
    python bench/hops.py --only redis --docs

A message is pushed, and the next one after it has gone through.

* query: one query, whose sink writes each message to another queue
* one hop: one exchange
* six hops: a chain of six exchanges
* first: from the start of an exchange, in a session that has run one, to its first message

It also prints that time for the first exchange of a session.

Each is measured with Spark's own way to write checkpoints, and with `checkpoint_conf`, the default
of `spark_queue.session()`.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from common import STORES, arguments, databases, keep, say, session, setup, turns
from pyspark.sql import SparkSession
from report import Table, aligned, piped, renew
from rules import renew_rules

from spark_queue import Queue
from spark_queue.graph.model import Destination, Exchange, Graph, Namespace, Place
from spark_queue.runner import ExchangeGraph
from spark_queue.spark.checkpoints import CHECKPOINT_MANAGER, checkpoint_conf

#: The ways to write checkpoints: the conf of the session.
CONFS: dict[str, dict[str, str]] = {"Spark's default": {}, "checkpoint_conf": checkpoint_conf()}

#: The numbers of exchanges in a chain, by column.
CHAINS = {"one hop": 1, "six hops": 6}

COLUMNS = ("query", *CHAINS, "first")

#: Seconds between two messages, within which a message must arrive, and between two looks.
PAUSE, TIMEOUT_S, LOOK = 0.5, 120, 0.002

#: Messages of each measurement that do not count, and of each measurement of the warm-up.
WARM_UP, WARM_UP_MESSAGES = 3, 10

#: Seconds of each message, by column.
Round = dict[str, list[float]]


def through(url: str, first: str, last: str, messages: int) -> list[float]:
    """Return the seconds of each message from one queue to another."""
    taken = []
    with Queue(url, first) as source, Queue(url, last) as target:
        for number in range(messages):
            began = time.monotonic()
            source.push({"n": number})
            while target.sizes().total <= number:
                if time.monotonic() - began > TIMEOUT_S:
                    raise SystemExit(f"a message needs more than {TIMEOUT_S} s through {first}")
                time.sleep(LOOK)
            taken.append(time.monotonic() - began)
            time.sleep(PAUSE)
    return taken


def by_query(spark: SparkSession, url: str, folder: Path, messages: int) -> list[float]:
    """Measure a query from queue to queue."""
    first, last = (f"hops{uuid.uuid4().hex[:8]}" for _ in range(2))
    rows = spark.readStream.format("queue").options(url=url, queue=first).load().select("payload")
    writer = rows.writeStream.format("queue").options(url=url, queue=last)
    query = writer.option("checkpointLocation", str(folder / first)).start()
    try:
        return through(url, first, last, WARM_UP + messages)[WARM_UP:]
    finally:
        query.stop()


def by_chain(spark: SparkSession, url: str, folder: Path, steps: int, messages: int) -> list[float]:
    """Measure a chain of exchanges. The first value is that of its first message."""
    name = f"hops{uuid.uuid4().hex[:8]}"
    exchanges = {
        f"{name}_{step}": Exchange(Place(f"{name}_{step}", "ns"), [Destination(f"{name}_{step + 1}", ns="ns")])
        for step in range(steps)
    }
    graph = ExchangeGraph(Graph({"ns": Namespace(url)}, exchanges), str(folder / name))
    began = time.monotonic()
    graph.start(spark)
    started = time.monotonic() - began
    try:
        taken = through(url, f"{name}_0", f"{name}_{steps}", WARM_UP + messages)
        return [started + taken[0], *taken[WARM_UP:]]
    finally:
        graph.stop()


def measured(spark: SparkSession, url: str, folder: Path, messages: int) -> Round:
    """Return one round of a store."""
    made: Round = {"query": by_query(spark, url, folder, messages), "first": []}
    for column, steps in CHAINS.items():
        first, *made[column] = by_chain(spark, url, folder, steps, messages)
        if steps == 1:
            made["first"] = [first]
    return made


def main() -> None:
    parser = arguments(__doc__, messages=20, rounds=2)
    parser.add_argument("--docs", action="store_true", help="update docs/benchmarks.md")
    args = parser.parse_args()
    spark = session()
    table: Table = [("store", "checkpoints", *(f"{column} (s)" for column in COLUMNS))]
    results: dict[str, Any] = {"setup": setup(spark)}
    spark.range(10).count()
    with tempfile.TemporaryDirectory() as folder:
        for store, url in databases(folder, args.only or list(STORES)).items():
            cold = by_chain(spark, url, Path(folder), 1, 1)[0]
            results.setdefault("cold", cold)
            measured(spark, url, Path(folder), WARM_UP_MESSAGES)
            rounds: dict[str, list[Round]] = {conf: [] for conf in CONFS}
            for number in range(args.rounds):
                for conf in turns(list(CONFS), number):
                    spark.conf.unset(CHECKPOINT_MANAGER)
                    for key, value in CONFS[conf].items():
                        spark.conf.set(key, value)
                    rounds[conf].append(one := measured(spark, url, Path(folder), args.messages))
                    times = ", ".join(f"{column} {statistics.median(one[column]):.3f} s" for column in COLUMNS)
                    say(f"round {number + 1} {store:8} {conf:16} {times}")
            for conf, found in rounds.items():
                medians = (statistics.median(s for one in found for s in one[column]) for column in COLUMNS)
                table.append((store, conf, *(f"{one:.2f}" for one in medians)))
            results[store] = rounds
    cold_text = f"The first message of the first exchange of a session: {results['cold']:.1f} s after its start."
    print("\n".join([*aligned(table), cold_text]))
    keep(args.json, results)
    if args.docs:
        text = f"Measured: {setup(spark)}, medians of {args.rounds} rounds of {args.messages} messages."
        renew("hops", "\n".join([text, "", *piped(table), "", cold_text]))
        renew_rules()


if __name__ == "__main__":
    main()
