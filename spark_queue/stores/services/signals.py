"""Signals: a client that pushes to a queue wakes the clients that wait for it.

A signal is a hint. A waiting client also polls, so a lost signal costs time but no message: every 5
seconds while signals arrive, else every 500 ms. For the same reason no operation fails because a
signal cannot be sent.

The signals are those of keuss, so its clients and ours wake each other. The topic is
`keuss:signal:<ns>:<queue>`. The text is the moment (ms) at which the first message is due, or 1 (in
the past) for at once. It is `p true` when the queue is paused, and `p false` when the pause ends.
The namespace is the name of keuss' factory: `N`, or `?ns=` of the URL.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager

from spark_queue.errors import StoreError, StoreUnavailable
from spark_queue.fork_locks import add_lock
from spark_queue.options.url import StoreUrl
from spark_queue.stores.base import Store
from spark_queue.stores.limits import StoreLimits
from spark_queue.stores.services.listener import PAUSE_SIGNALS, Listener, Subscription

#: After a poll has found a message that no signal announced, a client polls as often as one without
#: signals for this time (s).
MISSED_SIGNAL_SECONDS = 300.0

#: The largest number of queues whose missed signals are remembered.
MAX_MISSED = 10_000

#: The moment for "at once". By 0 keuss understands that no message is there, and sleeps on.
AT_ONCE = 1

log = logging.getLogger(__name__)


class SignalSender:
    """Sends one signal for a queue in a window of time; others are merged into one at its end.

    Safe to share among threads. A forked process does not send the signals of its parent.
    """

    def __init__(self, send: Callable[[str, int], None], window: float) -> None:
        """`window`: how long it is (s)."""
        self._send, self._window = send, window
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock, self._sending = threading.Lock(), threading.Lock()
        self._sent: dict[str, float] = {}
        self._pending: dict[str, int] = {}

    def send_soon(self, queue: str, mature: int) -> None:
        """Signal that a message can be reserved at this moment (ms)."""
        if self._pid != os.getpid():
            self._reset()
        with self._lock:
            if queue in self._pending:
                self._pending[queue] = min(self._pending[queue], mature)
                return
            now = time.monotonic()
            rest = self._sent.get(queue, -self._window) + self._window - now
            if rest > 0:
                self._pending[queue] = mature
                later = threading.Timer(rest, self._end_window, (queue,))
                later.daemon = True
                later.start()
                return
            self._sent = {name: sent for name, sent in self._sent.items() if sent + self._window > now}
            self._sent[queue] = now
        self._send(queue, mature)

    def _end_window(self, queue: str) -> None:
        with self._sending:
            with self._lock:
                mature = self._pending.pop(queue, None)
                self._sent[queue] = time.monotonic()
            if mature is not None:
                self._send(queue, mature)

    def flush(self) -> None:
        """Send the signals that wait for the end of their window now; afterwards none is sent."""
        if self._pid != os.getpid():
            return
        with self._sending:
            with self._lock:
                waiting, self._pending = self._pending, {}
            for queue, mature in waiting.items():
                self._send(queue, mature)


class SignallingStore(Store):
    """A store whose database has signals."""

    def __init__(
        self, url: str, *, retry_timeout: int = 5_000, create: bool = True, limits: StoreLimits | None = None
    ) -> None:
        super().__init__(url, retry_timeout=retry_timeout, create=create, limits=limits)
        self._address = StoreUrl.parse(self.url)
        self.ns = self._address.parameters.get("ns", "N")
        self._sender = SignalSender(self._try_to_send, self.limits.signal_window)
        self._mute_until = 0.0
        self._missed_until: dict[str, float] = {}  # queue -> when it polls rarely again (monotonic s)
        self._listener: Listener | None = None
        self._listener_lock: threading.Lock
        add_lock(self, "_listener_lock")

    def topic(self, queue: str) -> str:
        """Return the topic of the signals of a queue, as keuss names it."""
        return f"keuss:signal:{self.ns}:{queue}"

    @abstractmethod
    def _send(self, queue: str, signal: int | str) -> None:
        """Send a signal: a moment, or one of PAUSE_SIGNALS. Raises `StoreError` if it cannot."""

    @abstractmethod
    def _open_subscription(self) -> AbstractContextManager[Subscription]:
        """Connect to receive signals. Errors, also those of the block, become `StoreError`."""

    def _notify(self, queue: str, mature: int = 0) -> None:
        self._notify_local(queue)
        self._sender.send_soon(queue, max(mature, AT_ONCE))

    def _notify_paused(self, queue: str, paused: bool) -> None:
        if not paused:
            self._notify_local(queue)
        self._try_to_send(queue, next(text for text, meaning in PAUSE_SIGNALS.items() if meaning is paused))

    def _notify_local(self, queue: str) -> None:
        """Wake threads that wait with this object, before the signal comes back from the server."""
        if (listener := self._listener) is not None and listener.pid == os.getpid():
            listener.notify(queue)

    def _try_to_send(self, queue: str, signal: int | str) -> None:
        if time.monotonic() < self._mute_until:
            return
        try:
            self._send(queue, signal)
        except StoreError as error:
            passes = isinstance(error, StoreUnavailable)
            pause = self.limits.reconnect_pause if passes else self.limits.max_reconnect_pause
            self._mute_until = time.monotonic() + pause
            log.warning("signals of queue %r are not sent, so waiting clients poll: %s", queue, error)

    def _signal_version(self, queue: str) -> int:
        return self._get_listener().signal_version(queue)

    def _wait_signal(self, queue: str, version: int, timeout: float) -> None:
        self._get_listener().wait(queue, version, timeout)

    def _signalled_for(self, queue: str, version: int) -> bool:
        return self._signal_version(queue) != version

    def poll_interval(self, queue: str) -> float:
        return super().poll_interval(queue) * (self.limits.rarer_polls if self._relies_on_signals(queue) else 1)

    def _pause_poll_interval(self, queue: str) -> float:
        relies = self._relies_on_signals(queue)
        return self.poll_interval(queue) if relies else super()._pause_poll_interval(queue)

    def _relies_on_signals(self, queue: str) -> bool:
        """Return whether signals of the queue arrive, and seem to be complete."""
        missed_until = self._missed_until.get(queue, 0.0)
        return time.monotonic() >= missed_until and self._get_listener().is_receiving(queue)

    def missed_signal(self, queue: str) -> None:
        if self._relies_on_signals(queue):  # perhaps its server is no longer that of the queues
            self._get_listener().reconnect()
        if len(self._missed_until) >= MAX_MISSED:
            self._missed_until.clear()
        self._missed_until[queue] = time.monotonic() + MISSED_SIGNAL_SECONDS

    def watch(self, queue: str, on_signal: Callable[[str | None], None]) -> Callable[[], None]:
        return self._get_listener().watch(queue, on_signal)

    def _get_listener(self) -> Listener:
        """Return the listener of this process; after a fork, a new one."""
        found = self._listener
        if found is None or found.pid != os.getpid():
            with self._listener_lock:
                found = self._listener
                if found is None or found.pid != os.getpid():
                    found = self._listener = Listener(self._open_subscription, self._pause_cache.update, self.limits)
        return found

    def close(self) -> None:
        super().close()
        self._sender.flush()
        with self._listener_lock:
            listener, self._listener = self._listener, None
        if listener is not None and listener.pid == os.getpid():
            listener.close()
