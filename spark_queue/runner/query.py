"""The streaming query of one step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_queue.errors import StoreUnavailable
from spark_queue.runner.step import RunnableStep
from spark_queue.spark import activate, spark_version
from spark_queue.stores import open_store


@dataclass(frozen=True)
class StepQuery:
    """The streaming query of a step.

    `checkpoint`: the folder of its checkpoint. `available_now`: whether it ends after the messages
    that are due at its start.
    """

    spark: SparkSession
    step: RunnableStep[Any]
    checkpoint: str
    available_now: bool

    @property
    def by_batch(self) -> bool:
        """Whether Spark ends the query after one batch: see `supervise`."""
        return self.available_now and bool(self.step.read_options) and spark_version(self.spark) < (4, 2)

    def has_messages(self) -> bool:
        """Return whether its sources have messages that are ready or reserved.

        Its last run may have reserved them. A log counts as a source with messages. The result is
        true if a store is unavailable.
        """
        found = []
        for url, queue in self.step.source_queues:
            if queue is None:
                found.append(True)
                continue
            try:
                with open_store(url) as store:
                    sizes = store.sizes(queue, 1)
            except StoreUnavailable:
                return True  # the query retries for longer, and reports the error
            found.append(bool(sizes.ready or sizes.reserved))
        return all(found) if self.step.step.needs_all else any(found)

    def start(self) -> StreamingQuery:
        """Start the query."""
        activate(self.spark)
        read_options = self.step.read_options
        # A step without inputs runs once per batch of a source that always has one.
        source = self.spark.readStream.format("queue" if read_options else "rate-micro-batch")
        rows, options = self.step.pipeline(source.options(**(read_options or {"rowsPerBatch": "1"})).load())

        def push(messages: DataFrame) -> None:
            messages.write.format("queue").mode("append").options(**options).save()

        if on_batch := self.step.on_batch(push):
            writer = rows.writeStream.foreachBatch(on_batch)
        else:
            writer = rows.writeStream.format("queue").options(**options)
        if self.available_now:
            writer = writer.trigger(availableNow=True)
        elif self.step.step.every:
            writer = writer.trigger(processingTime=f"{self.step.step.every} milliseconds")
        return writer.queryName(self.step.name).option("checkpointLocation", self.checkpoint).start()
