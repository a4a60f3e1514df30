"""Makes `format("queue")` known to Spark, which looks for `DefaultSource` in packages named `pyspark_*`."""

from spark_queue.spark.data_source import QueueDataSource as DefaultSource

__all__ = ["DefaultSource"]
