"""Queues as a Spark data source: `format("queue")`."""

from __future__ import annotations

from spark_queue.spark.data_source import QueueDataSource as QueueDataSource
from spark_queue.spark.sessions import activate as activate
from spark_queue.spark.sessions import register as register
from spark_queue.spark.sessions import session as session
from spark_queue.spark.start_turns import start_in_turn as start_in_turn
from spark_queue.spark.supervision import delivery_hash as delivery_hash
from spark_queue.spark.supervision import drain as drain
from spark_queue.spark.supervision import had_batch as had_batch
from spark_queue.spark.supervision import spark_version as spark_version
from spark_queue.spark.supervision import supervise as supervise
