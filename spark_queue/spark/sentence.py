"""Hide the tracebacks of this package, so that users of Spark see the message first."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import GeneratorType
from typing import Any, TypeVar

from spark_queue.errors import QueueError
from spark_queue.spark.worker import program

T = TypeVar("T")

log = logging.getLogger(__name__)

#: The methods that Spark calls of data sources, readers and writers.
_CALLED = frozenset({
    "schema", "reader", "streamReader", "writer", "streamWriter", "pushFilters", "partitions", "read",
    "initialOffset", "latestOffset", "reportLatestOffset", "prepareForTriggerAvailableNow", "commit", "write",
    "abort",
})  # fmt: skip

#: Spark's worker hides the traceback of an exception if this environment variable is set.
_HIDE = "SPARK_HIDE_TRACEBACK"


def sentence_first(cls: type[T]) -> type[T]:
    """Hide the traceback of each `QueueError` that methods of this class raise.

    Other errors, and errors of the user's functions, keep their traceback.
    """
    for name in _CALLED & vars(cls).keys():
        setattr(cls, name, _sentence_first(vars(cls)[name]))
    return cls


def _sentence_first(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        with _brief():
            result = method(*args, **kwargs)
        return _each(result) if isinstance(result, GeneratorType) else result

    return call


def _each(rows: Iterator[Any]) -> Iterator[Any]:
    with _brief():
        yield from rows


@contextmanager
def _brief() -> Iterator[None]:
    try:
        yield
    except QueueError:
        if program().startswith("pyspark."):  # a worker, which ends with this error
            log.debug("hidden traceback:", exc_info=True)
            os.environ[_HIDE] = "1"
        raise
