"""A queue of events: they are made, taken, executed, and looked after.

with Events("sqlite:///queues.db", "events", executors=executors_in("conf/executors.yaml")) as events:
    events.create("http://example.org/flights", "landed", {"flight": 1545}, uris=["/flights/1545.json"])
    taken = events.take(10)                           # new -> pending
    events.execute([one.id for one in taken])         # pending -> executing -> finished, failed, …
"""

from __future__ import annotations

import getpass
import logging
import os
import socket
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import cached_property
from typing import Self

import pyarrow as pa

from spark_queue.errors import OptionError
from spark_queue.events import status as held
from spark_queue.events.audit_log import AuditLog
from spark_queue.events.builtin import internal
from spark_queue.events.event import (
    EXECUTING,
    FAILED,
    NEW,
    PENDING,
    STATUSES,
    Event,
    check_name,
    chunks,
    due,
    iso,
    new_transaction,
    short,
    written,
)
from spark_queue.events.execution import Round, run_all
from spark_queue.events.executors import Executor, Executors
from spark_queue.events.settings import EventSettings
from spark_queue.events.status import Known
from spark_queue.messages.ids import new_id_array
from spark_queue.messages.json_text import dump_json
from spark_queue.messages.message import messages, pushes
from spark_queue.stores import open_store
from spark_queue.stores.base import Store
from spark_queue.stores.types import Condition, Death

log = logging.getLogger(__name__)

#: What was said of events that could not be read.
_LEFT_OUT = "message %s of %s is left out: %s"


