"""What all benchmarks share: the messages, the databases, the session, and the check that the work was done."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT)]
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ["PYTHONPATH"] = os.pathsep.join([*sys.path[:2], os.environ.get("PYTHONPATH", "")])

import pyarrow as pa
from pyspark.sql import SparkSession

from spark_queue import __version__
from spark_queue.message import PUSHES, pushes
from tests.services import service_urls

STORES = ("sqlite", "redis", "mongodb")

#: A message of 100 bytes, in Spark SQL over a column `id`; `payloads` makes the same.
DOCUMENT = "to_json(named_struct('n', id, 'carrier', 'UA', 'origin', 'EWR', 'text', repeat('x', 50)))"


def payloads(n: int) -> list[bytes]:
    """`n` JSON documents of 100 bytes, the same that DOCUMENT makes."""
    return [b'{"n":%d,"carrier":"UA","origin":"EWR","text":"%s"}' % (i, b"x" * 50) for i in range(n)]


def documents(texts: list[bytes]) -> pa.RecordBatch:
    """JSON documents as messages to be pushed."""
    batch = pushes(texts)
    kind = batch.schema.get_field_index("payload_kind")
    return batch.set_column(kind, PUSHES.field("payload_kind"), pa.repeat("json", len(texts)))


def databases(folder: str, wanted: list[str]) -> dict[str, str]:
    """The URLs of the stores that are wanted: SQLite in this folder, the servers of the tests."""
    urls = {"sqlite": f"sqlite:///{folder}/queues.db"} | service_urls()
    if missing := [one for one in wanted if one not in urls]:
        raise SystemExit(f"no server for {', '.join(missing)}: type 'make services'")
    return {one: urls[one] for one in wanted}


def session() -> SparkSession:
    """A Spark session on two cores, as quiet as it can be."""
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def setup(spark: SparkSession) -> str:
    """What a benchmark ran on, in words."""
    python = platform.python_version()
    return f"spark_queue {__version__}, Spark {spark.version}, Python {python}, {os.cpu_count()} cores"


def arguments(doc: str, *, messages: int, rounds: int) -> argparse.ArgumentParser:
    """What every benchmark can be told."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=STORES, action="append", help="this store only (repeatable)")
    parser.add_argument("--messages", type=int, default=messages, help="messages per round (default %(default)s)")
    parser.add_argument(
        "--rounds", type=int, default=rounds, help="rounds after one to warm up (default %(default)s)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    return parser


def keep(file: Path | None, results: dict[str, Any]) -> None:
    """Write the results to a file, if that is wanted."""
    if file is not None:
        file.write_text(json.dumps(results, indent=2) + "\n")


def check(got: int, wanted: int) -> None:
    """Rates of work that was not done count for nothing."""
    if got != wanted:
        raise SystemExit(f"a benchmark lost or doubled messages: {got:,} instead of {wanted:,}")


def say(*words: Any) -> None:
    """Progress goes to stderr: stdout is for the results."""
    print(*words, file=sys.stderr, flush=True)
