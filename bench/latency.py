"""How long a message is under way: from its push to a client that waits for it, and to the sink of a Spark query.

    python bench/latency.py                          all three stores
    python bench/latency.py --only redis --docs      one store; --docs renews docs/benchmarks.md

Messages are pushed one at a time, at random moments, so that they meet every phase of whatever polls. Each carries
the moment just before its push by the clock that all processes of a machine share; who has it subtracts that. Beside
the client is what the bare driver takes to insert a message and to claim it, as durably, one after the other in one
process: whoever writes both down before anybody is told takes no less. Through Spark messages go into a sink in
Python, once from the queue and once from a source in Python that has a row at once: what Spark itself takes. Each
query and each client is started anew in every round, and its first messages do not count.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import pyarrow as pa
from ceiling import OPTIONS, Rows
from common import STORES, arguments, check, databases, keep, say, session, setup, turns
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType
from raw import raw_of
from report import Table, aligned, piped, renew

from spark_queue import Queue
from spark_queue.messages.columns import build_messages
from spark_queue.messages.ids import new_ids
from spark_queue.spark.schema import batch_converter

#: What is measured in each round: the bare driver, a client that waits, and Spark's sink behind a queue and behind a
#: source of its own.
DRIVER, CLIENT, QUEUE, SOURCE = "driver", "client", "queue", "source"

#: Beside the client: the call that pushes, and what it takes until the client has the message once that has returned.
PUSH, AFTER = "push", "after"

#: In the order of the table.
TOLD = (PUSH, AFTER, CLIENT, DRIVER, QUEUE, SOURCE)

#: Seconds between two pushes, from and to, for a client and for Spark.
TO_CLIENT, TO_SPARK = (0.05, 0.3), (0.2, 0.7)

#: Messages that come before those that count, and seconds in which each must come.
BEFORE, PATIENCE = 5, 60

WANTED = "Targets: a median below 5 ms to a waiting client, and at most 1.3 times as long through Spark."

#: Milliseconds of each message, by what is measured.
Round = dict[str, list[float]]


def pauses(n: int, between: tuple[float, float]) -> list[float]:
    """Seconds before each of `n` messages and of those before them, the same in every round."""
    uniform = random.Random(n).uniform
    return [uniform(*between) for _ in range(BEFORE + n)]


# --- a client that waits --------------------------------------------------------------------------------------------


def by_driver(scheme: str, url: str, folder: Path, n: int) -> list[float]:
    """What the bare driver takes to insert a message and to claim it, as durably."""
    raw, taken = raw_of(scheme, url, folder), []
    try:
        for pause in pauses(n, TO_CLIENT):
            time.sleep(pause)
            sent = time.monotonic()
            raw.push([json.dumps({"sent": sent}).encode()])
            check(raw.claim(), 1)
            taken.append((time.monotonic() - sent) * 1000)
            raw.commit()
    finally:
        raw.close()
    return taken[BEFORE:]


def to_client(url: str, queue: str, n: int) -> Round:
    """From before a push until another process that waited has the message, and what the push call itself takes."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    waiter = context.Process(target=wait, args=(url, queue, BEFORE + n, theirs), daemon=True)
    waiter.start()
    theirs.close()  # else nobody would learn that the waiter has ended
    found: Round = {PUSH: [], AFTER: [], CLIENT: []}
    with Queue(url, queue) as mine:
        ours.recv()
        for pause in pauses(n, TO_CLIENT):
            time.sleep(pause)
            sent = time.monotonic()
            mine.push({"sent": sent})
            found[PUSH].append((time.monotonic() - sent) * 1000)
            found[CLIENT].append(ours.recv())
            found[AFTER].append(found[CLIENT][-1] - found[PUSH][-1])
    waiter.join()
    return {name: taken[BEFORE:] for name, taken in found.items()}


def wait(url: str, queue: str, n: int, pipe: Connection) -> None:
    """Say that it is there; then wait for `n` messages one by one, and tell of each how long it was under way."""
    with Queue(url, queue) as mine:
        mine.sizes()  # connects
        pipe.send(None)
        for _ in range(n):
            taken = mine.reserve(1, timeout=PATIENCE)
            came = time.monotonic()
            check(len(taken), 1)
            mine.commit(*taken)
            pipe.send(under_way(came, taken[0].payload))


def under_way(came: float, payload: Any) -> float:
    """Milliseconds from the moment that a message carries to the one when it came."""
    return (came - float(payload["sent"])) * 1000


# --- through Spark --------------------------------------------------------------------------------------------------


class Lines(Rows):
    """Messages that are there as soon as they are lines of a file: option `file`."""

    @classmethod
    def name(cls) -> str:
        return "bench_lines"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return LinesReader(schema, Path(self.options["file"]))


