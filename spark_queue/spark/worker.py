"""Help Spark's Python workers: identify them, tune garbage collection, write in the background."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import cache
from types import TracebackType

from spark_queue.stores.services import eviction


def main_module() -> str:
    """Return the module that this process runs with `python -m`; an empty text for a script."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return "" if spec is None else str(spec.name)


def is_spark_worker() -> bool:
    """Return whether Spark has started this process to run code of a data source."""
    return main_module().startswith("pyspark.")


if is_spark_worker():  # the driver checks when it plans, so tasks do not
    eviction.check_on_open = False


@cache
def freeze_gc() -> None:
    """Exclude the objects that exist now from garbage collection (`gc.freeze`); once per process.

    If a program keeps thousands of new objects, each full collection scans all objects again. With
    those of pyspark and pyarrow, that takes a third of the time of a row.
    """
    gc.collect()
    gc.freeze()


class BackgroundWriter(AbstractContextManager["BackgroundWriter"]):
    """Runs calls one after the other in a thread, while the caller prepares the next one.

    So the thread can wait for a database while the caller computes. The next `submit`, or the end
    of the context, raises the error of a call. That `submit` then starts nothing.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "spark_queue-writer")
        self._last: Future[None] | None = None

    def submit(self, call: Callable[[], None]) -> None:
        """Wait for the previous call, and start this one. Raises the error of the previous call."""
        self._wait()
        self._last = self._thread.submit(call)

    def _wait(self) -> None:
        last, self._last = self._last, None
        if last is not None:
            last.result()

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        try:
            if error is None:
                self._wait()
        finally:
            self._thread.shutdown()
