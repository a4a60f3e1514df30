"""Events executed by a streaming query: in Spark's workers, or in the process that runs the query.

The query reserves events as consumer `executing.<name>`, so what it has taken is executing. A task runs a partition,
one event after the other, and settles each by its own outcome while it goes on, under the partition's own tag; what
Spark then commits of a batch is what is left of it: nothing. So a query that is killed runs again just the events
that it had not settled, and an event ends with exactly one status, for all that settles is fenced.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_queue.event import EXECUTING, FAILED, NEW, Event
from spark_queue.events.executors import Executor, Executors
from spark_queue.events.internal import internal
from spark_queue.events.log import Log
from spark_queue.events.queue import Events
from spark_queue.events.run import Do, Result, Round, at_once, run, time_limit
from spark_queue.events.settings import Settings
from spark_queue.events.source import EventSource, carried
from spark_queue.json_text import load_foreign_json
from spark_queue.spark import activate, supervise, version
from spark_queue.spark.worker import Behind
from spark_queue.store import open_store
from spark_queue.store.base import Store
from spark_queue.store.policy import note_settled

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger(__name__)

#: Tries, beside the retries of executors, of an event that ends the worker it runs in; then it is failed.
PATIENCE = 3


@dataclass(frozen=True)
class Work:
    """What a query does with events, as Spark carries it to its workers."""

    url: str = field(repr=False)
    queue: str
    consumer: str
    declared: tuple[Executor, ...]
    settings: Settings
    user: str
    host: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run what is for workers, in this one; of what is given back that is left which has a payload still."""
        executors = Executors(self.declared) + internal(None)
        with open_store(self.url) as store:
            for batch in batches:
                if not batch.num_rows:
                    continue
                tag = batch.column("tag")[0].as_py()  # a partition lies under one
                note_settled(store, self.queue, self.consumer, batch.num_rows)  # whoever does
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
        """The events of a batch, of which the log is told; what is none is failed, and `None` here."""
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
            told.note("Messages that are no events", [*wrong], transaction=tag, went=FAILED, errors=wrong)
        told.write()
        if wrong:
            store.commit(self.queue, tag, [*wrong], history=self.settings.keep, outcome=FAILED)
        return found

    def settle(self, store: Store, tag: str, results: Iterable[Result], do: Do = at_once) -> None:
        """Settle results as they come, of events that a tag holds; `do` does so."""
        round = Round(store, self.queue, tag, self.log(store), self.settings, do)
        for one in results:
            round.add(one)
        round.settle()

    def log(self, store: Store) -> Log:
        """The log that is told."""
        return Log(store, self.queue, self.user, self.host)


def _for_driver(executors: Executors, event: Event) -> bool:
    executor = executors.of(event)
    return executor is not None and executor.where == "driver"


def _events(batch: pa.RecordBatch) -> Iterator[Event | tuple[str, str]]:
    """The events of a batch; of what is none, its id and why."""
    payloads = batch.column("payload").to_pylist()
    # All at once takes a third of the time. Each of them is JSON: Spark's source sees to that.
    told: Any = load_foreign_json(f"[{','.join(payloads)}]".encode())
    tries = batch.column("tries").to_pylist()
    mature = batch.column("mature")
    for row, (id, one) in enumerate(zip(batch.column("id").to_pylist(), told, strict=True)):
        try:
            yield Event.told(id, one, tries[row], lambda row=row: mature[row].as_py())  # type: ignore[misc]
        except ValueError as error:
            yield id, str(error)


