"""Events: work that has a source, a type and a status, and executors that do it.

`Events` is a queue of them; `Executors` are the functions that work on them, `Heartbeats` what makes some again and
again, and `Settings` their times. `files` reads the last three from files.
"""

from __future__ import annotations

from spark_queue.event import Event
from spark_queue.events.executors import Executor, Executors
from spark_queue.events.held import Known
from spark_queue.events.log import Record
from spark_queue.events.queue import Events
from spark_queue.events.settings import Settings

__all__ = ["Event", "Events", "Executor", "Executors", "Known", "Record", "Settings"]
