"""Exactly-once sinks: how far each is, and finishing what one has left that never comes back."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from spark_queue.admin.common import opened
from spark_queue.errors import FencedError, OptionError, UsageError, near
from spark_queue.options.masking import mask
from spark_queue.stores.base import Store
from spark_queue.stores.services.ledger import LEDGER_PREFIX, NOTHING, ONE_WRITE, Ledger, batch_of, forget, ledger_of
from spark_queue.stores.services.ledger import set_ledger as write_ledger
from spark_queue.stores.types import check_tag

#: The stages of sinks: `sink/batch/attempt`.
_STAGE = re.compile(r"([^/]+)/(\d+)/[^/]+")

#: ms after which the staged rows of a query are looked at: while it lives, its ledger changes with each batch.
STAGED_IDLE = 3_600_000


@dataclass(frozen=True, slots=True)
class Sink:
    """How far an exactly-once sink is: a streaming query by its id, a batch write by a made up name or by `txnAppId`.

    In `foreachBatch` that is `txnAppId:id`, with the id of the query.

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
    with opened(url) as store:
        return _sinks(store)


def left_staged(store: Store) -> Iterator[tuple[Sink, int | None]]:
    """Yield the sinks whose staged rows may never become visible, and how long their ledgers have not changed (ms).

    Those of a batch write, which is going on or was killed; and of other sinks those that have done nothing for an
    hour.
    """
    now = store.now()
    for sink in _sinks(store):
        note = store.note(LEDGER_PREFIX + sink.sink)
        idle = now - note.written if note is not None and note.written is not None else None
        if sink.staged and (sink.sink.startswith(ONE_WRITE) or idle is None or idle > STAGED_IDLE):
            yield sink, idle


def recover(url: str, sink: str) -> Recovered:
    """Publish what the ledger of a sink has decided and nobody finished; drop what was merely staged.

    For a sink whose query never comes back. Nothing is lost with what is dropped: its batch was not decided, so its
    source still has it. The ledger stays, but for that of a batch write without `txnAppId`, which nobody can repeat.
    Stop the query first: one that is at work fails, and this raises `FencedError` where it is seen. Raises
    `UsageError` for a sink that has neither ledger nor staged rows.
    """
    with opened(url) as store:
        ledger = _ledger(store, sink)
        if ledger is None and not store.staged(sink):
            raise _unknown(store, sink)
        published = store.publish(ledger.stages) if ledger else 0
        if ledger_of(store, sink) != ledger:
            raise FencedError(
                f"the query of sink {sink!r} is running: its ledger changed. Stop it first; nothing was dropped",
                sink=sink,
            )
        kept = ledger.stages if ledger else ()
        dropped = forget(store, sink) if sink.startswith(ONE_WRITE) else store.unstage(sink, keep=kept)
        return Recovered(published, dropped)


def set_ledger(url: str, sink: str, batch: int) -> int | None:
    """Set the last batch that a sink has written; return what its ledger said before.

    For a query that does not start since its ledger is missing or too old. What is said wrong makes it lose or double
    that batch. Raises `UsageError` where the last batch is not wholly published (see `recover`), and `FencedError`
    where the sink is at work.
    """
    with opened(url) as store:
        ledger = _ledger(store, sink)
        if batch < 0:
            raise OptionError(f"batch must be 0 or more, not {batch}", option="batch")
        waiting = {one.stage for one in store.staged(sink)} & set(ledger.stages if ledger else ())
        if waiting:
            raise UsageError(
                f"sink {sink!r} has published a part of batch {batch_of(min(waiting))}. Publish the rest first: "
                f"spark-queue ledger recover URL {sink} (or recover())",
                sink=sink,
            )
        write_ledger(store, sink, batch)
        return _batch(ledger)


def forget_ledger(url: str, sink: str) -> int | None:
    """Remove the ledger of a sink that never writes again; return its last batch.

    Without it a query cannot know what it has written: a batch of it that comes again would be refused, or written
    twice. Raises `OptionError` for a sink without a ledger, and `UsageError` where rows are staged for it: what is
    decided must be published first (see `recover`).
    """
    with opened(url) as store:
        ledger = _ledger(store, sink)
        if ledger is None:
            raise _unknown(store, sink)
        if store.staged(sink):
            raise UsageError(
                f"sink {sink!r} has staged rows. Publish or drop them first: spark-queue ledger recover URL {sink} "
                "(or recover())",
                sink=sink,
            )
        forget(store, sink)
        return _batch(ledger)


def _unknown(store: Store, sink: str) -> OptionError:
    known = [one.sink for one in _sinks(store)]
    return OptionError(f"sink {sink!r} does not exist in {mask(store.url)}{near(sink, known)}", sink=sink)


def _batch(ledger: Ledger | None) -> int | None:
    """The last batch that was decided."""
    return None if ledger is None or ledger.batch == NOTHING else ledger.batch


def _ledger(store: Store, sink: str) -> Ledger | None:
    """The ledger of a sink, whose name is checked."""
    check_tag(sink)
    if "/" in sink:
        raise OptionError(f"{sink!r} cannot be a sink: names of sinks have no /", sink=sink)
    return ledger_of(store, sink)


def _sinks(store: Store) -> list[Sink]:
    ledgers = {key.removeprefix(LEDGER_PREFIX): note for key, note in store.notes(LEDGER_PREFIX).items()}
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
