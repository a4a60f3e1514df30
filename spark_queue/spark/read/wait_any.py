"""Wait for the first message of several queues, in one or several stores."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

#: Opens a connection for a thread, and yields a `wait` function. That takes a timeout (ms), and
#: returns whether a message is ready.
Opening = Callable[[], AbstractContextManager[Callable[[int], bool]]]


class Waiting:
    """Waits for several queues: in one thread for each, with its own connection."""

    def __init__(self, queues: Iterable[Opening]) -> None:
        self._changed = threading.Condition()
        self._watches = [_Watch(opening, self._changed) for opening in queues]

    def any(self, timeout: int) -> bool:
        """Wait up to `timeout` ms until any queue has a ready message; return whether one has.

        Raises the error of a thread whose wait failed.
        """
        end = time.monotonic() + timeout / 1000
        with self._changed:
            self._ask(timeout)  # each of them at least once
            while True:
                for watch in self._watches:
                    if isinstance(watch.answer, BaseException):
                        raise watch.answer
                if any(watch.answer for watch in self._watches):
                    return True
                left = round((end - time.monotonic()) * 1000)
                if left > 0:
                    self._ask(left)
                elif all(watch.idle for watch in self._watches):
                    return False
                self._changed.wait()

    def _ask(self, timeout: int) -> None:
        for watch in self._watches:
            if watch.idle:
                watch.ask(timeout)

    def close(self) -> None:
        """End the threads, each once its current wait ends."""
        with self._changed:
            for watch in self._watches:
                watch.done = True
            self._changed.notify_all()


class _Watch:
    """The thread of one queue. Hold `changed` to access its state."""

    def __init__(self, opening: Opening, changed: threading.Condition) -> None:
        self._opening, self._changed = opening, changed
        self._thread: threading.Thread | None = None
        self._timeout: int | None = None  # of the current wait (ms)
        self.answer: bool | BaseException | None = None  # of the last wait
        self.done = False

    @property
    def idle(self) -> bool:
        return self._timeout is None

    def ask(self, timeout: int) -> None:
        self.answer, self._timeout = None, timeout
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="spark_queue waiting", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _run(self) -> None:
        with self._opening() as wait:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self.done or not self.idle)
                    if self.done:
                        return
                    timeout = self._timeout or 0
                answer: bool | BaseException
                try:
                    answer = wait(timeout)
                except BaseException as error:  # noqa: BLE001 - `wait` raises it
                    answer = error
                with self._changed:
                    self.answer, self._timeout = answer, None
                    self._changed.notify_all()
