"""The state that handlers share: the stores, the threads that call them, and waiting requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import pyarrow as pa
from fastapi import Depends, Request

from spark_queue.errors import MessageError, OptionError, QueueError, StoreUnavailable, did_you_mean, plural
from spark_queue.events.queue import Events
from spark_queue.messages.ids import new_id_array
from spark_queue.messages.schema import PUSHES
from spark_queue.options.queue_options import QueueOptions
from spark_queue.rest.coalesce import Coalescer
from spark_queue.rest.errors import NotFound
from spark_queue.rest.metrics import ServerMetrics
from spark_queue.rest.payloads import single_message_error
from spark_queue.rest.readiness import Readiness
from spark_queue.rest.receipts import new_tag
from spark_queue.rest.routes import NamespaceName, QueueName
from spark_queue.rest.settings import Settings
from spark_queue.rest.waiters import DISCONNECTED, Waiter, WaitList
from spark_queue.stores import open_store
from spark_queue.stores.base import Store
from spark_queue.stores.named import NamedStores
from spark_queue.stores.services.dead_letters import dead_letter_exhausted, roll_back_or_dead_letter

T = TypeVar("T")

#: Threads for calls of stores, for the first waiting request of each queue, and for executors.
CALL_THREADS, WAITING_THREADS, EXECUTOR_THREADS = 32, 64, 8

#: How long a call is retried if a database cannot be reached (ms): callers have their own limits.
RETRY_TIMEOUT_MS = 2_000

#: Maximum number of messages that are pushed together. Larger payloads (bytes) are pushed alone.
MAX_PUSHED, LARGE_PAYLOAD = 256, 1 << 16

#: The lease of popped messages (ms), until they are removed.
POP_LEASE = 60_000


@dataclass(frozen=True)
class TakenBatches:
    """Messages that a tag holds, as MESSAGES batches."""

    tag: str
    batches: list[pa.RecordBatch]


@dataclass(frozen=True)
class BoundQueue:
    """A queue, its store, and the options of its namespace. Its methods may block."""

    ns: str
    queue: str
    store: Store
    options: QueueOptions
    metrics: ServerMetrics

    def count(self, act: str, status: str, messages: int = 1) -> None:
        """Count outcomes of messages: `ok`, `notfound`, `deadletter`, `timeout`, `cancel`, `ko`."""
        if messages:
            self.metrics.acts[act].labels("rest", self.ns, self.queue, status).inc(messages)

    @contextmanager
    def count_errors(self, act: str) -> Iterator[None]:
        """Count a `QueueError` within the block as `ko`, and raise it again."""
        try:
            yield
        except QueueError:
            self.count(act, "ko")
            raise

    def take(self, tag: str, limit: int, max_bytes: int, lease: int | None) -> TakenBatches | None:
        """Reserve up to `limit` messages, about `max_bytes` in all. Return `None` if none is ready.

        Messages that failed too often become dead letters instead, and so do damaged records.
        """
        options, dead = self.options, self.options.dead_letter_queue_of(self.queue)
        while rows := sum(self.store.reserve(self.queue, tag, limit, lease=lease)):
            if options.max_tries is not None:
                rows -= dead_letter_exhausted(
                    self.store, self.queue, tag, options.max_tries, dead, options.history_ms
                )
            batches: list[pa.RecordBatch] = []
            found = weight = 0
            fetch_options: dict[str, Any] = {"dead": dead, "history": options.history_ms, "check_json": True}
            for batch in self.store.fetch(self.queue, f"{tag}/0", **fetch_options) if rows else ():
                batches.append(batch)
                found += batch.num_rows
                weight += batch.nbytes
                if found >= rows or weight >= max_bytes:  # saves the last read, which returns nothing
                    break
            if found < rows:
                tag = self._release_unread(tag, batches, lease)
            if found:
                return TakenBatches(tag, batches)
        return None

    def _release_unread(self, tag: str, keep: Sequence[pa.RecordBatch], lease: int | None) -> str:
        """Release the messages that were not read, and return a new tag that holds the others."""
        ids = [id for batch in keep for id in batch.column("id").to_pylist()]
        rest = f"{tag.partition('/')[0]}/{new_tag().partition('/')[2]}"
        self.store.transfer(self.queue, tag, f"{rest}/0", ids, lease=lease)
        self.store.rollback(self.queue, tag, failed=False)
        return rest

    def push(self, rows: list[dict[str, Any]]) -> list[str | Exception]:
        """Push messages of different callers in one batch. Return the id or the error of each.

        Messages without an id get one, in their order.
        """
        new_ids = iter(self.store.native_ids(new_id_array(sum(row["id"] is None for row in rows))).to_pylist())
        rows = [row if row["id"] is not None else row | {"id": next(new_ids)} for row in rows]
        try:
            self.store.push(self.queue, pa.RecordBatch.from_pylist(rows, schema=PUSHES))
        except (QueueError, ValueError) as error:
            if isinstance(error, StoreUnavailable):
                return [error] * len(rows)
            if len(rows) == 1:
                return [single_message_error(rows[0], error) if isinstance(error, MessageError) else error]
            return [self.push([row])[0] for row in rows]
        return [row["id"] for row in rows]

    def commit(self, tag: str, ids: Sequence[str] | None = None) -> int:
        """Commit messages that the tag still holds, all or with these ids. Return their number."""
        return self.store.commit(self.queue, tag, ids, history=self.options.history_ms)

    def remove_popped(self, taken: TakenBatches) -> None:
        """Remove popped messages, and count each as one `get`, as keuss does."""
        done = self.commit(taken.tag)
        self.store.count(self.queue, reserve=-done, commit=-done, get=done)

    def rollback(self, tag: str, ids: Sequence[str] | None, delay: int) -> tuple[int, int]:
        """Roll back messages that the tag still holds, all or those with these ids.

        Return the number that is ready again after `delay` ms, and the number of new dead letters.
        """
        options = self.options
        return roll_back_or_dead_letter(
            self.store, self.queue, tag, ids, delay=delay, max_tries=options.max_tries,
            dead=options.dead_letter_queue_of(self.queue), history=options.history_ms,
        )  # fmt: skip


class Service:
    """The state of an app."""

    def __init__(self, settings: Settings) -> None:
        """Create the state. No store is opened yet."""
        self.settings, self.limits = settings, settings.limits
        self.stores = NamedStores(
            {ns: one.url for ns, one in settings.options.items()}, retry_timeout=RETRY_TIMEOUT_MS
        )
        self.wait_list = WaitList()
        self.metrics = ServerMetrics(self.stores)
        self.readiness = Readiness(self.stores)
        self.events: Events | None = None
        if (place := settings.place_of_events()) is not None:
            url, declared = settings.options[place.ns].url, settings.declared
            store = open_store(url, retry_timeout=RETRY_TIMEOUT_MS)  # of its own: events change its layout
            self.events = Events(store, place.queue, executors=declared.executors, settings=declared.settings)
        self._call_threads = ThreadPoolExecutor(CALL_THREADS, "rest")
        self.executor_threads = ThreadPoolExecutor(EXECUTOR_THREADS, "rest executes")
        self._pushes = Coalescer(self._push_all, MAX_PUSHED)
        self._waiting_threads = ThreadPoolExecutor(WAITING_THREADS, "rest waits")

    def get_queue(self, ns: str, queue: str) -> BoundQueue:
        """Return a queue of a namespace.

        Raises `NotFound` for an unknown namespace, `OptionError` for an invalid name of a queue.
        """
        store = self.stores.get(ns)
        if store is None:
            raise NotFound(f"there is no namespace {ns!r}{did_you_mean(ns, self.stores)}", ns=ns)
        store.check_queue(queue)
        return BoundQueue(ns, queue, store, self.settings.options[ns], self.metrics)

    async def run_in_thread(self, act: Callable[..., T], *args: Any, threads: ThreadPoolExecutor | None = None) -> T:
        """Run a call that may block in a thread. It completes even if the caller is cancelled.

        `threads`: those for calls of stores by default. Calls that may take long need others.
        """
        return await asyncio.get_running_loop().run_in_executor(threads or self._call_threads, act, *args)

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
        return await self.run_in_thread(self.get_queue(*key).push, rows)

    async def take(
        self, bound: BoundQueue, waiter: Waiter, tag: str, limit: int, wait: int, lease: int | None
    ) -> TakenBatches | None:
        """Reserve up to `limit` messages. Wait up to `wait` ms for the first, or return `None`.

        Raises `Cancelled` or `ShuttingDown` if the wait has ended. If the caller has disconnected,
        messages that were reserved are released.
        """

        async def try_take() -> TakenBatches | None:
            return await self.run_in_thread(bound.take, tag, limit, self.limits.body, lease)

        async def wait_signal(seconds: float) -> bool:
            ms = round(seconds * 1000)
            return await self.run_in_thread(bound.store.wait, bound.queue, ms, threads=self._waiting_threads)

        taken = await try_take()
        if taken is None and wait:
            taken = await self.wait_list.wait(waiter, wait / 1000, wait_signal, try_take)
        if taken is None:
            waiter.check()
        elif waiter.disconnected:
            await self.run_in_thread(lambda: bound.store.rollback(bound.queue, taken.tag, failed=False))
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
        self._waiting_threads.shutdown(cancel_futures=True)
        self.readiness.close()
        self.executor_threads.shutdown()
        self._call_threads.shutdown()
        self.stores.close()
        if self.events is not None:
            self.events.store.close()


# Dependencies are async, so FastAPI does not call them in a thread.


async def _get_service(request: Request) -> Service:
    found: Service = request.app.state.service
    return found


ServiceDependency = Annotated[Service, Depends(_get_service)]


async def _get_queue(ns: NamespaceName, queue: QueueName, service: ServiceDependency) -> BoundQueue:
    return service.get_queue(ns, queue)


QueueDependency = Annotated[BoundQueue, Depends(_get_queue)]


async def watch_disconnect(request: Request, waiter: Waiter) -> None:
    """End the wait of a request when its caller disconnects."""
    with suppress(asyncio.CancelledError):
        while (await request.receive())["type"] != "http.disconnect":
            pass
        waiter.end(DISCONNECTED)
