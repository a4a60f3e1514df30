"""Answer Spark's calls of a streaming source, with a `Planner` in the driver's reader process."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Generic, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.types import StructType

from spark_queue.options.queue_options import QueueOptions
from spark_queue.spark.pickling import PickledWithLoader
from spark_queue.spark.read.limits import SupportsTriggerAvailableNow, row_limit
from spark_queue.spark.read.planner import Planner
from spark_queue.spark.tracebacks import hide_tracebacks

P = TypeVar("P", bound=Planner)


@hide_tracebacks
class PlannedStream(PickledWithLoader, DataSourceStreamReader, SupportsTriggerAvailableNow, Generic[P]):
    """A stream whose batches a planner plans.

    Spark creates a new one in each of its processes, and pickles it to executors. So it holds plain
    data only. The planner is created when the reader process first needs it.
    """

    def __init__(self, options: QueueOptions, schema: StructType) -> None:
        self.options = options
        self.schema = schema
        self.running: P | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options, "schema": self.schema, "running": None}

    @abstractmethod
    def create_planner(self) -> P:
        """Return a new planner, which runs in this process."""

    @property
    def planner(self) -> P:
        """The planner, which is created at the first access."""
        if self.running is None:
            self.running = self.create_planner()
        return self.running

    def initialOffset(self) -> Any:
        return self.planner.initial

    def latestOffset(self, start: Any = None, limit: Any = None) -> Any:
        # Spark 4.0 and 4.1 pass no start. They ask between batches, so the last one is finished.
        return self.planner.next(self.planner.planned if start is None else start, row_limit(limit, self.options))

    def getDefaultReadLimit(self) -> Any:
        from pyspark.sql.streaming.datasource import ReadMaxRows

        return ReadMaxRows(self.options.max_records_per_trigger)

    def reportLatestOffset(self) -> dict[str, Any]:
        return self.planner.backlog()

    def prepareForTriggerAvailableNow(self) -> None:
        self.planner.stop_at_now()

    def stop(self) -> None:
        if self.running is not None:
            self.running.close()
