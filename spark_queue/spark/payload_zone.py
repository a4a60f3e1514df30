"""The time zone of times in typed payloads that name none, and of timestamps in struct payloads."""

from __future__ import annotations

from pyspark import TaskContext

from spark_queue.errors import OptionError
from spark_queue.options.queue_options import QueueOptions
from spark_queue.options.time_zones import SessionZone, zone_of
from spark_queue.spark.task_context import time_zone_of


def payload_zone(options: QueueOptions) -> str | None:
    """Return the zone for the task that calls this, `None` if none is known: it is UTC then.

    It is that of the option, else of the task's session, else of the session that registered the
    source. Raises `OptionError` if Python does not know the zone of a session.
    """
    zone = options.time_zone
    if zone is not None and not isinstance(zone, SessionZone):
        return zone
    zone = time_zone_of(TaskContext.get()) or zone
    try:
        zone_of(zone or "UTC")
    except ValueError:
        raise OptionError(
            f"the session's time zone is {zone!r}, which Python's time zone database does not have: set the option "
            "'timeZone' to another one",
            option="timeZone",
        ) from None
    return zone
