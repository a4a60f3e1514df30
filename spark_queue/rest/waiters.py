"""Wait lists: for each queue, the requests that wait for a message, first in, first out.

One thread waits per queue, for any number of callers. The first request of a list waits for a
signal of the store, tries to take a message, and leaves; then it is the turn of the next. So
requests are served in order, and a new message wakes one of them, not all.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar

from spark_queue.errors import OptionError, near
from spark_queue.rest.errors import Ending, NotThere, Unwanted

T = TypeVar("T")

#: How long a thread waits at a time (s). It may wait that long for a caller that has disconnected.
STRETCH = 0.5

#: Why a wait has ended.
GONE, CANCELLED, SHUTTING_DOWN = "gone", "cancelled", "ending"


@dataclass(eq=False)
class Waiter:
    """A request that waits, or may wait, for a message of a queue."""

    ns: str
    queue: str
    reserve: bool
    tid: str = field(default_factory=lambda: uuid.uuid4().hex)
    since: datetime = field(default_factory=lambda: datetime.now(UTC))
    ended: asyncio.Future[str] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def end(self, why: str) -> None:
        """End its wait, unless it has ended."""
        if not self.ended.done():
            self.ended.set_result(why)

    @property
    def gone(self) -> bool:
        """Whether the caller has disconnected."""
        return self.ended.done() and self.ended.result() == GONE

    def check(self) -> None:
        """Raise `ShuttingDown` or `Cancelled` if its wait has ended."""
        if self.ended.done():
            if self.ended.result() == SHUTTING_DOWN:
                raise Ending("the server is shutting down: try again")
            raise Unwanted(f"the wait was cancelled by DELETE …/consumer/{self.tid}")


class Lines:
    """The wait lists of a server."""

    def __init__(self) -> None:
        self._turns: dict[tuple[str, str], tuple[asyncio.Lock, int]] = {}  # and the number of requests
        self._waiters: dict[str, Waiter] = {}
        self._ending = False

    @contextmanager
    def waiter(self, ns: str, queue: str, reserve: bool, tid: str | None) -> Iterator[Waiter]:
        """Register a request by its `tid`, within the block.

        Raises `OptionError` if another request has this `tid`.
        """
        one = Waiter(ns, queue, reserve) if tid is None else Waiter(ns, queue, reserve, tid)
        if one.tid in self._waiters:
            raise OptionError(
                f"parameter 'tid' is {tid!r}, but another request waits with that: choose another", option="tid"
            )
        if self._ending:
            one.end(SHUTTING_DOWN)
        self._waiters[one.tid] = one
        try:
            yield one
        finally:
            del self._waiters[one.tid]

    def waiting(self, ns: str, queue: str) -> list[Waiter]:
        """Return the requests that wait for messages of a queue, in their order."""
        return [one for one in self._waiters.values() if (one.ns, one.queue) == (ns, queue)]

    def cancel(self, ns: str, queue: str, tid: str) -> None:
        """End the wait of one request. Raises `NotFound` if there is none with this `tid`."""
        one = self._waiters.get(tid)
        if one is None or (one.ns, one.queue) != (ns, queue):
            hint = near(tid, (other.tid for other in self.waiting(ns, queue)))
            raise NotThere(f"no request with tid {tid!r} waits for messages of {ns}/{queue}{hint}")
        one.end(CANCELLED)

    @property
    def ending(self) -> bool:
        """Whether the server is shutting down."""
        return self._ending

    def end(self) -> None:
        """End all waits: the server is shutting down."""
        self._ending = True
        for one in self._waiters.values():
            one.end(SHUTTING_DOWN)

    async def wait(
        self,
        waiter: Waiter,
        seconds: float,
        ring: Callable[[float], Awaitable[bool]],
        take: Callable[[], Awaitable[T | None]],
    ) -> T | None:
        """Return the first result of `take` that is not `None`, or `None` if the wait has ended.

        The wait ends after `seconds`, or by `waiter.end`. `wait_signal` returns whether there may
        be a message, after the given number of seconds at most.
        """
        clock = asyncio.get_running_loop().time
        end = clock() + seconds
        with self._place(waiter) as turn:
            mine = asyncio.ensure_future(turn.acquire())
            try:
                await _either(mine, waiter.ended, timeout=seconds)
                while mine.done() and not waiter.ended.done() and (left := end - clock()) > 0:
                    rung = asyncio.ensure_future(ring(min(left, STRETCH)))
                    await _either(rung, waiter.ended)
                    if not rung.done():
                        rung.cancel()  # its thread ends by itself
                    elif rung.result() and (taken := await take()) is not None:
                        return taken
                return None
            finally:
                if mine.done() and not mine.cancelled():
                    turn.release()
                mine.cancel()

    @contextmanager
    def _place(self, waiter: Waiter) -> Iterator[asyncio.Lock]:
        """Join the wait list of a queue, and yield its lock, which admits requests in order.

        The list exists while a request is in it.
        """
        key = waiter.ns, waiter.queue
        turn, standing = self._turns.get(key, (asyncio.Lock(), 0))
        self._turns[key] = turn, standing + 1
        try:
            yield turn
        finally:
            turn, standing = self._turns.pop(key)
            if standing > 1:
                self._turns[key] = turn, standing - 1


async def _either(one: asyncio.Future[Any], other: asyncio.Future[Any], timeout: float | None = None) -> None:
    """Wait until one of two futures is done, for `timeout` seconds at most."""
    await asyncio.wait([one, other], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
