"""What is set for the events of a queue; names and defaults are those of hub-queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from spark_queue.events.event import MAX_URIS, STATUS_PREFIX
from spark_queue.events.executors import DECLARED, Lasting
from spark_queue.options.parsers import DAY, HOUR


@dataclass(frozen=True, slots=True)
class EventSettings:
    """How long an event may have a status, and how many go together. Durations are ms.

    `new_timeout`: an event that nobody has taken for so long fails. `pending_timeout`: one that was taken and is not
    executed is new again. `execute_timeout`: one that is executed fails. The second holds by itself, all of them are
    looked after by internal events. `keep`: how long a finished or failed event is kept, unless it is cleared.
    `max_uris`: of one event; `max_events`: how many `take` gives. `detailed_log`: whether the log tells whole events
    that were cleared. `status_prefix`: how the URIs of the five statuses begin.
    """

    __pydantic_config__ = DECLARED

    new_timeout: Lasting = HOUR
    pending_timeout: Lasting = HOUR // 2
    execute_timeout: Lasting = HOUR
    keep: Lasting = 30 * DAY
    max_uris: Annotated[int, Field(ge=1)] = MAX_URIS
    max_events: Annotated[int, Field(ge=1)] = 10
    detailed_log: bool = False
    status_prefix: str = STATUS_PREFIX
