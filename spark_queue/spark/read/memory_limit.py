"""Limit the rows of a micro-batch by memory: what a task reads may have PARTITION_BYTES."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pyarrow as pa

from spark_queue.spark.read.batch_size import MAX_ROWS

#: The most bytes of messages for one task (estimated).
PARTITION_BYTES = 64 << 20

#: How many messages are sampled, and how often (s).
SAMPLE_ROWS, SAMPLE_INTERVAL = 4, 1.0


class MemoryLimit:
    """The number of rows that fit, estimated from the bytes per row of the last batches."""

    def __init__(self, partitions: int) -> None:
        self.rows = MAX_ROWS  #: how many rows fit
        self._bytes = PARTITION_BYTES * partitions
        self._per_row = 0.0
        self._sampled_at = -SAMPLE_INTERVAL

    def update(self, sample: Callable[[int], Iterator[pa.RecordBatch]]) -> None:
        """Estimate how many rows fit. `sample(rows)` yields messages in pages of `rows`."""
        now = time.monotonic()
        if now - self._sampled_at >= SAMPLE_INTERVAL and (batch := next(sample(SAMPLE_ROWS), None)) is not None:
            self._sampled_at = now
            per_row = batch.nbytes / max(1, batch.num_rows)
            self._per_row = (self._per_row + per_row) / 2 if self._per_row else per_row
            self.rows = min(MAX_ROWS, max(1, int(self._bytes / max(1.0, self._per_row))))
