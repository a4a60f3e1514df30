"""Dead letters: find them, and move them back to queues."""

from __future__ import annotations

import heapq
import math
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar, Unpack

from spark_queue.admin.common import open_existing
from spark_queue.admin.filters import CheckedFilters, Filters, check_filters
from spark_queue.errors import OptionError, UsageError
from spark_queue.messages.columns import header_dicts
from spark_queue.messages.dead_letter import DEAD_AT_HEADER, ERROR_HEADER, FROM_HEADER, TRIES_HEADER
from spark_queue.messages.payload import Json, decode
from spark_queue.messages.schema import EPOCH
from spark_queue.options.queue_names import dead_letter_queue
from spark_queue.stores.base import Store
from spark_queue.stores.services.existence import check_exists

T = TypeVar("T", bound=tuple[Any, ...])

#: Dead letters that move in one step.
LETTERS_STEP = 1_000

_moment_and_id = itemgetter(0, 1)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message of a dead-letter queue. Facts that its headers do not name are `None`.

    `from_queue`: the queue that it failed in (header `x-dl-from-queue`). `died`: when it became a
    dead letter (`x-dl-t`). `tries`: its failed tries (`x-dl-tries`). `error`: the reason
    (`x-error`). `pushed`: when the message was pushed, before it failed.
    `payload` and `headers` are as in `Message`.
    """

    id: str
    from_queue: str | None
    died: datetime | None
    tries: int | None
    error: str | None
    payload: Json | bytes
    headers: dict[str, str] = field(default_factory=dict)
    pushed: datetime | None = None


class DeadLetterFilters(Filters, total=False):
    """Filters of dead letters; a letter must match all of them.

    `dead`: the dead-letter queue, by default `<queue>.dead`. Several queues may share it: if the
    queue is named too, only letters from that queue match. `ids`: only these. `reason`: a text that
    the header `x-error` contains, in any case. `since`, `until`: the letters that died from, and
    before, that moment; letters without a moment do not match. `limit`: at most this number, the
    oldest.
    """

    dead: str | None


def dead_letters(url: str, queue: str | None = None, **filters: Unpack[DeadLetterFilters]) -> list[DeadLetter]:
    """Return dead letters of a queue (see `DeadLetterFilters`), oldest first; reserved ones too."""
    with open_existing(url) as store:
        search = _DeadLetterSearch.from_filters(store, queue, **filters)
        return [one.to_dead_letter() for one in search.first(search.find(store))]


def redrive(
    url: str,
    queue: str | None = None,
    *,
    to: str | None = None,
    create: bool = False,
    rate: float | None = None,
    dry_run: bool = False,
    progress: Callable[[int, int], None] | None = None,
    **filters: Unpack[DeadLetterFilters],
) -> dict[str, int]:
    """Move dead letters (see `DeadLetterFilters`) back to queues; return the number moved to each.

    Each moves to `to`, by default to the queue it came from. They keep id, payload, headers (also
    the reason of the failure) and maturity; their tries start at 0. They move oldest first, up to
    1,000 in one step, at most `rate` per second. Each is in exactly one queue at any time; if the
    redrive is interrupted, call it again. It skips letters that are reserved, or gone since it
    began. `dry_run` moves nothing, and returns the numbers that would move. `progress` gets the
    numbers of letters moved and found after each step.

    Raises `UsageError` before anything moves, if `to` does not exist (unless `create`), or if a
    letter without a source queue has no `to`. Raises `OptionError` for an invalid rate.
    """
    with open_existing(url) as store:
        search = _DeadLetterSearch.from_filters(store, queue, **filters)
        if rate is not None and not 0 < rate < math.inf:
            raise OptionError(f"rate must be more than 0 messages per second, not {rate}", option="rate")
        if to is not None:
            store.check_queue(to)
            if not create and to != queue:
                check_exists(store, to, "To create it, use --create (create=True).")
        # The payloads are left out: they may be many gigabytes.
        found = ((one.died, one.id, to or one.headers.get(FROM_HEADER, "")) for one in search.find(store))
        plan = [(id, target) for _, id, target in search.first(found)]
        for target in dict.fromkeys(target for _, target in plan):
            if target in ("", search.dead):
                id = next(id for id, its in plan if its == target)
                unknown = f"has no header {FROM_HEADER}: its queue is unknown"
                why = "would be moved to its own queue" if target else unknown
                raise UsageError(
                    f"dead letter {id!r} of queue {search.dead!r} {why}; nothing was moved. Name a queue with "
                    "--to (to=…), or exclude the letter with filters",
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
    """Move ids to their targets, in steps. Return the number moved to each target."""
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
        if rate is not None and start + step < len(plan):  # a slow step does not make the next ones faster
            time.sleep(min(max(0.0, began + step / rate - time.monotonic()), threading.TIMEOUT_MAX))
    return moved


@dataclass(frozen=True, slots=True)
class _DeadLetterSearch:
    """Checked `DeadLetterFilters`."""

    dead: str
    from_queue: str | None
    filters: CheckedFilters

    @classmethod
    def from_filters(
        cls, store: Store, queue: str | None, dead: str | None = None, **filters: Unpack[Filters]
    ) -> _DeadLetterSearch:
        if dead is None and queue is None:
            raise OptionError("QUEUE is missing; or name the dead-letter queue: --dead (dead=…)", option="queue")
        for name in (queue, dead):
            if name is not None:
                store.check_queue(name)
        checked = check_filters(store, filters)
        return cls(dead or dead_letter_queue(str(queue)), queue if dead else None, checked)

    def find(self, store: Store) -> Iterator[_StoredLetter]:
        """Yield the letters that match, in no particular order."""
        for batch in store.peek(self.dead, self.filters.where):
            facts = (batch.column(name).to_pylist() for name in ("payload", "payload_kind", "pushed"))
            for row in zip(batch.column("id").to_pylist(), header_dicts(batch), *facts, strict=True):
                one = _StoredLetter(_parse_died(row[1]), *row)
                if self._matches(one):
                    yield one

    def _matches(self, one: _StoredLetter) -> bool:
        since, until = self.filters.since, self.filters.until
        return (
            (self.from_queue is None or one.headers.get(FROM_HEADER) == self.from_queue)
            and self.filters.match_reason(one.headers)
            and (since is None or one.died >= since)
            and (until is None or EPOCH < one.died < until)
        )

    def first(self, found: Iterable[T]) -> list[T]:
        """Return the first items by moment and id, up to `limit`; keep no more in memory."""
        limit = self.filters.limit
        return sorted(found, key=_moment_and_id) if limit is None else heapq.nsmallest(limit, found, _moment_and_id)


class _StoredLetter(NamedTuple):
    """A letter as it is stored. `died` is 1970 if it has no such header."""

    died: datetime
    id: str
    headers: dict[str, str]
    payload: bytes
    kind: str
    pushed: datetime | None

    def to_dead_letter(self) -> DeadLetter:
        headers = self.headers
        tries = headers.get(TRIES_HEADER, "")
        return DeadLetter(
            id=self.id,
            from_queue=headers.get(FROM_HEADER),
            died=None if self.died == EPOCH else self.died,
            tries=int(tries) if re.fullmatch(r"\d{1,9}", tries) else None,
            error=headers.get(ERROR_HEADER),
            payload=decode(self.payload, self.kind),
            headers=headers,
            pushed=self.pushed,
        )


def _parse_died(headers: Mapping[str, str]) -> datetime:
    try:
        moment = datetime.fromisoformat(headers.get(DEAD_AT_HEADER, ""))
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):  # no such header, or one of another program
        return EPOCH
