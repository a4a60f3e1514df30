"""Work queues for Spark Structured Streaming, kept in MongoDB, Redis or an embedded SQLite file.

spark.readStream.format("queue").options(url="sqlite:///queues.db", queue="flights").load()

`Queue` is the client for programs without Spark. Each name is imported when it is first used, so a
program does not load what it does not need.
"""

from spark_queue.lazy_names import attach_stub

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = attach_stub(__name__)
