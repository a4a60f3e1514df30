"""Waiting for whichever of several queues gets a message first, in one or several stores."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

#: Opens a connection for a thread; then it waits for a message, so many ms at most, and tells whether there is one.
Opening = Callable[[], AbstractContextManager[Callable[[int], bool]]]


class Waiting:
    """Threads that wait when they are asked to, one for each queue, with a connection of its own."""

    def __init__(self, queues: Iterable[Opening]) -> None:
        self._changed = threading.Condition()
        self._watches = [_Watch(opening, self._changed) for opening in queues]

    def any(self, timeout: int) -> bool:
        """Sleep until a message of any of the queues may be taken, `timeout` ms at most; give whether one may.

        Raises what kept a queue from being looked at.
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
        """End the threads, each as soon as it waits no more."""
        with self._changed:
            for watch in self._watches:
                watch.done = True
            self._changed.notify_all()


class _Watch:
    """The thread of one queue. What is shared is touched while `changed` is held."""

    def __init__(self, opening: Opening, changed: threading.Condition) -> None:
        self._opening, self._changed = opening, changed
        self._thread: threading.Thread | None = None
        self._timeout: int | None = None  # what it is asked to wait (ms)
        self.answer: bool | BaseException | None = None  # to the last question
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
                except BaseException as error:  # noqa: BLE001 - it is raised where it was asked
                    answer = error
                with self._changed:
                    self.answer, self._timeout = answer, None
                    self._changed.notify_all()
