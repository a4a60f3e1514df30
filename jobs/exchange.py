"""Run a graph of exchanges, links and processors: messages go from queue to queue."""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import _job as job

from spark_queue.errors import QueueError, UsageError, did_you_mean
from spark_queue.graph.loader import load_graph, unreadable_file
from spark_queue.graph.model import DRAIN_RESTARTS, Graph

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_queue.runner import ExchangeGraph, Status

EPILOG = """\
CONF is a YAML or JSON file with namespaces (databases by name), exchanges (from one queue to others,
by selectors), links (from queue to queue in one step) and processors (functions between queues).
See docs/exchanges.md, docs/links.md and docs/processors.md. ${NAME} in CONF is an environment
variable.

Each step is a streaming query with its own checkpoint. If one fails, it starts again after a
growing pause; the others continue. A run with the same checkpoints continues where the last one was
stopped.

Examples:
  python jobs/exchange.py conf/flights.yaml
  python jobs/exchange.py conf/flights.yaml --available-now --checkpoint-root out/checkpoints
  python jobs/exchange.py conf/flights.yaml --only by_carrier,by_delay --json
  spark-submit --master yarn --py-files jobs/_job.py jobs/exchange.py conf/flights.yaml --checkpoint-root hdfs:///x

Exit code: 0 done (a run without --available-now ends by Ctrl-C or SIGTERM), 1 a failure, 2 the call
or CONF is wrong, 130 or 143 stopped by Ctrl-C or SIGTERM before the end.
"""


def parser() -> job.Parser:
    """Return the parser of the command line."""
    made = job.Parser("exchange.py", "Run a graph of exchanges, with Spark.", EPILOG, queue=False)
    made.add_argument("conf", metavar="CONF", help="the YAML or JSON file of the graph")
    made.add_argument(
        "--only",
        type=job.names,
        default=[],
        metavar="X1,X2",
        help="run these steps only (default: all that are not disabled)",
    )
    made.add_argument(
        "--available-now",
        action="store_true",
        help="end when all messages that are ready now, and those made from them, are routed",
    )
    made.add_argument(
        "--restarts",
        type=job.count,
        metavar="N",
        help="stop a step after more than N failures in a row "
        f"(default: {DRAIN_RESTARTS} with --available-now, else never)",
    )
    made.add_argument(
        "--checkpoint-root",
        metavar="PATH",
        help="the folder of the checkpoints, one per step (default: checkpoints/ and the name of CONF)",
    )
    return made


@dataclass(frozen=True)
class Plan:
    """A run, checked."""

    args: argparse.Namespace
    graph: Graph
    root: str
    names: list[str]


def prepare(args: argparse.Namespace) -> Plan:
    """Check a call and its file, as far as possible without Spark. Raises `UsageError`."""
    try:
        graph = load_graph(args.conf)
    except OSError as error:
        raise unreadable_file(error) from None
    if not graph.steps:
        raise UsageError(f"{args.conf} has no exchanges, links or processors")
    for name in args.only:
        if name not in graph.steps:
            hint = did_you_mean(name, graph.steps) or f"; the steps are {', '.join(graph.steps)}"
            raise UsageError(f"--only: {args.conf} has no step {name!r}{hint}")
    root = args.checkpoint_root or str(Path("checkpoints", Path(args.conf).stem))
    enabled = [name for name, one in graph.steps.items() if not one.disable]
    return Plan(args, graph, root, args.only or enabled)


def work(spark: SparkSession, plan: Plan, watch: job.Watch) -> job.Summary:
    """Run the graph, and return the summary."""
    from spark_queue.runner.graph import ExchangeGraph

    began = time.monotonic()
    graph = ExchangeGraph(plan.graph, plan.root)
    for cycle in plan.graph.cycles():
        hops = job.plural(plan.graph.max_hops, "hop")
        watch.log(f"cycle {' → '.join([*cycle, cycle[0]])}: a message leaves it after {hops}")

    def run() -> None:
        if plan.args.available_now:
            graph.drain(spark, *plan.names, restarts=plan.args.restarts or DRAIN_RESTARTS)
        else:
            graph.start(spark, *plan.names, restarts=plan.args.restarts)
            graph.await_termination()

    try:
        watched(run, graph, watch)
    except QueueError:
        if not watch.stopped:
            raise
    steps = [graph.status()[name] for name in plan.names]
    return summary(plan, watch, steps, time.monotonic() - began)


