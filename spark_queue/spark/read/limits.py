"""Read the limits that Spark sets for a batch or a run. How it sets them depends on its version."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from spark_queue.options.snapshot import SnapshotOptions
from spark_queue.options.stream import StreamOptions

if TYPE_CHECKING:

    class SupportsTriggerAvailableNow:
        """The interface, in Spark 4.2 and later, of a reader that can bound a run."""


else:
    try:
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
    except ImportError:  # Spark 4.0 and 4.1 run AvailableNow as one batch

        class SupportsTriggerAvailableNow:
            """A placeholder: this version of Spark has no such interface."""


#: The row limit of a batch that takes all messages.
ALL_ROWS = 2**31 - 1


def row_limit(limit: Any, options: StreamOptions) -> int | None:
    """Return how many rows the next batch may have; `None` if this package finds that.

    `Trigger.Once` and the like allow all.
    """
    return ALL_ROWS if type(limit).__name__ == "ReadAllAvailable" else options.max_records_per_trigger


#: The cores of the cluster, if the session that registered the data source knew them.
_cluster_cores: int | None = None


def set_cluster_cores(number: int | None) -> None:
    """Set the cores of the cluster, for all streams of this process; `None`: unknown."""
    global _cluster_cores
    _cluster_cores = number


def cluster_cores() -> int:
    """Return the cores of the cluster; those of this machine if they are unknown."""
    return _cluster_cores or cores()


def partition_limits(options: StreamOptions) -> tuple[int, int]:
    """Return the maximum and minimum number of partitions of a batch, by the cluster's cores."""
    minimum = options.min_partitions or 1
    return options.reading.num_partitions or max(cluster_cores(), minimum), minimum


def snapshot_partitions(options: SnapshotOptions) -> int:
    """Return the maximum number of partitions of a batch read, by the cluster's cores."""
    return options.reading.num_partitions or cluster_cores()


def cores() -> int:
    """Return the number of cores that this process may use; on macOS, of all cores."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
