"""Measure the cost of an exchange with five destinations, and of exchanges without messages.

    python bench/exchanges.py                     all three stores, 5 rounds of 60,000 messages
    python bench/exchanges.py --only redis --json results.json

* plain: a query from queue to queue, exactly once
* one of five: an exchange whose five selectors send each message to one destination
* two of five: an exchange whose five selectors send each message to two destinations
* exchange: an exchange with one destination and no selector
* beside ten: the same, while ten other exchanges wait for messages that do not come. One idle
  exchange costs a tenth of the difference.

The selectors read JSON fields. All ways move the same messages within the store, in batches of
20,000 and two partitions. The rate is pushes per second without the first batch, which starts the
workers. All ways run in each round, and the result is the median of the ratios within a round.
The servers are those of SPARK_QUEUE_MONGODB_URL and SPARK_QUEUE_REDIS_URL, or of `make services`.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import threading
import uuid
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from common import DOCUMENT, STORES, arguments, check, databases, keep, say, session, setup
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from spark_queue import open_store
from spark_queue.graph.model import ConsumerSettings, Destination, Exchange, Graph, Namespace, Place
from spark_queue.runner import ExchangeGraph

#: Targets: minimum pushes relative to a plain query, and maximum cost of one idle exchange.
WANTED, IDLE = 0.5, 0.02
BATCH = 20_000

#: Selectors of five destinations, and the number of them that match a message.
SELECTORS = {
    "one of five": ([f"payload:n::int % 5 = {rest}" for rest in range(5)], 1),
    "two of five": (
        [
            "payload:n::int % 2 = 0",
            "payload:n::int % 2 = 1 AND payload:carrier = 'UA'",
            "payload:origin = 'JFK'",
            "payload:origin = 'EWR'",
            "payload:text IS NULL",
        ],
        2,
    ),
}
WAYS = ("plain", *SELECTORS, "exchange", "beside ten")


class Batches(StreamingQueryListener):
    """Durations of batches with rows, by the name of the query."""

    def __init__(self) -> None:
        self.durations: dict[str, list[Any]] = {}
        self._ended: dict[str, threading.Event] = {}
        self._names: dict[str, str] = {}

    def onQueryStarted(self, event: Any) -> None:
        self._names[str(event.id)] = event.name

    def onQueryProgress(self, event: Any) -> None:
        if event.progress.numInputRows:
            self.durations.setdefault(event.progress.name, []).append(event.progress.durationMs["triggerExecution"])

    def onQueryTerminated(self, event: Any) -> None:
        self.ended(self._names[str(event.id)]).set()

    def ended(self, name: str) -> threading.Event:
        return self._ended.setdefault(name, threading.Event())

    def milliseconds(self, name: str) -> float:
        """Return the mean duration of a batch of this query, without the first."""
        self.ended(name).wait(60)
        return float(statistics.mean(self.durations[name][1:]))


def measure(spark: SparkSession, seen: Batches, url: str, folder: Path, n: int, way: str) -> float:
    """Return pushes per second."""
    source, target = (f"bench{uuid.uuid4().hex[:8]}" for _ in range(2))
    rows = spark.range(0, n + BATCH, 1, 2).selectExpr(f"{DOCUMENT} payload")
    write = rows.write.format("queue").mode("append").option("delivery", "at-least-once")
    write.options(url=url, queue=source).save()
    root, copies = str(folder / f"checkpoints-{source}"), 1
    if way == "plain":
        options: dict[str, Any] = {"url": url, "delivery": "exactly-once"}
        stream = spark.readStream.format("queue").options(**options, queue=source, numPartitions=2)
        messages = stream.option("maxRecordsPerTrigger", BATCH).load().select("payload", "headers")
        writer = messages.writeStream.format("queue").options(**options, queue=target).queryName(source)
        writer.option("checkpointLocation", root).trigger(availableNow=True).start().awaitTermination()
    else:
        selectors, copies = SELECTORS.get(way, ([None], 1))
        to = [Destination(f"{target}.{number}", selector) for number, selector in enumerate(selectors)]
        reading = ConsumerSettings(parallel=2, wsize=BATCH)
        graph = Graph({"here": Namespace(url)}, {source: Exchange(Place(source), to, reading)})
        others = {
            f"{source}.{n}": Exchange(Place(f"{source}.{n}"), [Destination(target)], reading) for n in range(10)
        }
        waiting = ExchangeGraph(Graph(graph.namespaces, others), root)
        if way == "beside ten":
            waiting.start(spark)
        running = ExchangeGraph(graph, root).start(spark, available_now=True)
        running.await_termination()
        waiting.stop()
        (status,) = running.status().values()
        check(status.restarts, 0)
        check(status.traffic.received, n + BATCH)
    with open_store(url) as store:
        mine = [one for one in store.queues() if one.startswith((source, target))]
        check(sum(store.sizes(one).ready for one in mine), copies * (n + BATCH))
        for one in mine:
            store.drop(one)
    return copies * BATCH / seen.milliseconds(source) * 1000


def main() -> int:
    args = arguments(__doc__ or "", messages=60_000, rounds=5).parse_args()
    spark = session()
    spark.streams.addListener(seen := Batches())
    ran = f"{setup(spark)}; {args.messages:,} messages of 100 bytes in batches of {BATCH:,}"
    say(ran)
    results: dict[str, Any] = {"setup": ran, "rounds": args.rounds, "stores": {}}
    with tempfile.TemporaryDirectory(prefix="spark-queue-bench-") as folder:
        wanted = args.only or list(STORES)
        urls = databases(folder, wanted)
        found: dict[str, list[dict[str, float]]] = {one: [] for one in wanted}
        for number in range(args.rounds + 1):
            for scheme in wanted:
                turn = WAYS[number % len(WAYS) :] + WAYS[: number % len(WAYS)]  # alternate
                rates = {one: measure(spark, seen, urls[scheme], Path(folder), args.messages, one) for one in turn}
                if number:
                    found[scheme].append(rates)
                shown = ", ".join(f"{one} {rates[one]:,.0f}/s" for one in WAYS)
                say(f"{f'round {number}' if number else 'warm-up'} {scheme}: {shown}")
        for scheme, rounds in found.items():
            ratios = {
                one: round(statistics.median(rates[one] / rates["plain"] for rates in rounds), 2)
                for one in (*SELECTORS, "exchange")
            }
            idle = statistics.median(rates["exchange"] / rates["beside ten"] - 1 for rates in rounds) / 10
            medians = {one: round(statistics.median(rates[one] for rates in rounds)) for one in WAYS}
            results["stores"][scheme] = {"of plain": ratios, "one idle costs": round(idle, 4), "per second": medians}
            shown = ", ".join(f"{one} {ratio:.2f}" for one, ratio in ratios.items())
            print(f"{scheme}: pushes relative to a plain query: {shown} (target: at least {WANTED})")
            print(f"    an idle exchange costs {idle:.1%} (target: less than {IDLE:.0%})")
    spark.stop()
    keep(args.json, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
