"""Push and drain: the bare driver, our client and Spark, side by side in one run.

    python bench/first.py                        all three stores, 3 rounds of 200,000 messages
    python bench/first.py --only redis --json    one store, results as JSON on stdout
    python bench/first.py --million              also drain a million messages and watch the memory of each process
    python bench/first.py --idle                 also count the round trips of an idle query

Rounds are interleaved, and what is told is the median. Machines are noisy and differ: a ratio holds where a rate
does not. Through Spark, messages are drained in batches of 50,000 into a sink that does nothing, and the first
batch is not counted: it pays for the start of the workers. The servers are those of SPARK_QUEUE_MONGODB_URL and
SPARK_QUEUE_REDIS_URL, or of `make services`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])

from pyspark.sql import SparkSession
from raw import BATCH, Raw, RawMongo, RawRedis, RawSqlite, batches

from spark_queue import __version__, open_store
from spark_queue.message import pushes
from tests.services import service_urls

#: What draining and pushing through Spark must reach of the bare driver (see CONTRIBUTING.md).
WANTED = {"mongodb": (0.6, 0.5), "sqlite": (0.4, 0.5), "redis": (0.25, 0.5)}
SPARK_BATCH = 50_000
DOCUMENT = "to_json(named_struct('n', id, 'carrier', 'UA', 'origin', 'EWR', 'text', repeat('x', 50)))"


def payloads(n: int) -> list[bytes]:
    """`n` JSON documents of 100 bytes, the same that DOCUMENT makes."""
    return [b'{"n":%d,"carrier":"UA","origin":"EWR","text":"%s"}' % (i, b"x" * 50) for i in range(n)]


def rate(n: int, work: Callable[[], object]) -> float:
    """Messages per second."""
    begun = time.perf_counter()
    work()
    return n / (time.perf_counter() - begun)


class Bench:
    """One store, and the three ways to use it."""

    def __init__(self, spark: SparkSession, scheme: str, url: str, folder: Path) -> None:
        self.spark, self.scheme, self.url, self.folder = spark, scheme, url, folder

    def raw(self) -> Raw:
        if self.scheme == "sqlite":
            return RawSqlite(self.folder)
        return RawMongo(self.url) if self.scheme == "mongodb" else RawRedis(self.url)

    def round(self, n: int, documents: list[bytes]) -> dict[str, float]:
        """Rates of one round."""
        queue = f"bench{uuid.uuid4().hex[:8]}"
        found: dict[str, float] = {}
        raw = self.raw()
        found["raw push"] = rate(n, lambda: raw.push(documents))
        found["raw drain"] = rate(n, lambda: check(raw.drain(), n))
        raw.close()
        with open_store(self.url) as store:
            found["client push"] = rate(n, lambda: self.client_push(store, queue, documents))
            found["client drain"] = rate(n, lambda: check(self.client_drain(store, queue), n))
            found["spark push"] = rate(n, lambda: self.spark_push(queue, n))
            self.spark_push(queue, SPARK_BATCH)
            found["spark drain"] = self.spark_drain(queue, n + SPARK_BATCH)
            check(store.sizes(queue).total, 0)
            store.drop(queue)
        return found

    def client_push(self, store: Any, queue: str, documents: list[bytes]) -> None:
        for part in batches(documents):
            batch = pushes(list(part))
            kind = batch.schema.get_field_index("payload_kind")
            import pyarrow as pa

            store.push(queue, batch.set_column(kind, batch.schema.field(kind), pa.array(["json"] * len(part))))

    def client_drain(self, store: Any, queue: str) -> int:
        done = 0
        for sequence in range(1_000_000):
            if not store.reserve(queue, f"bench/{sequence}", BATCH):
                break
            done += sum(page.num_rows for page in store.fetch(queue, f"bench/{sequence}/0"))
            store.commit(queue, f"bench/{sequence}")
        return done

    def spark_push(self, queue: str, n: int) -> None:
        df = self.spark.range(0, n, 1, 2).selectExpr(f"{DOCUMENT} payload")
        df.write.format("queue").mode("append").options(url=self.url, queue=queue, delivery="at-least-once").save()

    def spark_drain(self, queue: str, n: int) -> float:
        query = self.start(queue, {"availableNow": True})
        query.awaitTermination()
        counted = [one for one in query.recentProgress if one["numInputRows"]]
        check(sum(one["numInputRows"] for one in counted), n)
        rows = sum(one["numInputRows"] for one in counted[1:])
        return float(rows / (sum(one["durationMs"]["triggerExecution"] for one in counted[1:]) / 1000))

    def start(self, queue: str, trigger: dict[str, Any]) -> Any:
        stream = self.spark.readStream.format("queue").options(url=self.url, queue=queue)
        writer = stream.option("maxRecordsPerTrigger", SPARK_BATCH).load().writeStream.format("noop")
        checkpoint = str(self.folder / f"checkpoint-{uuid.uuid4().hex[:8]}")
        return writer.option("checkpointLocation", checkpoint).trigger(**trigger).start()

    def million(self) -> dict[str, float]:
        """Peak memory, in MB, of the processes while a million messages are drained."""
        queue = f"bench{uuid.uuid4().hex[:8]}"
        for _ in range(5):
            self.spark_push(queue, 200_000)
        done = threading.Event()
        peaks: dict[str, float] = {}

        def watch() -> None:
            while not done.wait(0.2):
                for name, kilobytes in memory().items():
                    peaks[name] = max(peaks.get(name, 0.0), kilobytes / 1024)

        watcher = threading.Thread(target=watch)
        watcher.start()
        speed = self.spark_drain(queue, 1_000_000)
        done.set()
        watcher.join()
        with open_store(self.url) as store:
            store.drop(queue)
        return {"drained per second": speed} | peaks

    def idle(self, seconds: int = 10) -> float:
        """Round trips per second of a query that finds nothing, less what the server has to do without it."""
        queue = f"bench{uuid.uuid4().hex[:8]}"
        before = self.trips(seconds)
        query = self.start(queue, {"processingTime": "0 seconds"})
        time.sleep(8)  # the first rounds make connections and indexes
        during = self.trips(seconds)
        query.stop()
        with open_store(self.url) as store:
            store.drop(queue)
        return during - before

    def trips(self, seconds: int) -> float:
        """Requests per second that the server has read meanwhile."""
        begun = time.monotonic()
        first = self.requests()
        time.sleep(seconds)
        return (self.requests() - first - 1) / (time.monotonic() - begun)

    def requests(self) -> int:
        """Requests that the server has read since it started."""
        if self.scheme == "redis":
            from redis import Redis

            with Redis.from_url(self.url) as client:
                stats: Any = client.info("stats")
            return int(stats["total_reads_processed"])
        from pymongo import MongoClient

        with MongoClient[Any](self.url) as client:
            return int(client.admin.command("serverStatus")["network"]["numRequests"])


def memory() -> dict[str, int]:
    """Resident memory, in kB, of this process, the JVM below it and what runs below that, by what it is."""
    found: dict[str, int] = {}
    parents, names = {}, {}
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            facts = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
            command = status.with_name("cmdline").read_bytes().decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        pid = int(status.parent.name)
        parents[pid] = int(facts["PPid"])
        kind = "worker"
        if pid == os.getpid():
            kind = "driver (Python)"
        elif "python_streaming_source_runner" in command:
            kind = "reader"
        elif "java" in command.split("\0")[0]:
            kind = "driver (JVM, executors included)"
        names[pid] = (kind, int(facts.get("VmRSS", "0 kB").split()[0]))
    for pid, (kind, kilobytes) in names.items():
        ancestor = pid
        while ancestor in parents and ancestor != os.getpid():
            ancestor = parents[ancestor]
        if ancestor == os.getpid():
            found[kind] = max(found.get(kind, 0), kilobytes)
    return found


def databases(folder: str, wanted: list[str]) -> dict[str, str]:
    """The URLs of the stores that are wanted: SQLite in this folder, the servers of the tests."""
    urls = {"sqlite": f"sqlite:///{folder}/queues.db"} | service_urls()
    if missing := [one for one in wanted if one not in urls]:
        raise SystemExit(f"no server for {', '.join(missing)}: type 'make services'")
    return urls


def check(got: int, wanted: int) -> None:
    """Rates of work that was not done count for nothing."""
    if got != wanted:
        raise SystemExit(f"a benchmark lost or doubled messages: {got:,} instead of {wanted:,}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(WANTED), action="append", help="this store only (repeatable)")
    parser.add_argument("--messages", type=int, default=200_000, help="messages per round (default %(default)s)")
    parser.add_argument(
        "--rounds", type=int, default=3, help="counted rounds after one to warm up (default %(default)s)"
    )
    parser.add_argument(
        "--million", action="store_true", help="watch the memory while a million messages are drained"
    )
    parser.add_argument("--idle", action="store_true", help="count the round trips of an idle query")
    parser.add_argument("--json", action="store_true", help="print the results as JSON on stdout")
    args = parser.parse_args()

    def say(*words: object) -> None:
        print(*words, file=sys.stderr if args.json else sys.stdout, flush=True)

    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    setup = f"spark_queue {__version__}, Spark {spark.version}, Python {platform.python_version()}, "
    setup += f"{os.cpu_count()} cores"
    say(f"{setup}; {args.messages:,} messages of 100 bytes, {args.rounds} rounds")
    documents = payloads(args.messages)
    results: dict[str, Any] = {"setup": setup, "messages": args.messages, "stores": {}}
    with tempfile.TemporaryDirectory(prefix="spark-queue-bench-") as folder:
        wanted = args.only or list(WANTED)
        urls = databases(folder, wanted)
        benches = {one: Bench(spark, one, urls[one], Path(folder)) for one in wanted}
        rounds: dict[str, list[dict[str, float]]] = {one: [] for one in wanted}
        for number in range(args.rounds + 1):
            for scheme, bench in benches.items():
                found = bench.round(args.messages, documents)
                if number:
                    rounds[scheme].append(found)
                say(f"{'round ' + str(number) if number else 'warm-up'} {scheme}: " + ", ".join(
                    f"{name} {speed / 1000:,.0f}k/s" for name, speed in found.items()
                ))  # fmt: skip
        for scheme, found_rounds in rounds.items():
            medians = {name: statistics.median(one[name] for one in found_rounds) for name in found_rounds[0]}
            # ratios within a round first: both sides of one met the same weather
            ratios = {
                f"{who} {what}": statistics.median(one[f"{who} {what}"] / one[f"raw {what}"] for one in found_rounds)
                for who in ("client", "spark")
                for what in ("push", "drain")
            }
            results["stores"][scheme] = {"per second": medians, "of raw": ratios}
            drain, push = WANTED[scheme]
            say(
                f"{scheme}: through Spark, drain {ratios['spark drain']:.2f} of raw (wanted {drain}), "
                f"push {ratios['spark push']:.2f} (wanted {push}); "
                f"client, drain {ratios['client drain']:.2f}, push {ratios['client push']:.2f}"
            )
        for scheme, bench in benches.items():
            if args.million:
                results["stores"][scheme]["a million"] = peaks = bench.million()
                say(
                    f"{scheme}, a million drained: "
                    + ", ".join(f"{name} {value:,.0f}" for name, value in peaks.items())
                )
            if args.idle and scheme != "sqlite":
                results["stores"][scheme]["idle round trips per second"] = trips = bench.idle()
                say(f"{scheme}, idle: {trips:.1f} round trips per second")
    spark.stop()
    if args.json:
        print(json.dumps(results, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
