"""The streaming query of one step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_queue.errors import StoreUnavailable
from spark_queue.runner.step import RunnableStep
from spark_queue.spark import activate, spark_version
from spark_queue.stores import open_store


@dataclass(frozen=True)
class StepQuery:
    """The streaming query of a step, and the queues that it reads.

    `url`: the store that keeps its traffic and its failures. `sources`: URLs and queues; the queue
    is `None` for a log. `needs_all`: whether a batch needs messages in all of these. `by_batch`:
    see `supervise`. `batch_metrics`: returns the metrics of a batch from its progress.
    """

    spark: SparkSession
    start: Callable[[], StreamingQuery]
    url: str = field(repr=False)
    sources: list[tuple[str, str | None]] = field(default_factory=list, repr=False)
    needs_all: bool = True
    by_batch: bool = False
    batch_metrics: Callable[[Mapping[str, Any]], dict[str, Any] | None] = lambda _: None
    close: Callable[[], None] = lambda: None

    def has_messages(self) -> bool:
        """Return whether its sources have messages that are ready or reserved.

        Its last run may have reserved them. A log counts as a source with messages. The result is
        true if a store is unavailable.
        """
        found = []
        for url, queue in self.sources:
            if queue is None:
                found.append(True)
                continue
            try:
                with open_store(url) as store:
                    sizes = store.sizes(queue)
            except StoreUnavailable:
                return True  # the query retries for longer, and reports the error
            found.append(bool(sizes.ready or sizes.reserved))
        return all(found) if self.needs_all else any(found)


def build_query(spark: SparkSession, step: RunnableStep[Any], checkpoint: str, *, available_now: bool) -> StepQuery:
    """Return the query of a step.

    `checkpoint`: the folder of its checkpoint. `available_now`: whether it ends after the messages
    that are due at its start.
    """
    read_options = step.read_options
    trigger: dict[str, Any] = {"availableNow": True} if available_now else {}
    if step.step.every and not available_now:
        trigger = {"processingTime": f"{step.step.every} milliseconds"}

    def start() -> StreamingQuery:
        activate(spark)
        # A step without inputs runs once per batch of a source that always has one.
        source = spark.readStream.format("queue" if read_options else "rate-micro-batch")
        rows, options = step.pipeline(source.options(**(read_options or {"rowsPerBatch": "1"})).load())

        def push(messages: DataFrame) -> None:
            messages.write.format("queue").mode("append").options(**options).save()

        if on_batch := step.on_batch(push):
            writer = rows.writeStream.foreachBatch(on_batch)
        else:
            writer = rows.writeStream.format("queue").options(**options)
        writer = writer.queryName(step.name).option("checkpointLocation", checkpoint)
        return (writer.trigger(**trigger) if trigger else writer).start()

    return StepQuery(
        spark,
        start,
        url=step.store_url,
        sources=step.source_queues,
        needs_all=step.step.needs_all,
        by_batch=available_now and bool(read_options) and spark_version(spark) < (4, 2),
        batch_metrics=step.batch_metrics,
        close=step.close,
    )
