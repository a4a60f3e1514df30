"""Remove notes of consumers, queries and exactly-once sinks that were not written for a year.

Each checkpoint is a new epoch of a consumer, with a few notes. Each query with an exactly-once sink
has a ledger. `drop` and other commands remove them; those of abandoned queries would stay forever.
So a query that starts removes old ones, once a day for each database.

The year is counted by the database's clock, which may have been wrong once. So a note goes only if
it has also been unchanged in the sweeps of 30 days. A note of its own has the version of each
candidate, and in how many sweeps it was the same. A consumer that runs renews its note every
few seconds, so what it uses stays.

The notes of a consumer stay while it holds messages: `recover` needs them. A ledger stays while
rows are staged for its sink, since they may be decided and not visible yet. It also stays while
this database has notes of the consumer that its query reads. A checkpoint whose notes were removed
is refused, as after `drop`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from spark_queue.options.parsers import DAY
from spark_queue.stores.base import Store
from spark_queue.stores.services.dead_letters import HISTORY_NOTE, SETTLED_NOTE
from spark_queue.stores.services.ledger import LEDGER_PREFIX, delete_sink
from spark_queue.stores.services.owner import OWNER_NOTE
from spark_queue.stores.services.poison import FAILING_NOTE, FAILURE_PREFIX
from spark_queue.stores.services.query_binding import QUERY_NOTE
from spark_queue.stores.services.reading import READING_NOTE
from spark_queue.stores.services.row_hashes import WRITTEN_PREFIX
from spark_queue.stores.types import Note

log = logging.getLogger(__name__)

YEAR = 365 * DAY

#: In how many sweeps, one a day, a note must have been unchanged.
SWEEPS = 30

#: A note that seems to be older than this package was written while the clock was wrong (ms).
FIRST_RELEASE = 1_735_689_600_000  # 2025-01-01

#: How many notes are removed at once. A query that starts waits for that, 2 s on MongoDB.
MAX_NOTES = 500

#: The keys of the notes with the time of the last sweep, and with its candidates.
LAST_SWEEP_NOTE, CANDIDATES_NOTE = "ageing", "ageing/candidates"

#: How many candidates that note has at most: 2 MB.
MAX_CANDIDATES = 20_000


def remove_old_notes(store: Store) -> None:
    """Remove old notes, unless that was done within a day.

    Several processes may call it at once.
    """
    now = store.now()
    last = store.note(LAST_SWEEP_NOTE)
    if last is not None and last.written is not None and abs(now - last.written) < DAY:
        return
    if store.set_note(LAST_SWEEP_NOTE, {"v": 1, "at": now}, last.version if last else 0):  # else another did
        sweep(store)


def sweep(store: Store, limit: int = MAX_NOTES) -> int:
    """Remove up to `limit` notes and ledgers that are old enough, and return how many.

    Call it once a day: each call counts as a day.
    """
    last = store.note(CANDIDATES_NOTE)
    found = _Sweep(store, last.value["candidates"] if last else {})
    removed = 0
    for _ in found.remove_each():
        removed += 1
        found.removes = removed < limit  # it goes on to look at the others
    value = {"v": 1, "candidates": found.candidates}
    store.set_note(CANDIDATES_NOTE, value, last.version if last else 0)  # else another process has counted this day
    if removed:
        log.info("removed %d notes of consumers and sinks that nothing has written for a year", removed)
    return removed


@dataclass(frozen=True, slots=True)
class _QueueNote:
    """A note about a queue: its key, its kind, and the consumer, query or name that it is about."""

    key: str
    kind: str
    name: str
    note: Note


class _Sweep:
    """One look at all notes of a database."""

    def __init__(self, store: Store, before: Mapping[str, Sequence[int]]) -> None:
        """Begin with the candidates of the last sweep, each with its version and sweeps so far."""
        self._store, self._before = store, before
        self.now = store.now()
        self.candidates: dict[str, list[int]] = {}
        self.removes = True  #: whether it still removes notes

    def remove_each(self) -> Iterator[str]:
        """Remove the notes that are old enough, and yield the key of each afterwards."""
        store, reading = self._store, set[str]()
        queues: dict[str, list[_QueueNote]] = {}
        for key, note in store.notes("queue/", skip_damaged=True).items():
            _, queue, kind, *names = key.split("/", 3)
            if kind in (OWNER_NOTE, QUERY_NOTE, FAILING_NOTE, SETTLED_NOTE, HISTORY_NOTE, READING_NOTE):
                queues.setdefault(unquote(queue), []).append(_QueueNote(key, kind, names[0], note))
        for queue, notes in queues.items():
            yield from self._remove_of_queue(queue, notes, reading)
        for key, _ in self._old_notes(LEDGER_PREFIX):
            sink = key.removeprefix(LEDGER_PREFIX)
            if sink.rpartition(":")[2] not in reading and not store.staged(sink):
                delete_sink(store, sink)
                yield key
        for prefix in (WRITTEN_PREFIX, FAILURE_PREFIX):  # a crash may have left them
            for key, note in self._old_notes(prefix):
                if _remove(store, key, note):
                    yield key

    def _remove_of_queue(self, queue: str, notes: list[_QueueNote], reading: set[str]) -> Iterator[str]:
        """Remove old notes about consumers of a queue, and yield their keys.

        The note of the owner goes first: the others stay while it exists. Adds the ids of queries
        whose notes stay to `reading`.
        """
        old = [one for one in notes if self._is_old(one.key, one.note)]
        consumers = {one.name for one in notes if one.kind == OWNER_NOTE}
        for one in old:
            if one.kind == OWNER_NOTE and not self._store.reservations(queue, one.name) and self._remove(one):
                consumers.discard(one.name)
                yield one.key
        names = {one.partition("/")[0] for one in consumers}
        reading |= {
            one.name.partition("/")[0]
            for one in notes
            if one.kind == QUERY_NOTE and one.note.value["consumer"] in consumers
        }
        for one in old:
            subject = one.note.value["consumer"] if one.kind == QUERY_NOTE else one.name
            if one.kind == READING_NOTE:
                subject = subject.rpartition("/")[0]
            needed = names if one.kind in (SETTLED_NOTE, HISTORY_NOTE) else consumers
            if one.kind != OWNER_NOTE and subject not in needed and self._remove(one):
                yield one.key

    def _remove(self, one: _QueueNote) -> bool:
        return self.removes and _remove(self._store, one.key, one.note)

    def _old_notes(self, prefix: str) -> Iterator[tuple[str, Note]]:
        for key, note in self._store.notes(prefix, skip_damaged=True).items():
            if self._is_old(key, note):
                yield key, note

    def _is_old(self, key: str, note: Note) -> bool:
        """Return whether a note was not written for a year, and has not changed for 30 sweeps.

        One without a time, of an older version, is written now, and counts from now on; so is one
        whose time cannot be true.
        """
        if note.written is None or note.written < FIRST_RELEASE:
            self._store.set_note(key, note.value, note.version)
            return False
        if self.now - note.written < YEAR:
            return False
        version, sweeps = self._before.get(key, (note.version, 0))
        sweeps = sweeps + 1 if version == note.version else 1
        if len(self.candidates) < MAX_CANDIDATES:
            self.candidates[key] = [note.version, sweeps]
        return self.removes and sweeps > SWEEPS


def _remove(store: Store, key: str, note: Note) -> bool:
    """Remove a note unless it was written meanwhile; return whether it was removed."""
    return store.set_note(key, None, note.version)
