"""A running graph: one streaming query for each step, which is restarted if it fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from itertools import groupby
from typing import Any, Self

import networkx as nx
from pyspark.sql import SparkSession

from spark_queue.client import Queue
from spark_queue.errors import GraphError, QueueError, StoreUnavailable, did_you_mean
from spark_queue.graph.file_mistakes import Mistake, graph_error
from spark_queue.graph.loader import FileName, Secrets, load_graph
from spark_queue.graph.model import DRAIN_RESTARTS, Graph, Place, section_nouns
from spark_queue.graph.model import isomorphic as isomorphic
from spark_queue.graph.order import StepOrder
from spark_queue.graph.parts import SourceLocation
from spark_queue.graph.step import Step
from spark_queue.graph.validation import check_graph, unknown_step, with_step, without_step
from spark_queue.messages.message import Message
from spark_queue.messages.payload import Json
from spark_queue.runner.drain import run_in_order
from spark_queue.runner.query import StepQuery
from spark_queue.runner.running_step import RunningStep, Status
from spark_queue.runner.selector import load_function
from spark_queue.runner.step import RunnableStep
from spark_queue.stores import open_store
from spark_queue.stores.base import Store


class ExchangeGraph:
    """Runs the steps of a graph in a Spark session.

    Each step has its checkpoint in its own folder below `checkpoint_root`, on any file system that
    Spark supports. It continues there when it starts again. All methods may be called from any
    thread.
    """

    def __init__(
        self, graph: Graph, checkpoint_root: str, *, initial_backoff: float = 1.0, max_backoff: float = 60.0
    ) -> None:
        """Check the graph. Raises `GraphError` with all its mistakes.

        `initial_backoff`, `max_backoff`: the delay in seconds before a failed query is restarted,
        the first time and at most.
        """
        self.graph = check_graph(graph)
        self._root = checkpoint_root.rstrip("/")
        self._initial_backoff, self._max_backoff = initial_backoff, max_backoff
        self._running = {name: RunningStep(name, one) for name, one in self.graph.steps.items()}
        self._folders = {name: name for name in self._running}
        self._lock = threading.RLock()

    @classmethod
    def from_file(
        cls, file: FileName, checkpoint_root: str, *, secrets: Secrets | None = None, **options: Any
    ) -> Self:
        """Load the graph from a YAML or JSON file. Raises the errors of `load_graph`."""
        return cls(load_graph(file, secrets), checkpoint_root, **options)

    # --- start and stop ---------------------------------------------------------------------------

    def start(
        self, spark: SparkSession, *names: str, available_now: bool = False, restarts: int | None = None
    ) -> Self:
        """Start these steps, or all that are not disabled, unless they run. Return the graph.

        They start a few at a time, those that write messages before those that read them.
        All are checked before the first one starts. Raises `GraphError` with every selector and
        option that cannot work, and every queue whose name its database forbids. `available_now`:
        each step ends after the messages that were due at its start. `restarts`: the maximum number
        of restarts in a row (`None`: unlimited).
        """
        with self._lock:
            chosen = [one for one in self._select(names or self._enabled()) if not one.is_alive]
            queries = self._prepare(spark, chosen, available_now=available_now)
            for name in StepOrder(self.graph.steps).sort(queries):
                self._running[name].start(queries[name], self._initial_backoff, self._max_backoff, restarts)
        return self

    def drain(self, spark: SparkSession, *names: str, restarts: int | None = DRAIN_RESTARTS) -> None:
        """Process the due messages of these steps, or of all that are not disabled, to their end.

        Messages made from them are processed, too. A step runs after those that write its messages;
        the steps of a cycle run side by side. Messages that are due later stay in their queues, and
        a step without messages is not started. A query that fails is restarted, at most `restarts`
        times in a row (`None`: unlimited). Raises `GraphError` as `start` does, or if one of the
        steps is running. Raises `QueueError` if one has ended before all was processed; the others
        have then processed their messages.
        """
        with self._lock:
            chosen = self._select(names or self._enabled())
            for one in chosen:
                if one.is_alive:
                    raise GraphError(f"step {one.name!r} is running: stop it, then drain it", exchange=one.name)
            queries = self._prepare(spark, chosen, available_now=True)
        run_in_order(
            {one.name: one.step for one in chosen},
            lambda name: queries[name].has_messages(),
            lambda name: self._run_to_end(queries[name], restarts),
        )
        for one in chosen:
            one.mark_finished()

    def _run_to_end(self, query: StepQuery, restarts: int | None) -> set[str]:
        """Run a step until it has ended, and return the queues that got messages.

        Raises `QueueError` if it has failed.
        """
        one = self._running[query.step.name]
        before = one.status()
        one.start(query, self._initial_backoff, self._max_backoff, restarts)
        one.join(None)
        after = one.status()
        if after.state != "finished":
            raise QueueError(f"step {one.name!r} is {after.state}: {after.error}", exchange=one.name)
        pushed = query.step.pushed_counts
        return set(pushed(after.traffic) - pushed(before.traffic))

    def stop(self, *names: str) -> None:
        """Stop these steps, or all, and wait until they have ended.

        A batch that is interrupted is retried at the next start. Raises `GraphError` if a step is
        unknown.
        """
        with self._lock:
            chosen = self._select(names or self._running)
        for one in chosen:
            one.request_stop()
        for one in chosen:
            one.join(None)

    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait until no step runs, at most `timeout` seconds. Return whether none does."""
        with self._lock:
            running = list(self._running.values())
        end = None if timeout is None else time.monotonic() + timeout
        return all(one.join(None if end is None else max(0.0, end - time.monotonic())) for one in running)

    def check(self, spark: SparkSession, name: str, step: Step) -> None:
        """Check a step that is not in the graph as `start` would, its selectors included.

        Raises `GraphError` with all its mistakes.
        """
        found: RunnableStep[Any] = load_function(step.runner)(spark, name, step, self.graph)
        if found.mistakes:
            raise self._error(found.mistakes, SourceLocation(f"{step.noun} {name!r}"))

    def add(self, name: str, step: Step, folder: str = "") -> None:
        """Add an exchange, a link or a processor, without starting it.

        `folder`: that of its checkpoint below `checkpoint_root`, by default its name. Raises
        `GraphError` if it has mistakes, or its name is taken.
        """
        with self._lock:
            if name in self._running or name in self.graph.entries:
                raise GraphError(f"there is a step {name!r} already: choose another name", exchange=name)
            self.graph = with_step(self.graph, name, step)
            if name in self.graph.steps:
                self._running[name] = RunningStep(name, self.graph.steps[name])
                self._folders[name] = folder or name

    def remove(self, name: str) -> None:
        """Stop a step, and remove it from the graph. Its checkpoint and its reservations stay.

        Raises `GraphError` if the graph has no such step.
        """
        if name not in self.graph.entries:  # a source never runs
            self.stop(name)
        with self._lock:
            self._running.pop(name, None)
            self.graph = without_step(self.graph, name)

    def status(self) -> dict[str, Status]:
        """Return the status of each step, by name."""
        with self._lock:
            return {name: one.status() for name, one in self._running.items()}

    # --- messages ---------------------------------------------------------------------------------

    def send(
        self,
        *payloads: Json | bytes,
        to: str | None = None,
        headers: Mapping[str, str] | None = None,
        mature: datetime | None = None,
        delay: float | None = None,
    ) -> list[str]:
        """Push messages to the queue of a source, and return their ids.

        `to`: the name of the source; optional if the graph has exactly one. The other arguments,
        and their errors, are those of `Queue.push_many`. Raises `GraphError` if there is no such
        source.
        """
        entries = self.graph.entries
        if to is None:
            if len(entries) != 1:
                raise GraphError(f"name the source by `to`: the graph has {', '.join(entries) or 'none'}")
            (to,) = entries
        if to not in entries:
            raise unknown_step("there is no source", to, entries)
        with self._queue(entries[to]) as queue:
            return queue.push_many(payloads, headers=headers, mature=mature, delay=delay)

    def messages(self, place: str, limit: int = 1_000) -> list[Message]:
        """Return the first messages of a queue of the graph (`ns/queue`), in order.

        Reserved messages are included, and nothing changes. Raises `GraphError` if the graph has no
        such queue.
        """
        places = {str(one): one for one in [*self.graph.queues(), *self.graph.unrouted_queues()]}
        if place not in places:
            hint = did_you_mean(place, places) or f"; there are {', '.join(places)}"
            raise GraphError(f"the graph has no queue {place!r}{hint}")
        with self._queue(places[place]) as queue:
            return queue.peek(limit)

    def topology(self) -> nx.DiGraph[str]:
        """Return the graph for networkx: see `Graph.topology`."""
        return self.graph.topology()

    def _queue(self, place: Place) -> Queue:
        return Queue(self._url_of(place), place.queue)

    def _url_of(self, place: Place) -> str:
        return self.graph.namespaces[place.ns].url

    def _enabled(self) -> list[str]:
        return [name for name, one in self._running.items() if not one.step.disable]

    def _select(self, names: Iterable[str]) -> list[RunningStep]:
        names = list(names)
        for name in names:
            if name not in self._running:
                raise unknown_step("there is no step", name, self._running)
        return [self._running[name] for name in names]

    # --- queries ----------------------------------------------------------------------------------

    def _prepare(
        self, spark: SparkSession, chosen: Iterable[RunningStep], *, available_now: bool
    ) -> dict[str, StepQuery]:
        """Return the queries of steps by name, and reset these steps.

        Also create the queues that they write, so that no reader warns that one is missing. Raises
        `GraphError` with all mistakes, before anything is changed.
        """
        steps: list[RunnableStep[Any]] = [
            load_function(one.step.runner)(spark, one.name, one.step, self.graph) for one in chosen
        ]
        if mistakes := [mistake for one in steps for mistake in one.mistakes]:
            raise self._error(mistakes, self.graph.origin)
        written = {place for one in chosen for place in one.step.written_queues}
        for url, places in groupby(sorted(written, key=self._url_of), key=self._url_of):
            with open_store(url, retry_timeout=0) as store:
                for place in places:
                    _register(store, place.queue)
        for one in chosen:
            one.reset()
        folders = {one.name: f"{self._root}/{self._folders[one.name]}" for one in steps}
        return {one.name: StepQuery(spark, one, folders[one.name], available_now) for one in steps}

    def _error(self, mistakes: Iterable[Mistake], origin: SourceLocation) -> GraphError:
        return graph_error(mistakes, origin, section_nouns(type(self.graph)))


def _register(store: Store, queue: str) -> None:
    """Register a queue. A database that is away learns of it when the step writes there."""
    with suppress(StoreUnavailable):
        store.register(queue)
