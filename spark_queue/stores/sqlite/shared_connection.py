"""The connection of a store: threads use it in turn, and it is opened again after a fork."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from spark_queue.stores.sqlite.file import Connection
from spark_queue.stores.sqlite.forks import sqlite_call


class SharedConnection:
    """A connection that is opened at its first use, and again if it was closed meanwhile."""

    def __init__(self, url: str, open: Callable[[], Connection]) -> None:
        self._url, self._open = url, open
        # Held in calls only: no thread holds it at a fork, unless the child is refused.
        self._lock = threading.RLock()
        self._connection: Connection | None = None
        self.times_opened = 0

    @contextmanager
    def use(self) -> Iterator[Connection]:
        """Yield the connection, to this thread only.

        Raises the errors of `open`, and `StoreError` if a fork has made SQLite impossible here.
        """
        with sqlite_call(self._url), self._lock:
            if self._connection is None or not self._connection.usable:
                self._connection = self._open()
                self.times_opened += 1
            yield self._connection

    def close(self) -> None:
        """Close the connection. Another use opens it again."""
        if self._connection is not None and self._connection.usable:
            with sqlite_call(self._url), self._lock:
                self._connection.close()
        self._connection = None
