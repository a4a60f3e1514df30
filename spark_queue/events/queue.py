"""A queue of events: create, take, execute, inspect and repair them.

executors = executors_in("conf/executors.yaml")
with Events("sqlite:///queues.db", "events", executors=executors) as events:
    events.create("http://example.org/flights", "landed", {"flight": 1545}, ["/flights/1545.json"])
    taken = events.take(10)                           # new -> pending
    events.execute([one.id for one in taken])         # pending -> executing -> finished, failed, …
"""

from __future__ import annotations

import logging
import socket
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import cached_property
from typing import Self

import pyarrow as pa

from spark_queue.errors import OptionError
from spark_queue.events import status as held
from spark_queue.events.audit_log import AuditLog, current_user
from spark_queue.events.builtin import internal_executors
from spark_queue.events.event import (
    EXECUTING,
    FAILED,
    NEW,
    PENDING,
    STATUSES,
    Event,
    check_name,
    due_time,
    format_timestamp,
    new_transaction,
    normalize_payload,
    short_status,
    split_uris,
)
from spark_queue.events.execution import Settler, run_event, time_limit
from spark_queue.events.executors import Executor, Executors
from spark_queue.events.origin import check_origin, is_internal, with_proof
from spark_queue.events.settings import EventSettings
from spark_queue.events.status import EventState
from spark_queue.messages.ids import new_id_array
from spark_queue.messages.json_text import dump_json
from spark_queue.messages.message import pushes
from spark_queue.stores import open_store
from spark_queue.stores.base import Store
from spark_queue.stores.types import Condition, DeadLetterInfo

log = logging.getLogger(__name__)


