"""Wait lists: for each queue, the requests that wait for a message, first in, first out.

The first request of a list waits for a signal of the store (see `watches.py`), tries to take a
message, and leaves; then it is the turn of the next. So requests are served in order, and a new
message wakes one of them, not all. The number of requests that wait has a limit, also for each
caller.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from spark_queue.errors import OptionError
from spark_queue.rest.errors import Cancelled, Overloaded, ShuttingDown
from spark_queue.rest.guard.caller import CallerKey

T = TypeVar("T")

#: Most requests that wait, in all and of one credential: each costs memory and a connection.
MAX_WAITS, MAX_WAITS_OF_ONE = 10_000, 5_000

#: Why a wait has ended.
DISCONNECTED, CANCELLED, SHUTTING_DOWN = "gone", "cancelled", "ending"


@dataclass(eq=False)
class Waiter:
    """A request that waits, or may wait, for a message of a queue."""

    ns: str
    queue: str
    reserve: bool
    tid: str
    since: datetime = field(default_factory=lambda: datetime.now(UTC))
    ended: asyncio.Future[str] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def end(self, reason: str) -> None:
        """End its wait, unless it has ended."""
        if not self.ended.done():
            self.ended.set_result(reason)

    @property
    def disconnected(self) -> bool:
        """Whether the caller has disconnected."""
        return self.ended.done() and self.ended.result() == DISCONNECTED

    def check(self) -> None:
        """Raise `ShuttingDown` or `Cancelled` if its wait has ended."""
        if self.ended.done():
            if self.ended.result() == SHUTTING_DOWN:
                raise ShuttingDown("the server is shutting down: try again")
            raise Cancelled(f"the wait was cancelled by DELETE …/consumer/{self.tid}")


class WaitList:
    """The wait lists of a server."""

    def __init__(self, most_of_one: int = MAX_WAITS_OF_ONE) -> None:
        """`most_of_one`: most requests of one credential that wait."""
        self._most_of_one = most_of_one
        # The wait list of a queue is a lock. It exists while a request waits for it or holds it.
        self._locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        self._waiters: dict[str, Waiter] = {}
        self._waits_of: Counter[bytes] = Counter()  # by credential
        self.shutting_down = False  #: whether the server is shutting down

    @contextmanager
    def register(self, ns: str, queue: str, reserve: bool, tid: str | None) -> Iterator[Waiter]:
        """Register a request by its `tid`, within the block.

        Raises `OptionError` if another request has this `tid`.
        """
        one = Waiter(ns, queue, reserve, uuid.uuid4().hex if tid is None else tid)
        if one.tid in self._waiters:
            raise OptionError(
                f"parameter 'tid' is {tid!r}, but another request waits with that: choose another", option="tid"
            )
        if self.shutting_down:
            one.end(SHUTTING_DOWN)
        self._waiters[one.tid] = one
        try:
            yield one
        finally:
            del self._waiters[one.tid]

    def waiters_of(self, ns: str, queue: str) -> list[Waiter]:
        """Return the requests that wait for messages of a queue, in their order."""
        return [one for one in self._waiters.values() if (one.ns, one.queue) == (ns, queue)]

    def cancel(self, ns: str, queue: str, tid: str) -> None:
        """End the wait of the request with this `tid`, if there is one."""
        one = self._waiters.get(tid)
        if one is not None and (one.ns, one.queue) == (ns, queue):
            one.end(CANCELLED)

    def shut_down(self) -> None:
        """End all waits: the server is shutting down."""
        self.shutting_down = True
        for one in self._waiters.values():
            one.end(SHUTTING_DOWN)

    @contextmanager
    def place(self, caller: CallerKey) -> Iterator[None]:
        """Hold a place for a request that waits. Raises `Overloaded` if there is none."""
        who = caller.credential
        if self._waits_of.total() >= MAX_WAITS or self._waits_of[who] >= self._most_of_one:
            raise Overloaded(
                f"too many requests wait for messages: at most {self._most_of_one:,} of one caller, and "
                f"{MAX_WAITS:,} in all; wait for fewer queues, or ask without waiting"
            )
        self._waits_of[who] += 1
        try:
            yield
        finally:
            self._waits_of[who] -= 1
            if not self._waits_of[who]:
                del self._waits_of[who]

    async def wait(
        self,
        waiter: Waiter,
        seconds: float,
        wait_signal: Callable[[float], Awaitable[bool]],
        take: Callable[[], Awaitable[T | None]],
    ) -> T | None:
        """Return the first result of `take` that is not `None`, or `None` if the wait has ended.

        The wait ends after `seconds`, or by `waiter.end`. `wait_signal` returns whether there may
        be a message, after the given number of seconds at most.
        """
        clock = asyncio.get_running_loop().time
        end = clock() + seconds
        turn = self._locks.setdefault((waiter.ns, waiter.queue), asyncio.Lock())  # it admits requests in order
        acquiring, signal = asyncio.ensure_future(turn.acquire()), None
        try:
            await _wait_for_either(acquiring, waiter.ended, timeout=seconds)
            while acquiring.done() and not waiter.ended.done() and (left := end - clock()) > 0:
                signal = asyncio.ensure_future(wait_signal(left))
                await _wait_for_either(signal, waiter.ended)
                if signal.done() and signal.result() and (taken := await take()) is not None:
                    return taken
            return None
        finally:
            if signal is not None:
                signal.cancel()
            if acquiring.done() and not acquiring.cancelled():
                turn.release()
            acquiring.cancel()


async def _wait_for_either(
    one: asyncio.Future[Any], other: asyncio.Future[Any], timeout: float | None = None
) -> None:
    """Wait until one of two futures is done, for `timeout` seconds at most."""
    await asyncio.wait([one, other], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
