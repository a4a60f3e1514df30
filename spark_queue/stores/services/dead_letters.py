"""What queries note about the messages that they settle, and where their dead letters go."""

from __future__ import annotations

import uuid
from typing import Any

from spark_queue.errors import OptionError
from spark_queue.stores.base import Store
from spark_queue.stores.services.owner import live_consumer
from spark_queue.stores.types import queue_note_key

SETTLED_NOTE, HISTORY_NOTE = "settled", "history"  #: kinds of notes about consumers of one name


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
