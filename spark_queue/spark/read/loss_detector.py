"""Detect that other consumers took messages of a batch while its query worked on it."""

from __future__ import annotations

from spark_queue.options.stream import StreamOptions
from spark_queue.spark.read.fetch import lost_messages_error
from spark_queue.spark.read.offsets import Offset, tag_of
from spark_queue.stores.base import Store
from spark_queue.stores.services.dead_letters import settled_count


class LossDetector:
    """Counts the messages that a consumer reserved, but neither removed nor settled one by one."""

    def __init__(self, store: Store, options: StreamOptions, consumer: str) -> None:
        self._store = store
        self._options = options
        self._name = consumer.partition("/")[0]
        self._settled_before = self._count_settled()
        self._missed = 0

    def add(self, end: Offset, removed: int) -> None:
        """Count a batch, and its `removed` messages. Raises `FencedError` if others took some."""
        self._missed += sum(end["rows"]) - removed
        if self._missed <= 0:
            return
        missing = self._missed - (self._count_settled() - self._settled_before)
        if missing > 0:
            self._missed -= missing
            raise lost_messages_error(self._options, missing, sum(end["rows"]), tag_of(end))

    def _count_settled(self) -> int:
        return settled_count(self._store, self._options.queue, self._name)
