"""Measure latency: from a push until a waiting client, or the sink of a query, has the message.

    python bench/latency.py                          all three stores
    python bench/latency.py --only redis --docs      one store; --docs updates docs/benchmarks.md

Messages are pushed one at a time, at random moments, so that they hit every phase of a poll. Each
contains the time just before its push. The receiver subtracts that from its own time, as all
processes of a machine share the monotonic clock.

* client: another process waits with `reserve(1, timeout=…)`.
* driver: the bare driver inserts and claims a message in one process, with the same durability. A
  queue that writes both durably before it notifies a client cannot be faster.
* queue: a Spark query reads the queue, and its sink in Python has the row.
* source: the same query reads a source in Python that has a row at once: the latency of Spark.

Each round starts new queries and clients, whose first messages do not count.
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

#: Ways that are measured in each round: the bare driver, a waiting client, and the sink of a Spark
#: query on the queue and on a source that has rows at once.
DRIVER, CLIENT, QUEUE, SOURCE = "driver", "client", "queue", "source"

#: Parts of the client's latency: the push call, and the time after it until the message arrives.
PUSH, AFTER = "push", "after"

#: Columns of the table, in order.
COLUMNS = (PUSH, AFTER, CLIENT, DRIVER, QUEUE, SOURCE)

#: Minimum and maximum seconds between two pushes, to a client and to Spark.
TO_CLIENT, TO_SPARK = (0.05, 0.3), (0.2, 0.7)

#: Messages that warm up and do not count, and seconds within which each message must arrive.
WARM_UP, TIMEOUT_S = 5, 60

WANTED = "Targets: a median below 5 ms to a waiting client, and at most 1.3 times as long through Spark."

#: Milliseconds of each message, by column.
Round = dict[str, list[float]]


def pauses(n: int, between: tuple[float, float]) -> list[float]:
    """Return the pause before each message, warm-up included, the same in every round."""
    uniform = random.Random(n).uniform
    return [uniform(*between) for _ in range(WARM_UP + n)]


# --- a waiting client -----------------------------------------------------------------------------


def by_driver(scheme: str, url: str, folder: Path, n: int) -> list[float]:
    """Return the milliseconds that the bare driver takes to insert and claim each message."""
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
    return taken[WARM_UP:]


def to_client(url: str, queue: str, n: int) -> Round:
    """Measure the time until a waiting process has each message, and the part of the push call."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    waiter = context.Process(target=wait, args=(url, queue, WARM_UP + n, theirs), daemon=True)
    waiter.start()
    theirs.close()  # so that `recv` fails if the waiter ends
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
    return {name: taken[WARM_UP:] for name, taken in found.items()}


def wait(url: str, queue: str, n: int, pipe: Connection) -> None:
    """Report readiness. Then wait for `n` messages one by one, and report the latency of each."""
    with Queue(url, queue) as mine:
        mine.sizes()  # connects
        pipe.send(None)
        for _ in range(n):
            taken = mine.reserve(1, timeout=TIMEOUT_S)
            came = time.monotonic()
            check(len(taken), 1)
            mine.commit(*taken)
            pipe.send(latency_ms(came, taken[0].payload))


def latency_ms(came: float, payload: Any) -> float:
    """Return the milliseconds from the time in the payload to `came`."""
    return (came - float(payload["sent"])) * 1000


# --- through Spark --------------------------------------------------------------------------------


class Lines(Rows):
    """A source of the lines that are appended to a file. Option: `file`."""

    @classmethod
    def name(cls) -> str:
        return "bench_lines"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return LinesReader(schema, Path(self.options["file"]))


class LinesReader(DataSourceStreamReader):
    """A reader whose offsets are positions in the file, in bytes."""

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
        yield batch_converter(self.schema, OPTIONS.content)(page, "lines/1/0")


