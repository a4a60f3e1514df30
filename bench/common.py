"""Shared parts of all benchmarks: messages, databases, Spark session, arguments and checks."""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT)]
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*sys.path[:2], os.environ.get("PYTHONPATH")]))

import pyarrow as pa
from pyspark.sql import SparkSession
from raw import batches

from spark_queue import Buckets, __version__
from spark_queue.messages.ids import new_id_array
from spark_queue.messages.message import pushes
from spark_queue.messages.schema import PUSHES
from spark_queue.stores.base import Store
from tests.services import service_urls

T = TypeVar("T")

STORES = ("sqlite", "redis", "mongodb")

#: A message of 100 bytes, in Spark SQL over a column `id`. `payloads` returns the same documents.
DOCUMENT = "to_json(named_struct('n', id, 'carrier', 'UA', 'origin', 'EWR', 'text', repeat('x', 50)))"


#: Messages per push when a queue is filled: ten full buckets.
PART = 10 * Buckets().size


def payloads(n: int) -> list[bytes]:
    """Return `n` JSON documents of 100 bytes, equal to those of DOCUMENT."""
    return [b'{"n":%d,"carrier":"UA","origin":"EWR","text":"%s"}' % (i, b"x" * 50) for i in range(n)]


def documents(texts: Sequence[bytes], delay: int | None = None) -> pa.RecordBatch:
    """Return JSON documents as messages to push, which mature in `delay` ms."""
    batch = pushes(texts, delay=delay)
    kind = batch.schema.get_field_index("payload_kind")
    return batch.set_column(kind, PUSHES.field("payload_kind"), pa.repeat("json", len(texts)))


def fill(store: Store, queue: str, texts: Sequence[bytes], delay: int | None = None) -> None:
    """Push JSON documents, in batches."""
    for part in batches(texts):
        store.push(queue, documents(part, delay))


def push_documents(store: Store, queue: str, n: int, delay: int | None = None) -> None:
    """Push `n` messages of 100 bytes in parts: ten million do not fit into memory.

    The parts have the same payloads, made once, and ids of their own.
    """
    made = documents(payloads(min(PART, n)), delay)
    column = made.schema.get_field_index("id")
    for first in range(0, n, PART):
        rows = made.slice(0, min(PART, n - first))
        store.push(queue, rows.set_column(column, made.schema.field(column), new_id_array(rows.num_rows)))


def databases(folder: str, wanted: list[str]) -> dict[str, str]:
    """Return the URLs of the wanted stores: SQLite in this folder, and the servers of the tests."""
    urls = {"sqlite": f"sqlite:///{folder}/queues.db"} | service_urls()
    if missing := [one for one in wanted if one not in urls]:
        raise SystemExit(f"no server for {', '.join(missing)}: type 'make services'")
    return {one: urls[one] for one in wanted}


def session() -> SparkSession:
    """Return a Spark session on two cores, without UI and progress bar."""
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def setup(spark: SparkSession) -> str:
    """Return the versions and cores of a benchmark with Spark."""
    return setup_of(f"Spark {spark.version}")


def setup_of(*others: str) -> str:
    """Return the versions and cores of a benchmark. `others`: further versions."""
    python = f"Python {platform.python_version()}"
    return ", ".join((f"spark_queue {__version__}", *others, python, f"{os.cpu_count()} cores"))


def turns(steps: Sequence[T], number: int) -> list[T]:
    """Return the steps in an order that differs per round, and is the same in every run."""
    return random.Random(number).sample(steps, len(steps))


def arguments(doc: str, *, messages: int, rounds: int, of: str = "messages per round") -> argparse.ArgumentParser:
    """Return the parser with the flags of all benchmarks. `of`: the help text of --messages."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=STORES, action="append", help="this store only (repeatable)")
    parser.add_argument("--messages", type=int, default=messages, help=f"{of} (default %(default)s)")
    parser.add_argument(
        "--rounds", type=int, default=rounds, help="rounds after one warm-up round (default %(default)s)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to this file")
    return parser


def keep(file: Path | None, results: dict[str, Any]) -> None:
    """Write the results as JSON, if there is a file to write."""
    if file is not None:
        file.write_text(json.dumps(results, indent=2) + "\n")


def check(got: int, wanted: int) -> None:
    """Exit unless the benchmark processed all messages: otherwise its rate means nothing."""
    if got != wanted:
        raise SystemExit(f"the benchmark lost or duplicated messages: {got:,} instead of {wanted:,}")


def say(*words: Any) -> None:
    """Print progress to stderr: stdout is for the results."""
    print(*words, file=sys.stderr, flush=True)
