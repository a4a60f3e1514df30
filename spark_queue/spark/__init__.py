"""Queues as a Spark data source: `format("queue")`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException

from spark_queue.spark.queries import delivery_hash, drain, had_batch, start_in_turn, supervise, version
from spark_queue.spark.source import QueueDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "QueueDataSource",
    "activate",
    "delivery_hash",
    "drain",
    "had_batch",
    "register",
    "start_in_turn",
    "supervise",
    "version",
]


def register(spark: SparkSession) -> None:
    """Make `format("queue")` known to a session, and to this thread.

    Only needed where Spark cannot find it by itself.
    """
    activate(spark)
    try:
        spark.dataSource.register(QueueDataSource)
    except AnalysisException as error:
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):  # Spark 4.0 says so where it has found it by itself
            raise


def activate(spark: SparkSession) -> None:
    """Make the session that of this thread, where Spark looks for the data sources of writes.

    It is so in the thread that made the session. Spark has no public way to say it but to make a DataFrame.
    """
    spark.createDataFrame([], "id INT")
