"""The history of a queue: read it, and replay parts of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Unpack

import pyarrow as pa

from spark_queue.admin.common import open_existing
from spark_queue.admin.filters import CheckedFilters, Filters, check_filters
from spark_queue.errors import OptionError, did_you_mean
from spark_queue.events.event import FAILED, FINISHED
from spark_queue.messages.columns import header_dicts
from spark_queue.messages.dead_letter import ERROR_HEADER
from spark_queue.messages.payload import Json, decode
from spark_queue.messages.schema import EPOCH, HISTORY, OUTCOMES, Outcome
from spark_queue.stores.base import Store
from spark_queue.stores.services.existence import check_exists
from spark_queue.stores.services.replay import Replay
from spark_queue.stores.types import Condition, check_outcome

#: The outcomes that a replay takes by default.
REPLAYED_OUTCOMES: tuple[Outcome, ...] = ("commit", "pop")


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """A message that has left its queue, as the history records it.

    `processed`: when it left. `consumer`: the first part of its tag, `None` if unknown. `outcome`:
    `commit`; `dead` for a dead letter, with the reason in `error` (header `x-error`); `pop`, or
    `remove` of a free message, by keuss programs; or a word that the consumer chose, such as
    `finished` and `failed` of events. `tries`: its failed tries. `payload`, `headers`
    and `pushed` are as in `Message`.
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
    pushed: datetime | None = None


class HistoryFilters(Filters, total=False):
    """Filters of a history; a message must match all of them.

    `ids`: only these. `consumer`, `outcome`: see `HistoryEntry`. `reason`: a text that the header
    `x-error` contains, in any case. `since`, `until`: the messages that were processed from, and
    before, that moment. `limit`: at most this number, the latest.
    """

    consumer: str | None
    outcome: str | None


def history(url: str, queue: str, **filters: Unpack[HistoryFilters]) -> list[HistoryEntry]:
    """Return messages from the history of a queue (see `HistoryFilters`), latest last."""
    with open_existing(url, queue) as store:
        search = _HistorySearch.from_filters(store, queue, **filters)
        check_exists(store, queue)
        found = [one for batch in search.find(store) for one in _to_entries(batch)]
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
    **filters: Unpack[HistoryFilters],
) -> int:
    """Push messages from the history again (see `HistoryFilters`).

    Return the number of messages that became visible now. By default it takes committed and popped
    messages; dead letters need `redrive`. They go to `to`, by default to the queue itself, as new
    messages. They keep payload, headers and maturity. So they keep their order, and come before
    messages pushed since. With a `rate`, they become due one after the other instead, `rate` per
    second. Their tries are 0, and their ids derive from `name` and the old id; the headers
    `x-replay` and `x-replay-of` hold both. The history does not change.

    A replay runs once for each queue and `name`. It is staged, decided, then published: all
    messages or none. If it was interrupted, call it again: it publishes the rest, whatever was
    consumed meanwhile, and returns 0 if nothing is left. `dry_run` pushes nothing, and returns the
    number that would be pushed.

    Raises `UsageError` before anything is pushed, if `to` does not exist (unless `create`), or if a
    replay of this name had other filters.
    """
    target = to or queue
    with open_existing(url, queue, target) as store:
        search = _HistorySearch.from_filters(store, queue, **filters)
        work = Replay(queue, name, target, rate, _format_filters(**filters))
        if work.is_decided(store):
            return work.unpublished(store) if dry_run else work.run(store, ())
        check_exists(store, queue)
        if not create and target != queue:
            check_exists(store, target, "To create it, use --create (create=True).")
        found = search.find(store, REPLAYED_OUTCOMES)
        return sum(batch.num_rows for batch in found) if dry_run else work.run(store, found)


def _format_filters(**filters: object) -> str:
    """Return filters as text, the same for the same filters."""
    given = {
        name: sorted(value) if isinstance(value, Collection) and not isinstance(value, str) else str(value)
        for name, value in sorted(filters.items())
        if value is not None
    }
    return repr(given)


@dataclass(frozen=True, slots=True)
class _HistorySearch:
    """Checked `HistoryFilters`."""

    queue: str
    consumer: str | None
    outcome: str | None
    filters: CheckedFilters

    @classmethod
    def from_filters(
        cls,
        store: Store,
        queue: str,
        consumer: str | None = None,
        outcome: str | None = None,
        **filters: Unpack[Filters],
    ) -> _HistorySearch:
        if outcome is not None and outcome not in (known := (*OUTCOMES, FINISHED, FAILED)):
            check_outcome(outcome)
            one = [Condition("outcome", "=", outcome)]
            if (hint := did_you_mean(outcome, known)) and not any(store.peek(queue, one, limit=1, view="history")):
                raise OptionError(
                    f"the history of {queue} has no messages with outcome {outcome!r}{hint}", option="outcome"
                )
        return cls(queue, consumer, outcome, check_filters(store, filters))

    def find(self, store: Store, outcomes: Sequence[str] = ()) -> Iterator[pa.RecordBatch]:
        """Return the messages that match, as HISTORY batches in no particular order.

        `outcomes`: those that match without the filter `outcome`, by default all.
        """
        filters, where = self.filters, [*self.filters.where]
        if self.consumer is not None:
            where.append(Condition("consumer", "=", self.consumer))
        if self.outcome is not None:
            outcomes = [self.outcome]
        if outcomes:
            where.append(Condition("outcome", "in", tuple(outcomes)))
        if filters.since is not None:
            where.append(Condition("processed", ">=", _ceil_ms(filters.since)))
        if filters.until is not None:
            where.append(Condition("processed", "<", _ceil_ms(filters.until)))
        found = store.peek(self.queue, where, view="history")
        if filters.reason:
            found = (
                batch.filter(pa.array([filters.match_reason(one) for one in header_dicts(batch)])) for batch in found
            )
        return found if filters.limit is None else _latest(found, filters.limit)


def _latest(batches: Iterable[pa.RecordBatch], limit: int) -> Iterator[pa.RecordBatch]:
    """Yield the `limit` rows that were processed last; keep no more of them in memory."""
    kept = pa.Table.from_batches([], HISTORY)
    order = [(name, "descending") for name in ("processed", "mature", "id")]
    for batch in batches:
        kept = pa.concat_tables([kept, pa.Table.from_batches([batch])]).sort_by(order).slice(0, limit)
    yield from kept.combine_chunks().to_batches()


def _to_entries(batch: pa.RecordBatch) -> Iterator[HistoryEntry]:
    names = ("id", "processed", "consumer", "outcome", "mature", "tries", "pushed", "payload", "payload_kind")
    columns = (batch.column(name).to_pylist() for name in names)
    for *values, payload, kind, headers in zip(*columns, header_dicts(batch), strict=True):
        id, processed, consumer, outcome, mature, tries, pushed = values
        error = headers.get(ERROR_HEADER) if outcome == "dead" else None
        yield HistoryEntry(
            id, processed, consumer, outcome, error, mature, tries, decode(payload, kind), headers, pushed
        )  # fmt: skip


def _ceil_ms(moment: datetime) -> int:
    """Convert a moment to ms since 1970, rounded up."""
    return -((EPOCH - moment) // timedelta(milliseconds=1))
