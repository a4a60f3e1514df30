"""With `onUnread=fail`: commit a batch only if Spark has read all of it. See `reading.py`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from spark_queue.errors import OptionError, UnreadError, plural
from spark_queue.options.inputs import QUEUE
from spark_queue.options.stream import StreamOptions
from spark_queue.spark.read.offsets import MultiInputOffset, Offset, batch_of, tag_of
from spark_queue.spark.task_context import is_heard
from spark_queue.stores import open_database
from spark_queue.stores.base import Store
from spark_queue.stores.services.reading import Reading, ReadProgress

#: How long a process waits until Spark has reported how many rows of its batch it took, and the
#: time between two looks (s). Spark reports it some milliseconds after the end of a batch.
REPORT_TIMEOUT, REPORT_POLL = 30.0, 0.02

#: How to have the listener that receives Spark's reports.
_LISTENER_HINT = "needs a session of spark_queue.session(), or spark_queue.register(spark); not Spark Connect"


@dataclass(frozen=True, slots=True)
class TaskProof:
    """The note that a task writes when it has yielded its rows.

    `binding`: with several inputs, the one in whose queue it is noted.
    """

    reading: Reading
    task: int
    binding: str | None = None

    def check_is_heard(self) -> None:
        """Raise `OptionError` if the session of this task has no listener."""
        if not is_heard():
            raise OptionError(f"option 'onUnread' is fail, which {_LISTENER_HINT}", option="onUnread")

    def note(self, options: StreamOptions, rows: int) -> None:
        """Note that the task has yielded all its rows, and how many these were."""
        own = options if self.binding is None else options.for_input(self.binding)
        with open_database(own.database) as store:
            self.reading.note_task(store, self.task, rows)


def proving_input(offset: MultiInputOffset) -> str | None:
    """Return the input in whose queue it is noted how far a batch was read; `None` if all are logs.

    It does not depend on the order of the inputs, which a restart may change.
    """
    return min((name for name, one in offset["inputs"].items() if one.get("mode", QUEUE) == QUEUE), default=None)


def reading_of(offset: Offset, run: int = 0) -> Reading:
    """Return the batch that ends at an offset, as tasks of that run read it."""
    return Reading(offset["queue"], offset["consumer"], batch_of(offset), run)


class ReadProof:
    """Requires a proof for the batches of one consumer, which this process plans."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._planned: Reading | None = None  # the batch that this process planned last

    def begin(self, end: Offset, run: int, tasks: int) -> Reading:
        """Note that a batch is planned with this number of tasks, and return it for their notes."""
        self._planned = reading_of(end, run)
        self._planned.note_plan(self._store, tasks)
        return self._planned

    def check(self, end: Offset, rows: int, is_held: Callable[[], bool]) -> None:
        """Raise `UnreadError` if a batch of `rows` messages was not read, and is held.

        Raises `OptionError` if Spark does not report how many rows it took.
        """
        progress = self._wait(end, is_held)
        if progress is not None and not progress.complete and is_held():
            raise unread_error(end, rows, progress)

    def _wait(self, end: Offset, is_held: Callable[[], bool]) -> ReadProgress | None:
        """Return how far a batch was read; wait for Spark's report of one that ran just now.

        A report of an earlier process does not come any more: its driver died in between, and
        what its tasks have noted decides.
        Raises `OptionError` if no report comes.
        """
        reading, deadline = reading_of(end), time.monotonic() + REPORT_TIMEOUT
        progress = reading.progress(self._store)
        if self._planned is None or self._planned.batch != reading.batch:
            return progress
        while progress is not None and progress.complete and progress.rows and progress.taken is None:
            if time.monotonic() >= deadline:
                if not is_held():
                    return None
                raise OptionError(
                    f"Spark has not reported in {REPORT_TIMEOUT:.0f} s how many rows of batch {tag_of(end)} of queue "
                    f"{end['queue']!r} it has read, so none was removed: option 'onUnread' is fail, which "
                    f"{_LISTENER_HINT}",
                    option="onUnread",
                )
            time.sleep(REPORT_POLL)
            progress = reading.progress(self._store)
        return progress


def unread_error(end: Offset, rows: int, progress: ReadProgress) -> UnreadError:
    """Return the error for a batch of `rows` messages that was not read to its end."""
    queue, tag = end["queue"], tag_of(end)
    return UnreadError(
        f"batch {tag} of queue {queue!r} has {plural(rows, 'message')}, but {progress}: the query uses limit, take "
        "or first, or foreachBatch without an action. Nothing was removed. Read the whole batch, see docs/unread.md. "
        f"For this batch, either release it: spark-queue release URL {queue} {tag} (all its messages come again), or "
        "start the query once with onUnread=warn, which removes them",
        queue=queue,
        tag=tag,
    )


def check_drained(
    offset: Mapping[str, Any], ends: Mapping[str, Offset], stores: Mapping[str, Store], taken: int
) -> None:
    """Raise `UnreadError` if a batch that ended was not read, and is held. Spark took `taken` rows.

    `offset`: that of the batch. `ends`, `stores`: the offset and the store of each input, by
    binding; without inputs the binding is empty.
    """
    proving = proving_input(cast("MultiInputOffset", offset)) if "inputs" in offset else ""
    if proving is None:
        return
    end, store = ends[proving], stores[proving]

    def is_held() -> bool:
        return any(stores[one].reservations(ends[one]["queue"], tag_of(ends[one])) for one in ends)

    reading_of(end).note_taken(store, taken)
    ReadProof(store).check(end, sum(end.get("rows", [])), is_held)
