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
from collections.abc import Callable, Iterator

from spark_queue.address import Address
from spark_queue.errors import StoreError
from spark_queue.store.base import Store

#: Seconds in which a queue gets one signal at most.
WINDOW = 0.05

#: Seconds until what failed is tried again: at first, and at most.
PAUSE, LONGEST_PAUSE = 1.0, 60.0

#: Seconds for which somebody who begins to wait gives his ear to come up.
COMING_UP = 1.0

#: The moment that says "at once". By 0 keuss would understand that nothing is there, and sleep on.
AT_ONCE = 1

#: What is sent when a queue is paused or goes on, and whether it is paused then.
PAUSES = {"p true": True, "p false": False}

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


class Ear:
    """Hears the signals of one queue, in a thread of its own."""

    def __init__(self, name: str, signals: Callable[[], Iterator[bool]]) -> None:
        """`signals` connects, and then gives `True` for each signal and `False` now and then while there is none.

        The first `True` says that it hears from now on. It raises `StoreError` where it cannot, and is called again
        after a while.
        """
        self._name, self._signals = name, signals
        self._changed = threading.Condition()
        self._rung = 0
        self._up = threading.Event()
        self._closed = threading.Event()
        threading.Thread(target=self._hear, name=f"spark_queue signals of {name}", daemon=True).start()

    def rung(self) -> int:
        """A number that changes with each signal; the first time it is asked, what comes from now on is heard."""
        self._up.wait(COMING_UP)
        return self._rung

    def ring(self) -> None:
        """Wake who waits, as a signal does."""
        with self._changed:
            self._rung += 1
            self._changed.notify_all()

    def wait(self, rung: int, timeout: float) -> None:
        """Sleep until that number is another than `rung`, `timeout` seconds at most."""
        with self._changed:
            self._changed.wait_for(lambda: self._rung != rung or self._closed.is_set(), timeout)

    def close(self) -> None:
        """End soon; whoever waits goes on."""
        self._closed.set()
        with self._changed:
            self._changed.notify_all()

    def _hear(self) -> None:
        pause = PAUSE
        while not self._closed.is_set():
            try:
                for is_signal in self._signals():
                    if self._closed.is_set():
                        return
                    if is_signal:
                        pause = PAUSE
                        self.ring()
                        self._up.set()
            except StoreError as error:
                self._up.set()
                if self._closed.is_set():  # its connection was closed with it
                    return
                if pause == PAUSE:
                    log.warning("signals of %s are not heard, so they are looked for instead: %s", self._name, error)
            self._closed.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE)


class SignallingStore(Store):
    """A store whose database carries signals."""

    def __init__(self, url: str, *, patience: float = 5.0) -> None:
        super().__init__(url, patience=patience)
        self._address = Address.of(self.url)
        self.ns = self._address.ours.get("ns", "N")
        self._sender = Sender(self._try_to_send)
        self._mute_until = 0.0
        self._ears: dict[str, Ear] = {}
        self._ears_of = 0  # the process in which they hear
        self._ears_lock = threading.Lock()

    def topic(self, queue: str) -> str:
        """What keuss calls the signals of a queue."""
        return f"keuss:signal:{self.ns}:{queue}"

    @abstractmethod
    def _send(self, queue: str, signal: int | str) -> None:
        """Send a signal, a moment or one of PAUSES. Raises `StoreError` where that cannot be."""

    @abstractmethod
    def _signals(self, queue: str) -> Iterator[str | None]:
        """The signals of a queue, as an `Ear` wants them: the text of each, `None` where there is none."""

    def _rings(self, queue: str) -> Iterator[bool]:
        """Those of them that may bring a message. What tells of a pause is learned."""
        for signal in self._signals(queue):
            paused = PAUSES.get(signal or "")
            if paused is not None:
                self._pauses.learn(queue, paused)
            yield signal is not None and not paused

    def _tell(self, queue: str, mature: int = 0) -> None:
        self._ring(queue)
        self._sender.tell(queue, max(mature, AT_ONCE))

    def _tell_paused(self, queue: str, paused: bool) -> None:
        if not paused:
            self._ring(queue)
        self._try_to_send(queue, next(text for text, meaning in PAUSES.items() if meaning is paused))

    def _ring(self, queue: str) -> None:
        """Wake who waits with this very object: the signal that is sent need not come back before."""
        with self._ears_lock:
            ear = self._ears.get(queue) if self._ears_of == os.getpid() else None
        if ear is not None:
            ear.ring()

    def _try_to_send(self, queue: str, signal: int | str) -> None:
        if time.monotonic() < self._mute_until:
            return
        try:
            self._send(queue, signal)
        except StoreError as error:
            self._mute_until = time.monotonic() + LONGEST_PAUSE
            log.warning("signals of %r are not sent, so waiting clients poll: %s", queue, error)

    def _rung(self, queue: str) -> int:
        return self._ear(queue).rung()

    def _listen(self, queue: str, rung: int, timeout: float) -> None:
        self._ear(queue).wait(rung, timeout)

    def _heard(self, queue: str, rung: int) -> bool:
        return self._rung(queue) != rung

    def _ear(self, queue: str) -> Ear:
        with self._ears_lock:
            if self._ears_of != os.getpid():
                self._ears, self._ears_of = {}, os.getpid()
            if queue not in self._ears:
                self._ears[queue] = Ear(repr(queue), lambda: self._rings(queue))
            return self._ears[queue]

    def close(self) -> None:
        super().close()
        self._sender.flush()
        with self._ears_lock:
            ears, self._ears = self._ears, {}
        if self._ears_of == os.getpid():
            for one in ears.values():
                one.close()
