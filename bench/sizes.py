"""Measure micro-batches that find their size, beside fixed sizes.

    python bench/sizes.py                         all three stores, 3 rounds
    python bench/sizes.py --only redis --rounds 1 one store
    python bench/sizes.py --docs                  update docs/benchmarks.md

Each drain is an `availableNow` query with default options over a backlog, into a sink that does
nothing. `whole` counts from the start of the query to its end, in a session that is warm. `steady`
leaves out the first batch, if at least two follow: one alone was reserved while the first one ran.
All settings run in each round, in another order, after a warm-up.

Then users' code takes 1 ms a row: the table shows rows and seconds of the first batches. And two
queries compete for a backlog: two equal ones, and one that takes 10 ms a row beside a fast one.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

import pyarrow as pa
from common import STORES, arguments, check, databases, keep, push_documents, say, session, setup, turns
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from report import Table, aligned, piped, renew
from rules import renew_rules

from spark_queue import open_store

#: Messages of a backlog, by store.
MESSAGES = {"sqlite": 500_000, "redis": 500_000, "mongodb": 100_000}

AUTO = "auto"
SETTINGS = (AUTO, "10000", "50000", "100000", "250000")

#: Messages and batches of users' code that takes 1 ms a row.
SLOW_MESSAGES, SLOW_BATCHES = 60_000, 8


class Drain(NamedTuple):
    """One drain: messages per second, as a whole and without the first batch, and its batches."""

    whole: float
    steady: float | None
    batches: list[tuple[int, float]]


class Sizes:
    """The measurements on one store."""

    def __init__(self, spark: SparkSession, url: str, folder: Path) -> None:
        self.spark, self.url, self.folder = spark, url, folder

    def filled(self, n: int) -> str:
        """Return a new queue with `n` messages."""
        queue = f"bench{uuid.uuid4().hex[:8]}"
        with open_store(self.url) as store:
            push_documents(store, queue, n)
        return queue

    def drop(self, queue: str) -> None:
        with open_store(self.url) as store:
            store.drop(queue)

    def stream(self, queue: str, **options: Any) -> DataFrame:
        return self.spark.readStream.format("queue").options(url=self.url, queue=queue, **options).load()

    def start(self, frame: DataFrame, **trigger: Any) -> StreamingQuery:
        writer = frame.writeStream.format("noop").trigger(**trigger)
        return writer.option("checkpointLocation", str(self.folder / uuid.uuid4().hex)).start()

    def drain(self, setting: str, n: int) -> Drain:
        """Drain `n` messages with this `maxRecordsPerTrigger`."""
        queue = self.filled(n)
        began = time.perf_counter()
        query = self.start(self.stream(queue, maxRecordsPerTrigger=setting), availableNow=True)
        query.awaitTermination()
        seconds = time.perf_counter() - began
        batches = batches_of(query)
        check(sum(rows for rows, _ in batches), n)
        self.drop(queue)
        later = batches[1:]
        steady = sum(rows for rows, _ in later) / sum(taken for _, taken in later) if len(later) > 1 else None
        return Drain(n / seconds, steady, batches)

    def slow(self) -> list[tuple[int, float]]:
        """Return rows and seconds of the first batches, where users' code takes 1 ms a row."""
        queue = self.filled(SLOW_MESSAGES)
        query = self.start(
            self.stream(queue, numPartitions=1).mapInArrow(sleep_1_ms, "id string"), processingTime="0 seconds"
        )
        while len(query.recentProgress) < SLOW_BATCHES and query.isActive:
            time.sleep(0.1)
        found = batches_of(query)
        query.stop()
        self.drop(queue)
        return found[:SLOW_BATCHES]

    def compete(self, n: int) -> float:
        """Return the share of the first of two equal queries that drain a backlog."""
        queue = self.filled(n)
        queries = [self.start(self.stream(queue, numPartitions=1), availableNow=True) for _ in range(2)]
        for query in queries:
            query.awaitTermination()
        rows = [sum(done for done, _ in batches_of(query)) for query in queries]
        check(sum(rows), n)
        self.drop(queue)
        return rows[0] / n

    def beside(self, n: int) -> float:
        """Return the seconds until a query that takes 10 ms a row has its first batch."""
        queue = self.filled(n)
        fast = self.start(self.stream(queue, numPartitions=1), processingTime="0 seconds")
        while len(fast.recentProgress) < 2:
            time.sleep(0.01)
        frame = self.stream(queue, numPartitions=1, consumer="slow").mapInArrow(sleep_10_ms, "id string")
        began = time.perf_counter()
        slow = self.start(frame, processingTime="0 seconds")
        with open_store(self.url) as store:
            while not any(store.reservations(queue, "slow")):
                if time.perf_counter() - began > 60:
                    break
                time.sleep(0.01)
        seconds = time.perf_counter() - began
        for query in (fast, slow):
            query.stop()
        self.drop(queue)
        return seconds


