"""A graph at work: one streaming query for each exchange, link and processor, started again when it fails."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, Literal, Self

import networkx as nx
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_queue.client import Queue
from spark_queue.errors import GraphError, QueueError, StoreError, StoreUnavailable, UsageError, near
from spark_queue.graph.file_mistakes import KINDS, Mistake, refusal
from spark_queue.graph.loader import Secrets, graph_in
from spark_queue.graph.model import (
    NO_ROUTE,
    RESTARTS,
    TOO_MANY_HOPS,
    Exchange,
    Graph,
    Link,
    Place,
    Processor,
    Step,
)
from spark_queue.graph.validation import checked, with_step, without_step
from spark_queue.messages.message import Message
from spark_queue.messages.payload import Json
from spark_queue.options.queue_options import QueueOptions
from spark_queue.options.values import AT_LEAST_ONCE, EXACTLY_ONCE
from spark_queue.runner import exchange as route
from spark_queue.runner import link
from spark_queue.runner.exchange import Route
from spark_queue.runner.link import LinkRoute
from spark_queue.runner.processor import MADE, RECEIVED, ProcessorRoute
from spark_queue.runner.traffic import Traffic, count
from spark_queue.spark import activate, start_in_turn, supervise, version
from spark_queue.spark.spark_errors import failure_of
from spark_queue.stores import open_store, store_class, usable

log = logging.getLogger(__name__)

#: What an exchange is doing: nothing; starting its query; its work; waiting to start again after a failure; or it has
#: done all there was.
State = Literal["stopped", "starting", "running", "waiting", "finished"]


@dataclass(frozen=True)
class Status:
    """How an exchange is.

    `since`: when it took this state (UTC). `error`: what it failed with last. `traffic`: since it was started.
    """

    name: str
    src: str
    dst: list[str]
    state: State
    since: datetime
    restarts: int
    error: str | None
    traffic: Traffic


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
        self._running = {name: _Running(name, one) for name, one in self.graph.steps.items()}
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
            queries = self._queries(spark, chosen, available_now=available_now)
            self._make_known(chosen)
            for one in chosen:
                one.begin()
                one.start(queries[one.name], self._pause, self._longest, restarts)
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
            queries = self._queries(spark, chosen, available_now=True)
            self._make_known(chosen)
            for one in chosen:
                one.begin()
        going = chosen
        while going := [one for one in going if queries[one.name].has_messages()]:
            before = {one.name: one.status() for one in going}
            for one in going:
                one.start(queries[one.name], self._pause, self._longest, restarts)
            for one in going:
                one.join(None)
            fed: set[str] = set()
            for one in going:
                now, then = one.status(), before[one.name]
                if now.state != "finished":
                    raise QueueError(f"exchange {one.name!r} is {now.state}: {now.error}", exchange=one.name)
                fed |= set(self._pushed(now) - self._pushed(then))
            going = [one for one in chosen if fed.intersection(map(str, one.step.sources))]
        for one in chosen:
            one.finish()

    def _make_known(self, chosen: Iterable[_Running]) -> None:
        """Let the queues that these steps write exist, so that no reader of one warns that it is missing."""
        written = {place for one in chosen for place in _written(one.step)}
        for url, places in groupby(sorted(written, key=self._url_of), key=self._url_of):
            with open_store(url) as store:
                for place in places:
                    store.count(place.queue)

    def _url_of(self, place: Place) -> str:
        return self.graph.namespaces[place.ns].url

    def _pushed(self, one: Status) -> Counter[str]:
        """What an exchange has pushed, by queue: what it could not route, too."""
        step = self.graph.steps[one.name]
        if isinstance(step, Processor):
            return one.traffic.pushed
        ns = step.src.ns
        lost = {
            str(Place(NO_ROUTE, ns)): one.traffic.no_route,
            str(Place(TOO_MANY_HOPS, ns)): one.traffic.too_many_hops,
        }
        return one.traffic.pushed + Counter(lost)

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
                self._running[name] = _Running(name, self.graph.steps[name])

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

    def _chosen(self, names: Iterable[str]) -> list[_Running]:
        names = list(names) or list(self._running)
        for name in names:
            if name not in self._running:
                hint = near(name, self._running) or f"; there are {', '.join(self._running)}"
                raise GraphError(f"there is no exchange {name!r}{hint}", exchange=name)
        return [self._running[name] for name in names]

    # --- queries ------------------------------------------------------------------------------------------------

    def _moves(self, step: Step) -> bool:
        """Whether messages move, each to one queue of the same database, in one step of it."""
        if isinstance(step, Processor):
            return False
        src = self.graph.namespaces[step.src.ns].url
        if isinstance(step, Exchange) and (len(step.dst) != 1 or not step.consumer.reserve):
            return False
        places = [to.place for to in step.dst]
        alike = all(to.ns == step.src.ns or self.graph.namespaces[to.ns].url == src for to in places)
        elsewhere = all(to.queue != step.src.queue for to in places)
        return alike and elsewhere and store_class(src).forwards

    def _urls(self, spaces: Iterable[str]) -> str:
        return json.dumps({ns: self.graph.namespaces[ns].url for ns in spaces})

    def _read_options(self, name: str, step: Step) -> dict[str, str]:
        """How the messages of a step are read; nothing of what reads them by itself."""
        if step.src is None:
            return {}
        src = self.graph.namespaces[step.src.ns]
        parallel = step.consumer.parallel
        if isinstance(step, Processor):
            parallel = parallel or 1  # which keeps the order
            asked = {
                binding: {"queue": one.queue, "ns": one.ns, **({"mode": one.mode} if one.mode != "queue" else {})}
                for binding, one in step.inputs.items()
            }
            place = {
                "urls": self._urls(dict.fromkeys(one.ns for one in step.sources)),
                "inputs": json.dumps(asked),
                "combine": "alts" if step.alts else "zip",
            }
        else:
            place = {"url": src.url, "queue": step.src.queue}
        return {
            **place,
            "consumer": name,
            # What moves is in one queue at every moment: a lease that ends doubles nothing.
            "delivery": AT_LEAST_ONCE if self._moves(step) else step.guarantee,
            "maxRecordsPerTrigger": str(step.consumer.wsize),
            **({} if parallel is None else {"numPartitions": str(parallel)}),
            **src.options,
            **step.options,
        }

    def _refused(self, name: str, step: Step) -> Iterator[Mistake]:
        """What `format("queue")` refuses of a step, as far as it can tell without its databases."""
        kind = next(kind for kind in KINDS if name in getattr(self.graph, kind))
        key = "src" if not isinstance(step, Processor) else "alts" if step.alts else "in"
        to: list[tuple[tuple[str | int, ...], Place]] = [
            (("dst", n), place) for n, place in enumerate(one.place for one in step.dst)
        ]
        try:
            options = self._options(name, step)
            if options is not None:
                usable(options)
            if isinstance(step, Link) and step.dst and not self._moves(step):
                text = "its database cannot move messages in one step: a link needs MongoDB with layout=pl-mongo"
                yield Mistake((kind, name, key), text)
        except UsageError as error:
            yield Mistake((kind, name, key), str(error))
        if isinstance(step, Processor):
            bound = {"out": step.out, "tailers": step.tailers, "appenders": step.appenders}
            to = [((key, one), place) for key, places in bound.items() for one, place in places.items()]
            to += [(("errors",), step.errors)] if step.errors else []
        for path, place in to:
            try:
                usable(QueueOptions(url=self.graph.namespaces[place.ns].url, queue=place.queue))
            except UsageError as error:
                yield Mistake((kind, name, *path), str(error))

    def _options(self, name: str, step: Step) -> QueueOptions | None:
        """The options that a step reads with. Raises `OptionError`."""
        read = self._read_options(name, step)
        return QueueOptions.parse(read, "stream") if read else None

    def _queries(self, spark: SparkSession, chosen: Iterable[_Running], *, available_now: bool) -> dict[str, _Query]:
        """The queries of these steps. Raises `GraphError` with all that cannot work."""
        routes: dict[str, Route | LinkRoute | ProcessorRoute] = {}
        mistakes: list[Mistake] = []
        for one in chosen:
            refused = list(self._refused(one.name, one.step))
            found: list[Mistake]
            if isinstance(one.step, Link):
                routes[one.name], found = LinkRoute.of(spark, one.name, one.step)
            elif isinstance(one.step, Processor):
                options = None if refused else self._options(one.name, one.step)
                routes[one.name], found = ProcessorRoute.of(spark, one.name, one.step, self.graph, options)
            else:
                routes[one.name], found = Route.of(spark, one.name, one.step, self.graph.max_hops)
            mistakes += [*found, *refused]
        if mistakes:
            raise refusal(mistakes, self.graph.origin)
        return {one.name: self._query(spark, one.name, one.step, routes[one.name], available_now) for one in chosen}

    def _query(
        self,
        spark: SparkSession,
        name: str,
        step: Step,
        by: Route | LinkRoute | ProcessorRoute,
        available_now: bool,
    ) -> _Query:
        read = self._read_options(name, step)
        settles = isinstance(by, LinkRoute) or self._moves(step)
        shared = ("retrytimeout", *(("maxtries", "deadletterqueue", "history") if settles else ()))
        write = {key: value for key, value in read.items() if key.lower() in shared}
        # What a database cannot hold must not keep the rest from its destinations.
        write["onBadRow"] = "fail" if isinstance(step, Processor) and step.errors is None else "deadLetter"
        if settles and step.src is not None:
            write |= {"url": read["url"], "queue": step.src.queue, "consumer": name, "operation": "settle"}
        else:
            once = isinstance(step, Processor) or step.guarantee == EXACTLY_ONCE
            write |= {key: value for key, value in read.items() if key.lower() == "alloweviction"}
            write["urls"] = self._urls(step.namespaces())
            write["delivery"] = EXACTLY_ONCE if once else AT_LEAST_ONCE
            if once:  # the source refuses what does not fit, and a processor may say something new each time
                write["replayCheck"] = "none"
        trigger: dict[str, Any] = {"availableNow": True} if available_now else {}
        if step.every and not available_now:
            trigger = {"processingTime": f"{step.every} milliseconds"}

        def push(messages: DataFrame) -> None:
            messages.write.format("queue").mode("append").options(**write).save()

        def start() -> StreamingQuery:
            activate(spark)
            # What has no input is called for each batch of a source that always has one.
            source = spark.readStream.format("queue" if read else "rate-micro-batch")
            messages = source.options(**(read or {"rowsPerBatch": "1"})).load()
            if isinstance(by, ProcessorRoute) and by.acts:
                writer = messages.writeStream.foreachBatch(by.act(push))
            else:
                if isinstance(by, ProcessorRoute):
                    made = by.messages(messages)
                elif settles or isinstance(by, LinkRoute):
                    made = by.outcomes(messages)
                else:
                    made = by.copies(messages)
                writer = made.writeStream.format("queue").options(**write)
            writer = writer.queryName(name).option("checkpointLocation", f"{self._root}/{name}")
            return (writer.trigger(**trigger) if trigger else writer).start()

        return _Query(
            spark,
            start,
            url=self.graph.namespaces[self._home(step)].url,
            sources=self._waited_for(step),
            all_of_them=not (isinstance(step, Processor) and step.alts),
            by_batch=available_now and bool(read) and version(spark) < (4, 2),
            close=by.close if isinstance(by, ProcessorRoute) else lambda: None,
        )

    def _waited_for(self, step: Step) -> list[tuple[str, str | None]]:
        """The queues that a step reads, with their stores; no queue where a log is read, of which only it knows."""
        logs = (
            {one.place for one in step.inputs.values() if one.mode == "log"} if isinstance(step, Processor) else set()
        )
        return [(self.graph.namespaces[one.ns].url, None if one in logs else one.queue) for one in step.sources]

    def _home(self, step: Step) -> str:
        """The namespace that is told how a step gets on."""
        if step.src is not None:
            return step.src.ns
        assert isinstance(step, Processor)
        return next(iter([*step.tailers.values(), *step.appenders.values()])).ns


@dataclass(frozen=True)
class _Query:
    """How the query of a step is started, and what it reads.

    `url`: the store that is told how it gets on. `sources`: the queues, with their stores, and no name where it reads
    a log; `all_of_them`: whether each must have messages. `by_batch`: see `supervise`.
    """

    spark: SparkSession
    start: Callable[[], StreamingQuery]
    url: str = field(repr=False)
    sources: list[tuple[str, str | None]] = field(default_factory=list, repr=False)
    all_of_them: bool = True
    by_batch: bool = False
    close: Callable[[], None] = lambda: None

    def has_messages(self) -> bool:
        """Whether there is anything for it: ready, or held, perhaps by itself."""
        found = []
        for url, queue in self.sources:
            if queue is None:
                found.append(True)
                continue
            try:
                with open_store(url) as store:
                    sizes = store.sizes(queue)
            except StoreUnavailable:
                return True  # so that the query is started, which tries for longer and tells why it fails
            found.append(bool(sizes.ready or sizes.reserved))
        return all(found) if self.all_of_them else any(found)


class _Stopped(Exception):
    """An exchange was stopped before its query had started."""


class _Running:
    """One step of a graph, and the thread that keeps its query running."""

    def __init__(self, name: str, step: Step) -> None:
        self.name = name
        self.step = step
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._url = ""
        self._seen: tuple[str, int] = ("", -1)
        self.begin()

    def begin(self) -> None:
        """Count from zero."""
        self._stopping.clear()
        self._restarts = 0
        self._error: str | None = None
        self._traffic = self._untold = Traffic()
        self._become("stopped")

    def _become(self, state: State) -> None:
        self._state, self._since = state, datetime.now(UTC)

    @property
    def alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def start(self, query: _Query, pause: float, longest: float, restarts: int | None) -> None:
        """Run the query in a thread, unless the exchange was stopped since it began."""
        self._url = query.url
        self._become("starting")

        def asked() -> StreamingQuery:
            if self._stopping.is_set():
                raise _Stopped
            return query.start()

        def started() -> StreamingQuery:
            self._become("starting")
            made = start_in_turn(query.spark, asked, self._stopping.is_set)
            self._become("running")
            return made

        def run() -> None:
            try:
                supervise(
                    started,
                    self._url,
                    restarts=restarts,
                    pause=pause,
                    longest=longest,
                    by_batch=query.by_batch,
                    look=self._look,
                    wait=self._wait,
                )
                self._become("stopped" if self._stopping.is_set() else "finished")
            except _Stopped:
                self._become("stopped")
            except BaseException as error:
                self._error = failure_of(error).text
                self._become("stopped")
                log.exception("exchange %s ends", self.name)
            finally:
                query.close()

        self._thread = threading.Thread(target=run, name=f"exchange {self.name}", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """There is nothing left to do for it."""
        if self._state != "finished":
            self._become("finished")

    def _wait(self, seconds: float, error: str) -> bool:
        """Wait before the next start; give whether there is to be one."""
        self._restarts += 1
        self._error = error
        self._become("waiting")
        return not self._stopping.wait(seconds)

    def _look(self, query: StreamingQuery) -> None:
        """Count what the query has done since the last look, and stop it if that is wanted."""
        for progress in query.recentProgress:
            run, batch = str(progress["runId"]), int(progress["batchId"])
            observed = _observed(self.step, progress)
            if observed is not None and (run != self._seen[0] or batch > self._seen[1]):
                self._seen = run, batch
                made = _traffic(self.step, observed, progress["durationMs"])
                self._traffic, self._untold = self._traffic + made, self._untold + made
        if self._untold:
            try:
                count(self._url, self.name, self._untold)
                self._untold = Traffic()
            except StoreError as error:
                log.warning("what went through exchange %s is counted later: %s", self.name, error)
        if self._stopping.is_set():
            query.stop()

    def ask_to_stop(self) -> None:
        self._stopping.set()

    def join(self, timeout: float | None) -> bool:
        if self._thread is not None:
            self._thread.join(timeout)
        return not self.alive

    def status(self) -> Status:
        return Status(
            self.name,
            (" | " if isinstance(self.step, Processor) and self.step.alts else " + ").join(
                map(str, self.step.sources)
            ),
            [str(one) for one in _written(self.step)],
            self._state,
            self._since,
            self._restarts,
            self._error,
            self._traffic,
        )


def _written(step: Step) -> list[Place]:
    """The queues that its messages go to, those of errors last."""
    places = [one.place for one in step.dst]
    return [*places, step.errors] if isinstance(step, Processor) and step.errors else places


def _observed(step: Step, progress: Any) -> dict[str, Any] | None:
    """What was observed of a batch of a step."""
    observed = progress["observedMetrics"]
    if not isinstance(step, Processor):
        found = observed.get(link.OBSERVED if isinstance(step, Link) else route.OBSERVED)
        return None if found is None else found.asDict()
    rows = progress["numInputRows"]  # of what acts by itself, all that is known
    facts: dict[str, Any] = {"received": rows} if rows else {}
    for name in (RECEIVED, MADE):
        if name in observed:
            facts |= observed[name].asDict()
    return facts or None


def _traffic(step: Step, observed: Mapping[str, Any], durations: Mapping[str, int]) -> Traffic:
    """What one batch has moved, and how long that took."""
    traffic = Traffic(batches=1, milliseconds=Counter(durations))
    for number, to in enumerate(_written(step)):
        traffic.pushed[str(to)] += observed.get(f"pushed_{number}") or 0
        traffic.failed[str(to)] += observed.get(f"failed_{number}") or 0
    for name in ("received", "no_route", "too_many_hops", "odd_hops", "done", "again"):
        setattr(traffic, name, observed.get(name) or 0)
    return traffic
