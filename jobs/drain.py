"""Drain a queue into files, the console or another queue."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import _job as job

from spark_queue.errors import UsageError, did_you_mean
from spark_queue.options.masking import mask
from spark_queue.options.roles import ReadOptions
from spark_queue.options.stream import StreamOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

    from spark_queue.stores.types import Sizes

EPILOG = """\
Messages are committed after their batch is written. The checkpoint records the messages that a run
has reserved. The next run with the same checkpoint first finishes an interrupted batch. For files,
the default is PATH/_checkpoint. --to queue needs a checkpoint. console and noop need none, and
return unfinished messages to the queue.

A field of --schema with the name of a message column becomes payload_<field>. A payload that does
not fit the schema, or no VARIANT, is in _corrupt_payload. --to queue copies id, payload and headers.

Examples:
  python jobs/drain.py --url sqlite:///queues.db --queue departures --to parquet --path out --available-now
  python jobs/drain.py --url sqlite:///queues.db --queue departures --to console --schema "carrier STRING"
  python jobs/drain.py --url mongodb://localhost/air --queue departures --to queue --to-url redis://localhost/0 \\
      --to-queue late --checkpoint checkpoints/late --trigger 5s
  python jobs/drain.py --url sqlite:///queues.db --queue departures --to noop --available-now --option history=7d
  python jobs/drain.py --url sqlite:///queues.db --queue departures --to json --path done --history
  spark-submit --master yarn --py-files jobs/_job.py jobs/drain.py --url … --queue orders --to parquet --path hdfs:///orders

