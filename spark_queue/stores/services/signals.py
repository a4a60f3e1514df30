"""Signals: whoever brings a message to a queue wakes those who wait for one.

A signal is a hint. Whoever waits also looks by himself now and then, so that one which is lost costs time, never a
message; for the same reason nothing fails because a signal could not be sent.

Signals are keuss' own, so that its programs wake ours, and ours wake them: the topic `keuss:signal:<ns>:<queue>`,
with the moment (ms) at which the first of the messages may be taken, or 1, which is long past, for at once; and
`p true` where the queue was paused, `p false` where it goes on. The namespace is the name of keuss' factory, `N`
unless the URL says `?ns=`.
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

#: Seconds in which a queue gets one signal at most.
WINDOW = 0.05

#: The moment that says "at once". By 0 keuss would understand that nothing is there, and sleep on.
AT_ONCE = 1

log = logging.getLogger(__name__)


class Sender:
    """Sends the signals of queues: one for each queue in a WINDOW, and what comes meanwhile as one at its end.

    Safe to share among threads. Those of a process that was forked are its parent's business.
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
        """Signal that a message may be taken at this moment (ms)."""
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
        """Send at once what waits for the end of its window; when this returns, nothing is sent any more."""
        if self._pid != os.getpid():
            return
        with self._sending:
            with self._lock:
                waiting, self._waiting = self._waiting, {}
            for queue, mature in waiting.items():
                self._send(queue, mature)


class SignallingStore(Store):
    """A store whose database carries signals."""

    def __init__(self, url: str, *, patience: float = 5.0) -> None:
        super().__init__(url, patience=patience)
        self._address = Address.of(self.url)
        self.ns = self._address.ours.get("ns", "N")
        self._sender = Sender(self._try_to_send)
        self._mute_until = 0.0
        self._listener: Listener | None = None
        self._replacing = threading.Lock()

    def topic(self, queue: str) -> str:
        """What keuss calls the signals of a queue."""
        return f"keuss:signal:{self.ns}:{queue}"

    @abstractmethod
    def _send(self, queue: str, signal: int | str) -> None:
        """Send a signal, a moment or one of PAUSES. Raises `StoreError` where that cannot be."""

    @abstractmethod
    def _subscribe(self) -> AbstractContextManager[Subscription]:
        """Connect to hear signals. Its errors, and those of the block, become `StoreError`."""

    def _tell(self, queue: str, mature: int = 0) -> None:
        self._ring(queue)
        self._sender.tell(queue, max(mature, AT_ONCE))

    def _tell_paused(self, queue: str, paused: bool) -> None:
        if not paused:
            self._ring(queue)
        self._try_to_send(queue, next(text for text, meaning in PAUSES.items() if meaning is paused))

    def _ring(self, queue: str) -> None:
        """Wake who waits with this very object: the signal that is sent need not come back before."""
        if (listener := self._listener) is not None and listener.pid == os.getpid():
            listener.ring(queue)

    def _try_to_send(self, queue: str, signal: int | str) -> None:
        if time.monotonic() < self._mute_until:
            return
        try:
            self._send(queue, signal)
        except StoreError as error:
            self._mute_until = time.monotonic() + LONGEST_RECONNECT_PAUSE
            log.warning("signals of %r are not sent, so waiting clients poll: %s", queue, error)

    def _rung(self, queue: str) -> int:
        return self._listening().count(queue)

    def _listen(self, queue: str, rung: int, timeout: float) -> None:
        self._listening().wait(queue, rung, timeout)

    def _heard(self, queue: str, rung: int) -> bool:
        return self._rung(queue) != rung

    def _listening(self) -> Listener:
        """The listener of this process: a parent's hears nothing here."""
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
