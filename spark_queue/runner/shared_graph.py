"""The graph of several servers: each step runs in one of them, and in another if that one dies.

Every server has the same graph, and sees the exchanges that callers have declared. Each second it
looks which steps are to run, and starts those that no living process runs. Its steps share a
process of Spark. If that dies, it starts another one, and the steps by the rules of `probation.py`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
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
from spark_queue.runner.probation import MOST_DEATHS, STOPPED_TEXT, SUSPECT_TEXT, Probation
from spark_queue.runner.running_step import Status
from spark_queue.runner.runs import StepRuns
from spark_queue.runner.selector_times import SelectorTimes, delete_times, measure_selectors, save_times
from spark_queue.runner.server_spark import ServerSpark
from spark_queue.runner.settling import SettleConsumer, StepSettler
from spark_queue.runner.traffic import reset_traffic
from spark_queue.runner.work import has_work, is_free
from spark_queue.spark.failures import without_secrets
from spark_queue.stores.base import Store
from spark_queue.stores.limits import StoreLimits

log = logging.getLogger(__name__)

#: How often a process looks what is to run, and how often while others wait for a step (s).
CHECK_SECONDS, BUSY_SECONDS = 1.0, 0.25

#: How long it waits before it starts a step again that has ended with an error (s).
RETRY_SECONDS = 60.0

#: How long it waits before it looks again at a step that a program runs which is no server (s).
OTHER_SECONDS = 5.0

#: After how long without a batch a step on probation has nothing to do, if it holds no message (s).
IDLE_SECONDS = 2.0

#: How long it waits before it tries again to start Spark (s).
SPARK_RETRY_SECONDS = 10.0


class SharedGraph:
    """Runs a graph, and declared exchanges, together with other processes."""

    def __init__(
        self,
        declared: DeclaredExchanges,
        stores: Mapping[str, Store],
        checkpoint_root: str,
        get_spark: Callable[[], SparkSession],
        settle: SettleConsumer,
    ) -> None:
        """Run nothing yet.

        `get_spark` returns the session: a new one, if `forget_session` has forgotten the last one.
        `checkpoint_root`: a folder that all processes share, so that one continues where another
        one died. `settle`: settles what a consumer has reserved that does not start again.
        """
        self._declared, self._stores = declared, stores
        self._spark, self._settler = ServerSpark(get_spark), StepSettler(stores, checkpoint_root, settle)
        self._graph = ExchangeGraph(declared.graph, checkpoint_root)
        self._runs = StepRuns(stores)
        self._probation = Probation()
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
        self._spark.start()
        self._probation.restart()
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
        """Check a step as its start would.

        Raises `GraphError` with all its mistakes, and `SparkUnavailable`.
        """
        with self._spark.using() as spark:
            self._graph.check(spark, name, step)

    def measure(self, name: str, exchange: Exchange) -> SelectorTimes | None:
        """Measure the selectors of an exchange, and keep their times: see `measure_selectors`.

        Raises `SparkUnavailable`, too.
        """
        with self._spark.using() as spark:
            times = measure_selectors(spark, name, exchange, self._declared.graph)
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
        """Whether it runs steps: false while Spark is away, and after an error without a remedy."""
        return self._thread.is_alive() and not self._spark.is_away

    def _run(self) -> None:
        try:
            while not self._ending:
                self._wake.clear()
                try:
                    self._look()
                except Exception:
                    if self._spark.is_running:
                        raise
                if not self._spark.is_running:
                    self._restart_spark()
                    continue
                self._wake.wait(BUSY_SECONDS if self._probation.is_busy else CHECK_SECONDS)
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
        if not self._spark.is_running:
            return  # and that is why steps have ended
        steps = {name: one.step for name, one in self._known.items() if one.step is not None}
        waiting: dict[str, int | None] = {}
        for name in StepOrder(steps).sort(steps):
            if self._known[name].ns not in self._declared.away and name not in ending:
                self._attempt(self._look_at, self._known[name], states[name], waiting)
        for name in self._probation.choose(waiting):
            self._attempt(self._start, self._known[name], states[name], waiting[name])

    def _look_at(self, one: KnownStep, state: Status, waiting: dict[str, int | None]) -> None:
        """Stop a step if it is to be stopped, or renew its run.

        If it is to be started, add it to `waiting`, with its deaths if it is a suspect.
        """
        if one.stopped:
            self._probation.leave(one.name)
            if state.is_running:
                self._graph.stop(one.name)
            if one.name in self._renewed:
                self._give_up(one)
            self._retry_at.pop(one.name, None)
        elif state.is_running:
            self._renew(one, state)
            if self._probation.is_tried(one.name):
                self._check_probation(one, state)
        elif one.name in self._probation.kept:
            self._keep(one, self._probation.kept[one.name])
            if time.monotonic() >= self._retry_at.get(one.name, 0):
                waiting[one.name] = self._probation.kept[one.name]
        else:
            self._wait_to_start(one, waiting)

    def _wait_to_start(self, one: KnownStep, waiting: dict[str, int | None]) -> None:
        """Add a step to `waiting`, unless another process runs it, or it has just failed here."""
        now = time.monotonic()
        if one.name in self._renewed:  # it has ended here, with an error
            self._probation.leave(one.name)
            self._give_up(one, alone=False)
            self._retry_at[one.name] = now + RETRY_SECONDS
        if now < self._retry_at.get(one.name, 0):
            return
        left = self._runs.left(one.ns, one.key)
        if left is not None:
            deaths = left.deaths + (left.died and left.alone)
            suspect = left.alone or deaths > 0 or (left.died and has_work(self._stores, one.name, one.step))
            waiting[one.name] = deaths if suspect else None

    def _start(self, one: KnownStep, state: Status, deaths: int | None) -> None:
        """Start a step, unless another process was faster. `deaths`: those of a suspect."""
        now, error = time.monotonic(), None if deaths is None else SUSPECT_TEXT
        alone, known = deaths is not None, deaths or 0
        if not self._runs.claim(
            one.ns, one.key, "starting", error or state.error, state.restarts, alone=alone, deaths=known
        ):
            self._probation.leave(one.name)
            return
        self._renewed[one.name] = now, "starting", state.error
        if known >= MOST_DEATHS:
            self._stop_suspect(one)
        elif not is_free(self._stores, one.name, one.step):
            self._probation.leave(one.name)
            if deaths is None:
                self._give_up(one)
                self._retry_at[one.name] = now + OTHER_SECONDS
            else:  # its reader may need a moment to end: the others wait until this step starts alone
                self._keep_suspect(one, known)
                self._retry_at[one.name] = now + CHECK_SECONDS
        else:
            try:
                folder = self._settler.settle_other_folder(self._spark.session, one)
                self._runs.claim(one.ns, one.key, "starting", folder=folder)
                self._graph.start(self._spark.session, one.name)
            except (QueueError, PySparkException) as failure:
                if not self._spark.is_running:
                    raise
                log.error("exchange %s cannot start, which is retried in %d s: %s", one.name, RETRY_SECONDS, failure)
                self._probation.leave(one.name)
                self._give_up(one, without_secrets(str(failure), self._stores[one.ns].url), alone=False)
                self._retry_at[one.name] = now + RETRY_SECONDS

    # --- Spark's process dies ---------------------------------------------------------------------

    def _restart_spark(self) -> None:
        """Start Spark again after its process has died, and note which steps are suspects."""
        log.error("the process of Spark has died, and with it all exchanges of this server: it starts again")
        self._spark.forget()
        self._graph.stop()
        blamed = self._probation.blame()
        alone = blamed is not None and self._probation.others_wait
        for name in list(self._renewed):
            self._attempt(self._note_death, self._known[name], blamed, alone)
        while not self._ending and self._spark.is_away:
            try:
                self._spark.start(self._keep_suspects)
            except (QueueError, PySparkException, OSError) as error:
                log.error("Spark cannot start, which is retried in %d s: %s", SPARK_RETRY_SECONDS, error)
                for name in list(self._renewed):  # other servers may run them
                    self._probation.leave(name)
                    self._attempt(self._give_up, self._known[name])
                self._wake.wait(SPARK_RETRY_SECONDS)
                self._wake.clear()
        self._probation.restart()

    def _note_death(self, one: KnownStep, blamed: str | None, alone: bool) -> None:
        """Note for a step that Spark's process died while it ran here.

        Suspects stay in this process: elsewhere they would run beside other steps. `blamed`: the
        step that is to blame; `alone`: if nothing else ran, so that the others are no suspects.
        """
        self._retry_at.pop(one.name, None)
        self._probation.keep(one.name, 0)  # also if its database fails now
        left = self._runs.left(one.ns, one.key)
        if left is None or not has_work(self._stores, one.name, one.step) or (alone and one.name != blamed):
            self._probation.leave(one.name)
            self._give_up(one, alone=False)
            return
        deaths = left.deaths + (one.name == blamed)
        if deaths >= MOST_DEATHS:
            self._stop_suspect(one)
        else:
            self._keep_suspect(one, deaths)

    def _keep_suspect(self, one: KnownStep, deaths: int) -> None:
        """Let a step wait here until it can start alone."""
        self._renewed.pop(one.name)
        self._probation.keep(one.name, deaths)
        self._keep(one, deaths)

    def _keep_suspects(self) -> None:
        """Renew the runs of suspects that wait here."""
        for name, deaths in self._probation.kept.items():
            self._attempt(self._keep, self._known[name], deaths)

    def _keep(self, one: KnownStep, deaths: int) -> None:
        """Renew the run of a suspect that waits here, if it is time."""
        now, facts = time.monotonic(), ("waiting", SUSPECT_TEXT)
        if now - self._renewed.get(one.name, (0.0,))[0] >= StoreLimits.heartbeat:
            self._renewed[one.name] = now, *facts
            self._runs.claim(one.ns, one.key, *facts, alone=False, deaths=deaths)

    def _stop_suspect(self, one: KnownStep) -> None:
        """Stop a step for which Spark's process has died too often, until it is started."""
        error = STOPPED_TEXT.format(name=one.name)
        log.error("exchange %s: %s", one.name, error)
        self._probation.leave(one.name)
        self._give_up(one, error, alone=True, deaths=0)
        self._declared.set_stopped(one, True)

    def _check_probation(self, one: KnownStep, state: Status) -> None:
        """End the probation of a step that has done a batch or has no work, or let others start."""
        runs = (datetime.now(UTC) - state.since).total_seconds() if state.state == "running" else 0.0
        if state.traffic.batches or (runs >= IDLE_SECONDS and not has_work(self._stores, one.name, one.step)):
            self._probation.leave(one.name)
            self._renew(one, state, alone=False, deaths=0)
        elif self._probation.let_next(one.name, runs):
            self._renew(one, state, alone=False)

    # --- runs -------------------------------------------------------------------------------------

    def _renew(self, one: KnownStep, state: Status, **probation: Any) -> None:
        """Renew the run of a step that runs here, if it is time or its state has changed."""
        now, facts = time.monotonic(), (state.state, state.error)
        at, *before = self._renewed.get(one.name, (0.0, "", None))
        if now - at >= StoreLimits.heartbeat or tuple(before) != facts or probation:
            self._renewed[one.name] = now, *facts
            # After a long pause, another process may have it. The owner note decides which reads.
            self._runs.claim(one.ns, one.key, *facts, state.restarts, **probation)

    def _give_up(self, one: KnownStep, error: str | None = None, **probation: Any) -> None:
        state = self._graph.status()[one.name]
        self._runs.give_up(one.ns, one.key, state.state, error or state.error, state.restarts, **probation)
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
                self._probation.leave(name)
                if self._renewed.pop(name, None):
                    self._attempt(lambda one: self._runs.give_up(one.ns, one.key, "stopped"), one)
        for name, one in wanted.items():
            if name not in self._adopted and one.step is not None:
                self._graph.add(name, one.step, one.key)
                self._adopted[name] = one

    def _finish(self, one: KnownStep, step: Step) -> None:
        """Settle what an exchange had reserved that was removed, once no process runs it."""
        if not self._runs.claim(one.ns, one.key, "stopped") or not is_free(self._stores, one.name, one.step):
            return
        store = self._stores[one.ns]
        try:
            self._settler.settle(one, step)
        except UsageError as error:
            log.error("exchange %s was removed, and its messages stay reserved: %s", one.name, error)
        reset_traffic(store.url, one.name)
        delete_times(store, one.name)
        self._runs.remove(one.ns, one.key)
        self._declared.forget(one)