Exit code: 0 done (a run without --available-now and --history ends by Ctrl-C or SIGTERM),
1 a failure, 2 the call is wrong, 130 or 143 stopped by Ctrl-C or SIGTERM before the end.
"""

FILES = ("parquet", "json", "csv")
TARGETS = (*FILES, "console", "noop", "queue")

#: CSV as most programs read it.
CSV = {"header": "true", "escape": '"'}


def parser() -> job.Parser:
    """Return the parser of the command line."""
    made = job.Parser("drain.py", "Drain a queue into files, the console or another queue, with Spark.", EPILOG)
    source = made.add_argument_group("source")
    source.add_argument(
        "--schema", metavar="DDL", help='fields of the payload that become columns: "dep_delay INT, carrier STRING"'
    )
    source.add_argument(
        "--max-records",
        type=job.count,
        metavar="N",
        help="maximum messages per micro-batch (default: 10000)",
    )
    source.add_argument("--consumer", metavar="NAME", help="the name of the consumer of the reservations")
    target = made.add_argument_group("target")
    target.add_argument("--to", required=True, choices=TARGETS, help="the target")
    target.add_argument("--path", help="the folder for parquet, json or csv")
    target.add_argument("--to-url", metavar="URL", help="the store of the target queue (default: that of --url)")
    target.add_argument("--to-queue", metavar="Q", help="the name of the target queue")
    target.add_argument(
        "--to-option",
        type=job.pair,
        action="append",
        default=[],
        metavar="K=V",
        help="an option of Spark's writer; repeatable",
    )
    when = made.add_argument_group("trigger and checkpoint")
    end = when.add_mutually_exclusive_group()
    end.add_argument(
        "--available-now",
        action="store_true",
        help="end when the messages that are ready now are drained",
    )
    end.add_argument(
        "--trigger", type=job.duration_ms, metavar="5s", help="interval of micro-batches (default: none)"
    )
    end.add_argument(
        "--history",
        action="store_true",
        help="copy the committed messages that the history keeps; the queue does not change",
    )
    when.add_argument("--checkpoint", metavar="DIR", help="the folder of the checkpoint; see below")
    return made


@dataclass(frozen=True)
class Drain:
    """A drain, checked as far as possible without Spark."""

    args: argparse.Namespace
    source: Mapping[str, str]
    options: ReadOptions
    target: Mapping[str, str]
    checkpoint: str | None  # None: a temporary one
    mine: str | None  # the consumer name that only this run uses, with a temporary checkpoint
    gauge: job.Gauge

    @property
    def where(self) -> str:
        """Return the target as text."""
        return self.args.path or (f"queue {self.args.to_queue}" if self.args.to == "queue" else self.args.to)


def prepare(args: argparse.Namespace) -> Drain:
    """Check a call. Raises `UsageError`, or `StoreError` if the store is unavailable."""
    source = dict(args.option) | {"url": args.url, "queue": args.queue}
    source |= {"view": "history"} if args.history else {}
    source |= {"consumer": args.consumer} if args.consumer else {}
    source |= {"maxRecordsPerTrigger": str(args.max_records)} if args.max_records else {}
    source, options = job.checked(source, "snapshot" if args.history else "stream")
    target = dict(args.to_option)
    checkpoint = args.checkpoint
    if (args.to in FILES) != (args.path is not None):
        raise UsageError(
            f"--to {args.to} needs --path" if args.to in FILES else f"--path does not go with --to {args.to}"
        )
    if (args.to == "queue") != (args.to_queue is not None):
        raise UsageError("--to queue needs --to-queue" if args.to == "queue" else "--to-queue needs --to queue")
    if args.history and checkpoint:
        raise UsageError("--checkpoint does not go with --history, which does not change the queue: leave it out")
    if args.to in FILES:
        target = (CSV if args.to == "csv" else {}) | target | {"path": args.path}
        if not args.history:
            checkpoint = checkpoint or f"{args.path.rstrip('/')}/_checkpoint"
    elif args.to == "queue":
        if args.schema:
            raise UsageError("--to queue copies whole payloads: leave --schema out")
        form = {"payloadFormat": options.content.payload_format} if options.content.payload_format else {}
        target, _ = job.checked(form | target | {"url": args.to_url or args.url, "queue": args.to_queue}, "push")
        if not args.history and (target["url"], args.to_queue) == (source["url"], args.queue):
            raise UsageError(f"queue {args.queue!r} would be drained into itself: set another --to-queue or --to-url")
        if not args.history and not checkpoint:
            raise UsageError("--to queue needs --checkpoint DIR, which records the messages that were moved")
    mine = None
    if isinstance(options, StreamOptions) and not (checkpoint or options.consumer):
        mine = source["consumer"] = f"drain-{uuid.uuid4().hex[:12]}"
    return Drain(args, source, options, target, checkpoint, mine, job.Gauge(source["url"], args.queue))


# --- messages into rows ---------------------------------------------------------------------------


def messages(spark: SparkSession, drain: Drain) -> DataFrame:
    """Return the queue with the columns of the target. Raises `UsageError` for a wrong schema."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, BinaryType, MapType, StructType, VariantType

    from spark_queue.spark.schema import read_schema

    reader = (spark.read if drain.args.history else spark.readStream).format("queue").options(**drain.source)
    if drain.args.schema is None:
        if drain.options.content.payload_format == "variant":  # a payload that no VARIANT holds is not lost
            reader = reader.schema(with_corrupt(read_schema(drain.options)))
        rows = reader.load()
    else:
        schema, fields = typed(drain.args.schema, drain.options)
        others = [name for name in schema.names if name != "payload"]
        flat = [F.col("payload")[name].alias(f"payload_{name}" if name in schema.names else name) for name in fields]
        rows = reader.schema(schema).load().select("id", *flat, *(name for name in others if name != "id"))
    if drain.args.to == "queue":
        return rows.select("id", "payload", "headers")
    if drain.args.to == "csv":  # it has no nested columns
        plain = {}
        for field in rows.schema.fields:
            if isinstance(field.dataType, StructType | MapType | ArrayType | VariantType):
                plain[field.name] = F.to_json(field.name)
            elif isinstance(field.dataType, BinaryType):
                plain[field.name] = F.base64(field.name)
        rows = rows.withColumns(plain)
    return rows


