"""Hear the signals of all queues that a store waits for: one thread and one connection, however many queues.

The thread alone uses the connection. Other threads tell it which queues they wait for, and sleep until it wakes
them. A queue for which no thread waits any more is forgotten; with the last one the thread and the connection end.
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

#: Seconds until a connection is tried again: at first, and at most.
RECONNECT_PAUSE, LONGEST_RECONNECT_PAUSE = 1.0, 60.0

#: Seconds for which a thread that begins to wait gives the connection to come up.
COMING_UP = 1.0

#: Seconds after which the thread looks up though no signal came.
LISTENER_HEARTBEAT = 1.0

#: Seconds after which a queue is forgotten for which no thread waits, and how many such queues are kept at most.
IDLE_KEPT, MOST_KEPT = 60.0, 1_000

#: The signals of a pause, and whether the queue is paused then.
PAUSES = {"p true": True, "p false": False}

log = logging.getLogger(__name__)


class SignalsLost(StoreError):
    """Signals were missed, and a new connection hears those to come. It is no reason to warn."""


@dataclass(frozen=True)
class Signal:
    """A signal of a queue: its text. Without one, the queue is heard from now on, or the database refuses that."""

    queue: str
    text: str | None = None
    refused: StoreError | None = None


class Subscription(ABC):
    """A connection that brings signals. The thread of the listener alone calls it, except for `wake`.

    All methods raise `StoreError` if the connection is lost.
    """

    #: Whether it brings the signals of all queues, so that none needs to be followed.
    everything: ClassVar[bool] = False

    def follow(self, queue: str) -> None:  # noqa: B027 - those that bring everything have nothing to do
        """Ask for the signals of a queue; a `Signal` without text answers."""

    def unfollow(self, queue: str) -> None:  # noqa: B027
        """End that."""

    @abstractmethod
    def next(self, timeout: float) -> Sequence[Signal]:
        """Return the next signals; none if none comes in `timeout` seconds, or `wake` is called."""

    def wake(self) -> None:  # noqa: B027
        """Let `next` return at once, if it can. Any thread may call it."""


class _Queue:
    """A queue that is waited for, or was a while ago. The listener's lock guards it."""

    def __init__(self, lock: threading.Lock, count: int, up: bool) -> None:
        self.changed = threading.Condition(lock)
        self.count = count
        self.up = up  # whether its signals are heard, as far as that can be
        self.waiters = 0
        self.asked = 0.0  # when a thread waited last (monotonic s)
        self.again: float | None = None  # when a refused one is followed again


class Listener:
    """Hears the signals of the queues of one store, in a thread of its own. Safe to share among threads."""

    def __init__(
        self, subscribe: Callable[[], AbstractContextManager[Subscription]], learn: Callable[[str, bool], None]
    ) -> None:
        """`subscribe` connects; it raises `StoreError`. `learn` is told that a queue is paused, or goes on."""
        self.pid = os.getpid()
        self._subscribe, self._learn = subscribe, learn
        self._lock = threading.Lock()  # of all below
        self._queues: dict[str, _Queue] = {}  # those longest not waited for first
        self._changes: list[str] = []  # names that came, or were forgotten
        self._count = time.time_ns()  # so that no number of another listener comes again
        self._tidied = 0.0  # when queues were last forgotten (monotonic s)
        self._running = self._deaf = self._warned = False
        self._subscription: Subscription | None = None
        self._closed = threading.Event()

    # --- for those who wait -------------------------------------------------------------------------------------

    def count(self, queue: str) -> int:
        """Return a number that changes with each signal of the queue. Signals are heard from the first call on."""
        with self._lock:
            found = self._wanted(queue)
            if not found.up:
                self._sleep(found, lambda: found.up, COMING_UP)
            return found.count

    def wait(self, queue: str, count: int, timeout: float) -> None:
        """Sleep until that number is another than `count`, `timeout` seconds at most."""
        with self._lock:
            found = self._wanted(queue)  # one that was forgotten has another number
            self._sleep(found, lambda: found.count != count, timeout)

    def ring(self, queue: str) -> None:
        """Wake those who wait for the queue, as a signal does."""
        with self._lock:
            if (found := self._queues.get(queue)) is not None:
                self._wake(found)

    def close(self) -> None:
        """End the thread soon, and all waits at once."""
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
        """The state of a queue from now on. Starts the thread."""
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
                self._closed.wait(began + RECONNECT_PAUSE - time.monotonic())  # it may be lost each time
            except StoreError as error:
                self._failed(error, warn)
                self._closed.wait(pause)
                pause, warn = min(2 * pause, LONGEST_RECONNECT_PAUSE), False

    def _goes_on(self) -> bool:
        """Whether there is something to hear. Else the thread ends."""
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
                    self._wake(one)  # what came before was not heard
            else:
                self._changes = list(self._queues)
        try:
            yield
        finally:
            with self._lock:
                self._subscription = None

    def _follow(self, subscription: Subscription, followed: set[str]) -> bool:
        """Follow the queues that are new, and none that is forgotten; return whether to go on."""
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
        """Wake those who wait for the queues of these signals."""
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
                if not paused:  # else no message may have come
                    self._wake(found)

    def _forget(self) -> None:
        """Forget queues for which no thread waits any more, and follow again those that were refused."""
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
            log.warning("signals of %r are not heard, so its waiting clients look by themselves: %s", queue, error)
        self._warned = True

    def _failed(self, error: StoreError, warn: bool) -> None:
        """Let those who wait look by themselves until the next try."""
        with self._lock:
            self._deaf = True
            for one in self._queues.values():
                one.up = True
                one.changed.notify_all()
            if warn and not self._closed.is_set():  # else its connection was closed with it
                log.warning("signals are not heard, so waiting clients look by themselves: %s", error)
