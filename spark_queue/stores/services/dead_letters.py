"""Retries of failed messages, and their end in the dead-letter queue, for all stores."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from spark_queue.errors import OptionError, plural
from spark_queue.stores.base import Store
from spark_queue.stores.services.owner import live_consumer
from spark_queue.stores.types import DeadLetterInfo, queue_note_key

SETTLED_NOTE, HISTORY_NOTE = "settled", "history"  #: kinds of notes about consumers of one name


def dead_letter_exhausted(store: Store, queue: str, tag: str, max_tries: int, dead: str, history: int) -> int:
    """Move messages of `tag` that have already failed `max_tries` times to the queue `dead`.

    Return their number. They failed before this reservation, so no error is known. The history
    keeps them for `history` ms.
    """
    reason = f"failed {plural(max_tries, 'time')}: it was rolled back, or its lease ended; no error is known"
    dead_letter = DeadLetterInfo(reason, history=history)
    return store.move(queue, dead, tag=tag, min_tries=max_tries, dead_letter=dead_letter)


def roll_back_or_dead_letter(
    store: Store,
    queue: str,
    tag: str,
    ids: Sequence[str] | None = None,
    *,
    delay: int = 0,
    max_tries: int | None = None,
    dead: str = "",
    reason: str | None = None,
    history: int = 0,
) -> tuple[int, int]:
    """Roll back messages of `tag` (only `ids`, if given) as failed, mature in `delay` ms.

    A message that has then failed `max_tries` times moves to the queue `dead` instead, with
    `reason` in its headers. The history keeps it for `history` ms. Return the numbers rolled back
    and moved. Each message goes one way or the other, atomically. Repeat the call if it fails.
    """
    moved = dead_letter_failed(store, queue, tag, ids, max_tries=max_tries, dead=dead, reason=reason, history=history)
    return store.rollback(queue, tag, ids, delay=delay), moved


def dead_letter_failed(
    store: Store,
    queue: str,
    tag: str,
    ids: Sequence[str] | None = None,
    *,
    max_tries: int | None,
    dead: str,
    tries: int | None = None,
    reason: str | None = None,
    history: int = 0,
) -> int:
    """Move messages of `tag` that have failed for the last time to the queue `dead`.

    Return their number. `tries`: the most tries that one of them had before, if that is known.
    """
    if max_tries is None or (tries is not None and tries + 1 < max_tries):
        return 0
    dead_letter = DeadLetterInfo(reason or f"failed {plural(max_tries, 'time')}", failed=1, history=history)
    return store.move(queue, dead, tag=tag, ids=ids, min_tries=max_tries - 1, dead_letter=dead_letter)


def add_settled(store: Store, queue: str, consumer: str, rows: int) -> None:
    """Note that up to `rows` messages of a consumer are about to be settled one by one.

    So the query that reserved them does not take them as lost.
    """

    def add(value: dict[str, Any] | None) -> dict[str, Any]:
        return {"rows": rows + (value["rows"] if value else 0), "by": uuid.uuid4().hex}

    store.change_note(queue_note_key(queue, SETTLED_NOTE, consumer), add)


def settled_count(store: Store, queue: str, consumer: str) -> int:
    """Return an upper bound of the messages of a consumer that were settled one by one."""
    note = store.note(queue_note_key(queue, SETTLED_NOTE, consumer))
    return int(note.value["rows"]) if note else 0


def note_settings(store: Store, queue: str, consumer: str, history: int, dead: str | None) -> None:
    """Note what the stream of a consumer does with messages, for use by `settle` and other streams.

    `history`: for how many ms it keeps processed messages. `dead`: its dead-letter queue, `None` by
    default. `drop` removes the note with the queue.
    """
    value: dict[str, Any] | None = {"v": 1, "history": history} if history or dead else None
    if value and dead:
        value["dead"] = dead
    store.change_note(queue_note_key(queue, HISTORY_NOTE, consumer), lambda _: value)


def history_of(store: Store, queue: str, consumer: str) -> int:
    """Return the `history` of the stream of a consumer (ms); 0 if there is none."""
    note = store.note(queue_note_key(queue, HISTORY_NOTE, consumer))
    return note.value["history"] if note else 0


def check_dead_letters_stay(store: Store, queue: str, dead: str) -> None:
    """Raise `OptionError` if a running stream moves dead letters of `dead` back to `queue`."""
    prefix = queue_note_key(dead, HISTORY_NOTE, "")
    for key, note in store.notes(prefix).items():
        name = key.removeprefix(prefix)
        if note.value.get("dead") == queue and live_consumer(store, dead, name):
            raise OptionError(
                f"option 'deadLetterQueue' is {dead!r}, whose own dead letters come back to {queue!r}: consumer "
                f"{name!r} reads it with that option. Name another queue, or stop that query",
                option="deadLetterQueue",
                queue=queue,
            )
