"""Find records that are never due, and records and notes that cannot be read."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from spark_queue.admin.common import open_existing
from spark_queue.errors import StoreError, UsageError, plural
from spark_queue.stores.base import Store
from spark_queue.stores.support.dead_lettering import SET_ASIDE_TAG
from spark_queue.stores.types import Finding

#: Maximum number of ids in a command, and of buckets that are opened per queue.
MAX_IDS, MAX_BUCKETS = 20, 1_000


def find_damage(store: Store) -> Iterator[Finding]:
    """Yield findings about damage in all queues, with the commands that repair it."""
    for key, reason in find_damaged_notes(store).items():
        yield Finding("note", "bad", f"{key}: {reason}", f"spark-queue doctor URL --remove-note {shlex.quote(key)}")
    for queue in store.queues():
        yield from _find_in_queue(store, queue)


def _find_in_queue(store: Store, queue: str) -> Iterator[Finding]:
    name = shlex.quote(queue)
    if ids := store.never_due(queue):
        which = " ".join(f"--id {shlex.quote(one)}" for one in ids[:MAX_IDS])
        yield Finding(
            "never due", "bad", f"{queue}: {plural(len(ids), 'record')} will never be due: mature is not a date",
            f"make them due now, in another queue: spark-queue move URL {name} {name}.mended --create {which}",
        )  # fmt: skip
    if aside := sum(one.rows for one in store.reservations(queue, SET_ASIDE_TAG)):
        yield Finding(
            "damaged", "bad", f"{queue}: {plural(aside, 'message')} cannot be read or moved to a dead-letter queue",
            f"try again: spark-queue release URL {name} {SET_ASIDE_TAG}; remove them: spark-queue commit URL "
            f"{name} {SET_ASIDE_TAG}",
        )  # fmt: skip
    if bad := store.damaged_buckets(queue, MAX_BUCKETS):
        yield Finding(
            "buckets", "bad", f"{queue}: {plural(len(bad), 'bucket')} of the first {MAX_BUCKETS:,} cannot be opened",
            "restore the database from a backup; else each becomes a dead letter when it is reserved: spark-queue "
            f"reserve URL {name}",
        )  # fmt: skip


def find_damaged_notes(store: Store) -> dict[str, str]:
    """Return the keys of notes that cannot be read, and the reasons."""
    return {key: fault for key, note in store.raw_notes().items() if (fault := note.fault(key))}


def remove_note(url: str, key: str) -> None:
    """Remove a damaged note.

    Raises `UsageError` if there is no damaged note with this key, and `StoreError` if the note
    changes meanwhile.
    """
    with open_existing(url) as store:
        if key not in find_damaged_notes(store):
            raise UsageError(
                f"the note {key!r} is not damaged, or does not exist: see spark-queue doctor URL", key=key
            )
        note = store.raw_notes()[key]
        if not store.set_note(key, None, note.version):
            raise StoreError(f"the note {key!r} has changed meanwhile: run this again", key=key)
