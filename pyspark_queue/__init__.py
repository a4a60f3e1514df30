"""Make `format("queue")` known to Spark: it looks for `DefaultSource` in packages `pyspark_*`."""

from spark_queue.spark.data_source import QueueDataSource as DefaultSource

__all__ = ["DefaultSource"]
