"""What Spark says of how much a batch, or a run, takes: in words that depend on its version."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from spark_queue.options.queue_options import QueueOptions

if TYPE_CHECKING:

    class SupportsTriggerAvailableNow:
        """What Spark 4.2 and later know a reader by that can bound a run to what is there at its start."""


else:
    try:
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
    except ImportError:  # Spark 4.0 and 4.1 run AvailableNow as one batch

        class SupportsTriggerAvailableNow:
            """Not known to this Spark."""


#: The rows of a batch that takes all there is.
ALL = 2**31 - 1


def most_of(limit: Any, options: QueueOptions) -> int:
    """The most rows that Spark allows of this batch.

    Trigger.Once and its like allow all that is there.
    """
    name = type(limit).__name__
    if name == "ReadMaxRows":
        return int(limit.max_rows)
    if name == "ReadAllAvailable":
        return ALL
    return options.max_records_per_trigger


def cores() -> int:
    """Return the number of cores that this process may use; on macOS, of all."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
