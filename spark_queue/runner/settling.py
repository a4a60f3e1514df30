"""Settle what a step has reserved that was removed, or whose checkpoint is elsewhere.

Each server may have a folder of checkpoints of its own. The step then cannot repeat the last batch
of a server with another folder. The ledgers say whether that batch was written.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from pyspark.sql import SparkSession

from spark_queue.errors import UsageError
from spark_queue.graph.step import Step
from spark_queue.runner.declared import KnownStep
from spark_queue.runner.runs import load_run
from spark_queue.spark.checkpoints import folder_id
from spark_queue.stores.base import Store
from spark_queue.stores.services.owner import consumers
from spark_queue.stores.services.query_binding import query_bindings

log = logging.getLogger(__name__)

#: Settles what a consumer has reserved that does not start again. It gets the URL and the queue of
#: its source, the consumer, and the URLs that it wrote to. The last argument says whether its last
#: batch was written (`None`: the ledgers there know).
SettleConsumer = Callable[[str, str, str, Sequence[str], bool | None], object]


class StepSettler:
    """Settles the consumers of steps, for a server with this folder of checkpoints."""

    def __init__(self, stores: Mapping[str, Store], checkpoint_root: str, settle: SettleConsumer) -> None:
        self._stores, self._checkpoint_root, self._settle = stores, checkpoint_root, settle
        self._folder: str | None = None  # its id, once it is known

    def settle_other_folder(self, spark: SparkSession, one: KnownStep) -> str:
        """Settle what a step has reserved if its last process had its checkpoint in another folder.

        Returns the id of the folder of this server. Raises `UsageError` if it is unknown whether
        the last batch was written.
        """
        if self._folder is None:
            self._folder = folder_id(spark, self._checkpoint_root)
        run = load_run(self._stores[one.ns], one.key)
        if run is not None and run.folder not in (None, self._folder) and one.step is not None:
            log.warning(
                "exchange %s ran on a server with another folder of checkpoints: what it had in work is settled by "
                "the ledgers. Give all servers the same --checkpoint-root",
                one.name,
            )
            try:
                self.settle(one, one.step)
            except UsageError as error:
                raise UsageError(
                    "it ran on a server with another folder of checkpoints, so its last batch cannot be repeated "
                    f"here: {error}. Then it starts here. Give all servers the same --checkpoint-root",
                    exchange=one.name,
                ) from error
        return self._folder

    def settle(self, one: KnownStep, step: Step) -> None:
        """Settle what the consumers of a step hold that no process runs.

        Raises `UsageError` if it is unknown whether a batch was written.
        """
        urls = list(dict.fromkeys(self._stores[to.ns].url for to in (step.home, *step.written_queues)))
        for place in dict.fromkeys(step.sources or (step.home,)):
            store = self._stores[place.ns]
            for _, consumer, owner in list(consumers(store, place.queue)):
                own = owner is None and consumer.partition("/")[0] == one.name
                if own and store.reservations(place.queue, consumer):
                    self._settle_consumer(store, place.queue, consumer, urls)

    def _settle_consumer(self, store: Store, queue: str, consumer: str, urls: Sequence[str]) -> None:
        # Its tasks note their query before they read. So without a note, none has read.
        written = None if query_bindings(store, queue, consumer) else False
        try:
            self._settle(store.url, queue, consumer, urls, written)
        except UsageError as error:
            raise UsageError(
                f"{error}. Its messages stay reserved until you run: spark-queue recover URL {queue} {consumer} "
                "--written (or --not-written)",
                queue=queue,
                consumer=consumer,
            ) from error
