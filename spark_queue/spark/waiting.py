"""Waiting for whichever of several queues gets a message first, in one or several stores."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

from spark_queue.options import QueueOptions
from spark_queue.store import open_store


class Waiting:
    """Threads that wait when they are asked to, one for each queue, with a connection of its own."""

    def __init__(self, queues: Iterable[QueueOptions]) -> None:
        self._changed = threading.Condition()
        self._watches = [_Watch(options, self._changed) for options in queues]

    def any(self, timeout: int) -> bool:
        """Sleep until a message of any of the queues may be taken, `timeout` ms at most; give whether one may.

        Raises what kept a queue from being looked at.
        """
        end = time.monotonic() + timeout / 1000
        with self._changed:
            asked = False  # each of them at least once
            while True:
                left = end - time.monotonic()
                for watch in self._watches:
                    if watch.idle and (left > 0 or not asked):
                        watch.ask(max(0, round(left * 1000)))
                asked = True
                self._changed.wait_for(lambda: any(watch.answer is not None for watch in self._watches))
                for watch in self._watches:
                    if isinstance(watch.answer, BaseException):
                        raise watch.answer
                if any(watch.answer for watch in self._watches):
                    return True
                if all(watch.idle for watch in self._watches) and end <= time.monotonic():
                    return False

    def close(self) -> None:
        """End the threads, each as soon as it waits no more."""
        with self._changed:
            for watch in self._watches:
                watch.done = True
            self._changed.notify_all()


class _Watch:
    """The thread of one queue. What is shared is touched while `changed` is held."""

    def __init__(self, options: QueueOptions, changed: threading.Condition) -> None:
        self._options, self._changed = options, changed
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
        with open_store(self._options.url, patience=self._options.retry_timeout / 1000) as store:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self.done or not self.idle)
                    if self.done:
                        return
                    timeout = self._timeout or 0
                answer: bool | BaseException
                try:
                    answer = store.wait(self._options.queue or "", timeout)
                except BaseException as error:  # noqa: BLE001 - it is raised where it was asked
                    answer = error
                with self._changed:
                    self.answer, self._timeout = answer, None
                    self._changed.notify_all()
