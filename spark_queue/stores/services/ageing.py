"""Remove notes of consumers, queries and exactly-once sinks that were not written for a year.

Each checkpoint is a new epoch of a consumer, with a few notes. Each query with an exactly-once sink
has a ledger. `drop` and other commands remove them; those of abandoned queries would stay forever.
So a query that starts removes old ones, once a day for each database. The year is counted by the
database's clock.

The notes of a consumer stay while it holds messages: `recover` needs them. A ledger stays while
rows are staged for its sink: they may be decided and not visible yet. A checkpoint whose notes were
removed is refused, as after `drop`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from urllib.parse import unquote

from spark_queue.options.parsers import DAY
from spark_queue.stores.base import Store
from spark_queue.stores.services.dead_letters import HISTORY_NOTE, SETTLED_NOTE
from spark_queue.stores.services.ledger import LEDGER_PREFIX, delete_sink
from spark_queue.stores.services.owner import OWNER_NOTE
from spark_queue.stores.services.poison import FAILING_NOTE, FAILURE_PREFIX
from spark_queue.stores.services.query_binding import QUERY_NOTE
from spark_queue.stores.services.row_hashes import WRITTEN_PREFIX
from spark_queue.stores.types import Note

log = logging.getLogger(__name__)

YEAR = 365 * DAY

#: How many notes are removed at once. A query that starts waits for that, 2 s on MongoDB.
MAX_NOTES = 500

#: The key of the note with the time of the last run.
LAST_SWEEP_NOTE = "ageing"


def remove_old_notes(store: Store) -> None:
    """Remove old notes, unless that was done within a day.

    Several processes may call it at once.
    """
    now = store.now()
    last = store.note(LAST_SWEEP_NOTE)
    if last is not None and last.written is not None and now - last.written < DAY:
        return
    if store.set_note(LAST_SWEEP_NOTE, {"v": 1, "at": now}, last.version if last else 0):  # else another did
        sweep(store)


def sweep(store: Store, limit: int = MAX_NOTES) -> int:
    """Remove up to `limit` old notes and ledgers, and return how many."""
    removed = sum(1 for _ in islice(_remove_each(store, store.now()), limit))
    if removed:
        log.info("removed %d notes of consumers and sinks that nothing has written for a year", removed)
    return removed


def _remove_each(store: Store, now: int) -> Iterator[str]:
    """Remove old notes, and yield the key of each afterwards."""
    queues: dict[str, list[_QueueNote]] = {}
    for key, note in store.notes("queue/", skip_damaged=True).items():
        _, queue, kind, *names = key.split("/", 3)
        if kind in (OWNER_NOTE, QUERY_NOTE, FAILING_NOTE, SETTLED_NOTE, HISTORY_NOTE):
            queues.setdefault(unquote(queue), []).append(_QueueNote(key, kind, names[0], note))
    for queue, notes in queues.items():
        yield from _remove_of_queue(store, queue, notes, now)
    for key, _ in _old_notes(store, LEDGER_PREFIX, now):
        if not store.staged(sink := key.removeprefix(LEDGER_PREFIX)):
            delete_sink(store, sink)
            yield key
    for prefix in (WRITTEN_PREFIX, FAILURE_PREFIX):  # a crash may have left them
        for key, note in _old_notes(store, prefix, now):
            if _remove(store, key, note):
                yield key


@dataclass(frozen=True, slots=True)
class _QueueNote:
    """A note about a queue: its key, its kind, and the consumer, query or name that it is about."""

    key: str
    kind: str
    name: str
    note: Note


def _remove_of_queue(store: Store, queue: str, notes: list[_QueueNote], now: int) -> Iterator[str]:
    """Remove old notes about consumers of a queue, and yield their keys.

    The note of the owner goes first: the others stay while it exists.
    """
    old = [one for one in notes if _is_old(store, one.key, one.note, now)]
    consumers = {one.name for one in notes if one.kind == OWNER_NOTE}
    for one in old:
        if one.kind == OWNER_NOTE and not store.reservations(queue, one.name) and _remove(store, one.key, one.note):
            consumers.discard(one.name)
            yield one.key
    names = {one.partition("/")[0] for one in consumers}
    for one in old:
        subject = one.note.value["consumer"] if one.kind == QUERY_NOTE else one.name
        needed = names if one.kind in (SETTLED_NOTE, HISTORY_NOTE) else consumers
        if one.kind != OWNER_NOTE and subject not in needed and _remove(store, one.key, one.note):
            yield one.key


def _old_notes(store: Store, prefix: str, now: int) -> Iterator[tuple[str, Note]]:
    for key, note in store.notes(prefix, skip_damaged=True).items():
        if _is_old(store, key, note, now):
            yield key, note


def _is_old(store: Store, key: str, note: Note, now: int) -> bool:
    """Return whether a note was not written for a year.

    A note of an older version has no time: it is written now, and counts from now on.
    """
    if note.written is None:
        store.set_note(key, note.value, note.version)
        return False
    return now - note.written >= YEAR


def _remove(store: Store, key: str, note: Note) -> bool:
    """Remove a note unless it was written meanwhile; return whether it was removed."""
    return store.set_note(key, None, note.version)
