"""The task of an executor query: it logs the events of a batch, executes them and settles them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_queue.events.audit_log import AuditLog
from spark_queue.events.builtin import internal_executors
from spark_queue.events.event import EXECUTING, FAILED, NEW, Event
from spark_queue.events.execution import Result, Settler, Submit, run_event, run_now, time_limit
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
                found = self.begin(store, tag, batch)
                for_driver = [one is not None and _runs_on_driver(executors, one) for one in found]
                for_worker = [
                    one for one, stays in zip(found, for_driver, strict=True) if one is not None and not stays
                ]
                with time_limit() as limiter, BackgroundWriter() as behind:
                    results = (run_event(one, executors, self.settings, limiter) for one in for_worker)
                    self.settle(store, tag, results, behind.submit)
                column = batch.schema.get_field_index("payload")
                payload = pc.if_else(pa.array(for_driver, pa.bool_()), batch.column(column), None)
                yield batch.set_column(column, batch.schema.field(column), payload)

    def begin(self, store: Store, tag: str, batch: pa.RecordBatch) -> list[Event | None]:
        """Log the events of a batch and return them.

        A message that is not an event is `None`, and fails.
        """
        found: list[Event | None] = []
        invalid: dict[str, str] = {}
        for event in _parse_events(batch):
            found.append(event if isinstance(event, Event) else None)
            if not isinstance(event, Event):
                invalid[event[0]] = event[1]
        log = self.log(store)
        ids = [one.id for one in found if one is not None]
        log.add("Events begun", ids, transaction=tag, came=NEW, went=EXECUTING)
        if invalid:
            log.add("Messages that are not events", [*invalid], transaction=tag, went=FAILED, errors=invalid)
        log.write()
        if invalid:
            store.commit(self.queue, tag, [*invalid], history=self.settings.keep, outcome=FAILED)
        return found

    def settle(self, store: Store, tag: str, results: Iterable[Result], submit: Submit = run_now) -> None:
        """Settle the results of events that a tag holds, as they come; `submit` runs the writes."""
        settler = Settler(store, self.queue, tag, self.log(store), self.settings, submit)
        for one in results:
            settler.add(one)
        settler.settle()

    def log(self, store: Store) -> AuditLog:
        """Return the log of the queue, with a buffer of its own."""
        return AuditLog(store, self.queue, self.user, self.host)


def _runs_on_driver(executors: Executors, event: Event) -> bool:
    executor = executors.find(event)
    return executor is not None and executor.where == "driver"


def _parse_events(batch: pa.RecordBatch) -> Iterator[Event | tuple[str, str]]:
    """Yield the events of a batch; for a message that is not an event, its id and the reason."""
    payloads = batch.column("payload").to_pylist()
    # Parsing all at once takes a third of the time. Spark's source returns JSON payloads only.
    documents: Any = load_foreign_json(f"[{','.join(payloads)}]".encode())
    tries = batch.column("tries").to_pylist()
    mature = batch.column("mature")
    for row, (id, one) in enumerate(zip(batch.column("id").to_pylist(), documents, strict=True)):
        try:
            yield Event.from_json(id, one, tries[row], lambda row=row: mature[row].as_py())  # type: ignore[misc]
        except ValueError as error:
            yield id, str(error)
