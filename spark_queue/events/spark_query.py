"""Execute events in a streaming query: in Spark's workers, or in the process that runs the query.

The query reserves events as consumer `executing.<name>`, so events that it holds are executing. A
task executes the events of a partition in order, and settles each under the partition's own tag
while it goes on. So nothing is left when Spark commits the batch. A query that was killed executes
only unsettled events again. All settlements are fenced, so an event ends with exactly one status.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TYPE_CHECKING, Any

from pyspark import cloudpickle

from spark_queue.events.event import EXECUTING, Event
from spark_queue.events.execution import Result, run_event, time_limit
from spark_queue.events.queue import Events
from spark_queue.events.spark_source import EventSource, register_source
from spark_queue.events.work_tokens import TOKEN_OPTION, RegisteredWork, check_confs, register_work, signing_key
from spark_queue.messages.json_text import load_foreign_json
from spark_queue.spark import activate, spark_version, supervise

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
from spark_queue.events.spark_worker import ExecutorWork

log = logging.getLogger(__name__)

#: Tries, besides the retries of executors, of an event that crashes its worker; then it fails.
CRASH_TRIES = 3


class ExecutorQuery:
    """A streaming query that executes the events of a queue.

    Any number of queries and programs may execute the events of one queue. `name` identifies this
    one in the log and the history.

    `batch`: maximum number of events per batch; by default batches find their size. A new event
    with priority waits for the current batch. While batches take less than two seconds, the next
    one is reserved ahead, and the event waits for that too. `parallel`: number of tasks, each with
    a part of the batch, and of threads in this process for executors with `where: driver`. The
    default is Spark's default parallelism.
    """

    def __init__(
        self,
        events: Events,
        checkpoint: str,
        *,
        name: str = "events",
        batch: int | None = None,
        parallel: int | None = None,
        options: dict[str, str] | None = None,
    ) -> None:
        """Check all functions, and the key that signs tokens.

        Raises `OptionError` if a function cannot be found, or the key is configured in a wrong way.

        `events`: the queue, with its executors and settings. `options`: further options of
        `format("queue")`. They cannot change the queue, consumer, history, payload format or
        partitions.
        """
        events.executors.check()
        signing_key()
        self.events = events
        self._checkpoint = checkpoint
        self._batch = batch
        self._parallel = parallel
        self._options = options or {}
        url, queue, consumer = events.store.url, events.name, f"{EXECUTING}.{name}"
        self._work = ExecutorWork(
            url, queue, consumer, events.declared_executors, events.settings, events.user, events.host
        )
        self._registered: RegisteredWork | None = None  # as long as this object exists

    def start(self, spark: SparkSession, *, available_now: bool = False, every: int = 0) -> StreamingQuery:
        """Start the query. `every`: trigger interval (ms).

        With `available_now` it ends when all current events are executed. Spark 4.0 and 4.1 end it
        after one batch; `run` continues then. Raises `OptionError` if a conf of the session has the
        key that signs tokens.
        """
        for one in self.events.executors.overlap_warnings():
            log.warning("%s", one)
        parallel = self._parallel or spark.sparkContext.defaultParallelism
        options = {
            **({"maxRecordsPerTrigger": str(self._batch)} if self._batch else {}),
            "maxTries": str(CRASH_TRIES + max((one.retries for one in self.events.executors), default=0)),
        }
        work = self._work
        options |= self._options | {
            "url": work.url,
            "queue": work.queue,
            "consumer": work.consumer,
            "history": f"{work.settings.keep}ms",
            "payloadFormat": "json",
            "numPartitions": str(parallel),
            "minPartitions": str(parallel),  # few but slow events must run in parallel too
        }
        check_confs(spark.conf.getAll)
        self._registered = register_work(options, cloudpickle.dumps(work))  # type: ignore[no-untyped-call]
        register_source(spark)
        frame = spark.readStream.format(EventSource.name()).option(TOKEN_OPTION, self._registered.token).load()
        if any(one.where == "driver" for one in self.events.executors):
            writer = frame.writeStream.foreachBatch(self._batch_function(parallel))
        else:  # nothing is left for this process, and foreachBatch would plan each batch twice
            writer = frame.writeStream.format("noop")
        writer = writer.queryName(f"events {work.queue}").option("checkpointLocation", self._checkpoint)
        interval = f"{every} milliseconds"
        trigger: dict[str, Any] = {"availableNow": True} if available_now else {"processingTime": interval}
        return writer.trigger(**trigger).start()

    def run(
        self, spark: SparkSession, *, available_now: bool = False, every: int = 0, **kwargs: Any
    ) -> StreamingQuery:
        """Start the query, and restart it when it fails; see `supervise`."""
        activate(spark)
        begin: Callable[[], StreamingQuery] = lambda: self.start(spark, available_now=available_now, every=every)  # noqa: E731
        return supervise(begin, self._work.url, by_batch=available_now and spark_version(spark) < (4, 2), **kwargs)

    def _batch_function(self, parallel: int) -> Callable[[DataFrame, int], None]:
        work, events = self._work, self.events

        def on_batch(frame: DataFrame, number: int) -> None:
            rows = frame.where("payload IS NOT NULL").collect()
            payloads = [load_foreign_json(row["payload"].encode()) for row in rows]
            remaining = [
                Event.from_json(row["id"], payload, row["tries"], lambda row=row: row["mature"])  # type: ignore[misc]
                for row, payload in zip(rows, payloads, strict=True)
            ]
            if remaining:
                tag = rows[0]["tag"].rpartition("/")[0]
                work.settler(events.store, tag).settle(_run_in_threads(remaining, events, parallel))

        return on_batch


def _run_in_threads(remaining: list[Event], events: Events, parallel: int) -> Iterator[Result]:
    """Execute events in threads of this process, and yield each result when it is there."""

    def run_one(event: Event) -> Result:
        with time_limit() as limiter:
            return run_event(event, events.executors, events.settings, limiter)

    remaining.sort(key=lambda one: (one.mature, one.id))
    with ThreadPoolExecutor(parallel, "executor") as threads:
        for done in as_completed([threads.submit(run_one, one) for one in remaining]):
            yield done.result()
