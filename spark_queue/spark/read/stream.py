"""Answer Spark's calls of a streaming source, with a `Planner` in the driver's reader process."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Generic, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from spark_queue.options.stream import StreamOptions
from spark_queue.spark.pickling import PickledWithLoader
from spark_queue.spark.read.batch_size import FIRST_ROWS
from spark_queue.spark.read.limits import ALL_ROWS, SupportsTriggerAvailableNow, row_limit
from spark_queue.spark.read.pacing import Pacer
from spark_queue.spark.read.planner import Planner
from spark_queue.spark.tracebacks import hide_tracebacks

P = TypeVar("P", bound=Planner)


@hide_tracebacks
class PlannedStream(PickledWithLoader, DataSourceStreamReader, SupportsTriggerAvailableNow, Generic[P]):
    """A stream whose batches a planner plans.

    Spark creates a new one in each of its processes, and pickles it to executors. So it holds plain
    data only. The planner is created when the reader process first needs it.
    """

    #: The rows of the first batch of a query whose batches find their size.
    first_rows = FIRST_ROWS

    def __init__(self, options: StreamOptions, schema: StructType) -> None:
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

    @cached_property
    def _pacer(self) -> Pacer:
        return Pacer(self.options.target_batch_duration, self.first_rows)

    def latestOffset(self, start: Any = None, limit: Any = None) -> Any:
        planner, again = self.planner, start is not None
        if start is None:
            # Spark 4.0 and 4.1 pass no start. They ask between batches: the last one is finished.
            start = planner.planned
        rows = row_limit(limit, self.options)
        if rows is not None:
            return self._next(start, rows, rows if again else 0)
        self.commit(start)  # before the next batch begins: its time is a part of the last one
        size = self._pacer.next_size(start, planner.max_rows)
        waited = planner.waiting.seconds
        end = self._next(start, size.rows, size.following if again else 0)
        if end != start:
            self._pacer.keep(end, planner.rows(start, end), planner.waiting.seconds - waited)
        return end

    def _next(self, start: Any, limit: int, following: int) -> Any:
        """Plan the next batch of up to `limit` rows. `following`: the limit of the one after it.

        It is 0 if there may be none.
        """
        return self.planner.next(start, limit)

    def partitions(self, start: Any, end: Any) -> Sequence[InputPartition]:
        tasks = self.plan_tasks(start, end)
        if start != end and self.options.max_records_per_trigger is None:
            self._pacer.start(end, self.planner.rows(start, end))
        return tasks

    @abstractmethod
    def plan_tasks(self, start: Any, end: Any) -> Sequence[InputPartition]:
        """Return the partitions of a batch in Spark's log."""

    def getDefaultReadLimit(self) -> Any:
        from pyspark.sql.streaming.datasource import ReadMaxRows

        return ReadMaxRows(self.options.max_records_per_trigger or ALL_ROWS)

    def reportLatestOffset(self) -> dict[str, Any]:
        return self.planner.backlog()

    def prepareForTriggerAvailableNow(self) -> None:
        self.planner.stop_at_now()

    def stop(self) -> None:
        if self.running is not None:
            self.running.close()
