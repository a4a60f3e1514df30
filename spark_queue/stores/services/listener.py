"""Receive the signals of all queues that a store waits for, with one thread and one connection.

Only that thread uses the connection. Other threads register the queues that they wait for, and
sleep until it wakes them. A queue is dropped when no thread has waited for it for a while. With the
last queue the thread and the connection end.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import ClassVar

from spark_queue.errors import StoreError

#: How long to wait before the next connection attempt, at first and at most (s).
RECONNECT_PAUSE, LONGEST_RECONNECT_PAUSE = 1.0, 60.0

#: How long a thread that begins to wait lets the connection come up (s).
COMING_UP = 1.0

#: How often the thread does other work if no signal comes (s).
LISTENER_HEARTBEAT = 1.0

#: How long a queue is kept for which no thread waits (s), and how many of these are kept.
IDLE_KEPT, MOST_KEPT = 60.0, 1_000

#: The signals of a pause, and whether the queue is paused then.
PAUSES = {"p true": True, "p false": False}

log = logging.getLogger(__name__)


class SignalsLost(StoreError):
    """Signals were lost, and a new connection is needed. This logs no warning."""


@dataclass(frozen=True)
class Signal:
    """A signal of a queue.

    Without text: its signals arrive from now on, or `refused` says why not.
    """

    queue: str
    text: str | None = None
    refused: StoreError | None = None


class Subscription(ABC):
    """A connection that receives signals.

    Only the thread of the listener calls it, except for `wake`.

    All methods raise `StoreError` if the connection is lost.
    """

    #: Whether it receives the signals of all queues without `subscribe`.
    everything: ClassVar[bool] = False

    def follow(self, queue: str) -> None:  # noqa: B027 - not needed by all
        """Subscribe to the signals of a queue; a `Signal` without text confirms it."""

    def unfollow(self, queue: str) -> None:  # noqa: B027
        """Unsubscribe from a queue."""

    @abstractmethod
    def next(self, timeout: float) -> Sequence[Signal]:
        """Return the next signals; none after `timeout` seconds or a `wake`."""

    def wake(self) -> None:  # noqa: B027
        """Let `next` return at once, if possible. Any thread may call it."""


class _Queue:
    """A queue for which threads wait, or did recently. The lock of the listener guards it."""

    def __init__(self, lock: threading.Lock, count: int, up: bool) -> None:
        self.changed = threading.Condition(lock)
        self.count = count
        self.up = up  # whether its signals arrive, if they can
        self.waiters = 0
        self.asked = 0.0  # when a thread waited last (monotonic s)
        self.again: float | None = None  # when to subscribe again, if refused


class Listener:
    """Receives the signals for one store in its own thread. Safe to share among threads."""

    def __init__(
        self, subscribe: Callable[[], AbstractContextManager[Subscription]], learn: Callable[[str, bool], None]
    ) -> None:
        """`connect` may raise `StoreError`. `on_pause` gets a queue, and whether it is paused."""
        self.pid = os.getpid()
        self._subscribe, self._learn = subscribe, learn
        self._lock = threading.Lock()  # guards the attributes below
        self._queues: dict[str, _Queue] = {}  # in the order of the last wait
        self._changes: list[str] = []  # names of queues that are new or dropped
        self._count = time.time_ns()  # no number of an earlier listener comes again
        self._tidied = 0.0  # the last cleanup (monotonic s)
        self._running = self._deaf = self._warned = False
        self._subscription: Subscription | None = None
        self._closed = threading.Event()

    # --- for waiting threads ------------------------------------------------------------------------------------

    def count(self, queue: str) -> int:
        """Return a number that changes with each signal of the queue. The first call subscribes."""
        with self._lock:
            found = self._wanted(queue)
            if not found.up:
                self._sleep(found, lambda: found.up, COMING_UP)
            return found.count

    def wait(self, queue: str, count: int, timeout: float) -> None:
        """Sleep until that number differs from `version`, at most `timeout` seconds."""
        with self._lock:
            found = self._wanted(queue)  # one that was dropped has another number
            self._sleep(found, lambda: found.count != count, timeout)

    def ring(self, queue: str) -> None:
        """Wake threads that wait for the queue, as a signal does."""
        with self._lock:
            if (found := self._queues.get(queue)) is not None:
                self._wake(found)

    def close(self) -> None:
        """End all waits at once, and the thread soon."""
        with self._lock:
            self._closed.set()
            for one in self._queues.values():
                one.changed.notify_all()
            if self._subscription is not None:
                self._subscription.wake()

    def _sleep(self, queue: _Queue, until: Callable[[], bool], timeout: float) -> None:
        queue.waiters += 1
        try:
            queue.changed.wait_for(lambda: until() or self._closed.is_set(), timeout)
        finally:
            queue.waiters -= 1
            queue.asked = time.monotonic()

    def _wanted(self, queue: str) -> _Queue:
        """Return the state of a queue, new if necessary. Starts the thread."""
        found = self._queues.pop(queue, None)
        if found is None:
            self._count += 1
            hears = self._subscription is not None and self._subscription.everything
            found = _Queue(self._lock, self._count, hears or self._deaf)
            self._change(queue)
        self._queues[queue] = found
        found.asked = time.monotonic()
        if not self._running and not self._closed.is_set():
            threading.Thread(target=self._run, name="spark_queue signals", daemon=True).start()
            self._running = True
        return found

    def _change(self, queue: str) -> None:
        if self._subscription is not None and not self._subscription.everything:
            self._changes.append(queue)
            self._subscription.wake()

    def _wake(self, queue: _Queue) -> None:
        self._count += 1
        queue.count = self._count
        queue.changed.notify_all()

    # --- the thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._hear()
        except BaseException:
            with self._lock:
                self._running = False  # the next wait starts another thread
            raise

    def _hear(self) -> None:
        pause, warn = RECONNECT_PAUSE, True
        while self._goes_on():
            began = time.monotonic()
            try:
                with self._subscribe() as subscription, self._connected(subscription):
                    followed: set[str] = set()
                    while self._follow(subscription, followed):
                        self._bring(subscription.next(LISTENER_HEARTBEAT), followed)
                        pause, warn = RECONNECT_PAUSE, True
            except SignalsLost:
                self._closed.wait(began + RECONNECT_PAUSE - time.monotonic())  # it may recur
            except StoreError as error:
                self._failed(error, warn)
                self._closed.wait(pause)
                pause, warn = min(2 * pause, LONGEST_RECONNECT_PAUSE), False

    def _goes_on(self) -> bool:
        """Return whether queues are left. Else the thread ends."""
        with self._lock:
            self._forget()
            self._running = bool(self._queues) and not self._closed.is_set()
            return self._running

    @contextmanager
    def _connected(self, subscription: Subscription) -> Iterator[None]:
        """Let other threads use the subscription within the block."""
        with self._lock:
            self._subscription, self._deaf = subscription, False
            if subscription.everything:
                for one in self._queues.values():
                    one.up = True
                    self._wake(one)  # earlier signals were not received
            else:
                self._changes = list(self._queues)
        try:
            yield
        finally:
            with self._lock:
                self._subscription = None

    def _follow(self, subscription: Subscription, followed: set[str]) -> bool:
        """Subscribe to new queues, unsubscribe from dropped ones; return whether to continue."""
        with self._lock:
            self._forget()
            if not self._queues or self._closed.is_set():
                return False
            changes, self._changes = self._changes, []
            wanted = {queue for queue in changes if queue in self._queues}
        for queue in changes:
            if queue in wanted and queue not in followed:
                subscription.follow(queue)
                followed.add(queue)
            elif queue not in wanted and queue in followed:
                subscription.unfollow(queue)
                followed.discard(queue)
        return True

    def _bring(self, heard: Sequence[Signal], followed: set[str]) -> None:
        """Wake threads that wait for the queues of these signals."""
        for signal in heard:
            paused = PAUSES.get(signal.text or "")
            with self._lock:
                found = self._queues.get(signal.queue)
                if found is None:
                    continue
                if signal.refused is not None:
                    followed.discard(signal.queue)
                    self._refused(signal.queue, found, signal.refused)
                    continue
                found.up = True
                if paused is not None:
                    self._learn(signal.queue, paused)
                if not paused:  # a pause brings no message
                    self._wake(found)

    def _forget(self) -> None:
        """Drop queues for which no thread waits, and retry those that were refused."""
        now = time.monotonic()
        if now - self._tidied < LISTENER_HEARTBEAT:
            return
        self._tidied = now
        idle = [name for name, one in self._queues.items() if not one.waiters]
        surplus = len(idle) - MOST_KEPT
        for number, name in enumerate(idle):
            if number < surplus or now - self._queues[name].asked > IDLE_KEPT:
                del self._queues[name]
                self._change(name)
        for name, one in self._queues.items():
            if one.again is not None and one.again <= now:
                one.again = None
                self._change(name)

    def _refused(self, queue: str, found: _Queue, error: StoreError) -> None:
        found.up, found.again = True, time.monotonic() + LONGEST_RECONNECT_PAUSE
        found.changed.notify_all()
        if not self._warned:
            log.warning("signals of queue %r are not received, so its waiting clients poll: %s", queue, error)
        self._warned = True

    def _failed(self, error: StoreError, warn: bool) -> None:
        """Let waiting threads poll until the next attempt."""
        with self._lock:
            self._deaf = True
            for one in self._queues.values():
                one.up = True
                one.changed.notify_all()
            if warn and not self._closed.is_set():  # `close` also ends the connection
                log.warning("signals are not received, so waiting clients poll: %s", error)
