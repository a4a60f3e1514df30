"""The graph of several servers: each step runs in one of them, and in another if that one dies.

Every server has the same graph, and sees the exchanges that callers have declared. Each second it
looks which steps are to run, and starts those that no living process runs.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from spark_queue.errors import QueueError, StoreError, UsageError
from spark_queue.graph.exchange import Exchange
from spark_queue.graph.order import StepOrder
from spark_queue.graph.step import Step
from spark_queue.runner.declared import DeclaredExchanges, KnownStep
from spark_queue.runner.graph import ExchangeGraph
from spark_queue.runner.running_step import Status
from spark_queue.runner.runs import StepRuns
from spark_queue.runner.selector_times import SelectorTimes, delete_times, measure_selectors, save_times
from spark_queue.runner.traffic import reset_traffic
from spark_queue.spark.failures import without_secrets
from spark_queue.stores.base import Store
from spark_queue.stores.services.owner import HEARTBEAT_SECONDS, consumers, live_consumer

log = logging.getLogger(__name__)

#: How often a process looks what is to run (s).
CHECK_SECONDS = 1.0

#: How long it waits before it starts a step again that has ended with an error (s).
RETRY_SECONDS = 60.0

#: How long it waits before it looks again at a step that a program runs which is no server (s).
OTHER_SECONDS = 5.0


class SharedGraph:
    """Runs a graph, and declared exchanges, together with other processes."""

    def __init__(
        self,
        declared: DeclaredExchanges,
        stores: Mapping[str, Store],
        checkpoint_root: str,
        get_spark: Callable[[], SparkSession],
        settle: Callable[[str, str, str, Sequence[str]], object],
    ) -> None:
        """Run nothing yet. `get_spark` returns the session; it is called once, in `start`.

        `checkpoint_root`: a folder that all processes share, so that one continues where another
        one died. `settle`: settles what a consumer has reserved that does not start again; it gets
        the URL and the queue of its source, the consumer, and the URLs that it wrote to.
        """
        self._declared, self._stores = declared, stores
        self._get_spark, self._settle = get_spark, settle
        self._graph = ExchangeGraph(declared.graph, checkpoint_root)
        self._runs = StepRuns(stores)
        self._known: dict[str, KnownStep] = {}
        self._adopted: dict[str, KnownStep] = {}
        self._renewed: dict[str, tuple[float, str, str | None]] = {}  # the runs of this process, as written last
        self._retry_at: dict[str, float] = {}
        self._failing: set[str] = set()
        self._wake, self._ending = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="shared graph", daemon=True)

    def start(self) -> None:
        """Begin to run the graph, in a thread."""
        # Callers get the errors of their selectors. Spark would also log each, with its Java stack.
        PySparkLogger.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
        self._spark = self._get_spark()
        self._thread.start()

    def look_now(self, name: str) -> None:
        """Look at once what is to run: a step was changed."""
        self._retry_at.pop(name, None)
        self._wake.set()

    @property
    def running(self) -> list[str]:
        """The names of the steps that run in this process."""
        return [name for name, one in self._graph.status().items() if one.is_running]

    def check(self, name: str, step: Step) -> None:
        """Check a step as its start would. Raises `GraphError` with all its mistakes."""
        self._graph.check(self._spark, name, step)

    def measure(self, name: str, exchange: Exchange) -> SelectorTimes | None:
        """Measure the selectors of an exchange, and keep their times: see `measure_selectors`."""
        times = measure_selectors(self._spark, name, exchange, self._declared.graph)
        if times is not None:
            save_times(self._stores[exchange.src.ns], name, times)
        return times

    def close(self) -> None:
        """Stop all steps of this process. Another process goes on with them."""
        self._ending = True
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join()

    @property
    def is_alive(self) -> bool:
        """Whether it still looks what is to run. It ends if its Spark session fails."""
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self._ending:
                self._wake.clear()
                self._look()
                self._wake.wait(CHECK_SECONDS)
        except BaseException:
            log.critical("this server runs no exchanges any more: restart it. Other servers go on with them")
            raise
        finally:
            self._graph.stop()
            for one in [self._known[name] for name in self._renewed]:
                if one.ns not in self._declared.away:
                    self._attempt(self._give_up, one)

    def _attempt(self, act: Callable[..., None], one: KnownStep, *args: Any) -> None:
        """Do something for a step. If its database fails, the next look retries it."""
        try:
            act(one, *args)
        except StoreError as error:
            if one.name not in self._failing:
                log.warning("the database of exchange %s fails, which is retried: %s", one.name, error)
            self._failing.add(one.name)
        else:
            self._failing.discard(one.name)

    def _look(self) -> None:
        """Start and stop what is to be started and stopped.

        Steps whose database is away wait: each call there takes long, and others need their time.
        """
        away = self._declared.away
        try:
            self._known = self._declared.load(patient=True)
        except StoreError as error:
            log.warning("cannot look which exchanges are to run, which is retried: %s", error)
            return
        for ns in self._declared.away - away:
            log.warning("the database of namespace %s cannot be reached: its exchanges wait for it", ns)
        self._adopt()
        removed = [one for one in self._declared.removed if one.ns not in self._declared.away]
        for one in removed:
            if one.step is not None:  # else a server settles it that has all its namespaces
                self._attempt(self._finish, one, one.step)
        ending = {one.name for one in removed}
        states = self._graph.status()
        steps = {name: one.step for name, one in self._known.items() if one.step is not None}
        for name in StepOrder(steps).sort(steps):
            if self._known[name].ns not in self._declared.away and name not in ending:
                self._attempt(self._look_at, self._known[name], states[name])

    def _look_at(self, one: KnownStep, state: Status) -> None:
        """Start or stop a step if it is to be started or stopped, and renew its run."""
        if one.stopped:
            if state.is_running:
                self._graph.stop(one.name)
            if one.name in self._renewed:
                self._give_up(one)
            self._retry_at.pop(one.name, None)
        elif state.is_running:
            self._renew(one, state)
        else:
            self._start(one, state)

    def _start(self, one: KnownStep, state: Status) -> None:
        """Start a step, unless another process runs it, or it has just failed here."""
        now = time.monotonic()
        if one.name in self._renewed:  # it has ended here, with an error
            self._give_up(one)
            self._retry_at[one.name] = now + RETRY_SECONDS
        if now < self._retry_at.get(one.name, 0):
            return
        if not self._runs.take(one.ns, one.key, "starting", state.error, state.restarts):
            return  # another server runs it
        self._renewed[one.name] = now, "starting", state.error
        if not self._is_free(one):
            self._give_up(one)
            self._retry_at[one.name] = now + OTHER_SECONDS
            return
        try:
            self._graph.start(self._spark, one.name)
        except (QueueError, PySparkException) as error:
            log.error("exchange %s cannot start, which is retried in %d s: %s", one.name, RETRY_SECONDS, error)
            self._give_up(one, without_secrets(str(error), self._stores[one.ns].url))
            self._retry_at[one.name] = now + RETRY_SECONDS

    def _renew(self, one: KnownStep, state: Status) -> None:
        """Renew the run of a step that runs here, if it is time or its state has changed."""
        now, facts = time.monotonic(), (state.state, state.error)
        at, *before = self._renewed.get(one.name, (0.0, "", None))
        if now - at >= HEARTBEAT_SECONDS or tuple(before) != facts:
            self._renewed[one.name] = now, *facts
            # After a long pause, another process may have it. The owner note decides which reads.
            self._runs.take(one.ns, one.key, *facts, state.restarts)

    def _give_up(self, one: KnownStep, error: str | None = None) -> None:
        state = self._graph.status()[one.name]
        self._runs.give_up(one.ns, one.key, state.state, error or state.error, state.restarts)
        self._renewed.pop(one.name, None)

    def _adopt(self) -> None:
        """Add exchanges that were declared, and remove those that were removed or changed."""
        wanted = {name: one for name, one in self._known.items() if one.declared and one.step is not None}
        for name, one in list(self._adopted.items()):
            now = wanted.get(name)
            if now is None or (now.key, now.step) != (one.key, one.step):
                self._graph.remove(name)
                del self._adopted[name]
                self._retry_at.pop(name, None)
                if self._renewed.pop(name, None):
                    self._attempt(lambda one: self._runs.give_up(one.ns, one.key, "stopped"), one)
        for name, one in wanted.items():
            if name not in self._adopted and one.step is not None:
                self._graph.add(name, one.step, one.key)
                self._adopted[name] = one

    def _finish(self, one: KnownStep, step: Step) -> None:
        """Settle what an exchange had reserved that was removed, once no process runs it."""
        if not self._runs.take(one.ns, one.key, "stopped") or not self._is_free(one):
            return
        store, queue = self._stores[one.ns], step.home.queue
        urls = list(dict.fromkeys(self._stores[to.ns].url for to in (step.home, *step.written_queues)))
        for _, consumer, _ in list(consumers(store, queue)):
            if consumer.partition("/")[0] == one.name and store.reservations(queue, consumer):
                try:
                    self._settle(store.url, queue, consumer, urls)
                except UsageError as error:
                    log.error("exchange %s was removed, and its messages stay reserved: %s", one.name, error)
        reset_traffic(store.url, one.name)
        delete_times(store, one.name)
        self._runs.remove(one.ns, one.key)
        self._declared.forget(one)

    def _is_free(self, one: KnownStep) -> bool:
        """Return whether no program that is no server runs the step, such as jobs/exchange.py."""
        if one.step is None or (src := one.step.src) is None:
            return True
        return live_consumer(self._stores[src.ns], src.queue, one.name) is None
