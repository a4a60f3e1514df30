"""Settings of a queue of events; names and defaults are those of hub-queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from spark_queue.events.event import MAX_URIS, STATUS_PREFIX
from spark_queue.events.executors import EVENT_FILE_CONFIG, DurationMs
from spark_queue.options.parsers import DAY, HOUR
from spark_queue.stores.policy import QueuePolicy

#: No buckets: each event ends and is deleted alone.
EVENT_RECORDS = QueuePolicy(layout="single")


@dataclass(frozen=True, slots=True)
class EventSettings:
    """Timeouts, retention and limits of a queue of events. Durations are ms.

    `new_timeout`: an event that is not taken for longer fails. `pending_timeout`: an event that is
    taken and not executed for longer is new again. `execute_timeout`: an event that executes for
    longer fails; it is also the default time limit of executors. Internal events apply all three.
    The pending timeout also applies without them, since it is the lease of taken events.

    `keep`: how long the history keeps an event that has ended, unless it is cleared. `max_uris`: of
    one event. `max_events`: how many `take` returns by default. `detailed_log`: whether the log
    records cleared events as a whole. `status_prefix`: start of the URIs of the five statuses.

    `pushed_internal_events`: whether internal events are obeyed that any program has pushed. By
    default, only those that heartbeats and housekeeping have created; others fail.
    """

    __pydantic_config__ = EVENT_FILE_CONFIG

    new_timeout: DurationMs = HOUR
    pending_timeout: DurationMs = HOUR // 2
    execute_timeout: DurationMs = HOUR
    keep: DurationMs = 30 * DAY
    max_uris: Annotated[int, Field(ge=1)] = MAX_URIS
    max_events: Annotated[int, Field(ge=1)] = 10
    detailed_log: bool = False
    status_prefix: str = STATUS_PREFIX
    pushed_internal_events: bool = False

    @property
    def policy(self) -> QueuePolicy:
        """The policy of the queue."""
        return EVENT_RECORDS.replace(lease=self.pending_timeout, history=self.keep)
