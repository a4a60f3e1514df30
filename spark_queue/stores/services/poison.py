"""Find the poison message that makes its batch fail repeatedly, and deliver the others.

A query that replays a batch knows only that it failed. After MAX_FAILED_RUNS failed runs, or after
MAX_DEATHS deaths of its process, the batch is split: it keeps a part of its messages. The others
are parked in groups of that size, to become batches later. A group that fails is split at once. A
message that fails alone is the poison message. With `max_tries`, it runs alone that often, and then
moves to the dead-letter queue. Without, it is rolled back as failed, with a growing delay. Among
10,000 messages it is found with four splits.

A note counts the runs of a batch; it is written only when a batch comes again. Tasks add which run
of their query works on the batch. The driver notes the error of a failed run. So a dead letter has
the error of the last run that worked on its message, and not that of other runs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from spark_queue.stores.base import Store
from spark_queue.stores.queue import StoredQueue
from spark_queue.stores.services.retry import retry_delay
from spark_queue.stores.types import queue_note_key

log = logging.getLogger(__name__)

FAILING_NOTE = "failing"  #: the kind of note of a consumer whose batch fails
FAILURE_PREFIX = "failure/"  #: the key prefix of notes with a query's error

#: How many runs of a batch may fail before its messages are suspected.
MAX_FAILED_RUNS = 3

#: How often a process may die while it works on a batch. A batch that is too large for the memory
#: kills it each time.
MAX_DEATHS = 2

#: Into how many parts a batch that fails is split.
BATCH_PARTS = 16

#: The reason for a message that failed alone, if no error of that run is known.
NO_ERROR = (
    "its batch failed with this message alone, and Spark gave no error for that: the driver was killed, the run "
    "ended before it read the message, or the session was not made with spark_queue.session()"
)


class PoisonMessageHandler:
    """Finds the poison messages in failed batches of one consumer (`name/epoch`)."""

    def __init__(self, stored: StoredQueue[Store], consumer: str) -> None:
        """Settle messages that fail alone as the policy of `stored` says."""
        self._stored = stored
        self._store, self._queue = stored.store, stored.name
        self._consumer = consumer
        self._key = _note_key(self._queue, consumer)
        self.parked_tag = f"{consumer}/parked"
        self.may_have_parked = self._store.note(self._key) is not None  #: whether groups may be parked

    def handle_rerun(self, tag: str, deaths: int = 0) -> None:
        """Count a new run of a batch that has failed; split it, or settle its last message.

        `deaths`: how many processes died while they worked on it.
        """
        error = self._last_error()
        note = self._count_run(tag, error)
        if note["runs"] <= MAX_FAILED_RUNS and deaths < MAX_DEATHS:
            return
        ids, tries = self._read_ids_and_tries(tag)
        if len(ids) > 1:
            self._split(tag, ids)
        elif ids:
            earlier = note.get("error")
            self._handle_failed_alone(
                tag, tries[0], error or NO_ERROR + (f"; before that: {earlier}" if earlier else "")
            )

    def take_parked_group(self, tag: str, lease: int) -> int:
        """Transfer a parked group to a batch for `lease` ms; return its size, 0 if none is left."""
        if not self.may_have_parked:
            return 0
        group = next(iter(self._store.reservations(self._queue, self.parked_tag)), None)
        if group is None:
            self._delete_note()
            return 0
        # Messages prefetched for this batch sort after the groups, whose names begin with a digit.
        self._store.transfer(self._queue, tag, f"{self.parked_tag}/ahead", lease=self._stored.lease)
        # It has failed in a larger batch, so it is split as soon as it fails again.
        self._update(lambda _: _new_note(self._batch_number(tag), MAX_FAILED_RUNS))
        return self._store.transfer(self._queue, group.tag, f"{tag}/0", lease=lease)

    def _batch_number(self, tag: str) -> int | str:
        """Return the batch of a tag, as in the note: a number if the tag is of version 1."""
        batch = tag.removeprefix(f"{self._consumer}/")
        return int(batch) if batch.isdigit() else batch

    def _count_run(self, tag: str, error: str | None) -> dict[str, Any]:
        """Count a new run after one that failed with this error; return the note."""
        seq = self._batch_number(tag)

        def increment(value: dict[str, Any]) -> dict[str, Any]:
            if value.get("seq") != seq:
                return _new_note(seq, 2)
            return {"runs": value["runs"] + 1, "run": None, "error": error or value.get("error")}

        return self._update(increment)

    def _update(self, change: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
        """Change the note, and return its new value."""
        self.may_have_parked = True
        return self._store.change_note(self._key, lambda old: {"v": 1, **(old or {}), **change(old or {})})

    def _delete_note(self) -> None:
        note = self._store.note(self._key)
        if note is not None and "query" in note.value:
            delete_failure(self._store, note.value["query"])
        if note is None or self._store.set_note(self._key, None, note.version):
            self.may_have_parked = False

    def _read_ids_and_tries(self, tag: str) -> tuple[list[str], list[int]]:
        ids: list[str] = []
        tries: list[int] = []
        for one in self._store.reservations(self._queue, tag):
            for batch in self._store.peek_reserved(self._queue, one.tag):
                ids += batch.column("id").to_pylist()
                tries += batch.column("tries").to_pylist()
        return ids, tries

    def _split(self, tag: str, ids: list[str]) -> None:
        self._update(lambda _: {"error": None})  # its cause may be a message that is parked now
        size = -(-len(ids) // BATCH_PARTS)
        seq, _, by = str(self._batch_number(tag)).partition(".")
        for number, start in enumerate(range(size, len(ids), size)):
            group = f"{self.parked_tag}/{int(seq):012}{by and '.' + by}-{number:03}"
            self._store.transfer(self._queue, tag, group, ids[start : start + size], lease=self._stored.lease)
        log.warning(
            "batch %s of %s fails again and again: %d of its %d messages are tried now, the others after them",
            tag, self._queue, size, len(ids),
        )  # fmt: skip

    def _handle_failed_alone(self, tag: str, tries: int, reason: str) -> None:
        stored, queue = self._stored, self._queue
        if stored.max_tries is None:
            delay = retry_delay(stored.retry, tries)
            if self._store.rollback(queue, tag, delay=delay):
                log.warning("a message of %s makes its batch fail: tried again in %d ms (%s)", queue, delay, reason)
            return
        failures = self._update(lambda value: {"alone": value.get("alone", 0) + 1})["alone"]
        if tries + failures < stored.max_tries:
            return
        if stored.dead_letter(tag, reason=reason, failed=failures):
            dead = stored.dead_letter_queue
            log.warning("a message of %s makes its batch fail: moved to %s (%s)", queue, dead, reason)

    def _last_error(self) -> str | None:
        """Return the error of the last run that worked on this batch; `None` if unknown."""
        note = self._store.note(self._key)
        run = note.value.get("run") if note else None
        if note is None or run is None:
            return None
        failure = self._store.note(failure_key(note.value["query"]))
        return failure.value["error"] if failure and failure.value.get("run") == run else None


def note_run(store: Store, queue: str, consumer: str, query: str, run: str) -> None:
    """Note the query and its run that work on a batch that comes again, and may fail."""
    facts = {"query": query, "run": run}
    store.change_note(_note_key(queue, consumer), lambda old: None if old is None else old | facts)


def _new_note(seq: int | str, runs: int) -> dict[str, Any]:
    """Return the note for a new batch.

    `alone`: how often its message failed alone. `run`: the run of the query whose tasks work on it.
    `error`: the last error of earlier runs with the same messages.
    """
    return {"seq": seq, "runs": runs, "alone": 0, "run": None, "error": None}


def _note_key(queue: str, consumer: str) -> str:
    return queue_note_key(queue, FAILING_NOTE, consumer)


def failure_key(query: str) -> str:
    """Return the key of the note with the error of a query."""
    return f"{FAILURE_PREFIX}{query}"


def note_failure(store: Store, query: str, run: str, error: str) -> None:
    """Note the error of a run, for the header `x-error` of a message that may be the cause.

    A query has one such note, of its last failure. Several callers may note the same failure.
    """
    store.change_note(failure_key(query), lambda _: {"v": 1, "run": run, "error": error})


def delete_failure(store: Store, query: str) -> None:
    """Remove that note: the query has succeeded, or no message is suspected now."""
    store.change_note(failure_key(query), lambda _: None)
