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
from spark_queue.stores.limits import StoreLimits

#: The signals of a pause, and whether the queue is paused then.
PAUSE_SIGNALS = {"p true": True, "p false": False}

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
    receives_all: ClassVar[bool] = False

    def subscribe(self, queue: str) -> None:  # noqa: B027 - not needed by all
        """Subscribe to the signals of a queue; a `Signal` without text confirms it."""

    def unsubscribe(self, queue: str) -> None:  # noqa: B027
        """Unsubscribe from a queue."""

    @abstractmethod
    def next(self, timeout: float) -> Sequence[Signal]:
        """Return the next signals; none after `timeout` seconds or a `wake`."""

    def wake(self) -> None:  # noqa: B027
        """Let `next` return at once, if possible. Any thread may call it."""


class _QueueState:
    """A queue for which threads wait, or did recently. The lock of the listener guards it."""

    def __init__(self, name: str, lock: threading.Lock, version: int, listening: bool) -> None:
        self.name = name
        self.changed = threading.Condition(lock)
        self.version = version
        self.listening = listening  # whether its signals arrive, if they can
        self.waiters = 0  # threads, and callers of `watch`
        self.watchers: list[Callable[[str | None], None]] = []
        self.last_wait = 0.0  # when a thread waited last (monotonic s)
        self.retry_at: float | None = None  # when to subscribe again, if refused


