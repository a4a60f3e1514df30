"""Wait for the first message of several queues, in one or several stores."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

#: Opens a connection for a thread, and yields a `wait` function. That takes a timeout (ms), and
#: returns whether a message is ready.
OpenWaiter = Callable[[], AbstractContextManager[Callable[[int], bool]]]


class AnyWaiter:
    """Waits for several queues: in one thread for each, with its own connection."""

    def __init__(self, queues: Iterable[OpenWaiter]) -> None:
        self._changed = threading.Condition()
        self._queue_waiters = [_QueueWaiter(opening, self._changed) for opening in queues]

    def wait(self, timeout: int) -> bool:
        """Wait up to `timeout` ms until any queue has a ready message; return whether one has.

        Raises the error of a thread whose wait failed.
        """
        end = time.monotonic() + timeout / 1000
        with self._changed:
            self._start_idle(timeout)  # each of them at least once
            while True:
                for watch in self._queue_waiters:
                    if isinstance(watch.result, BaseException):
                        raise watch.result
                if any(watch.result for watch in self._queue_waiters):
                    return True
                left = round((end - time.monotonic()) * 1000)
                if left > 0:
                    self._start_idle(left)
                elif all(watch.idle for watch in self._queue_waiters):
                    return False
                self._changed.wait()

    def _start_idle(self, timeout: int) -> None:
        for watch in self._queue_waiters:
            if watch.idle:
                watch.start(timeout)

    def close(self) -> None:
        """End the threads, each once its current wait ends."""
        with self._changed:
            for watch in self._queue_waiters:
                watch.closed = True
            self._changed.notify_all()


class _QueueWaiter:
    """The thread of one queue. Hold `changed` to access its state."""

    def __init__(self, opening: OpenWaiter, changed: threading.Condition) -> None:
        self._open, self._changed = opening, changed
        self._thread: threading.Thread | None = None
        self._timeout: int | None = None  # of the current wait (ms)
        self.result: bool | BaseException | None = None  # of the last wait
        self.closed = False

    @property
    def idle(self) -> bool:
        return self._timeout is None

    def start(self, timeout: int) -> None:
        self.result, self._timeout = None, timeout
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="spark_queue waiting", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _run(self) -> None:
        with self._open() as wait:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self.closed or not self.idle)
                    if self.closed:
                        return
                    timeout = self._timeout or 0
                result: bool | BaseException
                try:
                    result = wait(timeout)
                except BaseException as error:  # noqa: BLE001 - `wait` raises it
                    result = error
                with self._changed:
                    self.result, self._timeout = result, None
                    self._changed.notify_all()
