"""Queues as a Spark data source: `format("queue")`."""

from __future__ import annotations

from spark_queue.spark.data_source import QueueDataSource
from spark_queue.spark.sessions import activate, register, session
from spark_queue.spark.supervision import delivery_hash, drain, had_batch, spark_version, start_in_turn, supervise

__all__ = [
    "QueueDataSource",
    "activate",
    "delivery_hash",
    "drain",
    "had_batch",
    "register",
    "session",
    "spark_version",
    "start_in_turn",
    "supervise",
]
