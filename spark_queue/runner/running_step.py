"""A step that runs: the thread that keeps its query running, and its status."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal

from py4j.protocol import Py4JNetworkError
from pyspark.sql.streaming.query import StreamingQuery

from spark_queue.errors import StoreError
from spark_queue.graph.parts import Place
from spark_queue.graph.step import Step
from spark_queue.runner.query import StepQuery
from spark_queue.runner.step import RunnableStep
from spark_queue.runner.traffic import Traffic, add_traffic
from spark_queue.spark import start_in_turn, supervise
from spark_queue.spark.failures import without_secrets
from spark_queue.spark.spark_errors import failure_of
from spark_queue.spark.start_turns import ask_turn

log = logging.getLogger(__name__)

#: The state of a step. `waiting`: it has failed, and restarts after a delay. `finished`: all its
#: messages are processed.
State = Literal["stopped", "starting", "running", "waiting", "finished"]


@dataclass(frozen=True)
class Status:
    """The status of a step.

    `since`: the time of its last change of state (UTC). `error`: its last failure. `traffic`: since
    its start.
    """

    name: str
    src: str
    dst: list[str]
    state: State
    since: datetime
    restarts: int
    error: str | None
    traffic: Traffic

    @property
    def is_running(self) -> bool:
        """Whether it runs, or is about to."""
        return self.state not in ("stopped", "finished")


class _Stopped(Exception):
    """A step was stopped before its query had started."""


class RunningStep:
    """One step of a graph, and the thread that keeps its query running."""

    def __init__(self, name: str, step: Step) -> None:
        self.name = name
        self.step = step
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._last_counted: tuple[str, int] = ("", -1)
        self.reset()

    def reset(self) -> None:
        """Reset its state, its last error and its counts."""
        self._stopping.clear()
        self._restarts = 0
        self._error: str | None = None
        self._traffic = self._unwritten_traffic = Traffic()
        self._set_state("stopped")

    def _set_state(self, state: State) -> None:
        self._state, self._since = state, datetime.now(UTC)

    @property
    def is_alive(self) -> bool:
        """Whether its thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, query: StepQuery, initial_backoff: float, max_backoff: float, restarts: int | None) -> None:
        """Run the query in a thread, unless the step was stopped after `reset`.

        Steps start in the order of these calls.
        """
        self._set_state("starting")
        turns = [ask_turn()]

        def start_unless_stopped() -> StreamingQuery:
            if self._stopping.is_set():
                raise _Stopped
            made = query.start()
            self._set_state("running")
            return made

        def start_query() -> StreamingQuery:
            self._set_state("starting")
            turn = turns.pop() if turns else None
            return start_in_turn(query.spark, start_unless_stopped, self._stopping.is_set, turn)

        def run() -> None:
            try:
                supervise(
                    start_query,
                    query.step.store_url,
                    restarts=restarts,
                    initial_backoff=initial_backoff,
                    max_backoff=max_backoff,
                    by_batch=query.by_batch,
                    on_check=partial(self._count_progress, query.step),
                    wait=partial(self._wait_to_restart, query.step.store_url),
                )
                self._set_state("stopped" if self._stopping.is_set() else "finished")
            except _Stopped:
                self._set_state("stopped")
            except (Py4JNetworkError, ConnectionError):  # not of a store: those raise StoreError
                self._error = "the process of Spark has died"
                self._set_state("stopped")
                log.error("step %s stops: %s", self.name, self._error)
            except BaseException as error:
                self._error = without_secrets(failure_of(error).text, query.step.store_url)
                self._set_state("stopped")
                log.exception("step %s has failed and stops", self.name)
            finally:
                query.step.close()

        self._thread = threading.Thread(target=run, name=f"exchange {self.name}", daemon=True)
        self._thread.start()

    def mark_finished(self) -> None:
        """Set the state `finished`: the step has nothing left to do."""
        if self._state != "finished":
            self._set_state("finished")

    def _wait_to_restart(self, url: str, seconds: float, error: str) -> bool:
        """Wait before the next start. Return whether the query is to be started."""
        self._restarts += 1
        self._error = without_secrets(error, url)
        self._set_state("waiting")
        return not self._stopping.wait(seconds)

    def _count_progress(self, step: RunnableStep[Any], query: StreamingQuery) -> None:
        """Count the batches since the last call, and stop the query if that was requested."""
        for progress in query.recentProgress:
            run, batch = str(progress["runId"]), int(progress["batchId"])
            observed = step.batch_metrics(progress)
            if observed is not None and (run != self._last_counted[0] or batch > self._last_counted[1]):
                self._last_counted = run, batch
                made = _batch_traffic(self.step.written_queues, observed, progress["durationMs"])
                self._traffic, self._unwritten_traffic = self._traffic + made, self._unwritten_traffic + made
        if self._unwritten_traffic:
            try:
                add_traffic(step.store_url, self.name, self._unwritten_traffic)
                self._unwritten_traffic = Traffic()
            except StoreError as error:
                log.warning("cannot write the traffic of step %s, which is retried later: %s", self.name, error)
        if self._stopping.is_set():
            query.stop()

    def request_stop(self) -> None:
        """Request it to stop soon."""
        self._stopping.set()

    def join(self, timeout: float | None) -> bool:
        """Wait until it has ended, at most `timeout` seconds. Return whether it has."""
        if self._thread is not None:
            self._thread.join(timeout)
        return not self.is_alive

    def status(self) -> Status:
        """Return its status."""
        return Status(
            self.name,
            (" + " if self.step.needs_all else " | ").join(map(str, self.step.sources)),
            [str(one) for one in self.step.written_queues],
            self._state,
            self._since,
            self._restarts,
            self._error,
            self._traffic,
        )


def _batch_traffic(written: Sequence[Place], metrics: Mapping[str, Any], durations: Mapping[str, int]) -> Traffic:
    """Return the traffic of one batch, from its metrics and the durations of its stages (ms)."""
    traffic = Traffic(batches=1, milliseconds=Counter(durations))
    for number, to in enumerate(written):
        traffic.pushed[str(to)] += metrics.get(f"pushed_{number}") or 0
        traffic.failed[str(to)] += metrics.get(f"failed_{number}") or 0
    for name in ("received", "no_route", "too_many_hops", "odd_hops", "done", "again"):
        setattr(traffic, name, metrics.get(name) or 0)
    traffic.add_hops()
    return traffic
