"""Who waits for a message: in a line for each queue, so that a thread waits per queue, however many callers do.

The first of a line waits for the store's signal, looks, and goes; then the next one does. So they are served in the
order in which they came, and a message that comes wakes one of them, not all.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar

from spark_queue.errors import OptionError
from spark_queue.rest.problems import Ending, NotThere, Unwanted

T = TypeVar("T")

#: Seconds that a thread waits at a stretch: so long one is busy for somebody who has gone.
STRETCH = 0.5

#: Why a waiter waits no more.
GONE, CANCELLED, ENDING = "gone", "cancelled", "ending"


@dataclass(eq=False)
class Waiter:
    """A request that waits for a message of a queue, or may."""

    ns: str
    queue: str
    reserve: bool
    tid: str = field(default_factory=lambda: uuid.uuid4().hex)
    since: datetime = field(default_factory=lambda: datetime.now(UTC))
    ended: asyncio.Future[str] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def end(self, why: str) -> None:
        """Let it wait no more."""
        if not self.ended.done():
            self.ended.set_result(why)

    @property
    def gone(self) -> bool:
        """Whether nobody is there to take the answer."""
        return self.ended.done() and self.ended.result() == GONE

    def check(self) -> None:
        """Raise what tells that it waits no more, if that is so."""
        if self.ended.done():
            if self.ended.result() == ENDING:
                raise Ending("the server is about to end: ask again")
            raise Unwanted(f"the consumer {self.tid} was cancelled")


class Lines:
    """All lines of a server."""

    def __init__(self) -> None:
        self._turns: dict[tuple[str, str], tuple[asyncio.Lock, int]] = {}  # with how many stand there
        self._waiters: dict[str, Waiter] = {}
        self._ending = False

    @contextmanager
    def waiter(self, ns: str, queue: str, reserve: bool, tid: str | None) -> Iterator[Waiter]:
        """A waiter, known by its `tid` while it lasts. Raises `OptionError` where another has that."""
        one = Waiter(ns, queue, reserve) if tid is None else Waiter(ns, queue, reserve, tid)
        if one.tid in self._waiters:
            raise OptionError(f"tid {tid!r}: another request waits under that name", option="tid")
        if self._ending:
            one.end(ENDING)
        self._waiters[one.tid] = one
        try:
            yield one
        finally:
            del self._waiters[one.tid]

    def waiting(self, ns: str, queue: str) -> list[Waiter]:
        """Those who wait for messages of a queue, first come first."""
        return [one for one in self._waiters.values() if (one.ns, one.queue) == (ns, queue)]

    def cancel(self, ns: str, queue: str, tid: str) -> None:
        """Let one wait no more. Raises `NotThere`."""
        one = self._waiters.get(tid)
        if one is None or (one.ns, one.queue) != (ns, queue):
            raise NotThere(f"no consumer {tid!r} waits for messages of {ns}/{queue}")
        one.end(CANCELLED)

    def end(self) -> None:
        """Let nobody wait any more: the server is about to end."""
        self._ending = True
        for one in self._waiters.values():
            one.end(ENDING)

    async def wait(
        self,
        waiter: Waiter,
        seconds: float,
        ring: Callable[[float], Awaitable[bool]],
        take: Callable[[], Awaitable[T | None]],
    ) -> T | None:
        """What `take` gives as soon as it gives something; `None` where the time is over, or the waiter ended.

        `ring` comes back when there may be something, after so many seconds at most.
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
        """A place in the line, which there is while somebody stands there. A lock lets them in by turns."""
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
    """Sleep until one of them is done, so many seconds at most."""
    await asyncio.wait([one, other], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
