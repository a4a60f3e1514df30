"""What is good for Spark's Python workers."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import cache
from types import TracebackType

from spark_queue.stores.services import eviction


def program() -> str:
    """Return the module that this process runs (`python -m`), such as one of Spark's workers; empty for a script."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return "" if spec is None else str(spec.name)


if program().startswith("pyspark."):  # the driver checks when it plans, and a task pays for no look
    eviction.by_itself = False


@cache
def settle_in() -> None:
    """Let the collector of garbage pass over what has been imported by now; once in a process.

    Whoever makes thousands of objects that live on for a while has it look through all there are, again and again:
    with what pyspark and pyarrow import that is a third of the time of a row. See `gc.freeze`.
    """
    gc.collect()
    gc.freeze()


class Behind(AbstractContextManager["Behind"]):
    """Does one thing after the other in a thread of its own, while the caller prepares the next.

    One waits for a database, one computes. What a thing raises is raised by the next `do`, or at the end of the
    context; nothing that comes later is done.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "spark_queue-behind")
        self._last: Future[None] | None = None

    def do(self, thing: Callable[[], None]) -> None:
        """Do it as soon as the one before is done; until then the caller waits."""
        self._wait()
        self._last = self._thread.submit(thing)

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
