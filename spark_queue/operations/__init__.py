"""What an operator does: release reservations, redrive dead letters, replay history, finish the batches of sinks.

Each function opens the store behind a URL and closes it again. It checks everything before it changes anything, and
may be called again whenever it was cut short. Durations are seconds, moments are `datetime` with a time zone, and
"now" is that of the database. All raise `UsageError` where the call cannot work as it was made, and `StoreError`
where the database refuses or fails, or what it keeps was written by a newer version.
"""

from __future__ import annotations

import heapq
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, TypeVar, Unpack

import pyarrow as pa

from spark_queue.buckets import Buckets
from spark_queue.errors import FencedError, OptionError, QueueError, UsageError, near
from spark_queue.message import (
    EPOCH,
    HISTORY,
    LATEST,
    OUTCOMES,
    Json,
    Outcome,
    decode,
    header_dicts,
)
from spark_queue.store import mask, open_store
from spark_queue.store.apart import compact as put_together
from spark_queue.store.base import Condition, Reservation, Sizes, Store, check_tag, layout_of
from spark_queue.store.base import set_layout as write_layout
from spark_queue.store.ledger import (
    NOTHING,
    ONE_WRITE,
    PREFIX,
    Ledger,
    batch_of,
    forget,
    ledger_of,
)
from spark_queue.store.ledger import set_ledger as write_ledger
from spark_queue.store.log import LOG, Retained, retained
from spark_queue.store.owner import Owner, consumers, revoke
from spark_queue.store.replay import Replay

if TYPE_CHECKING:  # needs the extra `graph`
    from spark_queue.graph import Graph, Place

T = TypeVar("T")

#: A moment, or how long ago.
Moment = datetime | timedelta

#: Dead letters that move in one step.
STEP = 1_000

#: What the headers of a dead letter tell: see `Death`.
FROM, DIED, TRIES, ERROR = "x-dl-from-queue", "x-dl-t", "x-dl-tries", "x-error"

#: How messages went that a replay is about, if it does not say so.
PROCESSED: tuple[Outcome, ...] = ("commit", "pop")

#: The stages of sinks: `sink/batch/attempt`.
_STAGE = re.compile(r"([^/]+)/(\d+)/[^/]+")


# --- reservations ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Held:
    """What one tag holds, and for whom.

    `until` is when its lease ends, `None` for never. `consumer` is the beginning of the tag that names who reserved:
    for a Spark query `name/epoch`, the name and the run of its checkpoint. `owner` is the process that runs this
    consumer just now, `None` where none is known to live; a client without Spark never tells. `parked`: the messages
    were set aside when their batch failed, and are tried after it. `log`: they are retained, as a segment of the
    queue's log.
    """

    queue: str
    tag: str
    rows: int
    until: datetime | None
    consumer: str
    owner: str | None
    parked: bool
    log: bool = False


def reservations(url: str, queue: str | None = None, tag: str = "") -> list[Held]:
    """What is reserved in a queue, in all queues where none is given; by `tag` and those below it, if given."""
    with _opened(url) as store:
        owners = {(name, consumer): owner for name, consumer, owner in consumers(store, queue)}

        def held(name: str, one: Reservation) -> Held:
            consumer = _consumer(one.tag)
            owner = owners.get((name, consumer))
            return Held(
                queue=name,
                tag=one.tag,
                rows=one.rows,
                until=None if one.until is None else _moment(one.until),
                consumer=consumer,
                owner=None if owner is None else str(owner),
                parked=one.tag.startswith(f"{consumer}/parked/"),
                log=_belongs(one.tag, kept[name]),
            )

        names = store.queues() if queue is None else [queue]
        kept = {name: retained(store, name) for name in names}
        return [held(name, one) for name in names for one in store.reservations(name, tag)]


