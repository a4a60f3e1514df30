"""Dead letters: looking for them, and moving them back into queues."""

from __future__ import annotations

import heapq
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypedDict, TypeVar, Unpack

from spark_queue.admin.common import Moment, absolute, checked_limit, opened
from spark_queue.errors import OptionError, UsageError
from spark_queue.messages.columns import header_dicts
from spark_queue.messages.payload import Json, decode
from spark_queue.messages.schema import EPOCH
from spark_queue.options.queue_names import dead_letter_queue
from spark_queue.stores.base import Store
from spark_queue.stores.services.existence import check_exists
from spark_queue.stores.types import DIED_HEADER, ERROR_HEADER, FROM_HEADER, TRIES_HEADER, Condition

T = TypeVar("T")

#: Dead letters that move in one step.
LETTERS_STEP = 1_000


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
    with opened(url) as store:
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
    with opened(url) as store:
        search = _Search.of(store, queue, **filters)
        if rate is not None and not 0 < rate < math.inf:
            raise OptionError(f"rate must be more than 0 messages per second, not {rate}", option="rate")
        if to is not None:
            store.check_queue(to)
            if not create and to != queue:
                check_exists(store, to, "To create it, use --create (create=True).")
        # Without the payloads, which may be many gigabytes.
        found = ((one.died, one.id, to or one.headers.get(FROM_HEADER, "")) for one in search.letters(store))
        plan = [(id, target) for _, id, target in _least(found, search.limit, lambda one: one[:2])]
        for target in dict.fromkeys(target for _, target in plan):
            if target in ("", search.dead):
                id = next(id for id, its in plan if its == target)
                why = (
                    "would be moved to its own queue"
                    if target
                    else f"has no header {FROM_HEADER}: its queue is unknown"
                )
                raise UsageError(
                    f"dead letter {id!r} of queue {search.dead!r} {why}; nothing was moved. Name a queue with "
                    "--to (to=…), or leave the letter out by filters",
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
    step = LETTERS_STEP if rate is None else min(LETTERS_STEP, max(1, int(rate)))
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
            raise OptionError("QUEUE is missing; or name the dead-letter queue: --dead (dead=…)", option="queue")
        for name in (queue, dead):
            if name is not None:
                store.check_queue(name)
        return cls(
            dead or dead_letter_queue(str(queue)),
            queue if dead else None,
            None if ids is None else tuple([ids] if isinstance(ids, str) else ids),
            (filters.get("reason") or "").lower() or None,
            absolute(store, "since", filters.get("since")),
            absolute(store, "until", filters.get("until")),
            checked_limit(filters.get("limit")),
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
            (self.from_queue is None or one.headers.get(FROM_HEADER) == self.from_queue)
            and (self.reason is None or self.reason in one.headers.get(ERROR_HEADER, "").lower())
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
        tries = told.get(TRIES_HEADER, "")
        return DeadLetter(
            id=self.id,
            from_queue=told.get(FROM_HEADER),
            died=None if self.died == EPOCH else self.died,
            tries=int(tries) if re.fullmatch(r"\d{1,9}", tries) else None,
            error=told.get(ERROR_HEADER),
            payload=decode(self.payload, self.kind),
            headers=told,
        )


def _died(headers: Mapping[str, str]) -> datetime:
    try:
        moment = datetime.fromisoformat(headers.get(DIED_HEADER, ""))
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):  # somebody else's header, or none
        return EPOCH


def _least(found: Iterable[T], limit: int | None, key: Callable[[T], Any]) -> list[T]:
    """What comes first by the key, in order; no more than `limit` are kept in memory."""
    return sorted(found, key=key) if limit is None else heapq.nsmallest(limit, found, key)