class Listener:
    """Receives the signals for one store in its own thread. Safe to share among threads."""

    def __init__(
        self,
        connect: Callable[[], AbstractContextManager[Subscription]],
        on_pause: Callable[[str, bool], None],
        limits: StoreLimits,
    ) -> None:
        """`connect` may raise `StoreError`. `on_pause` gets a queue, and whether it is paused."""
        self.pid = os.getpid()
        self._connect, self._on_pause, self._limits = connect, on_pause, limits
        self._lock = threading.Lock()  # guards the attributes below
        self._queues: dict[str, _QueueState] = {}  # in the order of the last wait
        self._changes: list[str] = []  # names of queues that are new or dropped
        self._last_version = time.time_ns()  # no number of an earlier listener comes again
        self._last_cleanup = 0.0  # the last cleanup (monotonic s)
        self._running = self._disconnected = self._warned = self._suspect = False
        self._subscription: Subscription | None = None
        self._closed = threading.Event()

    # --- for waiting threads ----------------------------------------------------------------------

    def signal_version(self, queue: str) -> int:
        """Return a number that changes with each signal of the queue. The first call subscribes."""
        with self._lock:
            found = self._register(queue)
            if not found.listening:
                self._sleep(found, lambda: found.listening, self._limits.listen_timeout)
            return found.version

    def wait(self, queue: str, version: int, timeout: float) -> None:
        """Sleep until that number differs from `version`, at most `timeout` seconds."""
        with self._lock:
            found = self._register(queue)  # one that was dropped has another number
            self._sleep(found, lambda: found.version != version, timeout)

    def is_receiving(self, queue: str) -> bool:
        """Return whether the signals of a queue arrive now, as far as is known."""
        with self._lock:
            found = self._queues.get(queue)
            connected = self._subscription is not None and not self._disconnected
            return connected and found is not None and found.listening and found.retry_at is None

    def reconnect(self) -> None:
        """Listen with another connection: this one seems to lose signals."""
        with self._lock:
            self._suspect = True
            if self._subscription is not None:
                self._subscription.wake()

    def watch(self, queue: str, on_signal: Callable[[str | None], None]) -> Callable[[], None]:
        """Call `on_signal` with the name of the queue at each of its signals, also at the first.

        No thread waits for that. The result ends it. `on_signal` must return at once.
        """
        with self._lock:
            found = self._register(queue)
            found.waiters += 1
            found.watchers.append(on_signal)

        def end() -> None:
            with self._lock:
                found.waiters -= 1
                found.watchers.remove(on_signal)
                found.last_wait = time.monotonic()

        return end

    def notify(self, queue: str) -> None:
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

    def _sleep(self, queue: _QueueState, until: Callable[[], bool], timeout: float) -> None:
        queue.waiters += 1
        try:
            queue.changed.wait_for(lambda: until() or self._closed.is_set(), timeout)
        finally:
            queue.waiters -= 1
            queue.last_wait = time.monotonic()

    def _register(self, queue: str) -> _QueueState:
        """Return the state of a queue, new if necessary. Starts the thread."""
        found = self._queues.pop(queue, None)
        if found is None:
            self._last_version += 1
            receives_all = self._subscription is not None and self._subscription.receives_all
            found = _QueueState(queue, self._lock, self._last_version, receives_all or self._disconnected)
            self._add_change(queue)
        self._queues[queue] = found
        found.last_wait = time.monotonic()
        if not self._running and not self._closed.is_set():
            threading.Thread(target=self._run, name="spark_queue signals", daemon=True).start()
            self._running = True
        return found

    def _add_change(self, queue: str) -> None:
        if self._subscription is not None and not self._subscription.receives_all:
            self._changes.append(queue)
            self._subscription.wake()

    def _wake(self, queue: _QueueState) -> None:
        self._last_version += 1
        queue.version = self._last_version
        queue.changed.notify_all()
        for one in queue.watchers:
            one(queue.name)

    # --- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._receive()
        except BaseException:
            with self._lock:
                self._running = False  # the next wait starts another thread
            raise

    def _receive(self) -> None:
        pause, warn = self._limits.reconnect_pause, True
        while self._has_queues():
            began = time.monotonic()
            try:
                with self._connect() as subscription, self._connected(subscription):
                    subscribed: set[str] = set()
                    while self._update_subscriptions(subscription, subscribed):
                        self._dispatch(subscription.next(self._limits.listener_heartbeat), subscribed)
                        pause, warn = self._limits.reconnect_pause, True
            except SignalsLost:
                self._closed.wait(began + self._limits.reconnect_pause - time.monotonic())  # it may recur
            except StoreError as error:
                self._on_connection_lost(error, warn)
                self._closed.wait(pause)
                pause, warn = min(2 * pause, self._limits.max_reconnect_pause), False

    def _has_queues(self) -> bool:
        """Return whether queues are left. Else the thread ends."""
        with self._lock:
            self._drop_idle()
            self._running = bool(self._queues) and not self._closed.is_set()
            return self._running

    @contextmanager
    def _connected(self, subscription: Subscription) -> Iterator[None]:
        """Let other threads use the subscription within the block."""
        with self._lock:
            self._subscription, self._disconnected, self._suspect = subscription, False, False
            if subscription.receives_all:
                for one in self._queues.values():
                    one.listening = True
                    self._wake(one)  # earlier signals were not received
            else:
                self._changes = list(self._queues)
        try:
            yield
        finally:
            with self._lock:
                self._subscription = None

    def _update_subscriptions(self, subscription: Subscription, subscribed: set[str]) -> bool:
        """Subscribe to new queues, unsubscribe from dropped ones; return whether to continue."""
        with self._lock:
            self._drop_idle()
            if not self._queues or self._closed.is_set():
                return False
            if self._suspect:
                raise SignalsLost("signals are missing")
            changes, self._changes = self._changes, []
            wanted = {queue for queue in changes if queue in self._queues}
        for queue in changes:
            if queue in wanted and queue not in subscribed:
                subscription.subscribe(queue)
                subscribed.add(queue)
            elif queue not in wanted and queue in subscribed:
                subscription.unsubscribe(queue)
                subscribed.discard(queue)
        return True

    def _dispatch(self, signals: Sequence[Signal], subscribed: set[str]) -> None:
        """Wake threads that wait for the queues of these signals."""
        for signal in signals:
            paused = PAUSE_SIGNALS.get(signal.text or "")
            with self._lock:
                found = self._queues.get(signal.queue)
                if found is None:
                    continue
                if signal.refused is not None:
                    subscribed.discard(signal.queue)
                    self._on_refused(signal.queue, found, signal.refused)
                    continue
                found.listening = True
                if paused is not None:
                    self._on_pause(signal.queue, paused)
                if not paused:  # a pause brings no message
                    self._wake(found)

    def _drop_idle(self) -> None:
        """Drop queues for which no thread waits, and retry those that were refused."""
        now = time.monotonic()
        if now - self._last_cleanup < self._limits.listener_heartbeat:
            return
        self._last_cleanup = now
        idle = [name for name, one in self._queues.items() if not one.waiters]
        surplus = len(idle) - self._limits.idle_queues
        for number, name in enumerate(idle):
            if number < surplus or now - self._queues[name].last_wait > self._limits.idle_timeout:
                del self._queues[name]
                self._add_change(name)
        for name, one in self._queues.items():
            if one.retry_at is not None and one.retry_at <= now:
                one.retry_at = None
                self._add_change(name)

    def _on_refused(self, queue: str, found: _QueueState, error: StoreError) -> None:
        found.listening, found.retry_at = True, time.monotonic() + self._limits.max_reconnect_pause
        found.changed.notify_all()
        if not self._warned:
            log.warning("signals of queue %r are not received, so its waiting clients poll: %s", queue, error)
        self._warned = True

    def _on_connection_lost(self, error: StoreError, warn: bool) -> None:
        """Let waiting threads poll until the next attempt."""
        with self._lock:
            self._disconnected = True
            for one in self._queues.values():
                one.listening = True
                one.changed.notify_all()
            if warn and not self._closed.is_set():  # `close` also ends the connection
                log.warning("signals are not received, so waiting clients poll: %s", error)
