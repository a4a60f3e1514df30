"""The status of an event follows from where its message is.

* `new`: ready in its queue. It is not reserved, or its lease has ended.
* `pending`: reserved under any tag but those of `executing`, usually
  `pending/<since>.<name>/unseen`.
* `executing`: reserved under `executing/<since>.<name>`, or by the consumer `executing.<name>` of a
  query.
* ended: in the history of its queue. The status is the outcome: `finished`, `failed`, or an
  executor's own.

A status changes together with the reservation, so each change is atomic and fenced.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa

from spark_queue.events.event import EXECUTING, FAILED, FINISHED, NEW, PENDING, Event
from spark_queue.messages.columns import milliseconds
from spark_queue.messages.message import messages
from spark_queue.stores.base import Store
from spark_queue.stores.types import Condition, Reservation

log = logging.getLogger(__name__)

#: Outcomes in the history that stand for another status: those of clients and queries without
#: executors, and of dead letters.
STATUS_OF_OUTCOME = {"commit": FINISHED, "pop": FINISHED, "remove": FINISHED, "dead": FAILED}


@dataclass(frozen=True, slots=True)
class EventState:
    """An event, the short name of its status, and when it got that status (UTC).

    `updated` is `None` if that is unknown: a failed event is `new` again, or a query holds it.
    """

    event: Event
    status: str
    updated: datetime | None


def new_tag(status: str, now: int) -> str:
    """Return a new tag for events that get a status at `now` (ms): `pending` or `executing`."""
    return f"{status}/{now}.{uuid.uuid4().hex[:12]}"


def consumer_of(tag: str) -> str:
    """Return the consumer of a tag: its first part."""
    return tag.partition("/")[0]


def status_of(tag: str) -> str:
    """Return the status of events that a tag holds."""
    consumer = consumer_of(tag)
    return EXECUTING if consumer == EXECUTING or consumer.startswith(f"{EXECUTING}.") else PENDING


def held_since(tag: str) -> int | None:
    """Return since when (ms) a tag holds its events, or `None` if the tag has no time."""
    consumer, _, rest = tag.partition("/")
    moment = rest.partition(".")[0]
    return int(moment) if consumer in (PENDING, EXECUTING) and moment.isdecimal() else None


def status_of_outcome(outcome: str) -> str:
    """Return the status that an outcome in the history stands for."""
    return STATUS_OF_OUTCOME.get(outcome, outcome)


def outcomes_of(status: str) -> tuple[str, ...]:
    """Return the outcomes that stand for a status."""
    return (status, *(outcome for outcome, name in STATUS_OF_OUTCOME.items() if name == status))


def to_datetime(ms: int | None) -> datetime | None:
    """Return ms since 1970 as a datetime (UTC)."""
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC)


def active_reservations(store: Store, queue: str) -> list[Reservation]:
    """Return the reservations whose lease has not ended."""
    found = store.reservations(queue)
    now = store.now() if found else 0
    return [one for one in found if one.until is None or one.until > now]


def read_events(queue: str, batch: pa.RecordBatch, invalid: dict[str, str] | None = None) -> Iterator[Event]:
    """Yield the events of a MESSAGES batch.

    `invalid` gets the id of each message that is not an event, and the reason. Without it, such a
    message is logged.
    """
    for message in messages(batch):
        try:
            yield Event.from_message(message)
        except ValueError as error:
            if invalid is None:
                log.warning("message %s of queue %s is skipped: %s", message.id, queue, error)
            else:
                invalid[message.id] = str(error)


def active_events(store: Store, queue: str, ids: Sequence[str] | None = None) -> Iterator[EventState]:
    """Yield the events that have not ended, all or those with these ids."""
    held_by_id: dict[str, tuple[str, int | None]] = {}
    for one in active_reservations(store, queue):
        state = status_of(one.tag), held_since(one.tag)
        held_by_id.update((id, state) for id in store.held_ids(queue, one.tag))
    for batch in store.peek(queue, id_conditions(ids)):
        for event in read_events(queue, batch):
            status, moment = held_by_id.get(event.id, (NEW, None))
            updated = event.created if status == NEW and not event.tries else to_datetime(moment)
            yield EventState(event, status, updated)


def ended_events(
    store: Store, queue: str, ids: Sequence[str] | None = None, where: Sequence[Condition] = ()
) -> Iterator[EventState]:
    """Yield the events that have ended, all or those with these ids; `where` selects among them.

    An id that has ended twice is yielded once, with its last end.
    """
    last: dict[str, tuple[int, EventState]] = {}
    for batch in store.peek(queue, [*id_conditions(ids), *where], view="history"):
        moments = milliseconds(batch.column("processed")).to_pylist()
        ends = zip(moments, batch.column("outcome").to_pylist(), strict=True)
        end_by_id = dict(zip(batch.column("id").to_pylist(), ends, strict=True))
        for event in read_events(queue, batch):
            moment, outcome = end_by_id[event.id]
            if event.id not in last or last[event.id][0] <= moment:
                last[event.id] = moment, EventState(event, status_of_outcome(outcome), to_datetime(moment))
    yield from (state for _, state in last.values())


def id_conditions(ids: Sequence[str] | None) -> list[Condition]:
    """Return the conditions that select messages with these ids, or all if `ids` is `None`."""
    return [] if ids is None else [Condition("id", "in", tuple(ids))]