def release(url: str, queue: str, tag: str, *, force: bool = False, failed: bool = False, delay: float = 0.0) -> int:
    """Give back what a tag and those below it hold, mature in `delay` seconds, and give the number of messages.

    `tag` is a consumer, one epoch of it, a batch, or a partition's tag. `failed` adds one to the tries of the
    messages. A consumer that a living process runs is refused with `UsageError`; with `force` it is taken away from
    that process first, whose query then fails with `FencedError`. Atomic for each message, and for all together
    where the database has transactions. 0 where nothing is held. What the queue's log retains is refused: `trim`
    removes it.
    """
    with _opened(url) as store:
        store.check_queue(queue)
        check_tag(tag)
        if not 0 <= delay <= LATEST / 2000:
            raise OptionError(
                f"delay must be 0 or more seconds, and end before the year 5000: {delay}", option="delay"
            )
        _check_exists(store, queue)
        _check_no_log(store, queue, tag)
        if not force:
            _check_free(
                store,
                queue,
                tag,
                "; or take it away from the living query, which then fails, with --force (force=True)",
            )
        for consumer, _ in _living(store, queue, tag):
            revoke(store, queue, consumer)
        return store.rollback(queue, tag, delay=round(delay * 1000), failed=failed)


def _living(store: Store, queue: str, tag: str = "") -> list[tuple[str, Owner]]:
    """The consumers in the branch of a tag, of all tags where it is empty, that a living process runs."""
    found = [(one, owner) for _, one, owner in consumers(store, queue) if owner is not None]
    return [(one, owner) for one, owner in found if not tag or _same_branch(one, tag)]


def _check_free(store: Store, queue: str, tag: str = "", otherwise: str = "") -> None:
    """Raise `UsageError` where a living process runs a consumer in the branch of a tag, or any where it is empty.

    Also where a log retains what the tag holds.
    """
    _check_no_log(store, queue, tag)
    for consumer, owner in _living(store, queue, tag):
        raise UsageError(
            f"consumer {consumer} of queue {queue!r} is run by {owner}: stop that query, and it goes on with what it "
            f"holds when it is started again; or give the tag of another run{otherwise}",
            queue=queue,
            tag=tag,
        )


def _check_no_log(store: Store, queue: str, tag: str = "") -> None:
    """Raise `UsageError` where the log of the queue retains what is held in the branch of a tag, or any at all."""
    kept = None if tag and not _same_branch(LOG, tag) else retained(store, queue)
    if kept is not None and any(not tag or _same_branch(one, tag) for one in kept.tags):
        raise UsageError(
            f"queue {queue!r} is read as a log, and what is held under {tag or LOG} belongs to it: its readers would "
            f"miss these messages. To remove the oldest: spark-queue log trim URL {queue} --older-than 7d",
            queue=queue,
            tag=tag,
        )


def _belongs(tag: str, kept: Retained | None) -> bool:
    """Whether a tag is one of a log, or a part of one that is being sealed."""
    return kept is not None and (tag in kept.tags or tag.rpartition("/")[0] in kept.tags)


def _consumer(tag: str) -> str:
    return "/".join(tag.split("/")[:2])


def _same_branch(one: str, other: str) -> bool:
    """Whether one of two tags lies in the other."""
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")


def suggest(url: str, queue: str, tag: str | None = None) -> str:
    """The tail of a message about a queue that does not exist, or a tag that holds nothing: names like it.

    Empty where there are none.
    """
    with _opened(url) as store:
        if tag is None:
            known = _queues(store)
            return "" if queue in known else near(queue, known | {name.removesuffix(".dead") for name in known})
        paths = [one.tag.split("/") for one in store.reservations(queue)]
        return near(tag, {"/".join(path[:depth]) for path in paths for depth in range(1, len(path) + 1)})


