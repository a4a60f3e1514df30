"""Events: work that has a source, a type and a status, and executors that do it.

`Events` is a queue of events, and `Executors` are the functions that process them. A `Heartbeat`
creates the same events again and again. `EventSettings` has timeouts and limits. `declared_in`
reads all of these from files. The modules `spark_query` and `dataframes` are for Spark.
"""

from __future__ import annotations

from spark_queue.events.audit_log import AuditRecord
from spark_queue.events.config import Declarations, declared_in, executors_in, heartbeats_in
from spark_queue.events.event import Event
from spark_queue.events.executors import Executor, Executors
from spark_queue.events.heartbeats import Heartbeat, tick
from spark_queue.events.queue import Events
from spark_queue.events.settings import EventSettings
from spark_queue.events.status import EventState

__all__ = [
    "AuditRecord",
    "Declarations",
    "Event",
    "EventSettings",
    "EventState",
    "Events",
    "Executor",
    "Executors",
    "Heartbeat",
    "declared_in",
    "executors_in",
    "heartbeats_in",
    "tick",
]