class Moments(DataSource):
    """A sink that writes the latency of each row as a line to a file. Option: `file`."""

    @classmethod
    def name(cls) -> str:
        return "bench_moments"

    def streamWriter(self, schema: StructType, overwrite: bool) -> MomentsWriter:
        return MomentsWriter(Path(self.options["file"]))


class MomentsWriter(DataSourceStreamArrowWriter):
    """Takes the time of a batch before it parses the rows."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for batch in iterator:
            came = time.monotonic()
            taken = [latency_ms(came, json.loads(text)) for text in batch.column("payload").to_pylist()]
            with self.file.open("a") as file:
                file.writelines(f"{one}\n" for one in taken)
        return WriterCommitMessage()


def to_sink(stream: Any, push: Callable[[dict[str, float]], object], folder: Path, n: int) -> list[float]:
    """Return the milliseconds from each push until the sink of a query has the row."""
    name = uuid.uuid4().hex[:8]
    file = folder / f"moments-{name}"
    file.touch()
    writer = stream.select("payload").writeStream.format("bench_moments").option("file", str(file))
    query = writer.option("checkpointLocation", str(folder / f"checkpoint-{name}")).start()

    def await_rows(wanted: int) -> list[float]:
        end = time.monotonic() + TIMEOUT_S
        while len(came := file.read_text().split()) < wanted:
            if not query.isActive or time.monotonic() > end:
                raise SystemExit(f"a query of the benchmark has {len(came)} of {wanted} rows: {query.exception()}")
            time.sleep(0.02)
        check(len(came), wanted)
        return [float(one) for one in came]

    try:
        for number, pause in enumerate(pauses(n, TO_SPARK)):
            if number <= WARM_UP:  # the first batch starts the workers, which takes seconds
                await_rows(number)
            time.sleep(pause)
            push({"sent": time.monotonic()})
        came = await_rows(WARM_UP + n)
        query.processAllAvailable()  # so that the last batch is committed before the stop
        return came[WARM_UP:]
    finally:
        query.stop()


# --- results --------------------------------------------------------------------------------------


def measure(what: str, spark: SparkSession, store: str, url: str, folder: Path, n: int) -> Round:
    """Return the milliseconds of `n` messages of one of the four ways."""
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
    """Return median and 99th percentile of each column in ms, over all rounds, and `times`.

    `times` is the latency from the queue relative to that from a source that has rows at once: the
    median of the ratios within a round.
    """
    found: dict[str, Any] = {}
    for what in COLUMNS:
        taken = [ms for one in rounds for ms in one[what]]
        found[what] = {
            "median": statistics.median(taken),
            "p99": statistics.quantiles(taken, n=100, method="inclusive")[98],
        }
    ratios = (statistics.median(one[QUEUE]) / statistics.median(one[SOURCE]) for one in rounds)
    return found | {"times": statistics.median(ratios)}


def table(found: dict[str, dict[str, Any]]) -> Table:
    """Return the table of the summaries of all stores."""
    heads = (
        "the push call", "and then until a client has it", "both", "the bare driver: insert and claim",
        "Spark, from the queue", "Spark, from a source",
    )  # fmt: skip
    made: Table = [("ms: median, 99th percentile", *heads, "times as long through Spark")]
    for store, columns in found.items():
        pairs = (columns[what] for what in COLUMNS)
        made.append((store, *(f"{one['median']:.1f}, {one['p99']:.1f}" for one in pairs), f"{columns['times']:.2f}"))
    return made


def main() -> int:
    parser = arguments(__doc__ or "", messages=70, rounds=3, of="messages per round, one at a time")
    parser.add_argument("--docs", action="store_true", help="update docs/benchmarks.md")
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
    ran = f"{setup(spark)}; {args.messages} messages in each of {args.rounds} rounds"
    spark.stop()
    print(ran, *aligned(table(found)), WANTED, sep="\n")
    keep(args.json, {"setup": ran, "stores": found})
    if args.docs:
        renew("latency", "\n".join([f"Measured with {ran}. {WANTED}", "", *piped(table(found))]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
