"""The log of a queue of events: each change, its events, its user and its host.

The log is a queue of its own, `<queue>.log`, that is only appended to. One push writes records of
many events. It is separate from the change itself, so the records of failed work stay. A record is
due when it is written, so its time is the database's. To copy the log elsewhere, read the queue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from spark_queue.events.event import Event
from spark_queue.messages.message import Message, messages, pushes
from spark_queue.stores.base import Store

#: Maximum number of ids in a record, which is one message.
MOST_IDS = 10_000


def log_of(queue: str) -> str:
    """Return the name of the queue that is the log of a queue of events."""
    return f"{queue}.log"


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One entry of the log.

    `timestamp`: in UTC. `transaction`: the tag that held the events. `came`, `went`: the status
    before and after, if it changed. `errors`: by event id. `events`: whole, in a detailed log.
    """

    message: str
    timestamp: datetime
    user: str
    host: str
    transaction: str
    ids: tuple[str, ...]
    came: str | None
    went: str | None
    errors: dict[str, str]
    events: tuple[dict[str, Any], ...]

    @classmethod
    def of(cls, message: Message) -> AuditRecord:
        """Return the record that a message of the log holds."""
        told: Any = message.payload
        return cls(
            told["message"],
            message.mature,
            told["user"],
            told["host"],
            told["transaction"],
            tuple(told["ids"]),
            told.get("from"),
            told.get("to"),
            told.get("errors") or {},
            tuple(told.get("events") or ()),
        )


class AuditLog:
    """Writer and reader of the log of one queue of events."""

    def __init__(self, store: Store, queue: str, user: str, host: str) -> None:
        self._store = store
        self.queue = log_of(queue)
        self._who = {"user": user, "host": host}
        self._waiting: list[dict[str, Any]] = []

    def note(
        self,
        message: str,
        ids: Sequence[str],
        *,
        transaction: str = "",
        came: str | None = None,
        went: str | None = None,
        errors: Mapping[str, str] | None = None,
        events: Sequence[Event] = (),
        **facts: object,
    ) -> None:
        """Keep a record for the next `write`; `facts` are further fields of it.

        More than MAX_RECORD_IDS ids become several records.
        """
        whole = {one.id: one for one in events}
        for start in range(0, max(len(ids), 1), MOST_IDS):
            some = ids[start : start + MOST_IDS]
            record: dict[str, Any] = {"message": message, **self._who, "transaction": transaction, "ids": list(some)}
            if came is not None:
                record["from"] = came
            if went is not None:
                record["to"] = went
            if told := {id: errors[id] for id in some if id in errors} if errors else None:
                record["errors"] = told
            if whole:
                record["events"] = [{"id": id, **whole[id].document()} for id in some if id in whole]
            self._waiting.append(record | facts)

    def write(self) -> None:
        """Write the kept records, in one push."""
        if self._waiting:
            self._store.push(self.queue, pushes(self._waiting))
            self._waiting = []

    def records(self, limit: int | None = None) -> list[AuditRecord]:
        """Return the records, oldest first; only the first `limit`, if given."""
        found = [one for batch in self._store.peek(self.queue, limit=limit) for one in messages(batch)]
        return [AuditRecord.of(one) for one in sorted(found, key=lambda one: (one.mature, one.id))]