def typed(ddl: str, options: ReadOptions) -> tuple[StructType, list[str]]:
    """Return the columns of a queue with the payload of `ddl`, and the names of its fields.

    Raises `UsageError`.
    """
    from pyspark.errors import ParseException
    from pyspark.sql.types import StructField, StructType

    from spark_queue.spark.schema import check_read_schema, read_schema

    try:
        payload = StructType.fromDDL(ddl)
    except ParseException as error:
        raise UsageError(f"--schema {ddl!r}: {str(error).strip().splitlines()[0]}") from error
    if not isinstance(payload, StructType) or not payload.fields:
        raise UsageError(f'--schema {ddl!r} has no fields; write it like "dep_delay INT, carrier STRING"')
    whole = read_schema(options)
    fields = [StructField(one.name, payload if one.name == "payload" else one.dataType) for one in whole.fields]
    schema = with_corrupt(StructType(fields))
    check_read_schema(schema, options)
    return schema, payload.names


def with_corrupt(schema: StructType) -> StructType:
    """Return columns with the one for the texts of payloads that do not fit."""
    from pyspark.sql.types import StringType, StructField, StructType

    from spark_queue.spark.schema import CORRUPT_COLUMN

    return StructType([*schema.fields, StructField(CORRUPT_COLUMN, StringType())])


# --- the run --------------------------------------------------------------------------------------


@dataclass
class Tally:
    """Counts of a run."""

    messages: int = 0
    batches: int = 0
    began: float = field(default_factory=time.monotonic)
    _batch: int = -1

    def add(self, query: StreamingQuery) -> Mapping[str, Any]:
        """Count the batches since the last call, and return the last progress of the query."""
        progress = query.recentProgress
        for one in progress:
            if one["batchId"] > self._batch and one["numInputRows"]:
                self._batch = one["batchId"]
                self.messages += one["numInputRows"]
                self.batches += 1
        return progress[-1] if progress else {}

    @property
    def seconds(self) -> float:
        """Return the duration of the run."""
        return time.monotonic() - self.began

    @property
    def rate(self) -> float:
        """Return messages per second."""
        return self.messages / self.seconds


def work(spark: SparkSession, drain: Drain, watch: job.Watch) -> job.Summary:
    """Drain the queue, and return the summary."""
    rows = messages(spark, drain)
    tally = Tally()
    take = snapshot if drain.args.history else consume
    with drain.gauge as gauge:
        if drain.args.available_now:
            hint(drain, watch)
        whole = take(spark, drain, rows, watch, tally)
        seconds = tally.seconds
        return summary(drain, watch, tally, seconds, gauge.sizes(now=True), whole=whole)


def summary(
    drain: Drain, watch: job.Watch, tally: Tally, seconds: float, sizes: Sizes, *, whole: bool
) -> job.Summary:
    """Return the summary of the run: text and facts."""
    args = drain.args
    batches = f"in {job.plural(tally.batches, 'batch', 'batches')} " if tally.batches else ""
    text = f"{job.plural(tally.messages, 'message')} of {args.queue} {batches}to {drain.where} in {seconds:.1f} s"
    text += f" ({tally.messages / seconds:,.0f} messages drained per second); the queue holds {job.describe(sizes)}"
    if watch.stopped:
        text = f"stopped: {text}"
        text += f"; to go on, run it again with --checkpoint {drain.checkpoint}" if drain.checkpoint else ""
    facts = {
        "job": "drain", "url": mask(drain.source["url"]), "queue": args.queue, "to": args.to, "path": args.path,
        "to_queue": args.to_queue, "checkpoint": drain.checkpoint, "messages": tally.messages,
        "batches": tally.batches, "seconds": round(seconds, 3), "rate": round(tally.messages / seconds, 1),
        "holds": job.states(sizes), "stopped": watch.name_of_signal,
    }  # fmt: skip
    endless = not (args.available_now or args.history)
    return job.Summary(text, facts, 0 if whole or endless else watch.code)


