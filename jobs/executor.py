"""Execute the events of a queue with the functions that files declare."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import _job as job

from spark_queue.events import Events
from spark_queue.events.config import declared_in
from spark_queue.graph.loader import unreadable_file
from spark_queue.options.masking import mask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

EPILOG = """\
CONF is a file in YAML, JSON or hub-queue's XML with executors (functions and their events) and
settings; see docs/events.md. Internal events need no executors. Functions are imported by the job
and by Spark's workers, so their modules must be on the path of both.

Several runs can execute the events of one queue; each event is executed by one of them. A run with
the same checkpoint continues where the last one was stopped or killed.

Examples:
  python jobs/executor.py conf/executors.yaml --url sqlite:///queues.db --queue events
  python jobs/executor.py --url sqlite:///queues.db --queue events --available-now --json
  python jobs/executor.py conf/executors.yaml --url redis://host/0 --queue events --parallel 8 --batch 100
  spark-submit --py-files jobs/_job.py jobs/executor.py conf/executors.yaml --url mongodb://h/db --queue events

Exit code: 0 done (a run without --available-now ends by Ctrl-C or SIGTERM), 1 a failure, 2 the call
or CONF is wrong, 130 or 143 stopped by Ctrl-C or SIGTERM before the end.
"""


def parser() -> job.Parser:
    """Return the parser of the command line."""
    made = job.Parser("executor.py", "Execute the events of a queue, with Spark.", EPILOG)
    made.add_argument("conf", nargs="*", metavar="CONF", help="files with executors and settings")
    made.add_argument("--name", default="events", help="the name of this run in log and history (default: events)")
    made.add_argument(
        "--batch",
        type=job.count,
        default=1_000,
        metavar="N",
        help="maximum events per micro-batch (default: 1000)",
    )
    made.add_argument(
        "--parallel", type=job.count, metavar="N", help="number of events executed at a time (default: Spark's cores)"
    )
    end = made.add_mutually_exclusive_group()
    end.add_argument("--available-now", action="store_true", help="end when the events that are new now are executed")
    end.add_argument(
        "--trigger", type=job.duration_ms, default=0, metavar="5s", help="interval of micro-batches (default: none)"
    )
    made.add_argument(
        "--restarts",
        type=job.count,
        metavar="N",
        help="end after more than N failures of the query in a row (default: never)",
    )
    made.add_argument("--checkpoint", metavar="DIR", help="the folder of the checkpoint (default: checkpoints/Q)")
    return made


@dataclass(frozen=True)
class Plan:
    """A run, checked."""

    args: argparse.Namespace
    events: Events
    checkpoint: str
    before: dict[str, int]


def prepare(args: argparse.Namespace) -> Plan:
    """Check a call and its files.

    Raises `UsageError`, or `StoreError` if the store is unavailable.
    """
    source, _ = job.checked(dict(args.option) | {"url": args.url, "queue": args.queue}, "stream")
    try:
        declared = declared_in(*args.conf)
    except OSError as error:
        raise unreadable_file(error) from None
    events = Events(source["url"], args.queue, executors=declared.executors, settings=declared.settings)
    events.executors.check()
    checkpoint = args.checkpoint or str(Path("checkpoints", args.queue))
    return Plan(args, events, checkpoint, events.summary())


def work(spark: SparkSession, plan: Plan, watch: job.Watch) -> job.Summary:
    """Execute events, and return the summary."""
    from spark_queue.events.spark_query import ExecutorQuery

    args, events, began = plan.args, plan.events, time.monotonic()
    for one in events.executors.overlap_warnings():
        watch.log(one)
    query = ExecutorQuery(
        events, plan.checkpoint, name=args.name, batch=args.batch, parallel=args.parallel, options=dict(args.option)
    )
    tally = {"events": 0, "batch": -1}

    def show_progress(running: StreamingQuery) -> None:
        for one in running.recentProgress:
            if one["batchId"] > tally["batch"]:
                tally["batch"] = one["batchId"]
                tally["events"] += one["numInputRows"]
        watch.show("stopping" if watch.stopped else f"{tally['events']:,} executed")
        if watch.stopped and running.isActive:
            running.stop()

    def wait(seconds: float, error: str) -> bool:
        watch.log(f"{error}; starts again in {seconds:g} s")
        end = time.monotonic() + seconds
        while time.monotonic() < end and not watch.stopped:
            time.sleep(0.1)
        return not watch.stopped

    with events:
        query.run(
            spark,
            available_now=args.available_now,
            every=args.trigger,
            restarts=args.restarts,
            on_check=show_progress,
            wait=wait,
        )
        return summary(plan, watch, tally["events"], time.monotonic() - began)


def summary(plan: Plan, watch: job.Watch, executed: int, seconds: float) -> job.Summary:
    """Return the summary of the run: text and facts."""
    args, now = plan.args, plan.events.summary()
    states = ", ".join(f"{number:,} {name}" for name, number in now.items() if number) or "no events"
    text = f"{job.plural(executed, 'event')} of {args.queue} executed in {seconds:.1f} s; the queue has {states}"
    if watch.stopped:
        text = f"stopped: {text}; to go on, run it again with --checkpoint {plan.checkpoint}"
    facts: dict[str, Any] = {
        "job": "executor", "url": mask(args.url), "queue": args.queue, "checkpoint": plan.checkpoint,
        "executed": executed, "seconds": round(seconds, 3), "before": plan.before, "status": now,
        "stopped": watch.name_of_signal,
    }  # fmt: skip
    return job.Summary(text, facts, watch.code if args.available_now else 0)


if __name__ == "__main__":
    sys.exit(job.run(parser(), prepare, work))
