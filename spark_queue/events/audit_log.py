"""The log of a queue of events: each change, its events, its user and its host.

The log is a queue of its own, `<queue>.log`, that is only appended to. One push writes records of
many events. It is separate from the change itself, so the records of failed work stay. A record is
due when it is written, so its time is the database's. To copy the log elsewhere, read the queue.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from spark_queue.events.event import Event
from spark_queue.events.settings import EVENT_RECORDS
from spark_queue.messages.message import Message, messages, pushes
from spark_queue.stores.base import Store

#: Maximum number of ids in a record, which is one message.
MAX_RECORD_IDS = 10_000


def log_queue_name(queue: str) -> str:
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
    def from_message(cls, message: Message) -> AuditRecord:
        """Return the record that a message of the log holds."""
        fields: Any = message.payload
        return cls(
            fields["message"],
            message.mature,
            fields["user"],
            fields["host"],
            fields["transaction"],
            tuple(fields["ids"]),
            fields.get("from"),
            fields.get("to"),
            fields.get("errors") or {},
            tuple(fields.get("events") or ()),
        )


class AuditLog:
    """Writer and reader of the log of one queue of events."""

    def __init__(self, store: Store, queue: str, user: str, host: str) -> None:
        self._stored = store.queue(log_queue_name(queue), EVENT_RECORDS)
        self.author = {"user": user, "host": host}
        self._unwritten: list[dict[str, Any]] = []

    @property
    def queue(self) -> str:
        """The name of the queue that is the log."""
        return self._stored.name

    def add(
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
        events_by_id = {one.id: one for one in events}
        for start in range(0, max(len(ids), 1), MAX_RECORD_IDS):
            part = ids[start : start + MAX_RECORD_IDS]
            record: dict[str, Any] = {"message": message, **self.author, "transaction": transaction}
            record["ids"] = list(part)
            if came is not None:
                record["from"] = came
            if went is not None:
                record["to"] = went
            if reasons := {id: errors[id] for id in part if id in errors} if errors else None:
                record["errors"] = reasons
            if events_by_id:
                record["events"] = [{"id": id, **events_by_id[id].document()} for id in part if id in events_by_id]
            self._unwritten.append(record | facts)

    def write_record(self, message: str, ids: Sequence[str], **facts: Any) -> None:
        """Write a record, after the kept ones; the parameters are those of `add`."""
        self.add(message, ids, **facts)
        self.write()

    def write(self) -> None:
        """Write the kept records, in one push."""
        if self._unwritten:
            self._stored.push(pushes(self._unwritten))
            self._unwritten = []

    def records(self, limit: int | None = None) -> list[AuditRecord]:
        """Return the records, oldest first; only the first `limit`, if given."""
        found = [one for batch in self._stored.store.peek(self.queue, limit=limit) for one in messages(batch)]
        return [AuditRecord.from_message(one) for one in sorted(found, key=lambda one: (one.mature, one.id))]


def current_user() -> str:
    """Return the user of this process: its name, else its number, else an empty string."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid()) if hasattr(os, "getuid") else ""
