"""A stream that cannot be opened: its first call says why.

Spark stops the reader of a stream at the end, even if `streamReader` raised an error and there is
no reader: that fails, and then Spark shows this failure instead of the error.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader

from spark_queue.errors import QueueError
from spark_queue.spark.worker import is_spark_worker


class RefusedStream(DataSourceStreamReader):
    """Raises the error with which a stream was refused, whatever Spark asks first."""

    def __init__(self, error: QueueError) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:
        raise self._error

    def latestOffset(self, *_: Any) -> dict[str, Any]:
        raise self._error

    def partitions(self, *_: Any) -> Any:
        raise self._error

    def read(self, *_: Any) -> Any:
        raise self._error


def refuse_at_first_call(method: Callable[..., DataSourceStreamReader]) -> Callable[..., DataSourceStreamReader]:
    """Let `streamReader` return a `RefusedStream` in a worker, where it raises a `QueueError`."""

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> DataSourceStreamReader:
        try:
            return method(*args, **kwargs)
        except QueueError as error:
            if not is_spark_worker():
                raise
            return RefusedStream(error)

    return call
