"""The task of an executor query: it logs the events of a batch, executes them and settles them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_queue.events.audit_log import AuditLog
from spark_queue.events.builtin import internal_executors
from spark_queue.events.event import EXECUTING, NEW, Event
from spark_queue.events.execution import Settler, run_event, time_limit
from spark_queue.events.executors import Executor, Executors
from spark_queue.events.settings import EventSettings
from spark_queue.messages.json_text import load_foreign_json
from spark_queue.spark.worker import BackgroundWriter
from spark_queue.stores import open_store
from spark_queue.stores.base import Store
from spark_queue.stores.services.dead_letters import add_settled


@dataclass(frozen=True)
class ExecutorWork:
    """The queue, executors and settings of an executor query, as Spark's workers get them."""

    url: str = field(repr=False)
    queue: str
    consumer: str
    declared_executors: tuple[Executor, ...]
    settings: EventSettings
    user: str
    host: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Execute the events that are for workers, and yield the batches.

        The events that are left for the driver keep their payload; all others get NULL.
        """
        executors = Executors(self.declared_executors) + internal_executors(None)
        with open_store(self.url) as store:
            for batch in batches:
                if not batch.num_rows:
                    continue
                tag = batch.column("tag")[0].as_py()  # a partition has one tag
                add_settled(store, self.queue, self.consumer, batch.num_rows)  # here or in the driver
                settler = self.settler(store, tag)
                events = _begin(settler, batch)
                for_driver = {one.id for one in events if _runs_on_driver(executors, one)}
                with time_limit() as limiter, BackgroundWriter() as behind:
                    for_worker = (one for one in events if one.id not in for_driver)
                    results = (run_event(one, executors, self.settings, limiter) for one in for_worker)
                    settler.settle(results, behind.submit)
                column = batch.schema.get_field_index("payload")
                stays = pc.is_in(batch.column("id"), pa.array([*for_driver], batch.column("id").type))
                payload = pc.if_else(stays, batch.column(column), None)
                yield batch.set_column(column, batch.schema.field(column), payload)

    def settler(self, store: Store, tag: str) -> Settler:
        """Return a settler of the events that a tag holds."""
        return Settler(store, self.queue, tag, AuditLog(store, self.queue, self.user, self.host), self.settings)


def _runs_on_driver(executors: Executors, event: Event) -> bool:
    executor = executors.find(event)
    return executor is not None and executor.where == "driver"


def _begin(settler: Settler, batch: pa.RecordBatch) -> list[Event]:
    """Log the events of a batch, and return them. Messages that are not events fail."""
    # Parsing all at once takes a third of the time. Spark's source returns JSON payloads only.
    documents: Any = load_foreign_json(f"[{','.join(batch.column('payload').to_pylist())}]".encode())
    ids, tries, mature = batch.column("id").to_pylist(), batch.column("tries").to_pylist(), batch.column("mature")
    events: list[Event] = []
    invalid: dict[str, str] = {}
    for row, (id, document) in enumerate(zip(ids, documents, strict=True)):
        try:
            event = Event.from_json(id, document, tries[row], lambda row=row: mature[row].as_py())  # type: ignore[misc]
            events.append(event)
        except ValueError as error:
            invalid[id] = str(error)
    begun = [one.id for one in events]
    settler.log.write_record("Events begun", begun, transaction=settler.tag, came=NEW, went=EXECUTING)
    settler.fail_invalid(invalid)
    return events
