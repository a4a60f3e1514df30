"""Report changes of a database file to callers that do not wait in a thread of their own."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable

from spark_queue.errors import QueueError
from spark_queue.stores.sqlite.change_poll import POLL_INTERVAL

#: How long to pause after the file could not be read (s).
ERROR_PAUSE = 0.5

OnSignal = Callable[[str | None], None]


class ChangeWatch:
    """Polls a number in a thread while there are watchers, and calls all watchers when it changes.

    Safe to share among threads, and across a fork.
    """

    def __init__(self, read: Callable[[], int]) -> None:
        """`read` returns the number."""
        self._read = read
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._watchers: Counter[OnSignal] = Counter()  # one may watch several queues
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    def watch(self, on_signal: OnSignal) -> Callable[[], None]:
        """Call `on_signal` with `None` at each change, until the result is called."""
        if self._pid != os.getpid():
            self._reset()
        with self._lock:
            self._watchers[on_signal] += 1
            if self._thread is None:
                self._stop = threading.Event()
                self._thread = threading.Thread(
                    target=self._poll, args=(self._stop,), name="spark_queue changes", daemon=True
                )
                self._thread.start()

        def end() -> None:
            with self._lock:
                self._watchers[on_signal] -= 1
                if self._watchers[on_signal] <= 0:
                    del self._watchers[on_signal]
                if not self._watchers:
                    self._stop.set()
                    self._thread = None

        return end

    def notify(self, queue: str) -> None:
        """Call all watchers with the name of a queue that has just changed."""
        if self._pid == os.getpid() and self._watchers:
            self._call(queue)

    def _call(self, queue: str | None) -> None:
        with self._lock:
            watchers = list(self._watchers)
        for one in watchers:
            one(queue)

    def _poll(self, stop: threading.Event) -> None:
        last: int | None = None
        while not stop.wait(POLL_INTERVAL):
            try:
                number = self._read()
            except QueueError:
                stop.wait(ERROR_PAUSE)
                last = None
                continue
            if number != last:
                last = number
                self._call(None)

    def close(self) -> None:
        """End the thread, before the file is closed."""
        if self._pid != os.getpid():
            return
        with self._lock:
            thread, self._thread = self._thread, None
            self._watchers.clear()
            self._stop.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join()
