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
from spark_queue.spark.refused_stream import refuse_at_first_call
from spark_queue.spark.worker import is_spark_worker

T = TypeVar("T")

log = logging.getLogger(__name__)

#: The methods that Spark calls of data sources, readers and writers.
_SPARK_METHODS = frozenset({
    "schema", "reader", "streamReader", "writer", "streamWriter", "pushFilters", "partitions", "read",
    "initialOffset", "latestOffset", "reportLatestOffset", "prepareForTriggerAvailableNow", "commit", "write",
    "abort",
})  # fmt: skip

#: Spark's worker hides the traceback of an exception if this environment variable is set.
_HIDE_VARIABLE = "SPARK_HIDE_TRACEBACK"


def hide_tracebacks(cls: type[T]) -> type[T]:
    """Hide the traceback of each `QueueError` that methods of this class raise.

    Other errors, and errors of the user's functions, keep their traceback.
    """
    for name in _SPARK_METHODS & vars(cls).keys():
        method = _hide_traceback(vars(cls)[name])
        setattr(cls, name, refuse_at_first_call(method) if name == "streamReader" else method)
    return cls


def _hide_traceback(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        with _hiding_traceback():
            result = method(*args, **kwargs)
        return _iterate(result) if isinstance(result, GeneratorType) else result

    return call


def _iterate(rows: Iterator[Any]) -> Iterator[Any]:
    with _hiding_traceback():
        yield from rows


@contextmanager
def _hiding_traceback() -> Iterator[None]:
    try:
        yield
    except QueueError:
        if is_spark_worker():  # a worker, which ends with this error
            log.debug("hidden traceback:", exc_info=True)
            os.environ[_HIDE_VARIABLE] = "1"
        raise
