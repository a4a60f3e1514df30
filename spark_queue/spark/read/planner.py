"""What plans the batches of a streaming query: of one queue, of a log, of several inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Planner(Protocol):
    """Answers what Spark asks of a source, in offsets of its own: `Consumer`, `LogReader` or `Inputs`."""

    @property
    def initial(self) -> Any:
        """The offset at which a query with a new checkpoint begins; the same whenever it is asked for."""

    @property
    def planned(self) -> Any:
        """The end of the batch that was planned last."""

    def next(self, start: Any, most: int) -> Any:
        """Return the end of the next batch, of up to `most` messages; `start` if nothing is ready."""

    def plan(self, start: Any, end: Any) -> Sequence[Any]:
        """Return what the tasks of the batch from `start` to `end` fetch; `end` is in Spark's log."""

    def stop_at_now(self) -> None:
        """Take only messages that are there now, from now on."""

    def backlog(self) -> dict[str, Any]:
        """Return the place of the query, and the sizes of its queues."""

    def close(self) -> None:
        """End threads and connections."""


class ReservingPlanner(Planner, Protocol):
    """A planner whose batches hold messages, which are removed once Spark is done with them."""

    def next(self, start: Any, most: int, *, ahead: bool = False) -> Any:
        """Commit up to `start` too. `ahead`: reserve the batch after a full one as soon as that is planned."""

    def commit(self, end: Any) -> None:
        """Remove the messages of the batch that `end` ended; those before it are removed already."""

    @property
    def holds_ahead(self) -> bool:
        """Whether `close` has messages to release."""
