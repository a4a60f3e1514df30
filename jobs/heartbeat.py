"""Create the events of a heartbeat, once or at intervals."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import _job as job

from spark_queue.events import Events
from spark_queue.events.config import declared_in
from spark_queue.events.heartbeats import Heartbeat, find_heartbeats, tick
from spark_queue.graph.loader import unreadable_file
from spark_queue.options.masking import mask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EPILOG = """\
A --conf file declares heartbeats in YAML, JSON or hub-queue's XML; see docs/events.md. A tick
creates one event for each heartbeat with the ID. Without --every the job ticks once, without Spark:
call it from cron or another scheduler. With --every a streaming query ticks until it is stopped;
missed ticks are not repeated.

Examples:
  python jobs/heartbeat.py OneMinute --conf conf/heartbeats.yaml --url sqlite:///queues.db --queue events
  python jobs/heartbeat.py FifteenMinute --conf conf/heartbeats.yaml --url redis://host/0 --queue events --every 15m

Exit code: 0 done, or stopped by Ctrl-C or SIGTERM; 1 a failure; 2 the call or the file is wrong.
"""


def parser() -> job.Parser:
    """Return the parser of the command line."""
    made = job.Parser("heartbeat.py", "Create the events of a heartbeat.", EPILOG)
    made.add_argument("id", metavar="ID", help="the id of the heartbeat")
    made.add_argument(
        "--conf", action="append", required=True, metavar="FILE", help="a file with heartbeats; repeatable"
    )
    made.add_argument(
        "--every", type=job.duration_ms, metavar="1m", help="time between two ticks (default: tick once)"
    )
    made.add_argument("--checkpoint", metavar="DIR", help="the folder of the checkpoint (default: checkpoints/Q.ID)")
    return made


@dataclass(frozen=True)
class Plan:
    """A heartbeat, checked."""

    args: argparse.Namespace
    events: Events
    heartbeats: list[Heartbeat]


def prepare(args: argparse.Namespace) -> Plan:
    """Check a call and its files. Raises `UsageError`."""
    source, _ = job.checked(dict(args.option) | {"url": args.url, "queue": args.queue}, "push")
    try:
        declared = declared_in(*args.conf)
    except OSError as error:
        raise unreadable_file(error) from None
    events = Events(source["url"], args.queue, settings=declared.settings)
    return Plan(args, events, find_heartbeats(declared.heartbeats, args.id))


def once(plan: Plan) -> job.Summary:
    """Tick once, and return the summary."""
    with plan.events:
        ids = tick(plan.events, plan.heartbeats, plan.args.id)
    return summary(plan, ids, None)


def work(spark: SparkSession, plan: Plan, watch: job.Watch) -> job.Summary:
    """Tick at intervals until the user stops it, and return the summary."""
    args = plan.args
    made: list[str] = []

    def on_batch(_: DataFrame, number: int) -> None:
        made.extend(tick(plan.events, plan.heartbeats, args.id))

    query = (
        spark.readStream.format("rate")
        .load()
        .writeStream.queryName(f"heartbeat {args.id}")
        .option("checkpointLocation", args.checkpoint or str(Path("checkpoints", f"{args.queue}.{args.id}")))
        .trigger(processingTime=f"{args.every} milliseconds")
        .foreachBatch(on_batch)
        .start()
    )
    began = time.monotonic()
    with plan.events:
        while not query.awaitTermination(job.TICK):
            watch.show("stopping" if watch.stopped else f"{job.plural(len(made), 'event')} created")
            if watch.stopped:
                query.stop()
    return summary(plan, made, watch.name_of_signal, round(time.monotonic() - began, 3))


def summary(plan: Plan, ids: list[str], stopped: str | None, seconds: float = 0.0) -> job.Summary:
    """Return the summary of the run: text and facts."""
    args = plan.args
    text = f"{job.plural(len(ids), 'event')} of heartbeat {args.id} created in {args.queue}"
    facts: dict[str, Any] = {
        "job": "heartbeat", "id": args.id, "url": mask(args.url), "queue": args.queue, "events": len(ids),
        "ids": ids if args.every is None else ids[-10:], "seconds": seconds, "stopped": stopped,
    }  # fmt: skip
    return job.Summary(text, facts)


def main(argv: list[str] | None = None) -> int:
    """Run the job: at intervals with Spark, or once without it."""
    made = parser()
    args = made.parse(argv)
    if args.every is not None:
        return job.run(made, prepare, work, argv)
    try:
        done = once(prepare(args))
    except Exception as error:  # noqa: BLE001  any error ends with a message and an exit code
        text, code = job.diagnosis(error)
        print(f"{made.prog}: {text}", file=sys.stderr)
        return code
    print(f"{made.prog}: {done.text}", file=sys.stderr)
    if args.json:
        print(json.dumps(done.facts))
    return done.code


if __name__ == "__main__":
    sys.exit(main())