def sleep_1_ms(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        time.sleep(batch.num_rows / 1000)
        yield batch.select(["id"])


def sleep_10_ms(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        time.sleep(batch.num_rows / 100)
        yield batch.select(["id"])


def batches_of(query: StreamingQuery) -> list[tuple[int, float]]:
    """Return rows and seconds of the batches of a query."""
    return [
        (one["numInputRows"], one["durationMs"]["triggerExecution"] / 1000)
        for one in query.recentProgress
        if one["numInputRows"]
    ]


def drains_table(rounds: list[dict[str, Drain]]) -> Table:
    """Return the table of the drains of one store: medians, and ratios within a round."""
    best = [
        {kind: max(getattr(one[s], kind) or 0.0 for s in SETTINGS if s != AUTO) for kind in Drain._fields[:2]}
        for one in rounds
    ]
    made: Table = [
        (
            "maxRecordsPerTrigger",
            "whole (messages/s)",
            "steady (messages/s)",
            "whole, of the best fixed",
            "steady, of the best fixed",
        )
    ]
    for setting in SETTINGS:
        rates, ratios = [], []
        for kind in Drain._fields[:2]:
            found = [getattr(one[setting], kind) for one in rounds]
            rates.append("" if None in found else f"{statistics.median(found):,.0f}")
            parts = [rate / top[kind] for rate, top in zip(found, best, strict=True) if rate]
            ratios.append(f"{statistics.median(parts):.2f}" if rates[-1] else "")
        made.append((setting, *rates, *ratios))
    return made


def batches_text(batches: list[tuple[int, float]]) -> str:
    return ", ".join(f"{rows:,} ({seconds:.1f} s)" for rows, seconds in batches)


def main() -> None:
    parser = arguments(__doc__, messages=0, rounds=3, of="messages per drain; 0: those of each store")
    parser.add_argument("--docs", action="store_true", help="update docs/benchmarks.md")
    args = parser.parse_args()
    wanted = args.only or list(STORES)
    spark = session()
    lines, text = [setup(spark)], [f"Measured: {setup(spark)}, medians of {args.rounds} rounds."]
    results: dict[str, Any] = {"setup": setup(spark)}
    with tempfile.TemporaryDirectory() as folder:
        for store, url in databases(folder, wanted).items():
            sizes, n = Sizes(spark, url, Path(folder)), args.messages or MESSAGES[store]
            sizes.drain("10000", 20_000)
            rounds: list[dict[str, Drain]] = []
            for number in range(args.rounds):
                rounds.append({})
                for setting in turns(SETTINGS, number):
                    rounds[-1][setting] = done = sizes.drain(setting, n)
                    rates = f"{done.whole:9,.0f}/s {done.steady or 0:9,.0f}/s"
                    say(f"round {number + 1} {store:8} {setting:7} {rates}  {batches_text(done.batches[:8])}")
            slow, shares, first = sizes.slow(), [sizes.compete(n) for _ in range(args.rounds)], sizes.beside(4 * n)
            table = drains_table(rounds)
            facts = [
                f"1 ms a row: {batches_text(slow)}",
                f"two equal queries: {', '.join(f'{share:.0%}' for share in shares)} for the first",
                f"a query with 10 ms a row beside a fast one: first batch reserved after {first:.1f} s",
            ]
            lines += ["", f"{store}, {n:,} messages", *aligned(table), *facts]
            text += ["", f"### {store}, {n:,} messages", "", *piped(table), "", *(f"* {one}" for one in facts)]
            results[store] = {"rounds": rounds, "slow": slow, "shares": shares, "beside": first}
    print("\n".join(lines))
    keep(args.json, results)
    if args.docs:
        renew("sizes", "\n".join(text))
        renew_rules()


if __name__ == "__main__":
    main()
