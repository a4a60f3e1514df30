"""Sinks with exactly-once delivery: show their ledgers, and recover a sink that stopped."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from spark_queue.admin.common import open_existing
from spark_queue.errors import FencedError, OptionError, UsageError, did_you_mean
from spark_queue.options.masking import mask
from spark_queue.stores.base import Store
from spark_queue.stores.services.ledger import (
    LEDGER_PREFIX,
    NO_BATCH,
    ONE_WRITE_PREFIX,
    Ledger,
    batch_of,
    delete_sink,
    ledger_of,
)
from spark_queue.stores.services.ledger import set_ledger as write_ledger
from spark_queue.stores.types import check_tag

#: The name of a stage: `sink/batch/attempt`.
_STAGE_NAME = re.compile(r"([^/]+)/(\d+)/[^/]+")

#: ms without a change of its ledger after which a query with staged rows counts as stopped.
STALE_AFTER_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Sink:
    """The progress of a sink.

    `sink`: the id of a streaming query, or the `txnAppId` or generated name of a batch write. In
    `foreachBatch` it is `txnAppId:id`, with the id of the query. `batch`: the last batch that it
    has decided to publish, `None` if there is none. `staged`: the number of staged rows by batch.
    `unpublished`: the rows of `batch` that are not published yet; if this stays above 0, the sink
    has stopped: use `recover`.
    """

    sink: str
    batch: int | None
    staged: dict[int, int]
    unpublished: int


@dataclass(frozen=True, slots=True)
class RecoveredSink:
    """The result of `recover`: numbers of messages that became visible, and of rows dropped.

    `kept`: the number of rows of later batches that stay, because another database of the sink may
    have decided on them.
    """

    published: int
    dropped: int
    kept: int = 0


def ledgers(url: str) -> list[Sink]:
    """Return all sinks with a ledger or staged rows.

    Stages whose names are not those of a sink are left out.
    """
    with open_existing(url) as store:
        return _load_sinks(store)


def find_stale_sinks(store: Store) -> Iterator[tuple[Sink, int | None]]:
    """Yield the sinks whose staged rows may never become visible, and the age of each ledger (ms).

    These are batch writes, which are running or were killed, and other sinks that have been idle
    for an hour. The age counts from the last change; it is `None` if that is unknown.
    """
    now = store.now()
    for sink in _load_sinks(store):
        note = store.note(LEDGER_PREFIX + sink.sink)
        idle = now - note.written if note is not None and note.written is not None else None
        if sink.staged and (sink.sink.startswith(ONE_WRITE_PREFIX) or idle is None or idle > STALE_AFTER_MS):
            yield sink, idle


def recover(url: str, sink: str) -> RecoveredSink:
    """Publish the rest of the batch that the ledger of a sink has decided; drop other staged rows.

    For a sink whose query cannot start again. No message is lost: the batch of dropped rows was not
    decided, so its source still has the messages. If the sink writes to several databases, rows of
    later batches stay: `recover_consumer` looks into all of them. The ledger stays, except that of
    a batch write without `txnAppId`, which cannot be repeated. Stop the query first: a running
    query fails. Raises `FencedError` if the ledger changes meanwhile, and `OptionError` if the sink
    has neither a ledger nor staged rows.
    """
    with open_existing(url) as store:
        ledger = _load_ledger(store, sink)
        if ledger is None and not store.staged(sink):
            raise _unknown_sink(store, sink)
        published = store.publish(ledger.stages) if ledger else 0
        if ledger_of(store, sink) != ledger:
            raise FencedError(
                f"the query of sink {sink!r} is running: its ledger changed. Stop it first; nothing was dropped",
                sink=sink,
            )
        kept = ledger.stages if ledger else ()
        if sink.startswith(ONE_WRITE_PREFIX):
            return RecoveredSink(published, delete_sink(store, sink))
        later: list[str] = []
        if ledger and len(ledger.databases) > 1:
            later = [one.stage for one in store.staged(sink) if batch_of(one.stage) > ledger.batch]
        dropped = store.unstage(sink, keep=(*kept, *later))
        return RecoveredSink(published, dropped, sum(one.rows for one in store.staged(sink)) if later else 0)


def set_ledger(url: str, sink: str, batch: int) -> int | None:
    """Set the last batch that a sink has written; return the batch that its ledger had before.

    For a query that does not start because its ledger is missing or too old. A wrong number makes
    it lose or repeat that batch. Raises `UsageError` if the last batch is only partly published
    (see `recover`), `FencedError` if the sink is running, and `OptionError` if `batch` is negative.
    """
    with open_existing(url) as store:
        ledger = _load_ledger(store, sink)
        if batch < 0:
            raise OptionError(f"batch must be 0 or more, not {batch}", option="batch")
        unpublished = {one.stage for one in store.staged(sink)} & set(ledger.stages if ledger else ())
        if unpublished:
            raise UsageError(
                f"sink {sink!r} has published a part of batch {batch_of(min(unpublished))}. Publish the rest first: "
                f"spark-queue ledger recover URL {sink} (or recover())",
                sink=sink,
            )
        write_ledger(store, sink, batch)
        return _last_batch(ledger)


def forget_ledger(url: str, sink: str) -> int | None:
    """Remove the ledger of a sink that never writes again; return its last batch.

    Without it, a batch that is repeated is refused or written twice. Raises `OptionError` if the
    sink has no ledger, and `UsageError` if it has staged rows: use `recover` first.
    """
    with open_existing(url) as store:
        ledger = _load_ledger(store, sink)
        if ledger is None:
            raise _unknown_sink(store, sink)
        if store.staged(sink):
            raise UsageError(
                f"sink {sink!r} has staged rows. Publish or drop them first: spark-queue ledger recover URL {sink} "
                "(or recover())",
                sink=sink,
            )
        delete_sink(store, sink)
        return _last_batch(ledger)


def _unknown_sink(store: Store, sink: str) -> OptionError:
    known = [one.sink for one in _load_sinks(store)]
    return OptionError(f"sink {sink!r} does not exist in {mask(store.url)}{did_you_mean(sink, known)}", sink=sink)


def _last_batch(ledger: Ledger | None) -> int | None:
    """Return the last batch that a ledger has decided."""
    return None if ledger is None or ledger.batch == NO_BATCH else ledger.batch


def _load_ledger(store: Store, sink: str) -> Ledger | None:
    """Return the ledger of a sink. Raises `OptionError` if the name is invalid."""
    check_tag(sink)
    if "/" in sink:
        raise OptionError(f"{sink!r} cannot be a sink: the name of a sink has no /", sink=sink)
    return ledger_of(store, sink)


def _load_sinks(store: Store) -> list[Sink]:
    notes = {key.removeprefix(LEDGER_PREFIX): note for key, note in store.notes(LEDGER_PREFIX).items()}
    parsed = {name: Ledger.from_note(name, note) for name, note in notes.items()}
    staged: dict[str, Counter[int]] = {name: Counter() for name in parsed}
    unpublished: Counter[str] = Counter()
    for one in store.staged():
        if match := _STAGE_NAME.fullmatch(one.stage):
            sink = match[1]
            staged.setdefault(sink, Counter())[int(match[2])] += one.rows
            ledger = parsed.get(sink)
            if ledger is not None and one.stage in ledger.stages:
                unpublished[sink] += one.rows
    return [
        Sink(name, _last_batch(parsed.get(name)), dict(rows), unpublished[name])
        for name, rows in sorted(staged.items())
    ]
