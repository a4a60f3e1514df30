"""Queues as a Spark data source: `format("queue")`.

Each of Spark's processes imports this package, so each name is imported when it is first used.
"""

from spark_queue.lazy_names import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__)
