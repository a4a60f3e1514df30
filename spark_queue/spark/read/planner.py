"""The interface of planners: they plan the batches of one queue, of a log, or of several inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from spark_queue.spark.read.pacing import Stopwatch


class Planner(Protocol):
    """Plans batches: a `Consumer`, `LogReader` or `MultiInputPlanner`, with offsets of its own."""

    #: How long it has waited for messages.
    waiting: Stopwatch

    @property
    def initial(self) -> Any:
        """The offset at which a query with a new checkpoint begins. It stays the same."""

    @property
    def planned(self) -> Any:
        """The end of the batch that was planned last."""

    def next(self, start: Any, limit: int) -> Any:
        """Return the end of the next batch, up to `limit` messages; `start` if nothing is ready."""

    def plan(self, start: Any, end: Any) -> Sequence[Any]:
        """Return the messages of each task, for the batch from `start` to `end` in Spark's log."""

    def rows(self, start: Any, end: Any) -> int:
        """Return the number of rows of the batch from `start` to `end`."""

    @property
    def max_rows(self) -> int:
        """The maximum number of rows of a batch, by the limits of memory and of the database."""

    def stop_at_now(self) -> None:
        """Bound the run: read only messages that are due by now."""

    def backlog(self) -> dict[str, Any]:
        """Return the last planned offset, and the sizes of the queues."""

    def close(self) -> None:
        """End threads and connections."""
