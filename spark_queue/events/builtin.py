"""Internal events: housekeeping of a queue of events.

Some process the events whose ids are their URIs:

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
    HEARTBEAT_SOURCE,
    INTERNAL_SOURCE,
    INTERNAL_TYPE_PREFIX,
    NEW,
    PENDING,
    Event,
)
from spark_queue.events.executors import Executor
from spark_queue.events.settings import EventSettings


class EventQueue(Protocol):
    """The methods of `Events` that these functions use."""

    log: AuditLog
    settings: EventSettings

    def clone(self) -> EventQueue: ...
    def create_batch(
        self, source: str, type: str, payload: object, uris: Sequence[str], *, priority: bool
    ) -> list[str]: ...
    def find(self, status: str, older_than: int = ...) -> list[str]: ...
    def summary(self) -> dict[str, int]: ...
    def reset(self, ids: Sequence[str]) -> int: ...
    def fail(self, ids: Sequence[str], reason: str = ...) -> int: ...
    def clear(self, ids: Sequence[str]) -> int: ...
    def set_status(self, ids: Sequence[str], status: str) -> int: ...


def internal_executors(events: EventQueue | None) -> list[Executor]:
    """Return the executors of internal events. Without a queue they match, but cannot run."""
    return [
        Executor(
            (INTERNAL_SOURCE, HEARTBEAT_SOURCE),
            (f"{INTERNAL_TYPE_PREFIX}{name}",),
            partial(_run_function, events, name),
            where="driver",
            place=f"internal: {name}",
        )
        for name in _FUNCTIONS
    ]


def _run_function(events: EventQueue | None, name: str, event: Event, config: Any) -> None:
    assert events is not None  # without a queue, executors are only matched
    _FUNCTIONS[name](events.clone(), event)


def _reset(events: EventQueue, event: Event) -> None:
    events.reset(event.uris)


def _fail(events: EventQueue, event: Event) -> None:
    events.fail(event.uris, event.payload if isinstance(event.payload, str) else "")


def _clear(events: EventQueue, event: Event) -> None:
    events.clear(event.uris)


def _update_status(events: EventQueue, event: Event) -> None:
    events.set_status(event.uris, str(event.payload or ""))


def _pending_timeout(events: EventQueue, event: Event) -> None:
    _create_events(events, "reset", events.find(PENDING, events.settings.pending_timeout))


def _execution_timeout(events: EventQueue, event: Event) -> None:
    ids = events.find(EXECUTING, events.settings.execute_timeout)
    _create_events(events, "fail", ids, f"executed for more than {events.settings.execute_timeout / 1000:g} s")


def _new_timeout(events: EventQueue, event: Event) -> None:
    ids = events.find(NEW, events.settings.new_timeout)
    _create_events(events, "fail", ids, f"not taken for more than {events.settings.new_timeout / 1000:g} s")


def _identify_timeouts(events: EventQueue, event: Event) -> None:
    for identify in (_pending_timeout, _execution_timeout, _new_timeout):
        identify(events, event)


def _identify_deletions(events: EventQueue, event: Event) -> None:
    _create_events(events, "clear", [*events.find(FINISHED), *events.find(FAILED)])


def _status(events: EventQueue, event: Event) -> None:
    counts = events.summary()
    events.log.add("Status of the queue", [], statuses=counts)
    events.log.write()


def _ping(events: EventQueue, event: Event) -> None:
    pass


def _create_events(events: EventQueue, name: str, ids: list[str], payload: str | None = None) -> None:
    events.create_batch(INTERNAL_SOURCE, f"{INTERNAL_TYPE_PREFIX}{name}", payload, ids, priority=True)


_FUNCTIONS = {
    "reset": _reset,
    "fail": _fail,
    "clear": _clear,
    "update-status": _update_status,
    "pending-timeout": _pending_timeout,
    "execution-timeout": _execution_timeout,
    "new-timeout": _new_timeout,
    "identify-timeouts": _identify_timeouts,
    "identify-deletions": _identify_deletions,
    "status": _status,
    "ping": _ping,
}
