"""Note how far Spark has read a batch, for queries with `onUnread=fail`.

Nothing in Spark shows a source whether the rows of a batch were read: `limit`, or a `foreachBatch`
without an action, end a batch as any other work does. So three kinds of notes show it:

* `plan`: which batch was planned, in which run (the number of the process), with how many tasks.
* a number: the task of that number has yielded all its rows, and how many these were.
* `spark`: how many rows Spark has taken from all tasks, in all actions.

A task is ahead of Spark, by as much as fits into the buffers between them. So its note alone does
not show that Spark took its last rows, and the number of Spark alone may count a task twice. A
batch is read if all tasks have noted that they ended, and Spark took at least as many rows.

A consumer has one note of each kind, and of each task. The next batch overwrites them. They go
with the queue, or with the other notes of their consumer (`ageing.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spark_queue.errors import plural
from spark_queue.stores.base import Store
from spark_queue.stores.services.owner import Batch
from spark_queue.stores.types import queue_note_key

READING_NOTE = "reading"  #: the kind of note
_PLAN, _SPARK = "plan", "spark"


@dataclass(frozen=True, slots=True)
class Reading:
    """A batch of a consumer (`name/epoch`) that tasks read, in the run that planned it."""

    queue: str
    consumer: str
    batch: Batch
    run: int = 0

    def _key(self, name: str) -> str:
        return queue_note_key(self.queue, READING_NOTE, self.consumer, name)

    def note_plan(self, store: Store, tasks: int) -> None:
        """Note that this batch is planned, with this number of tasks."""
        self._note(store, _PLAN, {"tasks": tasks})

    def note_task(self, store: Store, task: int, rows: int) -> None:
        """Note that a task has yielded all its rows. Attempts of a task note the same."""
        self._note(store, str(task), {"rows": rows})

    def note_taken(self, store: Store, rows: int) -> None:
        """Note how many rows Spark has taken in all. Its number does not depend on the run."""
        self._note(store, _SPARK, {"rows": rows})

    def _note(self, store: Store, name: str, facts: Mapping[str, int]) -> None:
        value = {"v": 1, "batch": str(self.batch), "run": self.run, **facts}

        def change(old: dict[str, Any] | None) -> dict[str, Any]:
            return old if old is not None and _order(old) > _order(value) else value  # a late task changes nothing

        store.change_note(self._key(name), change)

    def progress(self, store: Store) -> ReadProgress | None:
        """Return how far the batch was read in its last run; `None` if it needs no proof.

        That is a batch that no query with `onUnread=fail` has planned.
        """
        plan = store.note(self._key(_PLAN))
        if plan is None or plan.value["batch"] != str(self.batch):
            return None
        run, tasks = plan.value["run"], plan.value["tasks"]
        names = [str(task) for task in range(tasks)]
        found = store.notes_of(self._key(name) for name in (*names, _SPARK))
        notes = [found.get(self._key(name)) for name in names]
        ended = [one.value["rows"] for one in notes if one is not None and _is_of(one.value, self.batch, run)]
        spark = found.get(self._key(_SPARK))
        taken = spark.value["rows"] if spark is not None and spark.value["batch"] == str(self.batch) else None
        return ReadProgress(tasks, len(ended), sum(ended), taken)


@dataclass(frozen=True, slots=True)
class ReadProgress:
    """How far a batch was read: its tasks, those that `ended`, and the rows of these.

    `taken`: how many rows Spark took; `None` if that is unknown.
    """

    tasks: int
    ended: int
    rows: int
    taken: int | None

    def __str__(self) -> str:
        """How far it was read, as a part of an error."""
        if self.ended < self.tasks:
            return f"{self.ended} of {plural(self.tasks, 'task')} read all their messages"
        return f"Spark read {self.taken or 0:,} of {plural(self.rows, 'row')}"

    @property
    def complete(self) -> bool:
        """Whether all rows were read, as far as it is known."""
        return self.ended == self.tasks and (self.taken is None or self.taken >= self.rows)


def _is_of(value: Mapping[str, Any], batch: Batch, run: int) -> bool:
    return (value["batch"], value["run"]) == (str(batch), run)


def _order(value: Mapping[str, Any]) -> tuple[int, int, int]:
    seq, _, by = value["batch"].partition(".")
    return int(seq), int(by or 0), value["run"]
