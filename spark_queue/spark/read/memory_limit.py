"""Limit the bytes of a micro-batch: by default, what a task reads has at most PARTITION_BYTES."""

from __future__ import annotations

from spark_queue.options.stream import StreamOptions
from spark_queue.spark.read.batch_size import MAX_ROWS
from spark_queue.spark.read.limits import ALL_ROWS, partition_limits

#: The most bytes of messages for one task, unless an option says otherwise.
PARTITION_BYTES = 64 << 20


class MemoryLimit:
    """The most bytes of a batch, and about how many rows they are.

    The database compares the bytes when it reserves a batch. So the first one is within the limit,
    too, and one whose messages are larger than those before. The number of rows is for the choice
    of the next size.
    """

    def __init__(self, options: StreamOptions) -> None:
        self.rows = MAX_ROWS  #: how many rows fit, if they are as large as those of the last batch
        self._options = options

    def batch_bytes(self, limit: int) -> int | None:
        """Return how many bytes a batch of up to `limit` rows may have; `None`: any number.

        That is so if Spark wants all messages at once, or if the user set the number of rows, and
        no number of bytes.
        """
        if limit >= ALL_ROWS:
            return None
        if self._options.max_bytes_per_trigger is None and self._options.max_records_per_trigger is None:
            return PARTITION_BYTES * partition_limits(self._options)[0]
        return self._options.max_bytes_per_trigger

    def note_batch(self, rows: int, size: int) -> None:
        """Note the rows and bytes of a batch; 0 bytes are an unknown number."""
        if rows and size:
            self.rows = min(MAX_ROWS, max(1, rows * (self.batch_bytes(rows) or size) // size))
