"""Where an event lies is its status.

    new         ready in its queue: nobody holds it, or who does has kept it longer than its lease
    pending     held under any tag, mostly `pending/<since>.<name>/0`
    executing   held under `executing/<since>.<name>`, or by the consumer `executing.<name>` of a query
    ended       in the history of its queue, with an outcome: `finished`, `failed`, or what an executor said

So a status changes by what changes a reservation, which is atomic and fenced.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from spark_queue.events.event import EXECUTING, FAILED, FINISHED, NEW, PENDING, Event
from spark_queue.messages.columns import milliseconds
from spark_queue.stores.base import Store
from spark_queue.stores.types import Condition, Reservation

#: The outcomes of histories that are statuses by another name: of what a client or a query without executors took,
#: and of dead letters.
STATUS_OF_OUTCOME = {"commit": FINISHED, "pop": FINISHED, "remove": FINISHED, "dead": FAILED}


@dataclass(frozen=True, slots=True)
class Known:
    """An event, its status by its short name, and since when it has it, as far as that is known (UTC).

    Not known: since when one is `new` again, or held by a query.
    """

    event: Event
    status: str
    updated: datetime | None


def pending_tag(now: int) -> str:
    """A tag for events that are taken at this moment (ms)."""
    return f"{PENDING}/{now}.{uuid.uuid4().hex[:12]}"


def executing_tag(now: int) -> str:
    """A tag for events that are executed from this moment (ms) on."""
    return f"{EXECUTING}/{now}.{uuid.uuid4().hex[:12]}"


def root(tag: str) -> str:
    """The part of a tag below which all lies that its holder holds."""
    return tag.partition("/")[0]


def status_of(tag: str) -> str:
    """The status of events that a tag holds."""
    holder = root(tag)
    return EXECUTING if holder == EXECUTING or holder.startswith(f"{EXECUTING}.") else PENDING


def since(tag: str) -> int | None:
    """Since when (ms) a tag holds what it holds, where it tells that."""
    holder, _, rest = tag.partition("/")
    moment = rest.partition(".")[0]
    return int(moment) if holder in (PENDING, EXECUTING) and moment.isdecimal() else None


def status_by(outcome: str) -> str:
    """The status of events that the history tells of with this outcome."""
    return STATUS_OF_OUTCOME.get(outcome, outcome)


def outcomes_of(status: str) -> tuple[str, ...]:
    """The outcomes that are this status."""
    return (status, *(outcome for outcome, name in STATUS_OF_OUTCOME.items() if name == status))


def instant(ms: int | None) -> datetime | None:
    """The moment."""
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC)


def reservations(store: Store, queue: str) -> list[Reservation]:
    """What is held under leases that last."""
    found = store.reservations(queue)
    now = store.now() if found else 0
    return [one for one in found if one.until is None or one.until > now]


def held_ids(store: Store, queue: str, tag: str) -> list[str]:
    """The ids of what one tag holds."""
    return [id for batch in store.look(queue, tag) for id in batch.column("id").to_pylist()]


def living(
    store: Store, queue: str, ids: Sequence[str] | None, read: Callable[[Any], Iterator[Event]]
) -> Iterator[Known]:
    """The events that have not ended: of these ids, or all. `read` makes events of MESSAGES batches."""
    held: dict[str, tuple[str, int | None]] = {}
    for one in reservations(store, queue):
        told = status_of(one.tag), since(one.tag)
        held.update((id, told) for id in held_ids(store, queue, one.tag))
    for batch in store.peek(queue, _only(ids)):
        for event in read(batch):
            status, moment = held.get(event.id, (NEW, None))
            updated = event.created if status == NEW and not event.tries else instant(moment)
            yield Known(event, status, updated)


def ended(
    store: Store,
    queue: str,
    ids: Sequence[str] | None,
    read: Callable[[Any], Iterator[Event]],
    where: Sequence[Condition] = (),
) -> Iterator[Known]:
    """The events that have ended, of these ids, or all; an id that has ended twice comes as it ended last."""
    last: dict[str, Known] = {}
    for batch in store.peek(queue, [*_only(ids), *where], view="history"):
        moments = dict(
            zip(batch.column("id").to_pylist(), milliseconds(batch.column("processed")).to_pylist(), strict=True)
        )
        outcomes = dict(zip(batch.column("id").to_pylist(), batch.column("outcome").to_pylist(), strict=True))
        for event in read(batch):
            known = Known(event, status_by(outcomes[event.id]), instant(moments[event.id]))
            before = last.get(event.id)
            if before is None or (before.updated or known.updated) <= known.updated:  # type: ignore[operator]
                last[event.id] = known
    yield from last.values()


def _only(ids: Sequence[str] | None) -> list[Condition]:
    return [] if ids is None else [Condition("id", "in", tuple(ids))]
