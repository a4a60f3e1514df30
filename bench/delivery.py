"""Measure the cost of exactly-once compared with at-least-once, from queue to queue through Spark.

    python bench/delivery.py                     all three stores, 5 rounds of 100,000 messages
    python bench/delivery.py --only redis --json results.json

A streaming query moves all messages of a queue to another queue of the same store
(`availableNow`, two partitions, batches of 20,000). Both deliveries run in each round, and the
result is the median of the ratios within a round. The first batch of a query is not counted,
because it starts the workers. Spark reports the time of each stage: `latestOffset` commits the
last batch and reserves the next, `addBatch` fetches, writes and publishes. The servers are those
of SPARK_QUEUE_MONGODB_URL and SPARK_QUEUE_REDIS_URL, or of `make services`.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import uuid
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from common import DOCUMENT, STORES, arguments, check, databases, keep, say, session, setup
from pyspark.sql import SparkSession

from spark_queue import open_store

#: Targets: maximum time of exactly-once relative to at-least-once (see CONTRIBUTING.md).
WANTED = {"sqlite": 1.5, "redis": 1.5, "mongodb": 2.0}
BATCH = 20_000
STAGES = ("latestOffset", "addBatch", "walCommit", "commitOffsets")


def measure(spark: SparkSession, url: str, folder: Path, n: int, delivery: str) -> dict[str, float]:
    """Return milliseconds per batch, in total and by stage, of a query that moves `n` messages."""
    source, target = (f"bench{uuid.uuid4().hex[:8]}" for _ in range(2))
    rows = spark.range(0, n + BATCH, 1, 2).selectExpr(f"{DOCUMENT} payload")
    write = rows.write.format("queue").mode("append").option("delivery", "at-least-once")
    write.options(url=url, queue=source).save()
    options: dict[str, Any] = {"url": url, "delivery": delivery}
    stream = spark.readStream.format("queue").options(**options, queue=source, numPartitions=2)
    messages = stream.option("maxRecordsPerTrigger", BATCH).load().select("payload")
    writer = messages.writeStream.format("queue").options(**options, queue=target)
    writer = writer.option("checkpointLocation", str(folder / f"checkpoint-{source}"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    with open_store(url) as store:
        check(store.sizes(target).ready, n + BATCH)
        check(store.sizes(source).total, 0)
        store.drop(source)
        store.drop(target)
    counted: list[Any] = [one["durationMs"] for one in query.recentProgress if one["numInputRows"]][1:]
    return {stage: statistics.mean(one.get(stage, 0) for one in counted) for stage in ("triggerExecution", *STAGES)}


def main() -> int:
    args = arguments(__doc__ or "", messages=100_000, rounds=5).parse_args()
    spark = session()
    ran = f"{setup(spark)}; {args.messages:,} messages of 100 bytes in batches of {BATCH:,}"
    say(ran)
    results: dict[str, Any] = {"setup": ran, "rounds": args.rounds, "stores": {}}
    with tempfile.TemporaryDirectory(prefix="spark-queue-bench-") as folder:
        wanted = args.only or list(STORES)
        urls = databases(folder, wanted)
        found: dict[str, list[dict[str, dict[str, float]]]] = {one: [] for one in wanted}
        for number in range(args.rounds + 1):
            for scheme in wanted:
                both = ["at-least-once", "exactly-once"]
                turn = both if number % 2 else both[::-1]  # take turns in going first
                times = {one: measure(spark, urls[scheme], Path(folder), args.messages, one) for one in turn}
                if number:
                    found[scheme].append(times)
                say(f"{'round ' + str(number) if number else 'warm-up'} {scheme}: " + ", ".join(
                    f"{one} {times[one]['triggerExecution']:,.0f} ms" for one in both
                ))  # fmt: skip
        for scheme, rounds in found.items():
            ratio = statistics.median(
                one["exactly-once"]["triggerExecution"] / one["at-least-once"]["triggerExecution"] for one in rounds
            )
            stages = {
                delivery: {
                    stage: round(statistics.median(one[delivery][stage] for one in rounds))
                    for stage in ("triggerExecution", *STAGES)
                }
                for delivery in ("at-least-once", "exactly-once")
            }
            results["stores"][scheme] = {"times longer": round(ratio, 2), "ms per batch": stages}
            print(f"{scheme}: exactly-once takes {ratio:.2f} times as long (target: at most {WANTED[scheme]})")
            for delivery, by_stage in stages.items():
                print(f"    {delivery:14}" + ", ".join(f"{stage} {ms:,} ms" for stage, ms in by_stage.items()))
    spark.stop()
    keep(args.json, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