class LinesReader(DataSourceStreamReader):
    """Offsets are bytes of the file."""

    def __init__(self, schema: StructType, file: Path) -> None:
        self.schema, self.file = schema, file

    def initialOffset(self) -> dict[str, Any]:
        return {"bytes": 0}

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:
        return {"bytes": self.file.stat().st_size}

    def partitions(self, start: Any, end: Any) -> Sequence[InputPartition]:
        return [InputPartition((start["bytes"], end["bytes"]))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        begin, end = partition.value
        lines = self.file.read_bytes()[begin:end].splitlines()
        n = len(lines)
        page = build_messages("lines", new_ids(n), lines, ["json"] * n, [None] * n, [0] * n, [0] * n)
        yield batch_converter(self.schema, OPTIONS)(page, "lines/1/0")


class Moments(DataSource):
    """A sink that writes down how long each row was under way: option `file`, of one line each."""

    @classmethod
    def name(cls) -> str:
        return "bench_moments"

    def streamWriter(self, schema: StructType, overwrite: bool) -> MomentsWriter:
        return MomentsWriter(Path(self.options["file"]))


class MomentsWriter(DataSourceStreamArrowWriter):
    """Takes the moment first, then looks at what it got."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for batch in iterator:
            came = time.monotonic()
            taken = [under_way(came, json.loads(text)) for text in batch.column("payload").to_pylist()]
            with self.file.open("a") as file:
                file.writelines(f"{one}\n" for one in taken)
        return WriterCommitMessage()


def to_sink(stream: Any, push: Callable[[dict[str, float]], object], folder: Path, n: int) -> list[float]:
    """From before a push until the sink of a query on this stream has the row."""
    name = uuid.uuid4().hex[:8]
    file = folder / f"moments-{name}"
    file.touch()
    writer = stream.select("payload").writeStream.format("bench_moments").option("file", str(file))
    query = writer.option("checkpointLocation", str(folder / f"checkpoint-{name}")).start()

    def await_rows(wanted: int) -> list[float]:
        end = time.monotonic() + PATIENCE
        while len(came := file.read_text().split()) < wanted:
            if not query.isActive or time.monotonic() > end:
                raise SystemExit(f"a query of a benchmark gave {len(came)} rows of {wanted}: {query.exception()}")
            time.sleep(0.02)
        check(len(came), wanted)
        return [float(one) for one in came]

    try:
        for number, pause in enumerate(pauses(n, TO_SPARK)):
            if number <= BEFORE:  # the first batch takes seconds: it starts the workers
                await_rows(number)
            time.sleep(pause)
            push({"sent": time.monotonic()})
        came = await_rows(BEFORE + n)
        query.processAllAvailable()  # else the last batch is stopped on its way to the log
        return came[BEFORE:]
    finally:
        query.stop()


# --- what was found -------------------------------------------------------------------------------------------------


def measure(what: str, spark: SparkSession, store: str, url: str, folder: Path, n: int) -> Round:
    """Milliseconds of `n` messages, of one of the four."""
    if what == DRIVER:
        return {DRIVER: by_driver(store, url, folder, n)}
    if what == SOURCE:
        lines = folder / f"lines-{uuid.uuid4().hex[:8]}"
        with lines.open("ab", buffering=0) as file:
            stream = spark.readStream.format("bench_lines").option("file", str(lines)).load()
            write = file.write
            return {SOURCE: to_sink(stream, lambda one: write(json.dumps(one).encode() + b"\n"), folder, n)}
    queue = f"bench{uuid.uuid4().hex[:8]}"
    with Queue(url, queue) as mine:
        try:
            if what == CLIENT:
                return to_client(url, queue, n)
            options: dict[str, Any] = {"url": url, "queue": queue, "numPartitions": 1}
            return {QUEUE: to_sink(spark.readStream.format("queue").options(**options).load(), mine.push, folder, n)}
        finally:
            mine.store.drop(queue)


def summary(rounds: Sequence[Round]) -> dict[str, Any]:
    """Of each that was measured the median and the 99th percentile in ms, of all rounds together; and `times`.

    That is how many times as long a message is under way from the queue as from Spark's own source: the median of
    the ratios within a round.
    """
    told: dict[str, Any] = {}
    for what in TOLD:
        taken = [ms for one in rounds for ms in one[what]]
        told[what] = {
            "median": statistics.median(taken),
            "p99": statistics.quantiles(taken, n=100, method="inclusive")[98],
        }
    ratios = (statistics.median(one[QUEUE]) / statistics.median(one[SOURCE]) for one in rounds)
    return told | {"times": statistics.median(ratios)}


def table(found: dict[str, dict[str, Any]]) -> Table:
    """The summaries of the stores, to be told."""
    heads = (
        "the push call", "and then until a client has it", "both", "the bare driver: insert and claim",
        "Spark, from the queue", "Spark, from a source",
    )  # fmt: skip
    made: Table = [("ms: median, 99th percentile", *heads, "times as long through Spark")]
    for store, told in found.items():
        pairs = (told[what] for what in TOLD)
        made.append((store, *(f"{one['median']:.1f}, {one['p99']:.1f}" for one in pairs), f"{told['times']:.2f}"))
    return made


def main() -> int:
    parser = arguments(__doc__ or "", messages=70, rounds=3, of="messages per round, one at a time")
    parser.add_argument("--docs", action="store_true", help="renew docs/benchmarks.md")
    args = parser.parse_args()
    spark = session()
    spark.dataSource.register(Lines)
    spark.dataSource.register(Moments)
    rounds: dict[str, list[Round]] = {}
    with tempfile.TemporaryDirectory(prefix="spark-queue-bench-") as name:
        urls = databases(name, args.only or list(STORES))
        for number in range(args.rounds + 1):
            for store, url in urls.items():
                one: Round = {}
                for what in turns((DRIVER, CLIENT, QUEUE, SOURCE), number):
                    one |= measure(what, spark, store, url, Path(name), args.messages)
                say(f"{f'round {number}' if number else 'warm-up'} {store}: " + ", ".join(
                    f"{what} {statistics.median(taken):.1f} ms" for what, taken in one.items()
                ))  # fmt: skip
                if number:
                    rounds.setdefault(store, []).append(one)
    found = {store: summary(of_store) for store, of_store in rounds.items()}
    told = f"{setup(spark)}; {args.messages} messages in each of {args.rounds} rounds"
    spark.stop()
    print(told, *aligned(table(found)), WANTED, sep="\n")
    keep(args.json, {"setup": told, "stores": found})
    if args.docs:
        renew("latency", "\n".join([f"Measured with {told}. {WANTED}", "", *piped(table(found))]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