class Events:
    """A queue of events.

    Any number of programs and queries may use it at the same time; each event is taken by one of
    them. A change of status is atomic for each event and fenced: if two programs attempt the same
    one, it happens once. Use an instance in one thread at a time; `clone` it for another.
    """

    def __init__(
        self,
        url: str | Store,
        queue: str,
        *,
        executors: Iterable[Executor] = (),
        settings: EventSettings | None = None,
        user: str | None = None,
        host: str | None = None,
    ) -> None:
        """Create a client; it connects when it is used first.

        `executors`: their functions process events in `execute`; those of internal events follow
        them. `user`, `host`: recorded in events and in the log; by default those of this process.
        Raises `OptionError` for an invalid URL or queue, or a layout that cannot hold events.
        """
        self._owns_store = isinstance(url, str)
        self.store = open_store(url) if isinstance(url, str) else url
        check_layout(self.store)
        self.name = queue
        self.settings = settings or EventSettings()
        self._stored = self.store.queue(queue, self.settings.policy)
        self.user = user if user is not None else current_user()
        self.host = host if host is not None else socket.gethostname()
        self.log = AuditLog(self.store, queue, self.user, self.host)
        self.declared_executors = tuple(executors)

    @cached_property
    def executors(self) -> Executors:
        """All executors: the declared ones, then those of internal events."""
        return Executors(self.declared_executors) + internal_executors(self)

    # --- create -----------------------------------------------------------------------------------

    def create(
        self, source: str, type: str, payload: object = None, uris: Sequence[str] = (), *, priority: bool = False
    ) -> str:
        """Create one event, about any number of URIs, and return its id.

        `payload`: an object, a list, an XML `Element`, or a single value, which becomes text. An
        event with `priority` is taken before all without. Raises `OptionError` for an invalid
        source or type, `MessageError` for a payload that JSON cannot hold; then nothing is created.
        """
        parts = split_uris(uris, len(uris)) if uris else [()]
        return self._create(source, type, payload, parts, priority)[0]

    def create_batch(
        self,
        source: str,
        type: str,
        payload: object = None,
        uris: Sequence[str] = (),
        *,
        max_uris: int | None = None,
        priority: bool = False,
    ) -> list[str]:
        """Create events about up to `max_uris` URIs each (default: the settings); return their ids.

        1,001 URIs become events of 500, 500 and 1; no URIs create no event. Raises as `create`.
        """
        return self._create(source, type, payload, split_uris(uris, max_uris or self.settings.max_uris), priority)

    def create_internal(
        self,
        source: str,
        type: str,
        payload: object = None,
        uris: Sequence[str] | None = None,
        *,
        priority: bool = False,
    ) -> list[str]:
        """Create events for heartbeats and housekeeping, and return their ids.

        An internal event gets a proof of its origin, without which it is not obeyed. Do not pass a
        source, type or URIs that come from elsewhere. `uris`: as in `create_batch`; `None` makes
        one event without URIs. Raises as `create`.
        """
        parts = [()] if uris is None else split_uris(uris, self.settings.max_uris)
        return self._create(source, type, payload, parts, priority, internal=is_internal(source, type))

    def check_origin(self, event: Event) -> None:
        """Raise `EventRefused` for a pushed internal event, unless the settings allow it."""
        if not self.settings.pushed_internal_events:
            check_origin(self.store, self.name, event)

    def _create(
        self,
        source: str,
        type: str,
        payload: object,
        parts: Sequence[tuple[str, ...]],
        priority: bool,
        *,
        internal: bool = False,
    ) -> list[str]:
        check_name(source, "source"), check_name(type, "type")
        plain, kind = normalize_payload(payload)
        dump_json(plain)  # alone: otherwise the error names it as a part of the event
        if not parts:
            return []
        created = datetime.fromtimestamp(self.store.now() / 1000, UTC)
        ids: list[str] = self.store.native_ids(new_id_array(len(parts))).to_pylist()
        transaction = new_transaction()
        made = [
            Event(id, source, type, plain, kind, uris, priority, self.user, self.host, transaction, created)
            for id, uris in zip(ids, parts, strict=True)
        ]
        if internal:
            made = [with_proof(self.store, self.name, one) for one in made]
        mature = due_time(created, True) if priority else None
        self._stored.push(pushes([one.document() for one in made], ids=ids, mature=mature, queue=self.name))
        return ids

    # --- take and execute -------------------------------------------------------------------------

    def take(self, count: int | None = None, *, lease: int | None = None) -> list[Event]:
        """Take up to `count` new events (default: `max_events`) and return them: new -> pending.

        Those with priority come first, then the oldest. They are new again after `lease` ms, or the
        pending timeout, with their tries as they were: no function has run. Other messages fail.
        Raises `OptionError` if `count` is negative.
        """
        count = self.settings.max_events if count is None else count
        if count < 0:
            raise OptionError(f"count must be 0 or more, not {count}", option="count")
        tag = held.new_tag(PENDING, self.store.now())
        stored = self._stored.with_policy(lease=lease or self._stored.lease)
        if not count or not (batches := stored.consume(count, tag=tag, ahead=True).batches):
            return []
        taken = self._read_events(self._settler(tag), batches)
        ids = [one.id for one in taken]
        self.log.write_record("Events taken", ids, transaction=tag, came=NEW, went=PENDING)
        return taken

    def execute(self, ids: Sequence[str]) -> dict[str, str | None]:
        """Execute pending events, in this order, and return the short name of each status.

        An event without an executor fails. An event that is not pending is not executed, so only
        one of two programs executes it. The status of an unknown id is `None`.
        """
        wanted = list(dict.fromkeys(ids))
        tag = held.new_tag(EXECUTING, self.store.now())
        results: dict[str, str] = {}
        if wanted and self.store.transfer(self.name, PENDING, tag, wanted, lease=None):
            settler = self._settler(tag)
            batches = self._stored.read(tag, check_json=True)
            held_by_id = {one.id: one for one in self._read_events(settler, batches)}
            found = [held_by_id[id] for id in wanted if id in held_by_id]
            begun = [one.id for one in found]
            self.log.write_record("Events begun", begun, transaction=tag, came=PENDING, went=EXECUTING)
            with time_limit() as limiter:
                executed = (run_event(one, self.executors, self.settings, limiter) for one in found)
                results = settler.settle(executed)
        others = [id for id in wanted if id not in results]
        known = self.status(others)
        if unknown := [id for id in others if known[id] is None]:
            log.warning("there are no events %s", ", ".join(unknown))
            self.log.write_record("Event ID does not exist", unknown, transaction=tag)
        return {id: results.get(id) or known.get(id) for id in wanted}

    def _settler(self, tag: str) -> Settler:
        return Settler(self.store, self.name, tag, self.log, self.settings)

    def _read_events(self, settler: Settler, batches: Iterable[pa.RecordBatch]) -> list[Event]:
        """Return the events in batches of messages, in order; messages that are not events fail."""
        found: list[Event] = []
        invalid: dict[str, str] = {}
        for batch in batches:
            found += held.read_events(self.name, batch, invalid)
        settler.fail_invalid(invalid)
        return found

    # --- inspect ----------------------------------------------------------------------------------

    def get(self, ids: Sequence[str]) -> dict[str, EventState]:
        """Return the events with these ids that exist, each with its status."""
        found = {one.event.id: one for one in held.active_events(self.store, self.name, ids)}
        if left := [id for id in ids if id not in found]:  # after it: an event may have ended meanwhile
            found |= {one.event.id: one for one in held.ended_events(self.store, self.name, left)}
        return {id: found[id] for id in ids if id in found}

    def status(self, ids: Sequence[str]) -> dict[str, str | None]:
        """Return the status of each event: a short name or an executor's own; `None` if unknown."""
        known = self.get(ids) if ids else {}
        return {id: known[id].status if id in known else None for id in ids}

    def all(self) -> Iterator[EventState]:
        """Yield all events, those that have ended first."""
        yield from held.ended_events(self.store, self.name)
        yield from held.active_events(self.store, self.name)

    def find(self, status: str, older_than: int = 0, limit: int | None = None) -> list[str]:
        """Return the ids of events with a status for more than `older_than` ms, oldest first.

        Only the first `limit`, if given. A new event has its status since its creation. Any
        `older_than` excludes events that a query holds: when they began is unknown.
        """
        status, now = short_status(status, self.settings.status_prefix), self.store.now()
        until = now - older_than
        found: list[tuple[int, str]] = []
        if status in (PENDING, EXECUTING):
            for one in held.active_reservations(self.store, self.name):
                since = held.held_since(one.tag)
                if held.status_of(one.tag) == status and (not older_than or (since or now) <= until):
                    found += [(since or now, id) for id in self.store.held_ids(self.name, one.tag)]
        elif status == NEW:
            living = held.active_events(self.store, self.name)
            moments = ((round(one.event.created.timestamp() * 1000), one) for one in living if one.status == NEW)
            found += [(moment, one.event.id) for moment, one in moments if moment <= until]
        else:
            where = [Condition("outcome", "in", held.outcomes_of(status)), Condition("processed", "<=", until)]
            ended = held.ended_events(self.store, self.name, where=where)
            found += [(round(one.updated.timestamp() * 1000), one.event.id) for one in ended if one.updated]
        return [id for _, id in sorted(found)][:limit]

    def summary(self) -> dict[str, int]:
        """Return the number of events by status: hub-queue's five, then those of executors."""
        sizes = self.store.sizes(self.name)
        counts: Counter[str] = Counter(dict.fromkeys(STATUSES, 0))
        for one in held.active_reservations(self.store, self.name):
            counts[held.status_of(one.tag)] += one.rows
        counts[NEW] = max(0, sizes.total - counts[PENDING] - counts[EXECUTING])
        for batch in self.store.peek(self.name, view="history"):
            for outcome, number in Counter(batch.column("outcome").to_pylist()).items():
                counts[held.status_of_outcome(outcome)] += number
        return dict(counts)

    # --- repair -----------------------------------------------------------------------------------

    def reset(self, ids: Sequence[str]) -> int:
        """Make events of any status new again, at their old place; return how many were not new.

        A function that still runs for one goes on, and its result is ignored.
        """
        ids = list(dict.fromkeys(ids))
        done = 0
        for holder in self._consumers():
            done += self.store.rollback(self.name, holder, ids, delay=None, failed=False)
        living: set[str] = set()
        for batch in self.store.peek(self.name, held.id_conditions(ids)):
            living.update(batch.column("id").to_pylist())
        ended = [one.event for one in held.ended_events(self.store, self.name, ids) if one.event.id not in living]
        if ended:  # pushed first: if a crash leaves an event in both, the one in the queue counts
            documents, mature = [one.document() for one in ended], [one.mature for one in ended]
            done += self._stored.push(pushes(documents, ids=[one.id for one in ended], mature=mature))
            self.store.delete_history(self.name, [one.id for one in ended])
        self.log.write_record("Events reset", ids, went=NEW)
        return done

    def fail(self, ids: Sequence[str], reason: str = "") -> int:
        """Fail events that have not ended; return how many failed.

        A function that still runs for one goes on, and its result is ignored.
        """
        ids = list(dict.fromkeys(ids))
        errors = dict.fromkeys(ids, reason) if reason else None
        self.log.write_record("Events failed", ids, went=FAILED, errors=errors)
        done = 0
        for holder in self._consumers():
            done += self.store.commit(self.name, holder, ids, history=self.settings.keep, outcome=FAILED)
        return done + self._remove_new(ids, DeadLetterInfo(reason or "failed", history=self.settings.keep))

    def clear(self, ids: Sequence[str]) -> int:
        """Delete events of any status and their history, but not the log; return how many existed.

        A detailed log records them as a whole.
        """
        ids = list(dict.fromkeys(ids))
        known = self.get(ids)
        if not known:
            return 0
        events = [one.event for one in known.values()] if self.settings.detailed_log else []
        statuses = {
            id: {"status": one.status, "updated": one.updated and format_timestamp(one.updated)}
            for id, one in known.items()
        }
        details = {"events": events, "statuses": statuses} if events else {}
        self.log.write_record("Events deleted", [*known], **details)
        for holder in self._consumers():
            self.store.commit(self.name, holder, ids)
        self._remove_new(ids, None)
        self.store.delete_history(self.name, ids)
        return len(known)

    def set_status(self, ids: Sequence[str], status: str) -> int:
        """Call `reset` for `new`, `fail` for `failed`. Raises `OptionError` for another status."""
        status = short_status(status, self.settings.status_prefix)
        if status not in (NEW, FAILED):
            raise OptionError(f"status must be {NEW!r} or {FAILED!r}, not {status!r}", option="status")
        return self.reset(ids) if status == NEW else self.fail(ids)

    def _consumers(self) -> list[str]:
        return sorted({held.consumer_of(one.tag) for one in self.store.reservations(self.name)})

    def _remove_new(self, ids: Sequence[str], death: DeadLetterInfo | None) -> int:
        """Remove new events: only a move selects by ids, so move them to a queue and purge that."""
        gone = f"{self.name}.gone"
        done = self.store.move(self.name, gone, ids=ids, dead_letter=death) if ids else 0
        if done:
            self.store.purge(gone)
        return done

    def clone(self) -> Events:
        """Return the same queue for another thread. Raises `OptionError` as `Events` does."""
        return Events(
            self.store, self.name, executors=self.declared_executors, settings=self.settings, **self.log.author
        )

    # --- close ------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the connections, unless a `Store` was passed. Taken events stay pending."""
        if self._owns_store:
            self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Events({type(self.store).__name__}, {self.name!r})"


def check_layout(store: Store) -> None:
    """Raise `OptionError` if a store's layout lacks the order, ids or history that events need."""
    if (
        store.ids_unique_per_store
        or store.unsupported & {"order", "ids", "payloads"}
        or type(store).default_layout is not None
    ):
        raise OptionError(
            f"the layout {store.layout_name} cannot hold events, which need order, ids and a history of their "
            "own: leave layout= out of the URL",
            option="url",
        )
