"""Compare the messages of each batch of a query with the rows that Spark has read of it.

Spark counts the rows that it takes from a source, and reports them after each batch. A batch also
ends if Spark took fewer: with `limit`, or a `foreachBatch` without an action. Then the messages are
removed, and the query has never seen them. docs/unread.md has the cases that this does not see, and
those in which it warns for nothing.
"""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from spark_queue.errors import QueueError, plural
from spark_queue.options.masking import mask
from spark_queue.options.stream import StreamOptions
from spark_queue.options.values import FAIL, WARN
from spark_queue.spark.progress import SourceBatch, source_batches
from spark_queue.spark.query_sources import execution_of, source_options
from spark_queue.spark.read.delivery import ON_UNREAD
from spark_queue.spark.read.offsets import input_offsets
from spark_queue.spark.read.proof import proving_input, reading_of
from spark_queue.stores import open_database

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger(__name__)

#: The shortest time between two warnings about one source of a query (s).
WARN_INTERVAL = 60.0

#: A watermark on the time at which messages are due, in the text of a plan.
_WATERMARK_ON_MATURE = re.compile(r"EventTimeWatermark .*\bmature#\d")


@dataclass
class _Unread:
    """The batches that were not read to their end, since the last warning."""

    batches: int = 0
    messages: int = 0
    read: int = 0
    warn_at: float = -math.inf  # when to warn again (monotonic s)


class UnreadWatch:
    """Watches one run of a query. Its methods may be called with the same report repeatedly."""

    def __init__(self, query: StreamingQuery, *, replayed: int | None = None) -> None:
        """`replayed`: the batch with which the run began, if it had failed before.

        A part of its messages may have been set aside, or settled; so it gives no warning.
        """
        self._query, self._replayed = query, replayed
        self._last = -1  # the number of the last batch that was noted
        self._unread: dict[str, _Unread] = {}  # by queues
        self._has_dropped = False  # whether a watermark on `mature` has dropped rows

    def note(self, progress: Mapping[str, Any]) -> None:
        """Take Spark's report of a batch: warn, or record what it has read for `onUnread=fail`."""
        number = progress["batchId"]
        if number <= self._last:
            return
        batches = source_batches(progress)
        if batches:
            self._last = number
            self._check_watermark(progress)
        for one in batches:
            choice = one.end.get(ON_UNREAD, WARN)
            if choice == FAIL:
                self._report(one)
            elif choice == WARN and one.read < one.messages and number != self._replayed:
                self._add(number, one)

    def close(self) -> None:
        """Log the warnings that were held back."""
        for queues, unread in self._unread.items():
            if unread.batches:
                self._warn(queues, unread, self._last)

    @property
    def _name(self) -> str:
        return self._query.name or str(self._query.id)

    def _add(self, number: int, batch: SourceBatch) -> None:
        unread = self._unread.setdefault(batch.queues, _Unread())
        unread.batches += 1
        unread.messages += batch.messages
        unread.read += batch.read
        if time.monotonic() >= unread.warn_at:
            self._warn(batch.queues, unread, number)

    def _warn(self, queues: str, unread: _Unread, number: int) -> None:
        log.warning(
            "query %s commits messages that it has not read: Spark read %s of %s of queue %s, in %s up to batch %d. "
            "The cause is limit, take or first, or foreachBatch without an action. See docs/unread.md; with the "
            "option onUnread=fail the query fails instead, onUnread=ignore ends this warning",
            self._name, f"{unread.read:,}", plural(unread.messages, "message"), queues,
            plural(unread.batches, "batch", "batches"), number,
        )  # fmt: skip
        self._unread[queues] = _Unread(warn_at=time.monotonic() + WARN_INTERVAL)

    def _report(self, batch: SourceBatch) -> None:
        """Note how many rows Spark has read; the reader waits for that before it commits."""
        end: Any = batch.end
        options = self._options_of(end)
        if "inputs" in end:
            binding = proving_input(end)
            if options is None or binding is None:
                return
            options, end = options.for_input(binding), input_offsets(end)[binding]
        if options is None:
            return
        try:
            with open_database(options.database) as store:
                reading_of(end).note_taken(store, batch.read)
        except QueueError as error:
            log.warning(
                "could not note in %s what query %s has read: %s", mask(options.database.url), self._name, error
            )

    @cached_property
    def _sources(self) -> list[StreamOptions]:
        return [] if execution_of(self._query) is None else list(source_options(self._query))

    def _options_of(self, end: Mapping[str, Any]) -> StreamOptions | None:
        """Return the options of the source with this offset."""
        name = end["consumer"].partition("/")[0]
        for options in self._sources:
            inputs = {one: facts.checkpoint_fields for one, facts in (options.inputs or {}).items()}
            same = inputs == end["inputs"] if "inputs" in end else options.single_queue == end["queue"]
            if same and options.consumer in (None, name):
                return options
        return None

    def _check_watermark(self, progress: Mapping[str, Any]) -> None:
        """Warn once if a watermark on `mature` has dropped rows: their messages are removed."""
        dropped = sum(one.get("numRowsDroppedByWatermark", 0) for one in progress.get("stateOperators") or ())
        if not dropped or self._has_dropped or (execution := execution_of(self._query)) is None:
            return
        if _WATERMARK_ON_MATURE.search(execution.analyzedPlan().toString()):
            self._has_dropped = True
            log.warning(
                "query %s has dropped %s in batch %d, because their column mature is older than its watermark: a "
                "message that is redriven or comes late keeps the time at which it was due. The messages are "
                "committed, so they are lost. Set the watermark on the column arrived: see docs/unread.md",
                self._name, plural(dropped, "row"), progress["batchId"],
            )  # fmt: skip
