"""Drain a graph: run each step after those that write its messages, until no messages are left."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from spark_queue.errors import QueueError
from spark_queue.graph.order import StepOrder
from spark_queue.graph.step import Step


def run_in_order(
    steps: Mapping[str, Step], has_messages: Callable[[str], bool], run: Callable[[str], set[str]]
) -> None:
    """Run the steps that have messages, and those that they write for, until there are none.

    A step waits while another runs that may write messages for it: so it has a few large batches.
    The steps of a cycle do not wait for one another. Messages that are due while any step runs are
    processed, too. `run`, in a thread, runs the step of a name to its end, and returns the queues
    that got messages, as `ns/queue`. If it raises `QueueError`, that step does not run again. The
    others go on, and the first of these errors is raised at the end.
    """
    order = StepOrder(steps)
    sources = {name: set(map(str, one.sources)) for name, one in steps.items()}
    waiting, running = set(steps), dict[Future[set[str]], str]()
    failed: dict[str, QueueError] = {}
    with ThreadPoolExecutor(max(1, len(steps)), "drain") as pool:
        while True:
            waiting -= set(failed)
            at_work = set(running.values())
            ready = {name for name in waiting if has_messages(name)}
            for name in order.first(order.sort(ready | at_work)):
                if name not in at_work:
                    waiting.remove(name)
                    running[pool.submit(run, name)] = name
            if not running:
                break
            for done in wait(running, return_when=FIRST_COMPLETED).done:
                name = running.pop(done)
                try:
                    fed_queues = done.result()
                except QueueError as error:
                    failed[name] = error
                else:
                    waiting |= {reader for reader in steps if fed_queues & sources[reader]}
    for first in failed.values():
        raise first
