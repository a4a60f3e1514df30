"""Push files into a queue: each row becomes a message."""

from __future__ import annotations

import argparse
import re
import sys
import time
from dataclasses import dataclass
from glob import glob
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import _job as job

from spark_queue.errors import UsageError, did_you_mean
from spark_queue.options.masking import mask
from spark_queue.options.values import EXACTLY_ONCE

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructField

    from spark_queue.stores.types import Sizes

EPILOG = """\
What a row becomes:
  csv, parquet  a JSON object with one field per column; NULL fields are left out
  json          one JSON value per line, as it is
  text          each line is a payload of plain text
Columns of --id and --headers also stay in the payload. All rows of a format become visible
together, or none. With --option delivery=at-least-once each row becomes visible when it is pushed.
A message is skipped if the queue holds its id, so you can repeat a push with --id.

Examples:
  python jobs/push.py flights.csv --url sqlite:///queues.db --queue departures
  python jobs/push.py 2013/*.parquet --url mongodb://localhost/air --queue departures --id key --headers carrier,to
  python jobs/push.py lines.txt --url redis://localhost/0 --queue lines --delay 30s --limit 1000
  python jobs/push.py data.csv --read-option sep=';' --read-option nullValue=NA --url sqlite:///queues.db --queue q
  python jobs/push.py orders.parquet --payload body --option payloadFormat=text --url sqlite:///queues.db --queue q
  spark-submit --master yarn --py-files jobs/_job.py jobs/push.py hdfs:///orders --format json --url … --queue orders

Exit code: 0 done, 1 a failure, 2 the call is wrong, 130 or 143 stopped by Ctrl-C or SIGTERM.
"""

FORMATS = ("csv", "json", "parquet", "text")
SUFFIXES = {
    ".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".parquet": "parquet", ".text": "text",
    ".txt": "text",
}  # fmt: skip
PACKED = {".gz", ".bz2", ".zst", ".snappy", ".lz4", ".deflate"}

#: CSV as most programs write it. All files must have the same header, which Spark checks with
#: enforceSchema=false.
CSV = {"header": "true", "inferSchema": "true", "escape": '"', "enforceSchema": "false"}


def parser() -> job.Parser:
    """Return the parser of the command line."""
    made = job.Parser("push.py", "Push rows of files into a queue, with Spark.", EPILOG)
    made.add_argument("files", nargs="+", metavar="FILE", help="files or folders of csv, json, parquet or text")
    made.add_argument("--format", choices=FORMATS, help="the format of the files (default: by their suffix)")
    made.add_argument(
        "--read-option",
        type=job.pair,
        action="append",
        default=[],
        metavar="K=V",
        help="an option of Spark's reader; repeatable",
    )
    made.add_argument("--payload", metavar="COL", help="the column that becomes the payload (default: the whole row)")
    made.add_argument("--id", metavar="COL", help="the column that becomes the id (default: new ids)")
    made.add_argument("--headers", type=job.names, default=[], metavar="COL,COL", help="columns that become headers")
    made.add_argument("--delay", type=job.duration_ms, metavar="30s", help="time until the messages can be reserved")
    made.add_argument("--limit", type=job.count, metavar="N", help="maximum number of rows")
    return made


@dataclass(frozen=True)
class Push:
    """A push, checked as far as possible without Spark."""

    args: argparse.Namespace
    files: dict[str, list[str]]  # by format
    sink: dict[str, str]
    gauge: job.Gauge
    dead: job.Gauge | None


def prepare(args: argparse.Namespace) -> Push:
    """Check a call. Raises `UsageError`, or `StoreError` if the store is unavailable."""
    sink, options = job.checked(dict(args.option) | {"url": args.url, "queue": args.queue}, "push")
    files: dict[str, list[str]] = {}
    for file in args.files:
        check_file(file)
        files.setdefault(args.format or format_of(file), []).append(file)
    dead = options.dead_letter_queue_of(args.queue) if options.on_bad_row == "deadLetter" else None
    gauge = job.Gauge(sink["url"], args.queue, staging=options.delivery == EXACTLY_ONCE)
    return Push(args, files, sink, gauge, job.Gauge(sink["url"], dead) if dead else None)


def check_file(file: str) -> None:
    """Raise `UsageError` if a local file is missing. Under spark-submit, Spark checks files."""
    if not (job.SUBMITTED or re.match(r"\w[\w+.-]+:", file) or glob(file)):
        beside = [str(one) for one in Path(file).parent.glob("*")]
        raise UsageError(f"no file or folder {file!r}{did_you_mean(file, beside)}")


def format_of(file: str) -> str:
    """Return the format of a file, or of the first file of a folder, by its suffix.

    Raises `UsageError`.
    """
    inside = (one for one in sorted(Path(file).rglob("*")) if one.is_file() and not one.name.startswith(("_", ".")))
    for one in (Path(file), *islice(inside, 1)):
        suffixes = [suffix.lower() for suffix in one.suffixes if suffix not in PACKED]
        if suffixes and suffixes[-1] in SUFFIXES:
            return SUFFIXES[suffixes[-1]]
    raise UsageError(f"{file!r}: unknown suffix; set --format {'|'.join(FORMATS)}")


# --- rows into messages ---------------------------------------------------------------------------