def hint(drain: Drain, watch: job.Watch) -> None:
    """Print a line with the nearest name if the queue is empty: its name may be misspelt."""
    if not drain.gauge.first.total:
        alike = did_you_mean(
            drain.args.queue, [name for name in drain.gauge.store.queues() if name != drain.args.queue]
        )
        watch.log(f"queue {drain.args.queue!r} holds no messages{alike}")


def snapshot(spark: SparkSession, drain: Drain, rows: DataFrame, watch: job.Watch, tally: Tally) -> bool:
    """Write the current history. Return whether it ended without a stop by the user."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    target = drain.args.to
    seen = Observation()
    writer = rows.observe(seen, F.count(F.lit(1)).alias("rows")).write.format(target).options(**drain.target)
    mode = "errorifexists" if target in FILES else "append"
    whole = job.run_batch(spark, writer.mode(mode).save, watch, lambda: f"writing the history of {drain.args.queue}")
    tally.messages = seen.get["rows"] if whole else 0
    return whole


def consume(spark: SparkSession, drain: Drain, rows: DataFrame, watch: job.Watch, tally: Tally) -> bool:
    """Drain until no message is left or the user stops it. Return whether no message is left."""
    from spark_queue.spark import drain as settle
    from spark_queue.spark import had_batch, spark_version

    assert isinstance(drain.options, StreamOptions)
    with checkpoint(drain) as folder:
        writer = rows.writeStream.format(drain.args.to).options(**drain.target, checkpointLocation=folder)
        if drain.args.available_now:
            writer = writer.trigger(availableNow=True)
        elif drain.args.trigger is not None:
            writer = writer.trigger(processingTime=f"{drain.args.trigger} milliseconds")
        # Before Spark 4.2, AvailableNow is one batch: repeat it for all messages of the start.
        once = not drain.args.available_now or spark_version(spark) >= (4, 2)
        while not watch.stopped:
            query = writer.start()
            follow(query, drain, watch, tally)
            settle(query, drain.source["url"], history=drain.options.outcomes.history_ms)
            if once or not had_batch(query) or tally.messages >= drain.gauge.first.total:
                break
    return not watch.stopped


def follow(query: StreamingQuery, drain: Drain, watch: job.Watch, tally: Tally) -> None:
    """Show the progress of a query until it ends or the user stops it. Raises its error."""
    while not query.awaitTermination(job.TICK):
        left = backlog(tally.add(query)) or job.states(drain.gauge.sizes())
        states = ", ".join(f"{left[state]:,} {state}" for state in ("ready", "scheduled", "reserved"))
        watch.show(
            "stopping" if watch.stopped else f"{tally.messages:,} drained, {tally.rate:,.0f} per second; {states}"
        )
        if watch.stopped:
            query.stop()
    tally.add(query)


def backlog(progress: Mapping[str, Any]) -> dict[str, int] | None:
    """Return the sizes of the queue from the progress of a query (Spark 4.2 and later)."""
    for source in progress.get("sources", ()):
        with suppress(TypeError, ValueError):  # None, or not JSON
            sizes = json.loads(source["latestOffset"])
            return sizes if "ready" in sizes else None
    return None


@contextmanager
def checkpoint(drain: Drain) -> Iterator[str]:
    """Yield the folder of the checkpoint. Remove a temporary one, and release its reservations."""
    if drain.checkpoint is not None:
        yield drain.checkpoint
        return
    with tempfile.TemporaryDirectory(prefix="drain-") as folder:
        yield folder
    if drain.mine is not None:
        drain.gauge.store.rollback(drain.args.queue, drain.mine, failed=False)


if __name__ == "__main__":
    sys.exit(job.run(parser(), prepare, work))
