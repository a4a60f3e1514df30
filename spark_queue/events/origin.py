"""The origin of internal events: a proof that heartbeats or housekeeping of the queue created them.

Internal events reset, fail and delete other events. So a program that can only push messages must
not be able to write one. The proof is an HMAC of the event, under a key that lies beside the queue,
in a note. A push does not read notes: a program that reads the key has the database anyway, and
could change the events without any internal event.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from dataclasses import replace

from spark_queue.errors import QueueError
from spark_queue.events.event import (
    HEARTBEAT_SOURCE,
    INTERNAL_SOURCE,
    INTERNAL_TYPE_PREFIX,
    OTHER_SOURCES,
    OTHER_TYPE_PREFIX,
    Event,
    format_timestamp,
)
from spark_queue.options.parsers import DAY
from spark_queue.stores.base import Store
from spark_queue.stores.types import queue_note_key

#: The sources of internal events.
INTERNAL_SOURCES = frozenset({INTERNAL_SOURCE, HEARTBEAT_SOURCE, *OTHER_SOURCES})

#: The kind of the note with the key of a queue. It goes with the queue.
ORIGIN_NOTE = "event-origin"
ORIGIN_VERSION = 1

#: How long after its creation an internal event is obeyed (ms).
MAX_AGE = DAY

_ALLOW = "to obey pushed internal events, set pushedInternalEvents: true in the settings of executors"


class EventRefused(QueueError):
    """An event may not do what it says; its text is the reason. It is not tried again."""


def is_internal(source: str, type: str) -> bool:
    """Return whether events of this source and type are internal."""
    return source in INTERNAL_SOURCES and type.startswith((INTERNAL_TYPE_PREFIX, OTHER_TYPE_PREFIX))


def with_proof(store: Store, queue: str, event: Event) -> Event:
    """Return an event with the proof that it belongs into this queue. Creates the key if needed."""

    def keep(value: dict[str, object] | None) -> dict[str, object]:
        return value or {"v": ORIGIN_VERSION, "key": secrets.token_hex(32)}

    note = store.change_note(queue_note_key(queue, ORIGIN_NOTE), keep)
    return replace(event, proof=_proof(str(note["key"]), queue, event))


def check_origin(store: Store, queue: str, event: Event) -> None:
    """Raise `EventRefused` unless an event has a valid proof for this queue, and is not too old.

    A copy of an event has its proof. So it can repeat what the event did, but not for long.
    """
    if not _has_proof(store, queue, event):
        raise EventRefused(
            f"{event.type} is an internal event that was pushed: neither a heartbeat nor housekeeping of this queue "
            f"has created it; {_ALLOW}"
        )
    if store.now() - event.created.timestamp() * 1000 > MAX_AGE:
        raise EventRefused(
            f"{event.type} was created at {format_timestamp(event.created)}: an internal event is obeyed for a day; "
            "the next heartbeat creates another one"
        )


def _has_proof(store: Store, queue: str, event: Event) -> bool:
    note = store.note(queue_note_key(queue, ORIGIN_NOTE)) if event.proof.isascii() else None
    return note is not None and hmac.compare_digest(_proof(str(note.value["key"]), queue, event), event.proof)


def _proof(key: str, queue: str, event: Event) -> str:
    """Return the HMAC of all that an internal event says and does."""
    created = format_timestamp(event.created)
    facts = [queue, event.id, created, event.source, event.type, event.kind, event.payload, event.uris]
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
    return hmac.new(bytes.fromhex(key), text.encode(), hashlib.sha256).hexdigest()
