"""The limits of the store in a SQLite file."""

from __future__ import annotations

from dataclasses import dataclass

from spark_queue.stores.limits import StoreLimits


@dataclass(frozen=True, kw_only=True)
class SqliteLimits(StoreLimits):
    """Limits of a store in a SQLite file."""

    #: A query costs no round trip, and other threads wait for the connection while it counts.
    queues_per_count: int = 1

    #: About how many bytes of messages one row of the table `staged` holds.
    staged_bytes: int = 32 << 20

    #: How long to wait for another process's transaction (s).
    busy_timeout: float = 10.0
