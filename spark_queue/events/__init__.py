"""Events: work that has a source, a type and a status, and executors that do it.

`Events` is a queue of events, and `Executors` are the functions that process them. A `Heartbeat`
creates the same events again and again. `EventSettings` has timeouts and limits. `declared_in`
reads all of these from files. The modules `spark_query` and `dataframes` are for Spark.
"""

from spark_queue.lazy_names import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__)