class ExecutorQuery:
    """Executes the events of a queue, for as long as it runs.

    Any number of queries and programs may execute the events of one queue. `name` tells this one from others in the
    log and the history. `batch`: how many events it takes at a time; one with priority that is made meanwhile waits
    until they are done, and the next batch, too, where that is reserved ahead: while batches take less than two
    seconds. `parallel`: tasks, each with a stretch of the batch, and threads in this process for executors with
    `where: driver`; else what Spark runs at a time.
    """

    def __init__(
        self,
        events: Events,
        checkpoint: str,
        *,
        name: str = "events",
        batch: int = 1_000,
        parallel: int | None = None,
        options: dict[str, str] | None = None,
    ) -> None:
        """Raises `OptionError` where a function cannot be found.

        `events`: the queue, whose executors and settings hold. `options`: more options of `format("queue")` to read
        it, before those that are set here.
        """
        events.executors.check()
        self.events = events
        self._checkpoint = checkpoint
        self._batch = batch
        self._parallel = parallel
        self._options = options or {}
        self._work = Work(
            events.store.url,
            events.name,
            f"{EXECUTING}.{name}",
            tuple(events.declared),
            events.settings,
            events.user,
            events.host,
        )

    def start(self, spark: SparkSession, *, available_now: bool = False, every: int = 0) -> StreamingQuery:
        """Start the query. `available_now`: it ends when all that is there now is executed. `every`: ms.

        With `available_now` Spark 4.0 and 4.1 end it after one batch; `run` goes on.
        """
        for one in self.events.executors.doubled():
            log.warning("%s", one)
        parallel = self._parallel or spark.sparkContext.defaultParallelism
        options = {
            "maxRecordsPerTrigger": str(self._batch),
            "maxTries": str(PATIENCE + max((one.retries for one in self.events.executors), default=0)),
        }
        work = self._work
        options |= self._options | {
            "url": work.url,
            "queue": work.queue,
            "consumer": work.consumer,
            "history": f"{work.settings.keep}ms",
            "payloadFormat": "json",
            "numPartitions": str(parallel),
            "minPartitions": str(parallel),  # few events, too: what takes long is to go on side by side
        }
        spark.dataSource.register(EventSource)
        frame = spark.readStream.format(EventSource.name()).options(**options, work=carried(work)).load()
        if any(one.where == "driver" for one in self.events.executors):
            writer = frame.writeStream.foreachBatch(self._batched(parallel))
        else:  # nothing is left, so a batch need not be planned a second time
            writer = frame.writeStream.format("noop")
        writer = writer.queryName(f"events {work.queue}").option("checkpointLocation", self._checkpoint)
        trigger: dict[str, Any] = {"availableNow": True} if available_now else {"processingTime": f"{every} ms"}
        return writer.trigger(**trigger).start()

    def run(self, spark: SparkSession, *, available_now: bool = False, every: int = 0, **how: Any) -> StreamingQuery:
        """Start the query, and again whenever it fails; see `supervise`."""
        activate(spark)
        begin: Callable[[], StreamingQuery] = lambda: self.start(spark, available_now=available_now, every=every)  # noqa: E731
        return supervise(begin, self._work.url, by_batch=available_now and version(spark) < (4, 2), **how)

    def _batched(self, parallel: int) -> Callable[[DataFrame, int], None]:
        work, events = self._work, self.events

        def on_batch(frame: DataFrame, number: int) -> None:
            rows = frame.where("payload IS NOT NULL").collect()
            payloads = [load_foreign_json(row["payload"].encode()) for row in rows]
            left = [
                Event.told(row["id"], payload, row["tries"], lambda row=row: row["mature"])  # type: ignore[misc]
                for row, payload in zip(rows, payloads, strict=True)
            ]
            if left:
                tag = rows[0]["tag"].rpartition("/")[0]
                work.settle(events.store, tag, _in_threads(left, events, parallel))

        return on_batch


def _in_threads(left: list[Event], events: Events, parallel: int) -> Iterator[Result]:
    """Run events in this process, as many at a time as it has threads; each result as it comes."""

    def here(event: Event) -> Result:
        with time_limit() as within:
            return run(event, events.executors, events.settings, within)

    left.sort(key=lambda one: (one.mature, one.id))
    with ThreadPoolExecutor(parallel, "executor") as threads:
        for done in as_completed([threads.submit(here, one) for one in left]):
            yield done.result()
