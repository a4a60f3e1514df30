"""The state that handlers share: the stores, the threads that call them, and waiting requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import pyarrow as pa
from fastapi import Depends, Request

from spark_queue.errors import MessageError, OptionError, QueueError, StoreUnavailable, near, plural
from spark_queue.events.queue import Events
from spark_queue.messages.ids import new_id_array
from spark_queue.messages.schema import PUSHES
from spark_queue.options.queue_options import QueueOptions
from spark_queue.rest.coalesce import Together
from spark_queue.rest.errors import NotThere
from spark_queue.rest.metrics import Meters
from spark_queue.rest.payloads import refused
from spark_queue.rest.readiness import Readiness
from spark_queue.rest.receipts import new_tag
from spark_queue.rest.settings import Settings
from spark_queue.rest.waiters import GONE, Lines, Waiter
from spark_queue.stores import open_store
from spark_queue.stores.base import Store
from spark_queue.stores.named import NamedStores
from spark_queue.stores.services.dead_letters import bury_exhausted, give_back

T = TypeVar("T")

#: Threads for calls of stores, for the first waiting request of each queue, and for executors.
CALL_THREADS, WAITING_THREADS, EXECUTOR_THREADS = 32, 64, 8

#: How long a call is retried if a database cannot be reached (s): callers have their own limits.
RETRY_SECONDS = 2.0

#: Maximum number of messages that are pushed together. Larger payloads (bytes) are pushed alone.
PUSHED, LARGE = 256, 1 << 16

#: The lease of popped messages (ms), until they are removed.
POPPED = 60_000


@dataclass(frozen=True)
class TakenBatches:
    """Messages that a tag holds, as MESSAGES batches."""

    tag: str
    batches: list[pa.RecordBatch]

    @property
    def rows(self) -> int:
        """The number of messages."""
        return sum(batch.num_rows for batch in self.batches)


@dataclass(frozen=True)
class Room:
    """A queue, its store, and the options of its namespace. Its methods may block."""

    ns: str
    queue: str
    store: Store
    options: QueueOptions

    def take(self, tag: str, most: int, size: int, lease: int | None) -> TakenBatches | None:
        """Reserve up to `limit` messages, about `max_bytes` in all. Return `None` if none is ready.

        Messages that failed too often become dead letters instead, and so do damaged records.
        """
        options, dead = self.options, self.options.dead(self.queue)
        while rows := sum(self.store.reserve(self.queue, tag, most, lease=lease)):
            if options.max_tries is not None:
                rows -= bury_exhausted(self.store, self.queue, tag, options.max_tries, dead, options.history_ms)
            batches: list[pa.RecordBatch] = []
            found = weight = 0
            how: dict[str, Any] = {"dead": dead, "history": options.history_ms, "decoded": True}
            for batch in self.store.fetch(self.queue, f"{tag}/0", **how) if rows else ():
                batches.append(batch)
                found += batch.num_rows
                weight += batch.nbytes
                if found >= rows or weight >= size:  # saves the last read, which returns nothing
                    break
            if found < rows:
                tag = self._let_go(tag, batches, lease)
            if found:
                return TakenBatches(tag, batches)
        return None

    def _let_go(self, tag: str, keep: Sequence[pa.RecordBatch], lease: int | None) -> str:
        """Release the messages that were not read, and return a new tag that holds the others."""
        ids = [id for batch in keep for id in batch.column("id").to_pylist()]
        rest = f"{tag.partition('/')[0]}/{new_tag().partition('/')[2]}"
        self.store.retag(self.queue, tag, f"{rest}/0", ids, lease=lease)
        self.store.rollback(self.queue, tag, failed=False)
        return rest

    def push(self, rows: list[dict[str, Any]]) -> list[str | Exception]:
        """Push messages of different callers in one batch. Return the id or the error of each.

        Messages without an id get one, in their order.
        """
        fresh = iter(self.store.own_ids(new_id_array(sum(row["id"] is None for row in rows))).to_pylist())
        rows = [row if row["id"] is not None else row | {"id": next(fresh)} for row in rows]
        try:
            self.store.push(self.queue, pa.RecordBatch.from_pylist(rows, schema=PUSHES))
        except (QueueError, ValueError) as error:
            if isinstance(error, StoreUnavailable):
                return [error] * len(rows)
            if len(rows) == 1:
                return [refused(rows[0], error) if isinstance(error, MessageError) else error]
            return [self.push([row])[0] for row in rows]
        return [row["id"] for row in rows]

    def commit(self, tag: str, ids: Sequence[str] | None = None) -> int:
        """Commit messages that the tag still holds, all or with these ids. Return their number."""
        return self.store.commit(self.queue, tag, ids, history=self.options.history_ms)

    def popped(self, taken: TakenBatches) -> None:
        """Remove popped messages, and count each as one `get`, as keuss does."""
        done = self.commit(taken.tag)
        self.store.count(self.queue, reserve=-done, commit=-done, get=done)

    def rollback(self, tag: str, ids: Sequence[str] | None, delay: int) -> tuple[int, int]:
        """Roll back messages that the tag still holds, all or those with these ids.

        Return the number that is ready again after `delay` ms, and the number of new dead letters.
        """
        options = self.options
        return give_back(
            self.store, self.queue, tag, ids, delay=delay, max_tries=options.max_tries,
            dead=options.dead(self.queue), history=options.history_ms,
        )  # fmt: skip


class Service:
    """The state of an app."""

    def __init__(self, settings: Settings) -> None:
        """Create the state. No store is opened yet."""
        self.settings, self.limits = settings, settings.limits
        self.stores = NamedStores({ns: one.url for ns, one in settings.options.items()}, patience=RETRY_SECONDS)
        self.lines = Lines()
        self.meters = Meters(self.stores)
        self.readiness = Readiness(self.stores)
        self.events = self._events(settings)
        self._threads = ThreadPoolExecutor(CALL_THREADS, "rest")
        self._executing = ThreadPoolExecutor(EXECUTOR_THREADS, "rest executes")
        self._pushes = Together(self._push_all, PUSHED)
        self._waiting = ThreadPoolExecutor(WAITING_THREADS, "rest waits")

    def _events(self, settings: Settings) -> Events | None:
        place = settings.place_of_events()
        if place is None:
            return None
        store = open_store(
            settings.options[place.ns].url, patience=RETRY_SECONDS
        )  # a store of its own: events change its layout
        return Events(store, place.queue, executors=settings.declared.executors, settings=settings.declared.settings)

    def room(self, ns: str, queue: str) -> Room:
        """Return a queue of a namespace.

        Raises `NotFound` for an unknown namespace, `OptionError` for an invalid name of a queue.
        """
        store = self.stores.get(ns)
        if store is None:
            raise NotThere(f"there is no namespace {ns!r}{near(ns, self.stores)}", ns=ns)
        store.check_queue(queue)
        return Room(ns, queue, store, self.settings.options[ns])

    async def work(self, act: Callable[..., T], *args: Any) -> T:
        """Run a call that may block in a thread. It completes even if the caller is cancelled."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, act, *args)

    async def push(self, room: Room, row: dict[str, Any]) -> str:
        """Push a message, in one batch with others that arrive at the same time. Return its id."""
        key = room.ns, room.queue
        if len(row["payload"]) <= LARGE:
            return await self._pushes.ask(key, row)
        [told] = await self._push_all(key, [row])
        if isinstance(told, Exception):
            raise told
        return told

    async def _push_all(self, key: tuple[str, str], rows: list[dict[str, Any]]) -> list[str | Exception]:
        return await self.work(self.room(*key).push, rows)

    async def execute(self, act: Callable[..., T], *args: Any) -> T:
        """Run an executor, which may take long, in other threads than `run_in_thread`."""
        return await asyncio.get_running_loop().run_in_executor(self._executing, act, *args)

    async def take(
        self, room: Room, waiter: Waiter, tag: str, most: int, wait: int, lease: int | None
    ) -> TakenBatches | None:
        """Reserve up to `limit` messages. Wait up to `wait` ms for the first, or return `None`.

        Raises `Cancelled` or `ShuttingDown` if the wait has ended. If the caller has disconnected,
        messages that were reserved are released.
        """

        async def look() -> TakenBatches | None:
            return await self.work(room.take, tag, most, self.limits.body, lease)

        async def ring(seconds: float) -> bool:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._waiting, room.store.wait, room.queue, round(seconds * 1000))

        taken = await look()
        if taken is None and wait:
            taken = await self.lines.wait(waiter, wait / 1000, ring, look)
        if taken is None:
            waiter.check()
        elif waiter.gone:
            await self.work(lambda: room.store.rollback(room.queue, taken.tag, failed=False))
            waiter.check()
        return taken

    def check_most(self, n: int, parameter: str, of: str = "message") -> None:
        """Raise `OptionError` if a parameter asks for more messages than the limit of a request."""
        if n > self.limits.messages:
            raise OptionError(
                f"parameter {parameter!r} is {n}, "
                f"but a request may ask for {plural(self.limits.messages, of)} at most",
                option=parameter,
            )

    def check_body(self, n: int, of: str) -> None:
        """Raise `OptionError` if a body has more items than the limit of a request."""
        if n > self.limits.messages:
            raise OptionError(
                f"the body has {plural(n, of)}, but a request may have {self.limits.messages:,} at most: "
                "send several requests"
            )

    def check_wait(self, ms: int) -> None:
        """Raise `OptionError` if a request asks to wait longer than the limit."""
        if ms > self.limits.wait:
            raise OptionError(
                f"parameter 'to' is {ms}, but a request may wait for {self.limits.wait:,} ms at most", option="to"
            )

    def close(self) -> None:
        """End all threads and close the stores."""
        self.lines.end()
        self._waiting.shutdown(cancel_futures=True)
        self.readiness.close()
        self._executing.shutdown()
        self._threads.shutdown()
        self.stores.close()
        if self.events is not None:
            self.events.store.close()


async def _served(request: Request) -> Service:  # async, so FastAPI does not call it in a thread
    found: Service = request.app.state.service
    return found


Served = Annotated[Service, Depends(_served)]


async def watch(request: Request, waiter: Waiter) -> None:
    """End the wait of a request when its caller disconnects."""
    with suppress(asyncio.CancelledError):
        while (await request.receive())["type"] != "http.disconnect":
            pass
        waiter.end(GONE)
