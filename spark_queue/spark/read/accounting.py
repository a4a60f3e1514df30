"""Detect that other consumers took messages of a batch while its query worked on it."""

from __future__ import annotations

from spark_queue.options.queue_options import QueueOptions
from spark_queue.spark.read.fetch import lost
from spark_queue.spark.read.offsets import Offset, tag_of
from spark_queue.stores.base import Store
from spark_queue.stores.services.dead_letters import settled


class Accounting:
    """Counts the messages that a consumer reserved, but neither removed nor settled one by one."""

    def __init__(self, store: Store, options: QueueOptions, consumer: str) -> None:
        self._store = store
        self._options = options
        self._name = consumer.partition("/")[0]
        self._settled_before = self._settled()
        self._missed = 0

    def add(self, end: Offset, done: int) -> None:
        """Count a batch, and its `removed` messages. Raises `FencedError` if others took some."""
        self._missed += sum(end["rows"]) - done
        if self._missed <= 0:
            return
        gone = self._missed - (self._settled() - self._settled_before)
        if gone > 0:
            self._missed -= gone
            raise lost(self._options, gone, sum(end["rows"]), tag_of(end))

    def _settled(self) -> int:
        return settled(self._store, self._options.queue or "", self._name)