def watched(run: Callable[[], None], graph: ExchangeGraph, watch: job.Watch) -> None:
    """Call `run`, and show the state of the steps. Stop them if the user stops the run."""
    done = threading.Event()

    def watch_steps() -> None:
        while not done.wait(job.TICK):
            watch.show("stopping" if watch.stopped else state(list(graph.status().values())))
            if watch.stopped:
                graph.stop()

    looking = threading.Thread(target=watch_steps, name="progress", daemon=True)
    looking.start()
    try:
        run()
    finally:
        done.set()
        looking.join()


def state(steps: list[Status]) -> str:
    """Return the state of the steps in one line."""
    received, pushed = (sum(number(one) for one in steps) for number in (_received, _pushed))
    line = f"{received:,} received, {pushed:,} pushed"
    starting = sum(one.state == "starting" and not one.error for one in steps)
    begun = [f"{starting} of {job.plural(len(steps), 'step')} starting"] if starting else []
    trouble = {"waiting": "waits to start again", "starting": "starts again", "stopped": "has stopped"}
    troubled = [
        f"{one.name} {trouble[one.state]} ({one.error})" for one in steps if one.error and one.state in trouble
    ]
    return "; ".join([line, *begun, *troubled])


def _received(one: Status) -> int:
    return one.traffic.received


def _pushed(one: Status) -> int:
    return sum(one.traffic.pushed.values())


def summary(plan: Plan, watch: job.Watch, steps: list[Status], seconds: float) -> job.Summary:
    """Return the summary of the run: text and facts."""
    received = sum(_received(one) for one in steps)
    head = f"{job.plural(received, 'message')} routed by {job.plural(len(steps), 'step')} in {seconds:.1f} s"
    rows = [row for one in steps for row in _rows(one)]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [f"  {a:<{widths[0]}}  {b:<{widths[1]}}  {c:>{widths[2]}}{d}" for a, b, c, d in rows]
    broken = [one for one in steps if one.state == "stopped" and one.error and not watch.stopped]
    facts: dict[str, Any] = {
        "job": "exchange", "conf": plan.args.conf, "checkpoint_root": plan.root, "seconds": round(seconds, 3),
        "stopped": watch.name_of_signal, "exchanges": {one.name: _facts(one) for one in steps},
    }  # fmt: skip
    code = 1 if broken else watch.code if plan.args.available_now else 0
    return job.Summary("\n".join([head, *lines]), facts, code)


def _rows(one: Status) -> list[tuple[str, str, str, str]]:
    traffic = one.traffic
    rows = [(one.name, f"from {one.src}", f"{traffic.received:,}", f"  {one.error}" if one.error else "")]
    for to in dict.fromkeys(one.dst):
        failed = traffic.failed[to]
        rows.append(("", f"to {to}", f"{traffic.pushed[to]:,}", f"  ({failed:,} failed)" if failed else ""))
    for name, number in (("no route", traffic.no_route), ("too many hops", traffic.too_many_hops)):
        rows += [("", name, f"{number:,}", "")] if number else []
    return rows


def _facts(one: Status) -> dict[str, Any]:
    traffic = one.traffic
    return {
        "src": one.src, "state": one.state, "restarts": one.restarts, "error": one.error,
        "received": traffic.received, "pushed": dict(traffic.pushed), "failed": dict(traffic.failed),
        "no_route": traffic.no_route, "too_many_hops": traffic.too_many_hops, "odd_hops": traffic.odd_hops,
        "batches": traffic.batches, "milliseconds": dict(traffic.milliseconds),
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(job.run(parser(), prepare, work))
