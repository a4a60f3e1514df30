"""Internal events: housekeeping of a queue of events.

Some process the events whose ids, or documents in hub-queue, are their URIs:

* `reset`: make them new again.
* `fail`: fail them.
* `clear`: delete them.
* `update-status`: set the status in the payload, `new` or `failed`.

Others search all events of the queue, and create events of the first kind, with priority. So the
log has each change, and interrupted housekeeping continues:

* `pending-timeout`: `reset` events that are pending for too long.
* `execution-timeout`: `fail` events that execute for too long.
* `new-timeout`: `fail` events that are new for too long.
* `identify-timeouts`: all three.
* `identify-deletions`: `clear` events that are finished or failed.

`status` writes the number of events by status into the log. `ping` does nothing.

Unless the settings say otherwise, an internal event is obeyed only if a heartbeat or one of these
functions has created it: see `spark_queue.events.origin`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

from spark_queue.events.audit_log import AuditLog
from spark_queue.events.event import (
    EXECUTING,
    FAILED,
    FINISHED,
    INTERNAL_SOURCE,
    INTERNAL_TYPE_PREFIX,
    NEW,
    OTHER_TYPE_PREFIX,
    PENDING,
    Event,
    event_id,
)
from spark_queue.events.executors import Executor
from spark_queue.events.origin import INTERNAL_SOURCES
from spark_queue.events.settings import EventSettings


class EventQueue(Protocol):
    """The methods of `Events` that these functions use."""

    log: AuditLog
    settings: EventSettings

    def clone(self) -> EventQueue: ...
    def check_origin(self, event: Event) -> None: ...
    def create_internal(
        self, source: str, type: str, payload: object, uris: Sequence[str] | None, *, priority: bool
    ) -> list[str]: ...
    def find(self, status: str, older_than: int = ...) -> list[str]: ...
    def summary(self) -> dict[str, int]: ...
    def reset(self, ids: Sequence[str]) -> int: ...
    def fail(self, ids: Sequence[str], reason: str = ...) -> int: ...
    def clear(self, ids: Sequence[str]) -> int: ...
    def set_status(self, ids: Sequence[str], status: str) -> int: ...


_ACTIONS = ("reset", "fail", "clear", "update-status")
_TIMEOUTS = ("pending-timeout", "execution-timeout", "new-timeout")
_NAMES = (*_ACTIONS, *_TIMEOUTS, "identify-timeouts", "identify-deletions", "status", "ping")


def internal_executors(events: EventQueue | None) -> list[Executor]:
    """Return the executors of internal events. Without a queue they match, but cannot run."""
    return [
        Executor(
            sorted(INTERNAL_SOURCES),
            (f"{INTERNAL_TYPE_PREFIX}{name}", f"{OTHER_TYPE_PREFIX}{name}"),
            partial(_execute_checked, events, name),
            where="driver",
            place=f"internal: {name}",
        )
        for name in _NAMES
    ]


def _execute_checked(events: EventQueue | None, name: str, event: Event, config: Any) -> None:
    assert events is not None  # without a queue, executors are only matched
    events = events.clone()
    events.check_origin(event)
    _execute(events, name, event)


def _execute(events: EventQueue, name: str, event: Event) -> None:
    settings, ids = events.settings, list(map(event_id, event.uris))
    match name:
        case "reset":
            events.reset(ids)
        case "fail":
            events.fail(ids, event.payload if isinstance(event.payload, str) else "")
        case "clear":
            events.clear(ids)
        case "update-status":
            events.set_status(ids, str(event.payload or ""))
        case "pending-timeout":
            _create_events(events, "reset", events.find(PENDING, settings.pending_timeout))
        case "execution-timeout":
            reason = f"executed for more than {settings.execute_timeout / 1000:g} s"
            _create_events(events, "fail", events.find(EXECUTING, settings.execute_timeout), reason)
        case "new-timeout":
            reason = f"not taken for more than {settings.new_timeout / 1000:g} s"
            _create_events(events, "fail", events.find(NEW, settings.new_timeout), reason)
        case "identify-timeouts":
            for one in _TIMEOUTS:
                _execute(events, one, event)
        case "identify-deletions":
            _create_events(events, "clear", [*events.find(FINISHED), *events.find(FAILED)])
        case "status":
            events.log.write_record("Status of the queue", [], statuses=events.summary())


def _create_events(events: EventQueue, name: str, ids: list[str], payload: str | None = None) -> None:
    events.create_internal(INTERNAL_SOURCE, f"{INTERNAL_TYPE_PREFIX}{name}", payload, ids, priority=True)
