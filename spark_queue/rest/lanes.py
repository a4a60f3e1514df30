"""Lanes: the classes of calls, each with threads and limits of its own.

Each route declares its lane, beside its path. So calls of one class cannot take the threads, or the
memory, of the others: `service.py` runs them by these limits.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from spark_queue.rest.guard.caller import SERVER, CallerKey

F = TypeVar("F", bound=Callable[..., object])


class Lane(StrEnum):
    """The class of a call."""

    LOOK = "look"  #: reads messages, sizes, lists or reservations: see LOOK_BUDGET
    METRICS = "metrics"  #: the page of metrics, which is computed once for all
    WRITE = "write"  #: pushes, takes or settles messages, and short changes of other things
    WAIT = "wait"  #: may wait for a message; a take after a signal is a write
    EXECUTE = "execute"  #: runs work of unknown duration: executors, Spark
    LOCAL = "local"  #: is answered from memory, at once


@dataclass(frozen=True, slots=True)
class LaneLimits:
    """The limits of a lane.

    Calls that run at the same time, in all and of one credential; calls that wait for their turn,
    in all and of one credential; how long a call waits for its turn (s).
    """

    running: int
    running_of_one: int
    waiting: int
    waiting_of_one: int
    patience: float = 30.0


#: The limits of the lanes that have threads. A single viewer leaves half of the looks to others.
#: Those of requests that wait are in `waiters.py`; these are for their first tries.
LIMITS = {
    Lane.LOOK: LaneLimits(4, 2, 256, 128, 10.0),
    Lane.WRITE: LaneLimits(32, 32, 8_192, 4_096),
    Lane.WAIT: LaneLimits(8, 6, 10_000, 5_000, 60.0),
    Lane.EXECUTE: LaneLimits(8, 6, 64, 48, 120.0),
}

#: How long a refusal waits (s). So a caller that repeats it at once costs little.
REFUSAL_PAUSE = 0.5

#: What one look may read: records that it examines, bytes that it holds, and seconds.
LOOK_RECORDS, LOOK_BYTES, LOOK_SECONDS = 100_000, 32 << 20, 5.0


@dataclass(frozen=True, slots=True)
class Call:
    """A request: its lane, its caller, and whether that has gone."""

    lane: Lane
    caller: CallerKey
    has_gone: Callable[[], Awaitable[bool]]


async def _never() -> bool:
    return False


#: The request that runs here. A task that it starts inherits it.
_current: ContextVar[Call] = ContextVar("call")

#: What the server does itself.
_OWN = Call(Lane.WRITE, SERVER, _never)


def lane(found: Lane) -> Callable[[F], F]:
    """Return a decorator that declares the lane of a handler."""

    def mark(handler: F) -> F:
        handler.lane = found  # type: ignore[attr-defined]
        return handler

    return mark


def lane_of(handler: Callable[..., object]) -> Lane:
    """Return the lane of a handler. Raises `TypeError` if it declares none."""
    found = getattr(handler, "lane", None)
    if not isinstance(found, Lane):
        raise TypeError(f"handler {handler.__qualname__} declares no lane: add @lane(Lane.…) to it")
    return found


def set_current_call(call: Call) -> None:
    """Set the request that this task is for."""
    _current.set(call)


def current_call() -> Call:
    """Return the request that runs here."""
    return _current.get(_OWN)
