"""Errors as users of Spark read them: our sentence, without the traceback of this package above it."""

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

#: What Spark calls of a data source, of its readers and of its writers.
_CALLED = frozenset({
    "schema", "reader", "streamReader", "writer", "streamWriter", "pushFilters", "partitions", "read",
    "initialOffset", "latestOffset", "reportLatestOffset", "prepareForTriggerAvailableNow", "commit", "write",
    "abort",
})  # fmt: skip

#: Spark's worker shows an exception without its traceback if this variable of its environment is set.
_HIDE = "SPARK_HIDE_TRACEBACK"


def sentence_first(cls: type[T]) -> type[T]:
    """Let the `QueueError`s that methods of this class raise reach the user without a traceback.

    Other errors, and those of the user's own functions, keep theirs.
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
            log.debug("the traceback that is not shown:", exc_info=True)
            os.environ[_HIDE] = "1"
        raise
