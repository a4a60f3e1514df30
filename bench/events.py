"""Measure the cost of executors whose function does nothing, compared with a drain of the events.

    python bench/events.py                       all three stores, 3 rounds of 120,000 events
    python bench/events.py --only redis --docs   one store; --docs updates docs/benchmarks.md

A query drains a queue of events (`availableNow`, two partitions, batches of 20,000):

* drain: into a sink that does nothing, with and without a history
* drain through Python: through a Python function that returns its rows, which is the cost in
  Spark of any work in its workers
* executors: each reads an event, calls a function, writes the log and settles the event with its
  outcome
* executors by default: the same with default options, in batches that find their size

All ways run in each round, and the result is the median of the ratios within a round. The first
batch of a query is not counted, because it starts the workers.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from common import STORES, arguments, check, databases, keep, say, session, setup, turns
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from report import Table, aligned, piped, renew

from spark_queue.events import Events, Executor
from spark_queue.events.dataframes import as_messages
from spark_queue.events.spark_query import ExecutorQuery

#: Target: minimum rate of executors relative to a plain drain.
WANTED = 0.5
BATCH = 20_000
SOURCE, TYPE = "http://example.org/flights", "landed"
EXECUTORS, BY_DEFAULT = "executors", "executors by default"
DRAINS = ("drain", "drain with history", "drain through Python")
WAYS = (*DRAINS, EXECUTORS, BY_DEFAULT)


def measure(spark: SparkSession, url: str, folder: Path, n: int, way: str) -> float:
    """Return events per second, without the first batch."""
    queue = f"bench{uuid.uuid4().hex[:8]}"
    rows = spark.range(0, n + BATCH, 1, 2).selectExpr(
        f"'{SOURCE}' AS source", f"'{TYPE}' AS type", "named_struct('flight', id) AS payload"
    )
    write = as_messages(rows).write.format("queue").mode("append").option("delivery", "at-least-once")
    write.options(url=url, queue=queue).save()
    nothing = Executor(SOURCE, TYPE, "spark_queue.events.examples:nothing")
    with Events(url, queue, executors=[nothing]) as events:
        checkpoint = str(folder / f"checkpoint-{queue}")
        if way in (EXECUTORS, BY_DEFAULT):
            tuned: dict[str, Any] = {"batch": BATCH, "parallel": 2} if way == EXECUTORS else {}
            executors = ExecutorQuery(events, checkpoint, **tuned)
            query = executors.run(spark, available_now=True, restarts=0)
        else:
            query = drained(spark, url, queue, checkpoint, way)
        check(events.summary()["finished"], 0 if way == "drain" else n + BATCH)
        check(events.store.sizes(queue).total, 0)
        for one in (queue, events.log.queue):
            events.store.drop(one)
    batches = [one for one in query.recentProgress if one["numInputRows"]][1:]
    took: float = sum(one["durationMs"]["triggerExecution"] for one in batches) / 1000
    done: int = sum(one["numInputRows"] for one in batches)
    return done / took


def drained(spark: SparkSession, url: str, queue: str, checkpoint: str, way: str) -> StreamingQuery:
    """Run a query that drains without executors, and return it after its end."""
    history = "0s" if way == "drain" else "1d"
    stream = spark.readStream.format("queue").options(url=url, queue=queue, history=history, numPartitions="2")
    frame = stream.option("maxRecordsPerTrigger", BATCH).load()
    if "Python" in way:
        frame = frame.select("id", "payload", "mature", "tries")
        frame = frame.mapInArrow(lambda batches: batches, frame.schema)
    query = (
        frame.writeStream.format("noop").option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    )
    query.awaitTermination()
    return query


def main() -> int:
    parser = arguments(__doc__ or "", messages=120_000, rounds=3, of="events per round")
    parser.add_argument("--docs", action="store_true", help="update docs/benchmarks.md")
    args = parser.parse_args()
    spark = session()
    ran = f"{setup(spark)}; {args.messages:,} events in batches of {BATCH:,}"
    say(ran)
    results: dict[str, Any] = {"setup": ran, "rounds": args.rounds, "stores": {}}
    with tempfile.TemporaryDirectory(prefix="spark-queue-bench-") as folder:
        wanted = args.only or list(STORES)
        urls = databases(folder, wanted)
        for scheme in wanted:
            rounds: list[dict[str, float]] = []
            for number in range(args.rounds + 1):
                rates = {
                    way: measure(spark, urls[scheme], Path(folder), args.messages, way) for way in turns(WAYS, number)
                }
                if number:
                    rounds.append(rates)
                shown = ", ".join(f"{way} {rates[way]:,.0f}/s" for way in WAYS)
                say(f"{'round ' + str(number) if number else 'warm-up'} {scheme}: {shown}")
            rates = {way: statistics.median(one[way] for one in rounds) for way in WAYS}
            ratios = {way: round(statistics.median(one[EXECUTORS] / one[way] for one in rounds), 2) for way in DRAINS}
            results["stores"][scheme] = {"events/s": {way: round(rate) for way, rate in rates.items()}, "of": ratios}
    spark.stop()
    found = table(results["stores"])
    print(*aligned(found), sep="\n")
    keep(args.json, results)
    if args.docs:
        when = f"Measured on {datetime.now(UTC):%Y-%m-%d}: {ran}; {args.rounds} rounds."
        renew("events", "\n".join([when, "", *piped(found)]))
    return 0


def table(stores: dict[str, Any]) -> Table:
    """Return events per second by store and way, and the ratio of executors to each other way."""
    heads = ("store", *(f"{way}/s" for way in WAYS), *(f"of a {way}" for way in DRAINS), "wanted of a drain")
    rows = []
    for store, one in stores.items():
        rates, ratios = (f"{one['events/s'][way]:,}" for way in WAYS), (f"{one['of'][way]:.2f}" for way in DRAINS)
        rows.append((store, *rates, *ratios, str(WANTED)))
    return [heads, *rows]


if __name__ == "__main__":
    sys.exit(main())
