"""The task of an executor query: it logs the events of a batch, executes them and settles them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_queue.events.audit_log import AuditLog
from spark_queue.events.builtin import internal
from spark_queue.events.event import EXECUTING, FAILED, NEW, Event
from spark_queue.events.execution import Do, Result, Round, at_once, run, time_limit
from spark_queue.events.executors import Executor, Executors
from spark_queue.events.settings import EventSettings
from spark_queue.messages.json_text import load_foreign_json
from spark_queue.spark.worker import Behind
from spark_queue.stores import open_store
from spark_queue.stores.base import Store
from spark_queue.stores.services.dead_letters import note_settled

if TYPE_CHECKING:
    pass


@dataclass(frozen=True)
class ExecutorWork:
    """The queue, executors and settings of an executor query, as Spark's workers get them."""

    url: str = field(repr=False)
    queue: str
    consumer: str
    declared: tuple[Executor, ...]
    settings: EventSettings
    user: str
    host: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Execute the events that are for workers, and yield the batches.

        The events that are left for the driver keep their payload; all others get NULL.
        """
        executors = Executors(self.declared) + internal(None)
        with open_store(self.url) as store:
            for batch in batches:
                if not batch.num_rows:
                    continue
                tag = batch.column("tag")[0].as_py()  # a partition has one tag
                note_settled(store, self.queue, self.consumer, batch.num_rows)  # here or in the driver
                found = self.begin(store, tag, batch)
                left = [one is not None and _for_driver(executors, one) for one in found]
                mine = [one for one, stays in zip(found, left, strict=True) if one is not None and not stays]
                with time_limit() as within, Behind() as behind:
                    results = (run(one, executors, self.settings, within) for one in mine)
                    self.settle(store, tag, results, behind.do)
                column = batch.schema.get_field_index("payload")
                payload = pc.if_else(pa.array(left, pa.bool_()), batch.column(column), None)
                yield batch.set_column(column, batch.schema.field(column), payload)

    def begin(self, store: Store, tag: str, batch: pa.RecordBatch) -> list[Event | None]:
        """Log the events of a batch and return them.

        A message that is not an event is `None`, and fails.
        """
        found: list[Event | None] = []
        wrong: dict[str, str] = {}
        for event in _events(batch):
            found.append(event if isinstance(event, Event) else None)
            if not isinstance(event, Event):
                wrong[event[0]] = event[1]
        told = self.log(store)
        ids = [one.id for one in found if one is not None]
        told.note("Events begun", ids, transaction=tag, came=NEW, went=EXECUTING)
        if wrong:
            told.note("Messages that are not events", [*wrong], transaction=tag, went=FAILED, errors=wrong)
        told.write()
        if wrong:
            store.commit(self.queue, tag, [*wrong], history=self.settings.keep, outcome=FAILED)
        return found

    def settle(self, store: Store, tag: str, results: Iterable[Result], do: Do = at_once) -> None:
        """Settle the results of events that a tag holds, as they come; `submit` runs the writes."""
        round = Round(store, self.queue, tag, self.log(store), self.settings, do)
        for one in results:
            round.add(one)
        round.settle()

    def log(self, store: Store) -> AuditLog:
        """Return the log of the queue, with a buffer of its own."""
        return AuditLog(store, self.queue, self.user, self.host)


def _for_driver(executors: Executors, event: Event) -> bool:
    executor = executors.of(event)
    return executor is not None and executor.where == "driver"


def _events(batch: pa.RecordBatch) -> Iterator[Event | tuple[str, str]]:
    """Yield the events of a batch; for a message that is not an event, its id and the reason."""
    payloads = batch.column("payload").to_pylist()
    # Parsing all at once takes a third of the time. Spark's source returns JSON payloads only.
    told: Any = load_foreign_json(f"[{','.join(payloads)}]".encode())
    tries = batch.column("tries").to_pylist()
    mature = batch.column("mature")
    for row, (id, one) in enumerate(zip(batch.column("id").to_pylist(), told, strict=True)):
        try:
            yield Event.told(id, one, tries[row], lambda row=row: mature[row].as_py())  # type: ignore[misc]
        except ValueError as error:
            yield id, str(error)
