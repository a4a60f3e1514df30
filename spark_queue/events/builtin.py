"""Internal events: they look after the others.

Those that find something make events of it, with priority, which then do it; so what is done is in the log, and goes
on where it was if it is cut short. Each looks after all events of its queue.

    reset               makes the events of its URIs (these are ids) new again
    fail                fails them
    clear               deletes them
    update-status       makes them what its payload says: new or failed
    pending-timeout     finds what was taken too long ago: reset
    execution-timeout   finds what is executed for too long: fail
    new-timeout         finds what nobody has taken for too long: fail
    identify-timeouts   the three of them
    identify-deletions  finds what is finished or failed: clear
    status              writes into the log how many events have which status
    ping                does nothing
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

from spark_queue.events.audit_log import AuditLog
from spark_queue.events.event import EXECUTING, FAILED, FINISHED, HEARTBEAT, INTERNAL, NEW, PENDING, TYPES, Event
from spark_queue.events.executors import Executor
from spark_queue.events.settings import EventSettings


class EventQueue(Protocol):
    """What these functions do with a queue of events: see `Events`."""

    log: AuditLog
    settings: EventSettings

    def another(self) -> EventQueue: ...
    def create_batch(
        self, source: str, type: str, payload: object, uris: Sequence[str], *, priority: bool
    ) -> list[str]: ...
    def find(self, status: str, older_than: int = ...) -> list[str]: ...
    def summary(self) -> dict[str, int]: ...
    def reset(self, ids: Sequence[str]) -> int: ...
    def fail(self, ids: Sequence[str], reason: str = ...) -> int: ...
    def clear(self, ids: Sequence[str]) -> int: ...
    def set_status(self, ids: Sequence[str], status: str) -> int: ...


def internal(events: EventQueue | None) -> list[Executor]:
    """The executors of internal events, for a queue; without one they just tell which events they have."""
    return [
        Executor(
            (INTERNAL, HEARTBEAT),
            (f"{TYPES}{name}",),
            partial(_work, events, name),
            where="driver",
            place=f"internal: {name}",
        )
        for name in _WORK
    ]


def _work(events: EventQueue | None, name: str, event: Event, config: Any) -> None:
    assert events is not None  # else it is just asked which events it has
    _WORK[name](events.another(), event)


def _reset(events: EventQueue, event: Event) -> None:
    events.reset(event.uris)


def _fail(events: EventQueue, event: Event) -> None:
    events.fail(event.uris, event.payload if isinstance(event.payload, str) else "")


def _clear(events: EventQueue, event: Event) -> None:
    events.clear(event.uris)


def _update_status(events: EventQueue, event: Event) -> None:
    events.set_status(event.uris, str(event.payload or ""))


def _pending_timeout(events: EventQueue, event: Event) -> None:
    _make(events, "reset", events.find(PENDING, events.settings.pending_timeout))


def _execution_timeout(events: EventQueue, event: Event) -> None:
    ids = events.find(EXECUTING, events.settings.execute_timeout)
    _make(events, "fail", ids, f"executed for more than {events.settings.execute_timeout / 1000:g} s")


def _new_timeout(events: EventQueue, event: Event) -> None:
    ids = events.find(NEW, events.settings.new_timeout)
    _make(events, "fail", ids, f"not taken for more than {events.settings.new_timeout / 1000:g} s")


def _identify_timeouts(events: EventQueue, event: Event) -> None:
    for look in (_pending_timeout, _execution_timeout, _new_timeout):
        look(events, event)


def _identify_deletions(events: EventQueue, event: Event) -> None:
    _make(events, "clear", [*events.find(FINISHED), *events.find(FAILED)])


def _status(events: EventQueue, event: Event) -> None:
    counted = events.summary()
    events.log.note("Status of the queue", [], statuses=counted)
    events.log.write()


def _ping(events: EventQueue, event: Event) -> None:
    pass


def _make(events: EventQueue, name: str, ids: list[str], payload: str | None = None) -> None:
    events.create_batch(INTERNAL, f"{TYPES}{name}", payload, ids, priority=True)


_WORK = {
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
