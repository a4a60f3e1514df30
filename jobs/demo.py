"""Send 336,776 real flights through a graph of queues, and check that each arrives once.

`make demo` runs it, `QUICK=1 make demo` with a tenth of the flights. The graph is
conf/flights.yaml. During the run it kills one process. It deletes and recreates the folder `.demo`
of the checkout, which contains all its files.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

import _job as job
import exchange
import push
from _flights import ALL, Proof, proven, unpack

from spark_queue.admin import graph_sizes
from spark_queue.errors import QueueError, UsageError
from spark_queue.graph.loader import load_graph
from spark_queue.graph.model import Graph
from spark_queue.graph.rendering import svg, tree
from spark_queue.stores import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_queue.runner.graph import ExchangeGraph

ROOT = Path(__file__).resolve().parents[1]
FOLDER, CONF = ROOT / ".demo", ROOT / "conf" / "flights.yaml"
FLIGHTS, PICTURE = FOLDER / "flights.csv", FOLDER / "graph.svg"

#: The exchange whose process is killed: all flights go through it.
VICTIM = "by_delay"

#: Seconds within which Spark must start, or restart, the processes of a query.
START_TIMEOUT_S = 300


class Watch(job.Watch):
    """Repeats the last state, with its duration, until a new state is shown."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._shown, self._began, self._renewed = "", 0.0, 0.0
        self._lock, self._done = threading.RLock(), threading.Event()

    def __enter__(self) -> Self:
        super().__enter__()
        threading.Thread(target=self._repeat, name="progress", daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        with self._lock:
            super().__exit__(*error)

    def show(self, text: str) -> None:
        """Show the state of the run, and store it."""
        with self._lock:
            self._renewed = time.monotonic()
            if text != self._shown:
                self._shown, self._began = text, self._renewed
            super().show(text)

    def print_result(self, text: str) -> None:
        """Print a result. It ends the state that was shown."""
        with self._lock:
            self._shown = ""
            super().print_result(text)

    def _repeat(self) -> None:
        while not self._done.wait(job.TICK):
            with self._lock:
                now = time.monotonic()
                if self._shown and now - self._renewed >= 2 * job.TICK and not self._done.is_set():
                    super().show(f"{self._shown}, {now - self._began:.0f} s")


def main() -> int:
    """Run the demo. Return its exit code."""
    parser = argparse.ArgumentParser(prog="demo.py", description="Send flights through a graph of queues.")
    part = parser.add_mutually_exclusive_group()
    part.add_argument(
        "--flights", type=job.count, metavar="N", help=f"only the first N flights (default: all {ALL:,})"
    )
    part.add_argument("--quick", action="store_true", help="only the first tenth of the flights")
    args = parser.parse_args()
    with Watch("demo.py") as watch:
        try:
            return demo(watch, ALL // 10 if args.quick else args.flights)
        except QueueError as error:
            watch.log(str(error))
            return 2 if isinstance(error, UsageError) else 1


def demo(watch: job.Watch, flights: int | None) -> int:
    """Run all steps. Return the exit code."""
    began = time.monotonic()
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    os.environ["FLIGHTS"] = str(FOLDER)
    graph = load_graph(CONF)
    PICTURE.write_text(svg(graph))  # before the run, because it fails without Graphviz
    watch.show("unpacking the flights, and starting Spark")
    with ThreadPoolExecutor(1) as pool:
        unpacked = pool.submit(unpack, FLIGHTS, flights)
        spark = job.session("demo")
        rows = unpacked.result()
    spark.conf.set("spark.sql.shuffle.partitions", spark.sparkContext.defaultParallelism)
    watch.listen()
    cores = job.plural(spark.sparkContext.defaultParallelism, "core")
    watch.print_result(f"1. {rows:,} real flights that left New York in 2013 are in {here(FLIGHTS)}")
    watch.print_result(f"2. Spark {spark.version} runs on {cores} ({since(began)})")
    pushed = push.work(spark, push.prepare(push.parser().parse(push_command(graph))), watch).facts
    watch.print_result(
        f"3. {pushed['rows']:,} flights written to the queue departures in {pushed['seconds']:.1f} s "
        f"({pushed['rate']:,.0f} flights written per second)"
    )
    if watch.stopped:
        return watch.code
    flow(spark, graph, rows, watch)
    if watch.stopped:
        return watch.code
    watch.show("comparing the queues with the file")
    proofs = list(proven(spark, graph, FLIGHTS))
    watch.show("stopping Spark")
    spark.stop()
    good = all(one.holds for one in proofs)
    verdict = "Every flight is where it belongs, once, although a process was killed" if good else "A proof FAILED"
    watch.print_result(f"5. {verdict} ({since(began)} after the start)")
    report(watch, proofs)
    show_graph(watch, graph)
    spark_queue = shlex.quote(here(Path(sys.executable).with_name("spark-queue")))
    root = ["--checkpoint-root", str(FOLDER / "checkpoints")]
    watch.print_result("\nNext: look at the graph, push the flights again, and let them flow:")
    watch.print_result(f"  {spark_queue} graph {here(CONF)}")
    watch.print_result(f"  {typed('push.py', push_command(graph))}")
    watch.print_result(f"  {typed('exchange.py', [here(CONF), '--available-now', *root])}")
    return 0 if good else 1


def push_command(graph: Graph) -> list[str]:
    """Return the arguments of `push.py`."""
    url = graph.namespaces["airport"].url
    return [str(FLIGHTS), "--url", url, "--queue", "departures", "--id", "id", "--headers", "carrier,origin"]


# --- the flow -------------------------------------------------------------------------------------


def flow(spark: SparkSession, graph: Graph, rows: int, watch: job.Watch) -> None:
    """Run all exchanges, and a board, until no message is left. Kill one process during the run."""
    from spark_queue import ExchangeGraph
    from spark_queue.runner.traffic import Traffic, load_traffic

    began = time.monotonic()
    watch.print_result(f"4. The graph starts: {len(graph.exchanges)} exchanges, each a streaming query, exactly once")
    watch.show("starting the exchanges")
    running = ExchangeGraph(graph, str(FOLDER / "checkpoints"))

    def run() -> None:
        with ThreadPoolExecutor(1) as pool:
            drained = pool.submit(running.drain, spark)
            kill_reader(running, graph, rows, drained.done, watch)
            # Only VICTIM writes late flights to the board.
            wait_for(watch, lambda: drained.done() or running.status()[VICTIM].state == "finished")
            count_late_flights(spark, graph)
            drained.result()
        while not watch.stopped and left_in(graph):
            time.sleep(job.BATCH_TICK)
            running.drain(spark)  # flights that are read again later

    exchange.watched(run, running, watch)
    if watch.stopped:
        return
    traffic: dict[str, Traffic] = reduce(or_, (load_traffic(one.url) for one in graph.namespaces.values()))
    read = sum(one.received for one in traffic.values())
    written = sum(sum(one.pushed.values()) for one in traffic.values())
    seconds = time.monotonic() - began
    watch.print_result(
        f"   {read:,} messages read and {written:,} written by {len(traffic)} exchanges in {seconds:.1f} s "
        f"({read / seconds:,.0f} messages read per second)"
    )
    PICTURE.write_text(svg(graph, graph_sizes(graph)[0], traffic))


def kill_reader(running: ExchangeGraph, graph: Graph, rows: int, ended: Callable[[], bool], watch: job.Watch) -> None:
    """Kill the reader process of an exchange while it works. Wait until the exchange runs again.

    `ended`: whether the run has ended.
    """
    from spark_queue.spark.read.batch_size import FIRST_ROWS
    from spark_queue.stores.services.owner import live_consumer

    victim = graph.exchanges[VICTIM]
    first_batch = FOLDER / "checkpoints" / VICTIM / "offsets" / "0"
    with open_store(graph.namespaces[victim.src.ns].url) as store:

        def find_target() -> tuple[int, str] | None:
            """Return the process to kill, and how far it is."""
            sizes = store.sizes(victim.src.queue)
            done = rows - sizes.total
            # Few flights are a single batch.
            if not ((done or rows <= FIRST_ROWS) and first_batch.exists() and sizes.reserved):
                return None
            if (reader := live_consumer(store, victim.src.queue, VICTIM)) is None:
                return None
            return reader[1].pid, f"{done:,} of {rows:,} flights have passed, {sizes.reserved:,} are reserved"

        target = wait_for(watch, lambda: find_target() or ended())
    if not isinstance(target, tuple):
        return
    pid, progress = target
    watch.print_result(f"   Now one process is killed, to show that nothing is lost: {progress}")
    watch.print_result(
        f"   kill -9 {pid}  (the Python process that reserves and commits the messages of exchange {VICTIM})"
    )
    with suppress(ProcessLookupError):  # it has just ended by itself
        os.kill(pid, signal.SIGKILL)
    killed = time.monotonic()
    if wait_for(watch, lambda: ended() or ((one := running.status()[VICTIM]).restarts and one.state == "running")):
        watch.print_result(f"   The query failed, and runs again from its checkpoint {since(killed)} after the kill")


Found = TypeVar("Found")


def wait_for(watch: job.Watch, check: Callable[[], Found]) -> Found | None:
    """Return the first true result of `check`, or `None` if the user stops the run.

    Raises `QueueError` after START_TIMEOUT_S.
    """
    end = time.monotonic() + START_TIMEOUT_S
    while not watch.stopped:
        if found := check():
            return found
        if time.monotonic() > end:
            raise QueueError(f"exchange {VICTIM} does not run after {START_TIMEOUT_S} s")
        time.sleep(job.BATCH_TICK)
    return None


def left_in(graph: Graph) -> int:
    """Return the number of messages that wait for an exchange."""
    left = 0
    for place in dict.fromkeys(one.src for one in graph.exchanges.values()):
        with open_store(graph.namespaces[place.ns].url) as store:
            left += store.sizes(place.queue, 1).total
    return left


def count_late_flights(spark: SparkSession, graph: Graph) -> None:
    """Count the late flights of each carrier, and add up their delays, in the table `board`."""
    from pyspark.sql import functions as F

    from spark_queue.spark import start_in_turn

    late = (
        spark.readStream.schema("payload STRUCT<carrier: STRING, dep_delay: INT>")
        .format("queue")
        .option("url", graph.namespaces["office"].url)
        .option("queue", "board")
        .option("delivery", "exactly-once")
        .option("maxRecordsPerTrigger", ALL)  # Spark 4.0 and 4.1 run one batch in a start
        .load()
    )
    counted = (
        late.groupBy("payload.carrier")
        .agg(F.count(F.lit(1)).alias("flights"), F.sum("payload.dep_delay").alias("minutes"))
        .writeStream.format("memory")
        .queryName("board")
        .outputMode("complete")
        .option("checkpointLocation", str(FOLDER / "checkpoints" / "board"))
    )
    start_in_turn(spark, counted.trigger(availableNow=True).start).awaitTermination()


# --- the report -----------------------------------------------------------------------------------


def report(watch: job.Watch, proofs: list[Proof]) -> None:
    """Print the flights that belong in each queue, and those found there."""
    words = ["queue", "flights in the file", "found", "wrong", ""]
    lines = [
        [one.what, *(f"{number:,}" for number in (one.wanted, one.found, one.wrong)), "ok" if one.holds else "FAILED"]
        for one in proofs
    ]
    try:
        from rich.console import Console
        from rich.table import Column, Table
    except ImportError:
        for line in [words, *lines]:
            watch.print_result("{:<30}  {:>19}  {:>12}  {:>6}  {}".format(*line))
        return
    table = Table(words[0], *(Column(word, justify="right") for word in words[1:4]), "")
    for line in lines:
        table.add_row(*line, style="green" if line[-1] == "ok" else "bold red")
    Console().print(table)


def show_graph(watch: job.Watch, graph: Graph) -> None:
    """Print the graph as text, and the path of its picture."""
    watch.print_result("\nThe graph, with the messages in its queues now:")
    for depth, text in tree(graph, graph_sizes(graph)[0]):
        watch.print_result(f"  {'  ' * depth}{text}")
    watch.print_result(f"\nIts picture, with the messages that went along each edge: {here(PICTURE)}")


def since(began: float) -> str:
    """Return the seconds since `began` as text."""
    return f"{time.monotonic() - began:.1f} s"


def here(path: Path) -> str:
    """Return the shortest path from the current folder."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


def typed(name: str, arguments: list[str]) -> str:
    """Return the command for a user to type."""
    words = [here(Path(sys.executable)), here(Path(__file__).with_name(name)), *arguments]
    return shlex.join(word.replace(str(FOLDER), here(FOLDER)) for word in words)


if __name__ == "__main__":
    sys.exit(main())