# --- dead letters ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message of a dead-letter queue, and what its headers tell of its death; `None` where they do not.

    `from_queue`: where it died (`x-dl-from-queue`), `died`: when (`x-dl-t`), `tries`: how often it had failed
    (`x-dl-tries`), `error`: why (`x-error`). `payload` and `headers` are as in `Message`.
    """

    id: str
    from_queue: str | None
    died: datetime | None
    tries: int | None
    error: str | None
    payload: Json | bytes
    headers: dict[str, str] = field(default_factory=dict)


class Filters(TypedDict, total=False):
    """Which dead letters are meant: those that meet all that is given.

    They lie in `<queue>.dead`, or in the queue `dead`; of that one, which several queues may share, only those that
    came from the queue are meant, if it is given too. `ids`: these very ones. `reason`: a text that their header
    `x-error` contains, letter case ignored. `since`, `until`: they died at that moment or later, and before that one;
    a letter that does not tell when is left out then. `limit`: the oldest ones, so many at most.
    """

    dead: str | None
    ids: Collection[str] | None
    reason: str | None
    since: Moment | None
    until: Moment | None
    limit: int | None


def dead_letters(url: str, queue: str | None = None, **filters: Unpack[Filters]) -> list[DeadLetter]:
    """The dead letters of a queue (see `Filters`), the oldest first; those that somebody has reserved included."""
    with _opened(url) as store:
        search = _Search.of(store, queue, **filters)
        return [one.letter() for one in _least(search.letters(store), search.limit, lambda one: one[:2])]


def redrive(
    url: str,
    queue: str | None = None,
    *,
    to: str | None = None,
    create: bool = False,
    rate: float | None = None,
    dry_run: bool = False,
    progress: Callable[[int, int], None] | None = None,
    **filters: Unpack[Filters],
) -> dict[str, int]:
    """Move the dead letters of a queue (see `Filters`) back into queues; give the number moved to each queue.

    Each goes to `to`, else to the queue it came from. They keep id, payload, headers (so their history can still be
    told) and maturity; their tries start at 0 again. They move oldest first, up to 1,000 in one step, `rate` a second
    at most. Each is in exactly one queue at every moment, so a redrive may be cut short and called again; one that
    somebody holds, or that is gone meanwhile, is passed over. `dry_run` moves nothing and gives what would be moved.
    `progress` is told after each step how many were moved, and how many were found.

    Raises `UsageError` before anything is moved: where `to` does not exist, unless `create`; where a letter does not
    tell where it came from and there is no `to`.
    """
    with _opened(url) as store:
        search = _Search.of(store, queue, **filters)
        if rate is not None and not 0 < rate < math.inf:
            raise OptionError(f"rate must be more than 0 messages per second, not {rate}", option="rate")
        if to is not None:
            store.check_queue(to)
            if not create and to != queue:
                _check_exists(store, to, ": if it is meant, make it with --create (create=True)")
        # Without the payloads, which may be many gigabytes.
        found = ((one.died, one.id, to or one.headers.get(FROM, "")) for one in search.letters(store))
        plan = [(id, target) for _, id, target in _least(found, search.limit, lambda one: one[:2])]
        for target in dict.fromkeys(target for _, target in plan):
            if target in ("", search.dead):
                id = next(id for id, its in plan if its == target)
                why = "would be moved to the queue it is in" if target else f"has no header {FROM}"
                raise UsageError(
                    f"dead letter {id!r} of queue {search.dead!r} {why}; nothing was moved; give another queue with "
                    "--to (to=…), or filters that leave it out",
                    queue=search.dead,
                    id=id,
                )
            store.check_queue(target)
        if dry_run:
            return dict(Counter(target for _, target in plan))
        return _move(store, search.dead, plan, rate, progress)


def _move(
    store: Store,
    dead: str,
    plan: list[tuple[str, str]],
    rate: float | None,
    progress: Callable[[int, int], None] | None,
) -> dict[str, int]:
    """Move ids to their targets, step by step."""
    step = STEP if rate is None else min(STEP, max(1, int(rate)))
    moved = dict.fromkeys((target for _, target in plan), 0)
    for start in range(0, len(plan), step):
        began = time.monotonic()
        by_target: dict[str, list[str]] = {}
        for id, target in plan[start : start + step]:
            by_target.setdefault(target, []).append(id)
        for target, ids in by_target.items():
            moved[target] += store.move(dead, target, ids=ids)
        if progress is not None:
            progress(sum(moved.values()), len(plan))
        if rate is not None and start + step < len(plan):  # no step makes up for a slow one before it
            time.sleep(max(0.0, began + step / rate - time.monotonic()))
    return moved


@dataclass(frozen=True, slots=True)
class _Search:
    """`Filters` that were checked; `reason` is in small letters."""

    dead: str
    from_queue: str | None
    ids: tuple[str, ...] | None
    reason: str | None
    since: datetime | None
    until: datetime | None
    limit: int | None

    @classmethod
    def of(cls, store: Store, queue: str | None, **filters: Unpack[Filters]) -> _Search:
        dead, ids = filters.get("dead"), filters.get("ids")
        if unknown := filters.keys() - Filters.__annotations__.keys():
            raise TypeError(f"unknown filter {', '.join(sorted(unknown))}")
        if dead is None and queue is None:
            raise OptionError("name a queue, or the queue of its dead letters with --dead (dead=…)", option="queue")
        for name in (queue, dead):
            if name is not None:
                store.check_queue(name)
        return cls(
            dead or f"{queue}.dead",
            queue if dead else None,
            None if ids is None else tuple([ids] if isinstance(ids, str) else ids),
            (filters.get("reason") or "").lower() or None,
            _absolute(store, "since", filters.get("since")),
            _absolute(store, "until", filters.get("until")),
            _checked_limit(filters.get("limit")),
        )

    def letters(self, store: Store) -> Iterator[_Found]:
        """The letters, in no particular order."""
        where = [] if self.ids is None else [Condition("id", "in", self.ids)]
        for batch in store.peek(self.dead, where):
            payloads, kinds = (batch.column(name).to_pylist() for name in ("payload", "payload_kind"))
            for row in zip(batch.column("id").to_pylist(), header_dicts(batch), payloads, kinds, strict=True):
                one = _Found(_died(row[1]), *row)
                if self._means(one):
                    yield one

    def _means(self, one: _Found) -> bool:
        return (
            (self.from_queue is None or one.headers.get(FROM) == self.from_queue)
            and (self.reason is None or self.reason in one.headers.get(ERROR, "").lower())
            and (self.since is None or one.died >= self.since)
            and (self.until is None or EPOCH < one.died < self.until)
        )


class _Found(NamedTuple):
    """A letter as it is kept. Where it does not tell when it died, that is 1970."""

    died: datetime
    id: str
    headers: dict[str, str]
    payload: bytes
    kind: str

    def letter(self) -> DeadLetter:
        told = self.headers
        tries = told.get(TRIES, "")
        return DeadLetter(
            id=self.id,
            from_queue=told.get(FROM),
            died=None if self.died == EPOCH else self.died,
            tries=int(tries) if re.fullmatch(r"\d{1,9}", tries) else None,
            error=told.get(ERROR),
            payload=decode(self.payload, self.kind),
            headers=told,
        )


def _died(headers: Mapping[str, str]) -> datetime:
    try:
        moment = datetime.fromisoformat(headers.get(DIED, ""))
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):  # somebody else's header, or none
        return EPOCH


def _absolute(store: Store, name: str, moment: Moment | None) -> datetime | None:
    """The moment, where it may be told by how long ago it was."""
    if isinstance(moment, timedelta):
        try:
            return _moment(store.now()) - moment
        except OverflowError:
            raise OptionError(f"{name}: {moment.days:,} days ago is before all time", option=name) from None
    if moment is not None and moment.tzinfo is None:
        raise OptionError(f"{name}={moment.isoformat()} has no time zone", option=name)
    return moment


def _checked_limit(limit: int | None) -> int | None:
    if limit is not None and limit < 1:
        raise OptionError(f"limit must be 1 or more, not {limit}", option="limit")
    return limit


def _least(found: Iterable[T], limit: int | None, key: Callable[[T], Any]) -> list[T]:
    """What comes first by the key, in order; no more than `limit` are kept in memory."""
    return sorted(found, key=key) if limit is None else heapq.nsmallest(limit, found, key)


# --- history --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Past:
    """A message that has left its queue, as the history tells of it.

    `processed`: when. `consumer`: who had it, the first part of the tag; `None` where that is not known. `outcome`:
    `commit`; `dead`, moved to the dead-letter queue, with `error` saying why (`x-error`); or, by keuss' own programs,
    `pop`, or `remove` where nobody had it. `tries`: how often it had failed. `payload` and `headers` are as in
    `Message`.
    """

    id: str
    processed: datetime
    consumer: str | None
    outcome: str
    error: str | None
    mature: datetime
    tries: int
    payload: Json | bytes
    headers: dict[str, str] = field(default_factory=dict)


class PastFilters(TypedDict, total=False):
    """Which messages of a history are meant: those that meet all that is given.

    `ids`: these very ones. `consumer`: who had them; `outcome`: how it went (see `Past`). `reason`: a text that their
    header `x-error` contains, letter case ignored. `since`, `until`: they were processed at that moment or later, and
    before that one. `limit`: the last ones, so many at most.
    """

    ids: Collection[str] | None
    consumer: str | None
    outcome: str | None
    reason: str | None
    since: Moment | None
    until: Moment | None
    limit: int | None


def history(url: str, queue: str, **filters: Unpack[PastFilters]) -> list[Past]:
    """What a queue has processed and still tells of (see `PastFilters`), the latest last."""
    with _opened(url) as store:
        search = _PastSearch.of(store, queue, **filters)
        found = [one for batch in search.batches(store) for one in _pasts(batch)]
        return sorted(found, key=lambda one: (one.processed, one.mature, one.id))


def replay(
    url: str,
    queue: str,
    name: str,
    *,
    to: str | None = None,
    create: bool = False,
    rate: float | None = None,
    dry_run: bool = False,
    **filters: Unpack[PastFilters],
) -> int:
    """Push a part of a queue's history once more (see `PastFilters`); give how many messages appeared just now.

    Without an `outcome` that is what was committed or popped: dead letters wait for a `redrive`, and what was removed
    was not wanted. They go to `to`, else to the queue itself, as new messages: with payload, headers and maturity,
    so in their old order and before what was pushed since; but with tries 0, and ids that are made of `name` and the
    old ones. The headers `x-replay` and `x-replay-of` tell the name and the old id. With a `rate` they mature one
    after the other, so many a second, instead. The history stays as it is.

    A replay of a queue is done once, by its name: it is staged, decided, then published, all of it or nothing. Called
    again, whenever it was cut short and whatever has been consumed meanwhile, it completes what is missing, and
    gives 0 where nothing is. `dry_run` pushes nothing and gives what would be pushed.

    Raises `UsageError` before anything is pushed: where `to` does not exist, unless `create`; where a replay of this
    name was asked for something else.
    """
    with _opened(url) as store:
        search = _PastSearch.of(store, queue, **filters)
        if search.outcomes is None:
            search = replace(search, outcomes=PROCESSED)
        target = to or queue
        store.check_queue(target)
        work = Replay(queue, name, target, rate, _said(**filters))
        if work.decided(store):
            return work.unpublished(store) if dry_run else work.run(store, ())
        _check_exists(store, queue)
        if not create and target != queue:
            _check_exists(store, target, ": if it is meant, make it with --create (create=True)")
        found = search.batches(store)
        return sum(batch.num_rows for batch in found) if dry_run else work.run(store, found)


def _said(**filters: object) -> str:
    """Filters as they were given."""
    said = {
        name: sorted(value) if isinstance(value, Collection) and not isinstance(value, str) else str(value)
        for name, value in sorted(filters.items())
        if value is not None
    }
    return repr(said)


@dataclass(frozen=True, slots=True)
class _PastSearch:
    """`PastFilters` that were checked; `reason` is in small letters."""

    queue: str
    ids: tuple[str, ...] | None
    consumer: str | None
    outcomes: tuple[str, ...] | None
    reason: str | None
    since: datetime | None
    until: datetime | None
    limit: int | None

    @classmethod
    def of(cls, store: Store, queue: str, **filters: Unpack[PastFilters]) -> _PastSearch:
        if unknown := filters.keys() - PastFilters.__annotations__.keys():
            raise TypeError(f"unknown filter {', '.join(sorted(unknown))}")
        store.check_queue(queue)
        ids, outcome = filters.get("ids"), filters.get("outcome")
        if outcome is not None and outcome not in OUTCOMES:
            raise OptionError(
                f"outcome {outcome!r} must be one of {', '.join(OUTCOMES)}{near(outcome, OUTCOMES)}", option="outcome"
            )
        return cls(
            queue,
            None if ids is None else tuple([ids] if isinstance(ids, str) else ids),
            filters.get("consumer"),
            None if outcome is None else (outcome,),
            (filters.get("reason") or "").lower() or None,
            _absolute(store, "since", filters.get("since")),
            _absolute(store, "until", filters.get("until")),
            _checked_limit(filters.get("limit")),
        )

    def batches(self, store: Store) -> Iterator[pa.RecordBatch]:
        """What is meant, as HISTORY batches in no particular order."""
        where: list[Condition] = []
        if self.ids is not None:
            where.append(Condition("id", "in", self.ids))
        if self.consumer is not None:
            where.append(Condition("consumer", "=", self.consumer))
        if self.outcomes is not None:
            where.append(Condition("outcome", "in", self.outcomes))
        if self.since is not None:
            where.append(Condition("processed", ">=", _ceiling(self.since)))
        if self.until is not None:
            where.append(Condition("processed", "<", _ceiling(self.until)))
        found = store.peek(self.queue, where, view="history")
        if self.reason is not None:
            found = (batch.filter(self._reasoned(batch)) for batch in found)
        yield from found if self.limit is None else _last(found, self.limit)

    def _reasoned(self, batch: pa.RecordBatch) -> pa.Array:
        return pa.array([(self.reason or "") in one.get(ERROR, "").lower() for one in header_dicts(batch)])


def _last(batches: Iterable[pa.RecordBatch], limit: int) -> Iterator[pa.RecordBatch]:
    """The rows of HISTORY batches that were processed last; no more are kept in memory."""
    kept = pa.Table.from_batches([], HISTORY)
    order = [(name, "descending") for name in ("processed", "mature", "id")]
    for batch in batches:
        kept = pa.concat_tables([kept, pa.Table.from_batches([batch])]).sort_by(order).slice(0, limit)
    yield from kept.combine_chunks().to_batches()


def _pasts(batch: pa.RecordBatch) -> Iterator[Past]:
    names = ("id", "processed", "consumer", "outcome", "mature", "tries", "payload", "payload_kind")
    columns = (batch.column(name).to_pylist() for name in names)
    for *told, payload, kind, headers in zip(*columns, header_dicts(batch), strict=True):
        id, processed, consumer, outcome, mature, tries = told
        error = headers.get(ERROR) if outcome == "dead" else None
        yield Past(id, processed, consumer, outcome, error, mature, tries, decode(payload, kind), headers)


def _ceiling(moment: datetime) -> int:
    """The first ms that is not before the moment."""
    return -((EPOCH - moment) // timedelta(milliseconds=1))


# --- sinks ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sink:
    """How far an exactly-once sink is: a streaming query by its id, a batch write by `txnAppId` or a made up name.

    `batch` is the last one that it has decided to publish, `None` where there is none. `staged`: the rows that
    are staged, by batch. `unpublished`: those of them that `batch` still has to publish; where that is not 0 for
    long, nobody is at work on it, and `recover` does.
    """

    sink: str
    batch: int | None
    staged: dict[int, int]
    unpublished: int


@dataclass(frozen=True, slots=True)
class Recovered:
    """What `recover` did: messages that became visible, and rows that were staged and dropped."""

    published: int
    dropped: int


def ledgers(url: str) -> list[Sink]:
    """All sinks that have a ledger, or rows that are staged.

    What a program staged under names that no sink gives is left out.
    """
    with _opened(url) as store:
        return _sinks(store)


def recover(url: str, sink: str) -> Recovered:
    """Publish what the ledger of a sink has decided and nobody finished; drop what was merely staged.

    For a sink whose query never comes back. Nothing is lost with what is dropped: its batch was not decided, so its
    source still has it. The ledger stays, but for that of a batch write without `txnAppId`, which nobody can repeat.
    Stop the query first: one that is at work fails, and this raises `FencedError` where it is seen. Raises
    `UsageError` for a sink that has neither ledger nor staged rows.
    """
    with _opened(url) as store:
        ledger = _ledger(store, sink)
        if ledger is None and not store.staged(sink):
            known = [one.sink for one in _sinks(store)]
            raise OptionError(f"there is no sink {sink!r} in {mask(store.url)}{near(sink, known)}", sink=sink)
        published = store.publish(ledger.stages) if ledger else 0
        if ledger_of(store, sink) != ledger:
            raise FencedError(
                f"sink {sink!r} is at work: its ledger changed just now; stop its query first; nothing was dropped",
                sink=sink,
            )
        dropped = forget(store, sink) if sink.startswith(ONE_WRITE) else store.unstage(sink)
        return Recovered(published, dropped)


def set_ledger(url: str, sink: str, batch: int) -> int | None:
    """Say by word that a sink has written everything up to `batch`; give what its ledger said before.

    For a query that does not start since its ledger is missing or too old. What is said wrong makes it lose or double
    that batch. Raises `UsageError` where the last batch is not wholly published (see `recover`), and `FencedError`
    where the sink is at work.
    """
    with _opened(url) as store:
        ledger = _ledger(store, sink)
        if batch < 0:
            raise OptionError(f"batch must be 0 or more, not {batch}", option="batch")
        waiting = {one.stage for one in store.staged(sink)} & set(ledger.stages if ledger else ())
        if waiting:
            raise UsageError(
                f"sink {sink!r} has not wholly published batch {batch_of(min(waiting))}: finish that first with "
                f"spark-queue ledger recover URL {sink} (or recover)",
                sink=sink,
            )
        write_ledger(store, sink, batch)
        return _batch(ledger)


def _batch(ledger: Ledger | None) -> int | None:
    """The last batch that was decided."""
    return None if ledger is None or ledger.batch == NOTHING else ledger.batch


def _ledger(store: Store, sink: str) -> Ledger | None:
    """The ledger of a sink, whose name is checked."""
    check_tag(sink)
    if "/" in sink:
        raise OptionError(f"{sink!r} cannot be a sink: its name has no /", sink=sink)
    return ledger_of(store, sink)


def _sinks(store: Store) -> list[Sink]:
    ledgers = {key.removeprefix(PREFIX): note for key, note in store.notes(PREFIX).items()}
    read = {name: Ledger.read(name, note) for name, note in ledgers.items()}
    staged: dict[str, Counter[int]] = {name: Counter() for name in read}
    unpublished: Counter[str] = Counter()
    for one in store.staged():
        if match := _STAGE.fullmatch(one.stage):
            sink = match[1]
            staged.setdefault(sink, Counter())[int(match[2])] += one.rows
            ledger = read.get(sink)
            if ledger is not None and one.stage in ledger.stages:
                unpublished[sink] += one.rows
    return [
        Sink(name, _batch(read.get(name)), dict(rows), unpublished[name]) for name, rows in sorted(staged.items())
    ]


# --- graphs ---------------------------------------------------------------------------------------------------------


def graph_sizes(graph: Graph) -> tuple[dict[Place, Sizes], list[str]]:
    """The sizes of the queues of a graph, and why those of a namespace are not known, where that is so."""
    sizes: dict[Place, Sizes] = {}
    queues = [*graph.queues(), *graph.leftovers()]
    unknown: list[str] = []
    for ns, namespace in graph.namespaces.items():
        try:
            with _opened(namespace.url) as store:
                found = {place: store.sizes(place.queue) for place in queues if place.ns == ns}
        except QueueError as error:
            unknown.append(f"namespace {ns!r}: {error}")
        else:
            sizes |= found
    return sizes, unknown


# --- how messages are kept --------------------------------------------------------------------------------------


def layout(url: str, queue: str) -> Buckets | None:
    """How messages that are pushed to the queue are put into buckets; `None`: each is a record of its own."""
    with _opened(url) as store:
        store.check_queue(queue)
        return layout_of(store, queue)


def set_layout(url: str, queue: str, layout: Buckets | None) -> None:
    """Set that, for all who push to the queue and do not say it themselves.

    What the queue holds stays as it is: it may hold both. Those who push already learn it half a minute later. The
    queue need not exist.
    """
    with open_store(url) as store:
        write_layout(store, queue, layout)


def compact(url: str, queue: str) -> int:
    """Put ready messages that lie alone or in small buckets together; give how many records fewer there are.

    In the layout that is set for the queue, the usual one where none is. Nobody needs to be stopped for it.
    """
    with _opened(url) as store:
        _check_exists(store, queue)
        return put_together(store, queue, layout_of(store, queue) or Buckets())


# --- what they share ------------------------------------------------------------------------------------------------


def _opened(url: str) -> Store:
    """The store. Raises `OptionError` where it is a file that does not exist, which SQLite would make."""
    store = open_store(url)
    scheme, _, path = store.url.partition(":///")
    if scheme == "sqlite" and not Path(path).exists():
        raise OptionError(f"there is no file {path!r}: check the URL {store.url}", option="url")
    return store


def _queues(store: Store) -> set[str]:
    """The queues that hold messages or had a consumer."""
    return {*store.queues(), *(queue for queue, _, _ in consumers(store))}


def _check_exists(store: Store, queue: str, hint: str = "") -> None:
    known = _queues(store)
    if queue not in known:
        raise OptionError(
            f"{mask(store.url)} has no queue {queue!r}, or it is empty{hint}{near(queue, known)}", queue=queue
        )


def _moment(ms: int) -> datetime:
    return EPOCH + timedelta(milliseconds=ms)
