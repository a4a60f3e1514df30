"""The limits of the stores in MongoDB."""

from __future__ import annotations

from dataclasses import dataclass

from spark_queue.stores.limits import StoreLimits
from spark_queue.stores.mongodb.counting import JOINED_PIPELINES


@dataclass(frozen=True, kw_only=True)
class MongoLimits(StoreLimits):
    """Limits of a store in MongoDB. Times are in seconds."""

    #: A request for many queues has one small pipeline for each.
    queues_per_count: int = JOINED_PIPELINES
    queues_per_summary: int = JOINED_PIPELINES

    #: Most ids in one command, and messages in one transaction, which has limits (60 s, the cache).
    command_chunk: int = 10_000
    transaction_chunk: int = 1_000

    #: Most messages of a chunk of a stage, and of a transaction that publishes.
    stage_chunk: int = 5_000

    #: How long until a publisher that blocks others is assumed dead. It doubles each time.
    publisher_timeout: float = 1.5

    #: How long until a killed command has stopped.
    kill_delay: float = 0.1

    #: How old the mark of a collection may be if messages are inserted.
    insert_age: float = 1.0

    #: For how long a collection that was a queue until just now may lack its mark, if it is as a
    #: push creates it.
    mark_missing: float = 5.0
