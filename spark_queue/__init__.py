"""Work queues for Spark Structured Streaming, kept in MongoDB, Redis or an embedded SQLite file.

spark.readStream.format("queue").option("url", "sqlite:///queues.db").option("queue", "flights").load()

`Queue` is the client for programs without Spark. Each name is imported when it is first used, so a
program does not load what it does not need.
"""

import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
