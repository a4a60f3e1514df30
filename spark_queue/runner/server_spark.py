"""The Spark session of a server: whether its process lives, and a new one after it has died.

All steps of a server share the process. A step that exhausts its memory ends it, so that no step
runs until there is a new one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager

from pyspark.sql import SparkSession

from spark_queue.errors import SparkUnavailable
from spark_queue.spark.sessions import forget_session, is_running, session

#: How often a process that waits for Spark does something else (s).
WAIT_SECONDS = 1.0


def open_session() -> SparkSession:
    """Return the Spark session of a server: each time with the same conf."""
    return session(**{"spark.ui.enabled": False})


class ServerSpark:
    """The session of a server. One thread starts and forgets it; others use it meanwhile."""

    def __init__(self, get_spark: Callable[[], SparkSession]) -> None:
        """Start nothing yet. `get_spark` returns the session: a new one after `forget_session`."""
        self._get_spark = get_spark
        self._session: SparkSession | None = None

    @property
    def session(self) -> SparkSession:
        """The session. Raises `SparkUnavailable` if there is none at the moment."""
        found = self._session
        if found is None:
            raise SparkUnavailable(
                "the server's Spark process has died, and is started again: try again in some seconds"
            )
        return found

    @property
    def is_away(self) -> bool:
        """Whether there is no session at the moment."""
        return self._session is None

    @property
    def is_running(self) -> bool:
        """Whether there is a session, and its process lives."""
        found = self._session
        return found is not None and is_running(found)

    @contextmanager
    def using(self) -> Iterator[SparkSession]:
        """Yield the session. Raises `SparkUnavailable` if it dies within the block, or is away."""
        used = self.session
        try:
            yield used
        except Exception as error:
            if used is self._session and is_running(used):
                raise
            raise SparkUnavailable(
                "the server's Spark process died meanwhile, and is started again: try again in some seconds"
            ) from error

    def start(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Start the session, and call `meanwhile` each second until it runs.

        Raises the errors of `get_spark`.
        """
        with ThreadPoolExecutor(1, "Spark starts") as thread:
            starting: Future[SparkSession] = thread.submit(self._get_spark)
            while not wait([starting], WAIT_SECONDS).done:
                meanwhile()
            self._session = starting.result()

    def forget(self) -> None:
        """Forget the session, whose process has died. Raises the errors of `forget_session`."""
        found, self._session = self._session, None
        if found is not None:
            forget_session(found)
