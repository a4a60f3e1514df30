"""A graph at work: one streaming query for each exchange, link and processor, started again when it fails."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Mapping
from datetime import datetime
from itertools import groupby
from typing import Any, NamedTuple, Self

import networkx as nx
from pyspark.sql import SparkSession

from spark_queue.client import Queue
from spark_queue.errors import GraphError, QueueError, near
from spark_queue.graph.file_mistakes import refusal
from spark_queue.graph.loader import Secrets, graph_in
from spark_queue.graph.model import (
    RESTARTS,
    Graph,
    Place,
    nouns,
)
from spark_queue.graph.step import Step
from spark_queue.graph.validation import checked, with_step, without_step
from spark_queue.messages.message import Message
from spark_queue.messages.payload import Json
from spark_queue.runner.query import StepQuery, query_of
from spark_queue.runner.running_step import RunningStep, Status
from spark_queue.runner.step import RunnableStep
from spark_queue.runner.steps import runnable
from spark_queue.stores import open_store


class ExchangeGraph:
    """Runs the exchanges of a graph in a Spark session.

    Each has its checkpoint in a folder of its own below `checkpoint_root`, which any file system of Spark's may hold,
    and goes on there when it is started again. All methods may be called from any thread.
    """

    def __init__(self, graph: Graph, checkpoint_root: str, *, pause: float = 1.0, longest: float = 60.0) -> None:
        """Raises `GraphError` with all that is wrong with the graph.

        `pause`, `longest`: seconds before a query that failed starts again, the first time and at most.
        """
        self.graph = checked(graph)
        self._root = checkpoint_root.rstrip("/")
        self._pause, self._longest = pause, longest
        self._running = {name: RunningStep(name, one) for name, one in self.graph.steps.items()}
        self._lock = threading.RLock()

    @classmethod
    def from_file(
        cls, file: str | os.PathLike[str], checkpoint_root: str, *, secrets: Secrets | None = None, **options: Any
    ) -> Self:
        """The graph in a YAML or JSON file; see `graph_in`."""
        return cls(graph_in(file, secrets), checkpoint_root, **options)

    # --- the life of exchanges ----------------------------------------------------------------------------------

    def start(
        self, spark: SparkSession, *names: str, available_now: bool = False, restarts: int | None = None
    ) -> Self:
        """Start these exchanges, or all, unless they run; give the graph.

        All are looked at before the first one starts: raises `GraphError` with every selector and option that cannot
        work, and every queue whose name its database forbids.
        `available_now`: each ends when it has routed what was there and mature when it started. `restarts`: after so
        many failures in a row an exchange stops (`None`: never).
        """
        with self._lock:
            chosen = [one for one in self._chosen(names) if not one.alive]
            planned = self._planned(spark, chosen, available_now=available_now)
            self._make_known(chosen)
            for one in chosen:
                one.begin()
                one.start(planned[one.name].query, self._pause, self._longest, restarts)
        return self

    def drain(self, spark: SparkSession, *names: str, restarts: int | None = RESTARTS) -> None:
        """Route what is mature in the sources of these exchanges, or of all, and what comes of it; then end.

        Messages that mature later stay where they are, and an exchange that finds none is not started. One whose
        query fails is started again, but not after `restarts` failures in a row (`None`: always). Raises as `start`
        does, `GraphError` where one of them runs already, and `QueueError` where one has ended before it was done;
        the others have done then what there was for them.
        """
        with self._lock:
            chosen = self._chosen(names)
            for one in chosen:
                if one.alive:
                    raise GraphError(f"exchange {one.name!r} is running: stop it, then drain it", exchange=one.name)
            planned = self._planned(spark, chosen, available_now=True)
            self._make_known(chosen)
            for one in chosen:
                one.begin()
        going = chosen
        while going := [one for one in going if planned[one.name].query.has_messages()]:
            before = {one.name: one.status() for one in going}
            for one in going:
                one.start(planned[one.name].query, self._pause, self._longest, restarts)
            for one in going:
                one.join(None)
            fed: set[str] = set()
            for one in going:
                now, then = one.status(), before[one.name]
                if now.state != "finished":
                    raise QueueError(f"exchange {one.name!r} is {now.state}: {now.error}", exchange=one.name)
                pushed = planned[one.name].step.pushed
                fed |= set(pushed(now.traffic) - pushed(then.traffic))
            going = [one for one in chosen if fed.intersection(map(str, one.step.sources))]
        for one in chosen:
            one.finish()

    def _make_known(self, chosen: Iterable[RunningStep]) -> None:
        """Let the queues that these steps write exist, so that no reader of one warns that it is missing."""
        written = {place for one in chosen for place in one.step.written}
        for url, places in groupby(sorted(written, key=self._url_of), key=self._url_of):
            with open_store(url) as store:
                for place in places:
                    store.count(place.queue)

    def _url_of(self, place: Place) -> str:
        return self.graph.namespaces[place.ns].url

    def stop(self, *names: str) -> None:
        """Stop these exchanges, or all, and wait until they have. A batch that is cut short comes again."""
        with self._lock:
            chosen = self._chosen(names)
        for one in chosen:
            one.ask_to_stop()
        for one in chosen:
            one.join(None)

    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait until no exchange runs, at most `timeout` seconds; give whether none does."""
        with self._lock:
            running = list(self._running.values())
        end = None if timeout is None else time.monotonic() + timeout
        return all(one.join(None if end is None else max(0.0, end - time.monotonic())) for one in running)

    def add(self, name: str, step: Step) -> None:
        """Add an exchange, a link or a processor, which then waits to be started.

        Raises `GraphError`, also where the name is taken.
        """
        with self._lock:
            if name in self._running or name in self.graph.entries:
                raise GraphError(f"there is an exchange {name!r} already", exchange=name)
            self.graph = with_step(self.graph, name, step)
            if name in self.graph.steps:
                self._running[name] = RunningStep(name, self.graph.steps[name])

    def remove(self, name: str) -> None:
        """Stop a step and forget it. Its checkpoint stays, and what that has reserved."""
        if name not in self.graph.entries:  # a source does not run
            self.stop(name)
        with self._lock:
            self._running.pop(name, None)
            self.graph = without_step(self.graph, name)

    def status(self) -> dict[str, Status]:
        """How each exchange is, by its name."""
        with self._lock:
            return {name: one.status() for name, one in self._running.items()}

    # --- what comes in and what is there --------------------------------------------------------------------------

    def send(
        self,
        *payloads: Json | bytes,
        to: str | None = None,
        headers: Mapping[str, str] | None = None,
        mature: datetime | None = None,
        delay: float | None = None,
    ) -> list[str]:
        """Push messages into the queue of a source, and give their ids.

        `to`: the name of the source, which goes without saying where there is one alone. The rest is as for
        `Queue.push_many`, which tells what it raises; `GraphError` where there is no such source.
        """
        entries = self.graph.entries
        if to is None:
            if len(entries) != 1:
                raise GraphError(f"name the source: the graph has {', '.join(entries) or 'none'}")
            (to,) = entries
        if to not in entries:
            hint = near(to, entries) or f"; there are {', '.join(entries) or 'none'}"
            raise GraphError(f"there is no source {to!r}{hint}", exchange=to)
        with self._queue(entries[to]) as queue:
            return queue.push_many(payloads, headers=headers, mature=mature, delay=delay)

    def messages(self, place: str, limit: int = 1_000) -> list[Message]:
        """The first messages of a queue of the graph (`ns/queue`) in order, reserved ones too, changing nothing."""
        known = {str(one): one for one in [*self.graph.queues(), *self.graph.leftovers()]}
        if place not in known:
            hint = near(place, known) or f"; there are {', '.join(known)}"
            raise GraphError(f"the graph has no queue {place!r}{hint}")
        with self._queue(known[place]) as queue:
            return queue.peek(limit)

    def topology(self) -> nx.DiGraph[str]:
        """The graph as one of networkx: see `Graph.topology`."""
        return self.graph.topology()

    def _queue(self, place: Place) -> Queue:
        return Queue(self.graph.namespaces[place.ns].url, place.queue)

    def _chosen(self, names: Iterable[str]) -> list[RunningStep]:
        names = list(names) or list(self._running)
        for name in names:
            if name not in self._running:
                hint = near(name, self._running) or f"; there are {', '.join(self._running)}"
                raise GraphError(f"there is no exchange {name!r}{hint}", exchange=name)
        return [self._running[name] for name in names]

    # --- queries ------------------------------------------------------------------------------------------------

    def _planned(
        self, spark: SparkSession, chosen: Iterable[RunningStep], *, available_now: bool
    ) -> dict[str, _Planned]:
        """The steps with their queries. Raises `GraphError` with all that cannot work."""
        steps = [runnable(spark, one.name, one.step, self.graph) for one in chosen]
        if mistakes := [mistake for one in steps for mistake in one.mistakes]:
            raise refusal(mistakes, self.graph.origin, nouns(type(self.graph)))
        return {
            one.name: _Planned(one, query_of(spark, one, f"{self._root}/{one.name}", available_now=available_now))
            for one in steps
        }


class _Planned(NamedTuple):
    """A step and its query."""

    step: RunnableStep[Any]
    query: StepQuery
