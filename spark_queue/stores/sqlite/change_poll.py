"""Wait for a change of a database file. SQLite does not report changes, so the file is polled."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

#: How often the file is polled (s).
POLL_INTERVAL = 0.002


class ChangePoll:
    """Lets threads wait until a number changes: one of them polls it for all.

    Safe to share among threads, and across a fork.
    """

    def __init__(self, read: Callable[[], int]) -> None:
        """`read` returns the number."""
        self._read = read
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._last: int | None = None  # the number that a thread saw last
        self._polling = False  # whether a thread polls

    def wait(self, version: int, timeout: float) -> None:
        """Sleep until the number differs from `version`, at most `timeout` seconds.

        It may return earlier. Raises the errors of `read`.
        """
        if self._pid != os.getpid():  # the thread that polled is not in this process
            self._reset()
        end, number = time.monotonic() + timeout, version
        with self._changed:
            self._see(version)
            if self._polling:
                self._changed.wait(timeout)
                if self._polling or self._last != version:
                    return
            self._polling = True
        try:
            while number == version and (left := end - time.monotonic()) > 0:
                time.sleep(min(left, POLL_INTERVAL))
                number = self._read()
                with self._changed:
                    self._see(number)
        finally:
            with self._changed:
                self._polling = False
                self._changed.notify()  # another thread goes on

    def _see(self, number: int) -> None:
        """Wake all threads if the number is not the last one: their own may be older."""
        if number != self._last:
            self._last = number
            self._changed.notify_all()
