"""Measure batch reads of a queue, its history and a log: in one, two and four partitions.

    python bench/reads.py                        all three stores, 5 rounds of 200,000 messages
    python bench/reads.py --only redis --view history --partitions 1 2

Each read goes to Spark's `noop` sink, on two cores. All numbers of partitions take part in each
round, in an order that differs. The result is the median of the ratios to one partition within a
round. The servers are those of SPARK_QUEUE_MONGODB_URL and SPARK_QUEUE_REDIS_URL, or of
`make services`.
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

from common import STORES, arguments, check, databases, keep, push_documents, say, session, setup, turns
from pyspark.sql import DataFrame, SparkSession

from spark_queue import open_store
from spark_queue.stores.services.log.log import Log

#: Target: how many times as fast a read in two partitions is at least (see CONTRIBUTING.md).
WANTED = 1.5
DAY_MS = 86_400_000
VIEWS = ("messages", "history", "log")


def fill(url: str, queue: str, n: int, view: str) -> dict[str, str]:
    """Push messages; put them into the history or the log. Return the options that read them."""
    with open_store(url) as store:
        push_documents(store, queue, n)
        if view == "history":
            store.reserve(queue, "bench/1", n)
            store.commit(queue, "bench/1", history=DAY_MS)
        elif view == "log":
            Log(store, queue).latest()
    return {"messages": {}, "history": {"view": "history"}, "log": {"mode": "log"}}[view]


def rows_of(spark: SparkSession, url: str, queue: str, partitions: int, options: dict[str, str]) -> DataFrame:
    """Return the batch read."""
    reader = spark.read.format("queue").options(url=url, queue=queue, **options)
    return reader.option("numPartitions", partitions).load()


def measure(rows: DataFrame) -> float:
    """Return the seconds of a read of all rows."""
    began = time.perf_counter()
    rows.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began


def main() -> int:
    parser = arguments(__doc__ or "", messages=200_000, rounds=5, of="messages in the queue")
    parser.add_argument("--view", choices=VIEWS, action="append", help="read this only (repeatable)")
    parser.add_argument("--partitions", type=int, nargs="+", default=[1, 2, 4], help="default: 1 2 4")
    args = parser.parse_args()
    if 1 not in args.partitions:
        parser.error("--partitions needs 1, with which the others are compared")
    spark = session()
    ran = f"{setup(spark)}; {args.messages:,} messages of 100 bytes"
    say(ran)
    results: dict[str, Any] = {"setup": ran, "rounds": args.rounds, "stores": {}}
    with tempfile.TemporaryDirectory(prefix="spark-queue-bench-") as folder:
        for scheme, url in databases(folder, args.only or list(STORES)).items():
            for view in args.view or VIEWS:
                queue = f"bench{uuid.uuid4().hex[:8]}"
                options = fill(url, queue, args.messages, view)
                reads = {one: rows_of(spark, url, queue, one, options) for one in args.partitions}
                times: list[dict[int, float]] = []
                for number in range(args.rounds + 1):
                    seconds = {one: measure(reads[one]) for one in turns(args.partitions, number)}
                    say(
                        f"round {number} {scheme} {view}:",
                        ", ".join(f"{one}: {s:.2f} s" for one, s in seconds.items()),
                    )
                    times += [seconds] if number else []
                for one, read in reads.items():
                    check(read.count(), args.messages)
                    rate = statistics.median(args.messages / seconds[one] for seconds in times)
                    ratio = statistics.median(seconds[1] / seconds[one] for seconds in times)
                    results["stores"].setdefault(scheme, {}).setdefault(view, {})[one] = {
                        "messages/s": round(rate),
                        "times faster": round(ratio, 2),
                    }
                    target = f" (target: {WANTED})" if one == 2 else ""
                    print(f"{scheme} {view} in {one} partitions: {rate:,.0f}/s, {ratio:.2f} times as fast{target}")
                with open_store(url) as store:
                    store.drop(queue)
    spark.stop()
    keep(args.json, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
