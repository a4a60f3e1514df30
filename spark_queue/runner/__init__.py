"""Runs graphs of queues as streaming queries: `ExchangeGraph`; see `spark_queue.graph.model`.

The server over HTTP reads counts of steps without Spark, so names are imported when they are used.
"""

from spark_queue.lazy_names import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__)
