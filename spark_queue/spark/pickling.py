"""Pickle objects for Spark's workers, so that a worker without this package raises a clear error.

Spark pickles the data source, its readers and its writers. A class that can be imported is pickled
as its name. So a worker without the package would fail with a bare `ModuleNotFoundError` within a
stack trace of Java. A nested function is pickled with its code: `load` is pickled along, needs
only Python, and unpickles the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource


def _loader() -> Callable[[bytes], Any]:
    def load(data: bytes) -> Any:
        """Return the unpickled object. Raises `ModuleNotFoundError` if this package is missing."""
        import os
        import pickle
        import sys

        try:
            import spark_queue  # noqa: F401
        except ModuleNotFoundError as error:
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
            raise ModuleNotFoundError(
                f"Spark's Python workers run {sys.executable}, which has no package {error.name!r}: create the "
                "session with spark_queue.session(), or, before Spark starts, set PYSPARK_PYTHON to an interpreter "
                "that has spark-queue installed (on a cluster, on each of its machines)",
                name=error.name,
            ) from None
        kind, state = pickle.loads(data)
        if state is None:
            return kind
        made = object.__new__(kind)
        made.__dict__.update(state)
        return made

    return load


_load = _loader()


def _dump(value: object) -> bytes:
    data: bytes = cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
    return data


class PickledWithLoader:
    """Base class of objects that are pickled together with their loader."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _load, (_dump((type(self), self.__getstate__())),)


def portable_source(source: type[DataSource], **attributes: Any) -> type[DataSource]:
    """Return a class to register in place of `source`: calling it loads and calls `source`.

    `attributes`: those to set on each instance.
    """
    load, data, short_name = _load, _dump((source, None)), source.name()

    class Portable(DataSource):
        @classmethod
        def name(cls) -> str:
            return short_name

        def __new__(cls, options: dict[str, str]) -> Any:
            made = load(data)(options)
            made.__dict__.update(attributes)
            return made

    return Portable