def work(spark: SparkSession, push: Push, watch: job.Watch) -> job.Summary:
    """Push the files, and return the summary."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    began, rows, whole = time.monotonic(), 0, True
    watch.show("reading the files")
    made = messages(spark, push)  # of all files, so that nothing is pushed if a column is missing
    with push.gauge as gauge:

        def state() -> str:
            grown = max(gauge.sizes().total - gauge.first.total, rows) + gauge.staged
            tracker = spark.sparkContext.statusTracker()
            stages = [one for id in tracker.getActiveStageIds() if (one := tracker.getStageInfo(id))]
            left = job.plural(sum(one.numTasks - one.numCompletedTasks for one in stages), "part")
            word = "staged" if gauge.staged else "pushed"
            pushed = f"{grown:,} {word}, {grown / (time.monotonic() - began):,.0f} per second" if grown else "pushing"
            return f"{pushed}; {left} of the files left"

        for form, frame in made.items():
            seen = Observation()
            part = frame if push.args.limit is None else frame.limit(push.args.limit - rows)
            options = {"payloadFormat": "text"} | push.sink if form == "text" else push.sink
            writer = part.observe(seen, F.count(F.lit(1)).alias("rows")).write.format("queue").options(**options)
            whole = not watch.stopped and job.run_batch(spark, writer.mode("append").save, watch, state)
            if not whole:
                break
            rows += seen.get["rows"]
        sizes = gauge.sizes(now=True)
        if not whole:
            rows = max(rows, sizes.total - gauge.first.total)
    return summary(push, watch, rows, time.monotonic() - began, sizes, whole=whole)


def summary(push: Push, watch: job.Watch, rows: int, seconds: float, sizes: Sizes, *, whole: bool) -> job.Summary:
    """Return the summary of the run: text and facts."""
    args, dead = push.args, 0
    rate = f"{rows / seconds:,.0f} rows pushed per second"
    text = f"{job.plural(rows, 'row')} pushed to {args.queue} in {seconds:.1f} s ({rate})"
    if push.dead is not None:
        with push.dead as gauge:
            dead = gauge.sizes(now=True).total - gauge.first.total
        text += f"; {job.plural(dead, 'bad row')} of them to {push.dead.queue}" if dead else ""
    text += f"; the queue holds {job.describe(sizes)}"
    if not whole:
        again = "the same call" if args.id else "the other rows: without --id, the same call would push these twice"
        text = f"stopped: about {text}; to go on, push {again}" if rows else "stopped: nothing pushed"
    facts = {
        "job": "push", "url": mask(push.sink["url"]), "queue": args.queue, "files": args.files, "rows": rows,
        "dead": dead, "seconds": round(seconds, 3), "rate": round(rows / seconds, 1), "holds": job.states(sizes),
        "stopped": watch.name_of_signal,
    }  # fmt: skip
    return job.Summary(text, facts, 0 if whole else watch.code)


def messages(spark: SparkSession, push: Push) -> dict[str, DataFrame]:
    """Return the messages of the files by format. Raises `UsageError` for missing columns."""
    from pyspark.sql import functions as F

    from spark_queue.spark.write.columns import PUSH_COLUMN_TYPES, check_write_schema

    args = push.args
    wanted = [("--payload", args.payload), ("--id", args.id), *(("--headers", name) for name in args.headers)]
    wanted = [(flag, name) for flag, name in wanted if name]
    frames: dict[str, DataFrame] = {}
    for form, files in push.files.items():
        rows = read(spark, form, files, dict(args.read_option), fields=bool(wanted))
        row = rows.select("row.*").schema
        for flag, name in wanted:
            if name not in row.names:
                hint = did_you_mean(name, row.names) or f"; the columns are {', '.join(row.names)}"
                raise UsageError(f"{flag}: no column {name!r}{hint}")
        columns = {
            "payload": payload(F.col("row")[args.payload], row[args.payload]) if args.payload else F.col("whole")
        }
        if args.id:
            columns["id"] = F.col("row")[args.id].cast("string")
        if args.headers:
            pairs = [part for name in args.headers for part in (F.lit(name), F.col("row")[name].cast("string"))]
            columns["headers"] = F.map_filter(F.create_map(*pairs), lambda _, value: value.isNotNull())
        if args.delay is not None:
            columns["delay"] = F.lit(args.delay / 1000)
        made = rows.select(*(value.alias(name) for name, value in columns.items()))
        check_write_schema(made.schema, PUSH_COLUMN_TYPES, required=["payload"])
        frames[form] = made
    return frames


def read(spark: SparkSession, form: str, files: list[str], options: dict[str, str], *, fields: bool) -> DataFrame:
    """Return rows as two columns: `whole` (the payload) and `row` (the fields, if `fields`)."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructType

    if form in ("json", "text"):
        lines = spark.read.options(**({} if form == "json" else options)).text(files)
        if form == "text":
            return lines.select(F.col("value").alias("whole"), F.struct("value").alias("row"))
        schema = spark.read.options(**options).json(files).schema if fields else StructType()
        parsed = F.from_json("value", schema, options) if fields else F.struct()
        return lines.where(F.trim("value") != "").select(F.col("value").alias("whole"), parsed.alias("row"))
    rows = spark.read.format(form).options(**(CSV | options if form == "csv" else options)).load(files)
    return rows.select(F.to_json(F.struct("*")).alias("whole"), F.struct("*").alias("row"))


def payload(column: Column, field: StructField) -> Column:
    """Return a column as payload: numbers and nested values as JSON, text and bytes unchanged."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, BooleanType, MapType, NumericType, StructType

    if isinstance(field.dataType, StructType | MapType | ArrayType):
        return F.to_json(column)
    return column.cast("string") if isinstance(field.dataType, NumericType | BooleanType) else column


if __name__ == "__main__":
    sys.exit(job.run(parser(), prepare, work))
