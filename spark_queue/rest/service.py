"""The state that handlers share: the stores, the threads that call them, and waiting requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, ParamSpec, TypeVar

from fastapi import Depends, Request

from spark_queue.admin.recovery import recover_consumer
from spark_queue.errors import OptionError, did_you_mean, plural
from spark_queue.events.queue import Events
from spark_queue.rest.bodies import Bodies
from spark_queue.rest.bound_queue import BoundQueue
from spark_queue.rest.coalesce import Coalescer
from spark_queue.rest.errors import Conflict, NotFound
from spark_queue.rest.handles import Handles
from spark_queue.rest.lane_threads import LaneThreads
from spark_queue.rest.lanes import LIMITS, Lane, current_call
from spark_queue.rest.looks.contents import Contents, Setup
from spark_queue.rest.looks.metrics import render_metrics
from spark_queue.rest.looks.process import LocalLooks, Looks, ProcessLooks
from spark_queue.rest.metrics import ServerMetrics
from spark_queue.rest.readiness import Readiness
from spark_queue.rest.routes import NamespaceName, QueueName
from spark_queue.rest.scrapes import Scrapes
from spark_queue.rest.settings import Settings
from spark_queue.rest.waiters import Waiter, WaitList
from spark_queue.rest.watches import Watches
from spark_queue.stores.base import Store
from spark_queue.stores.queue import Consumed
from spark_queue.stores.services.option_policy import stream_policy

if TYPE_CHECKING:
    from spark_queue.runner.shared_graph import SharedGraph

P = ParamSpec("P")
T = TypeVar("T")

#: How long a call is retried if a database cannot be reached (ms): callers have their own limits.
RETRY_TIMEOUT_MS = 2_000

#: Maximum number of messages that are pushed together. Larger payloads (bytes) are pushed alone.
MAX_PUSHED, LARGE_PAYLOAD = 256, 1 << 16


class Service:
    """The state of an app."""

    def __init__(self, settings: Settings, *, look_process: bool = False) -> None:
        """Create the state. No store is opened yet. `look_process`: see `create_app`."""
        self.settings, self.limits = settings, settings.limits
        urls = {ns: one.database.url for ns, one in settings.options.items()}
        setup = Setup(urls, settings.graph, RETRY_TIMEOUT_MS)
        contents = Contents(setup)
        self.stores, self.declared = contents.stores, contents.declared
        # A thread for each look, and that of the scrapes.
        threads = LIMITS[Lane.LOOK].running + 1
        self._looks: Looks = ProcessLooks(setup, threads) if look_process else LocalLooks(contents)
        self.wait_list = WaitList()
        self.metrics = ServerMetrics(settings.metrics_queues)
        self.scrapes = Scrapes(self._render_metrics)
        self.readiness = Readiness(self.stores)
        self.bodies = Bodies(settings.limits.body)
        self.handles = Handles()
        self._shared_graph = self._make_shared_graph()
        self.events: Events | None = None
        if (place := settings.place_of_events()) is not None:
            store, declared = self.stores[place.ns], settings.declared
            self.events = Events(store, place.queue, executors=declared.executors, settings=declared.settings)
        self._lanes = LaneThreads()
        self._watches = Watches(self.stores)
        self._pushes = Coalescer(self._push_all, MAX_PUSHED)

    def _make_shared_graph(self) -> SharedGraph | None:
        if self.settings.checkpoint_root is None:
            return None
        from spark_queue.runner.server_spark import open_session  # both need Spark
        from spark_queue.runner.shared_graph import SharedGraph

        def settle(url: str, queue: str, consumer: str, sinks: Sequence[str], written: bool | None) -> object:
            return recover_consumer(url, queue, consumer, sink=sinks, written=written)

        return SharedGraph(self.declared, self.stores, self.settings.checkpoint_root, open_session, settle)

    def start(self) -> None:
        """Begin to run the graph, if this server does."""
        if self._shared_graph is not None:
            self._shared_graph.start()

    @property
    def runs_its_graph(self) -> bool:
        """Whether it runs the graph, or has no graph to run."""
        return self._shared_graph is None or self._shared_graph.is_alive

    def shared_graph(self) -> SharedGraph:
        """Return the graph that this server runs. Raises `Conflict` if it runs none."""
        if self._shared_graph is None:
            raise Conflict(
                "this server runs no exchanges: start it with spark-queue serve --run, or declare them in a graph "
                "file, which spark-queue serve --graph FILE --run or jobs/exchange.py runs"
            )
        return self._shared_graph

    def get_store(self, ns: str) -> Store:
        """Return the store of a namespace. Raises `NotFound` for an unknown one."""
        store = self.stores.get(ns)
        if store is None:
            raise NotFound(f"no such queue namespace [{ns}]{did_you_mean(ns, self.stores)}", ns=ns)
        return store

    def get_queue(self, ns: str, queue: str) -> BoundQueue:
        """Return a queue of a namespace.

        Raises `NotFound` for an unknown namespace, `OptionError` for an invalid name of a queue.
        """
        store, options = self.get_store(ns), self.settings.options[ns]
        return BoundQueue(ns, store.queue(queue, stream_policy(options)), options, self.metrics)

    async def run_in_thread(self, act: Callable[..., T], *args: Any, lane: Lane | None = None) -> T:
        """Run a call that may block in a thread, when its turn comes: by default of its own lane.

        It completes even if the caller is cancelled. Raises `Overloaded` if the lane is full, and
        `BudgetExceeded` if a look would read too much.
        """
        return await self._lanes.run(lane, act, *args)

    async def look(
        self, counted: Iterable[str], read: Callable[Concatenate[Contents, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a look when its turn comes: see `looks/`. Raises what `run_in_thread` does.

        `counted`: the namespaces whose counts it reads, which are written first. Others are not: a
        database that is away would delay it.
        """
        return await self.run_in_thread(partial(self._look, counted, read, *args, **kwargs), lane=Lane.LOOK)

    def _look(
        self, counted: Iterable[str], read: Callable[Concatenate[Contents, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        self.stores.write_counts(counted)
        return self._looks.run(read, *args, **kwargs)

    def _render_metrics(self) -> bytes:
        return self.metrics.render() + self._look(self.stores, render_metrics, self.settings.metrics_queues)

    async def push(self, bound: BoundQueue, row: dict[str, Any]) -> str:
        """Push a message, in one batch with others that arrive at the same time. Return its id."""
        key = bound.ns, bound.queue
        if len(row["payload"]) <= LARGE_PAYLOAD:
            return await self._pushes.submit(key, row)
        [outcome] = await self._push_all(key, [row])
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def _push_all(self, key: tuple[str, str], rows: list[dict[str, Any]]) -> list[str | Exception]:
        return await self.run_in_thread(self.get_queue(*key).push, rows, lane=Lane.WRITE)

    async def take(
        self, bound: BoundQueue, waiter: Waiter, tag: str, limit: int, wait: int, lease: int | None
    ) -> Consumed | None:
        """Reserve up to `limit` messages. Wait up to `wait` ms for the first, or return `None`.

        Raises `Cancelled` or `ShuttingDown` if the wait has ended. If the caller has disconnected,
        messages that were reserved are released.
        """

        async def try_take(lane: Lane = Lane.WRITE) -> Consumed | None:
            return await self.run_in_thread(bound.consume, tag, limit, self.limits.body, lease, lane=lane)

        async def wait_signal(seconds: float) -> bool:
            return await self._watches.wait(bound.ns, bound.queue, seconds, caller)

        caller, taken = current_call().caller, None
        if not wait:
            taken = await try_take()
        elif not self._lanes.is_busy(Lane.WAIT):  # else its queue is watched at once, which takes less time
            taken = await try_take(Lane.WAIT)
        if taken is None and wait:
            with self.wait_list.place(caller):
                taken = await self.wait_list.wait(waiter, wait / 1000, wait_signal, try_take)
        if taken is None:
            waiter.check()
        elif waiter.disconnected:
            await self.run_in_thread(bound.release, taken, lane=Lane.WRITE)
            waiter.check()
        return taken

    def check_limit(self, n: int, parameter: str, noun: str = "message") -> None:
        """Raise `OptionError` if a parameter asks for more messages than the limit of a request."""
        if n > self.limits.messages:
            raise OptionError(
                f"parameter {parameter!r} is {n}, "
                f"but a request may ask for {plural(self.limits.messages, noun)} at most",
                option=parameter,
            )

    def check_body(self, n: int, noun: str) -> None:
        """Raise `OptionError` if a body has more items than the limit of a request."""
        if n > self.limits.messages:
            raise OptionError(
                f"the body has {plural(n, noun)}, but a request may have {self.limits.messages:,} at most: "
                "send several requests"
            )

    def close(self) -> None:
        """End all threads and close the stores."""
        self.wait_list.shut_down()
        if self._shared_graph is not None:
            self._shared_graph.close()
        self._watches.close()
        self.scrapes.close()
        self.readiness.close()
        self.bodies.close()
        self._lanes.close()
        self._looks.close()
        self.stores.close()


# Dependencies are async, so FastAPI does not call them in a thread.


async def _get_service(request: Request) -> Service:
    found: Service = request.app.state.service
    return found


ServiceDependency = Annotated[Service, Depends(_get_service)]


async def _get_queue(ns: NamespaceName, queue: QueueName, service: ServiceDependency) -> BoundQueue:
    return service.get_queue(ns, queue)


QueueDependency = Annotated[BoundQueue, Depends(_get_queue)]