class Events:
    """A queue of events.

    Any number of programs and queries may use it at the same time: an event is taken by one of them. All that changes
    the status of events is atomic for each event and fenced, so what two programs do at once to the same event
    happens once. A client is used by one thread at a time.
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
        """Connect to nothing yet.

        `executors`: who works on events that `execute` is told; those of internal events come by themselves, after
        these. `user`, `host`: told of what is created and done here; else those of this process. Raises `OptionError`
        for a URL or a name that cannot be meant, and for a layout that cannot hold events.
        """
        self._owned = isinstance(url, str)
        self.store = open_store(url) if isinstance(url, str) else url
        check_layout(self.store)
        self.store.check_queue(queue)
        self.store.layout = "single"  # an event ends alone, and is forgotten alone
        self.name = queue
        self.settings = settings or EventSettings()
        self.user = user if user is not None else this_user()
        self.host = host if host is not None else socket.gethostname()
        self.log = AuditLog(self.store, queue, self.user, self.host)
        self.declared = tuple(executors)

    @cached_property
    def executors(self) -> Executors:
        """Who works on events: the declared ones, then those of internal events."""
        return Executors(self.declared) + internal(self)

    # --- events in ----------------------------------------------------------------------------------------------

    def create(
        self, source: str, type: str, payload: object = None, uris: Sequence[str] = (), *, priority: bool = False
    ) -> str:
        """Make one event, about any number of URIs, and give its id.

        `payload`: an object, a list, an `Element` of XML, or a single value, which becomes text. `priority`: it is
        taken before all without. Raises `OptionError` for a source or a type that is none, `MessageError` for a
        payload that JSON cannot hold; then nothing was made.
        """
        return self._create(
            source, type, payload, [tuple(uris)] if not uris else [*chunks(uris, len(uris))], priority
        )[0]

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
        """Make as many events as the URIs need, of `max_uris` (those of the settings) at most; give their ids.

        1,001 URIs are events of 500, 500 and 1; none are no event. Raises as `create`.
        """
        return self._create(source, type, payload, chunks(uris, max_uris or self.settings.max_uris), priority)

    def _create(
        self, source: str, type: str, payload: object, parts: Sequence[tuple[str, ...]], priority: bool
    ) -> list[str]:
        check_name(source, "source"), check_name(type, "type")
        plain, kind = written(payload)
        dump_json(plain)  # or the error would name it as a part of the event
        if not parts:
            return []
        created = datetime.fromtimestamp(self.store.now() / 1000, UTC)
        ids: list[str] = self.store.own_ids(new_id_array(len(parts))).to_pylist()
        transaction = new_transaction()
        made = [
            Event(id, source, type, plain, kind, uris, priority, self.user, self.host, transaction, created)
            for id, uris in zip(ids, parts, strict=True)
        ]
        mature = due(created, True) if priority else None
        self.store.push(self.name, pushes([one.document() for one in made], ids=ids, mature=mature, queue=self.name))
        return ids

    # --- taken and executed -------------------------------------------------------------------------------------

    def take(self, count: int | None = None, *, lease: int | None = None) -> list[Event]:
        """Take up to `count` new events (those of the settings: 10): new -> pending. Give them.

        Those with priority come first, then the oldest. Nobody else gets them; they are new again when `lease` ms
        (the pending timeout) have gone by. A message that is no event is failed.
        """
        count = self.settings.max_events if count is None else count
        if count < 0:
            raise OptionError(f"count must be 0 or more, not {count}", option="count")
        tag = held.pending_tag(self.store.now())
        if not count or not self.store.reserve(self.name, tag, count, lease=lease or self.settings.pending_timeout):
            return []
        taken = self._held(tag, f"{tag}/0")
        ids = [one.id for one in taken]
        self.log.note("Events taken", ids, transaction=tag, came=NEW, went=PENDING)
        self.log.write()
        return taken

    def execute(self, ids: Sequence[str]) -> dict[str, str | None]:
        """Execute pending events, in this order; give the status of each then, by its short name.

        pending -> executing -> what the executor says. One without executor fails. An event that is not pending is
        left alone, so of two programs that execute the same one does. Of an unknown id the status is `None`.
        """
        wanted = list(dict.fromkeys(ids))
        tag = held.executing_tag(self.store.now())
        results: dict[str, str] = {}
        if wanted and self.store.retag(self.name, PENDING, tag, wanted, lease=None):
            mine = {one.id: one for one in self._held(tag, tag)}
            found = [mine[id] for id in wanted if id in mine]
            self.log.note("Events begun", [one.id for one in found], transaction=tag, came=PENDING, went=EXECUTING)
            self.log.write()
            round = Round(self.store, self.name, tag, self.log, self.settings)
            told = run_all(found, self.executors, self.settings, round)
            results = {one.event.id: one.status for one in told}
        others = [id for id in wanted if id not in results]
        known = self.status(others)
        if unknown := [id for id in others if known[id] is None]:
            log.warning("there are no events %s", ", ".join(unknown))
            self.log.note("Event ID does not exist", unknown, transaction=tag)
            self.log.write()
        return {id: results.get(id) or known.get(id) for id in wanted}

    def _held(self, tree: str, tag: str) -> list[Event]:
        """The events that a tag holds, in order; what is none of them fails."""
        found: list[Event] = []
        wrong: dict[str, str] = {}
        for batch in self.store.fetch(self.name, tag, decoded=True):
            found += self._read(batch, wrong)
        if wrong:
            self.log.note("Messages that are no events", [*wrong], transaction=tree, went=FAILED, errors=wrong)
            self.log.write()
            self.store.commit(self.name, tree, [*wrong], history=self.settings.keep, outcome=FAILED)
        return found

    def _read(self, batch: pa.RecordBatch, wrong: dict[str, str] | None = None) -> Iterator[Event]:
        for message in messages(batch.select([*pa_names(batch)])):
            try:
                yield Event.of(message)
            except ValueError as error:
                if wrong is None:
                    log.warning(_LEFT_OUT, message.id, self.name, error)
                else:
                    wrong[message.id] = str(error)

    # --- looking ------------------------------------------------------------------------------------------------

    def get(self, ids: Sequence[str]) -> dict[str, Known]:
        """The events of these ids that there are, each with its status."""
        found = {one.event.id: one for one in held.living(self.store, self.name, ids, self._read)}
        if left := [id for id in ids if id not in found]:  # in this order: what ends meanwhile is found then
            found |= {one.event.id: one for one in held.ended(self.store, self.name, left, self._read)}
        return {id: found[id] for id in ids if id in found}

    def status(self, ids: Sequence[str]) -> dict[str, str | None]:
        """The status of each, by its short name or as its executor told it; `None` of an id that nobody knows."""
        known = self.get(ids) if ids else {}
        return {id: known[id].status if id in known else None for id in ids}

    def all(self) -> Iterator[Known]:
        """All events: those that have ended first."""
        yield from held.ended(self.store, self.name, None, self._read)
        yield from held.living(self.store, self.name, None, self._read)

    def find(self, status: str, older_than: int = 0, limit: int | None = None) -> list[str]:
        """The ids of events that have had this status for more than `older_than` ms; the first `limit`, if given.

        A new event has it since it was created. Of what a query holds nobody knows since when, so it is not older
        than anything: the query itself sees to its end.
        """
        status, now = short(status, self.settings.status_prefix), self.store.now()
        until = now - older_than
        found: list[tuple[int, str]] = []
        if status in (PENDING, EXECUTING):
            for one in held.reservations(self.store, self.name):
                began = held.since(one.tag)
                if held.status_of(one.tag) == status and (not older_than or (began or now) <= until):
                    found += [(began or now, id) for id in held.held_ids(self.store, self.name, one.tag)]
        elif status == NEW:
            living = held.living(self.store, self.name, None, self._read)
            moments = ((round(one.event.created.timestamp() * 1000), one) for one in living if one.status == NEW)
            found += [(moment, one.event.id) for moment, one in moments if moment <= until]
        else:
            where = [Condition("outcome", "in", held.outcomes_of(status)), Condition("processed", "<=", until)]
            ended = held.ended(self.store, self.name, None, self._read, where)
            found += [(round(one.updated.timestamp() * 1000), one.event.id) for one in ended if one.updated]
        return [id for _, id in sorted(found)][:limit]

    def summary(self) -> dict[str, int]:
        """How many events have each status: the five of hub-queue, and after them those of executors."""
        sizes = self.store.sizes(self.name)
        counted: Counter[str] = Counter(dict.fromkeys(STATUSES, 0))
        for one in held.reservations(self.store, self.name):
            counted[held.status_of(one.tag)] += one.rows
        counted[NEW] = max(0, sizes.total - counted[PENDING] - counted[EXECUTING])
        for batch in self.store.peek(self.name, view="history"):
            for outcome, number in Counter(batch.column("outcome").to_pylist()).items():
                counted[held.status_by(outcome)] += number
        return dict(counted)

    # --- looked after -------------------------------------------------------------------------------------------

    def reset(self, ids: Sequence[str]) -> int:
        """Make events new again, whatever their status, each at its old place; give how many were not new.

        Who executes one goes on, and its result counts for nothing.
        """
        ids = list(dict.fromkeys(ids))
        done = 0
        for holder in self._holders():
            done += self.store.rollback(self.name, holder, ids, delay=None, failed=False)
        living = set(self._living(ids))
        again = [
            one.event for one in held.ended(self.store, self.name, ids, self._read) if one.event.id not in living
        ]
        if again:  # pushed first: a crash in between leaves it in both, and what lives counts
            documents, mature = [one.document() for one in again], [one.mature for one in again]
            done += self.store.push(self.name, pushes(documents, ids=[one.id for one in again], mature=mature))
            self.store.forget(self.name, [one.id for one in again])
        self._told("Events reset", ids, went=NEW)
        return done

    def fail(self, ids: Sequence[str], reason: str = "") -> int:
        """Make events failed that have not ended; give how many did.

        Who executes one goes on, and its result counts for nothing.
        """
        ids = list(dict.fromkeys(ids))
        self._told("Events failed", ids, went=FAILED, errors=dict.fromkeys(ids, reason) if reason else None)
        done = 0
        for holder in self._holders():
            done += self.store.commit(self.name, holder, ids, history=self.settings.keep, outcome=FAILED)
        return done + self._put_away(ids, Death(reason or "failed", history=self.settings.keep))

    def clear(self, ids: Sequence[str]) -> int:
        """Delete events, whatever their status, and all that is known of them but the log; give how many there were.

        With a detailed log it tells the events themselves.
        """
        ids = list(dict.fromkeys(ids))
        known = self.get(ids)
        if not known:
            return 0
        events = [one.event for one in known.values()] if self.settings.detailed_log else []
        statuses = {
            id: {"status": one.status, "updated": one.updated and iso(one.updated)} for id, one in known.items()
        }
        self._told("Events deleted", [*known], events=events, **({"statuses": statuses} if events else {}))
        for holder in self._holders():
            self.store.commit(self.name, holder, ids)
        self._put_away(ids, None)
        self.store.forget(self.name, ids)
        return len(known)

    def set_status(self, ids: Sequence[str], status: str) -> int:
        """Give events the status `new` or `failed`, as `reset` and `fail` do."""
        status = short(status, self.settings.status_prefix)
        if status not in (NEW, FAILED):
            raise OptionError(f"status must be {NEW!r} or {FAILED!r}, not {status!r}", option="status")
        return self.reset(ids) if status == NEW else self.fail(ids)

    def _holders(self) -> list[str]:
        return sorted({held.root(one.tag) for one in self.store.reservations(self.name)})

    def _living(self, ids: Sequence[str]) -> list[str]:
        found = self.store.peek(self.name, [Condition("id", "in", tuple(ids))])
        return [id for batch in found for id in batch.column("id").to_pylist()]

    def _put_away(self, ids: Sequence[str], death: Death | None) -> int:
        """Remove new events: by way of a queue of what is gone, for only a move takes messages by their ids."""
        gone = f"{self.name}.gone"
        done = self.store.move(self.name, gone, ids=ids, death=death) if ids else 0
        if done:
            self.store.purge(gone)
        return done

    def _told(self, message: str, ids: Sequence[str], **facts: object) -> None:
        self.log.note(message, ids, **facts)  # type: ignore[arg-type]
        self.log.write()

    def another(self) -> Events:
        """The same events, for another thread: it has what it waits to tell the log for itself."""
        return Events(
            self.store,
            self.name,
            executors=self.declared,
            settings=self.settings,
            user=self.user,
            host=self.host,
        )

    # --- keeping house ------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Give back connections. What was taken stays pending until it is executed, or its time is up."""
        if self._owned:
            self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Events({type(self.store).__name__}, {self.name!r})"


def check_layout(store: Store) -> None:
    """Raise `OptionError` where the layout of a store cannot hold events: each with its own place, id and end."""
    if store.one_id or store.lacks & {"order", "ids", "payloads"} or type(store).layout is not None:
        raise OptionError(
            f"the layout {store.kind} cannot hold events, which need order, ids and a history of their own: leave "
            "layout= out of the URL",
            option="url",
        )


def this_user() -> str:
    """The user of this process; empty where the system knows none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid()) if hasattr(os, "getuid") else ""


def pa_names(batch: pa.RecordBatch) -> list[str]:
    """The columns of a message in a batch that may tell more."""
    return [name for name in batch.schema.names if name not in ("processed", "consumer", "outcome")]
