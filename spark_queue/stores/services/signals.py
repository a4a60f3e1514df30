"""Signals: a client that pushes to a queue wakes the clients that wait for it.

A signal is a hint. A waiting client also polls, so a lost signal costs time but no message. For the
same reason no operation fails because a signal cannot be sent.

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

from spark_queue.errors import StoreError
from spark_queue.options.url import Address
from spark_queue.stores.base import Store
from spark_queue.stores.services.listener import LONGEST_RECONNECT_PAUSE, PAUSES, Listener, Subscription

#: A queue gets at most one signal in this time (s).
WINDOW = 0.05

#: The moment for "at once". By 0 keuss understands that no message is there, and sleeps on.
AT_ONCE = 1

log = logging.getLogger(__name__)


class Sender:
    """Sends one signal for a queue in a SIGNAL_WINDOW; others are merged into one at its end.

    Safe to share among threads. A forked process does not send the signals of its parent.
    """

    def __init__(self, send: Callable[[str, int], None]) -> None:
        self._send = send
        self._forget()

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._lock, self._sending = threading.Lock(), threading.Lock()
        self._sent: dict[str, float] = {}
        self._waiting: dict[str, int] = {}

    def tell(self, queue: str, mature: int) -> None:
        """Signal that a message can be reserved at this moment (ms)."""
        if self._pid != os.getpid():
            self._forget()
        with self._lock:
            if queue in self._waiting:
                self._waiting[queue] = min(self._waiting[queue], mature)
                return
            now = time.monotonic()
            rest = self._sent.get(queue, -WINDOW) + WINDOW - now
            if rest > 0:
                self._waiting[queue] = mature
                later = threading.Timer(rest, self._end_window, (queue,))
                later.daemon = True
                later.start()
                return
            self._sent = {name: sent for name, sent in self._sent.items() if sent + WINDOW > now} | {queue: now}
        self._send(queue, mature)

    def _end_window(self, queue: str) -> None:
        with self._sending:
            with self._lock:
                mature = self._waiting.pop(queue, None)
                self._sent[queue] = time.monotonic()
            if mature is not None:
                self._send(queue, mature)

    def flush(self) -> None:
        """Send the signals that wait for the end of their window now; afterwards none is sent."""
        if self._pid != os.getpid():
            return
        with self._sending:
            with self._lock:
                waiting, self._waiting = self._waiting, {}
            for queue, mature in waiting.items():
                self._send(queue, mature)


class SignallingStore(Store):
    """A store whose database has signals."""

    def __init__(self, url: str, *, patience: float = 5.0) -> None:
        super().__init__(url, patience=patience)
        self._address = Address.of(self.url)
        self.ns = self._address.ours.get("ns", "N")
        self._sender = Sender(self._try_to_send)
        self._mute_until = 0.0
        self._listener: Listener | None = None
        self._replacing = threading.Lock()

    def topic(self, queue: str) -> str:
        """Return the topic of the signals of a queue, as keuss names it."""
        return f"keuss:signal:{self.ns}:{queue}"

    @abstractmethod
    def _send(self, queue: str, signal: int | str) -> None:
        """Send a signal: a moment, or one of PAUSE_SIGNALS. Raises `StoreError` if it cannot."""

    @abstractmethod
    def _subscribe(self) -> AbstractContextManager[Subscription]:
        """Connect to receive signals. Errors, also those of the block, become `StoreError`."""

    def _tell(self, queue: str, mature: int = 0) -> None:
        self._ring(queue)
        self._sender.tell(queue, max(mature, AT_ONCE))

    def _tell_paused(self, queue: str, paused: bool) -> None:
        if not paused:
            self._ring(queue)
        self._try_to_send(queue, next(text for text, meaning in PAUSES.items() if meaning is paused))

    def _ring(self, queue: str) -> None:
        """Wake threads that wait with this object, before the signal comes back from the server."""
        if (listener := self._listener) is not None and listener.pid == os.getpid():
            listener.ring(queue)

    def _try_to_send(self, queue: str, signal: int | str) -> None:
        if time.monotonic() < self._mute_until:
            return
        try:
            self._send(queue, signal)
        except StoreError as error:
            self._mute_until = time.monotonic() + LONGEST_RECONNECT_PAUSE
            log.warning("signals of queue %r are not sent, so waiting clients poll: %s", queue, error)

    def _rung(self, queue: str) -> int:
        return self._listening().count(queue)

    def _listen(self, queue: str, rung: int, timeout: float) -> None:
        self._listening().wait(queue, rung, timeout)

    def _heard(self, queue: str, rung: int) -> bool:
        return self._rung(queue) != rung

    def _listening(self) -> Listener:
        """Return the listener of this process; after a fork, a new one."""
        found = self._listener
        if found is None or found.pid != os.getpid():
            with self._replacing:
                found = self._listener
                if found is None or found.pid != os.getpid():
                    found = self._listener = Listener(self._subscribe, self._pauses.learn)
        return found

    def close(self) -> None:
        super().close()
        self._sender.flush()
        with self._replacing:
            listener, self._listener = self._listener, None
        if listener is not None and listener.pid == os.getpid():
            listener.close()
