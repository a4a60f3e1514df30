"""A process that runs a query, as Spark would, in a thread that stands still before each step of the model.

It runs the real `Consumer`, the code of tasks and the writer. `points` lets the thread stand before the calls with
which a step begins. So the order of the steps is that of the code. The test that takes a step then sees where the
thread stands.
"""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext

from spark_queue import FencedError
from spark_queue.admin import common
from spark_queue.errors import StoreUnavailable
from spark_queue.options.parts import Database
from spark_queue.options.roles import parse_options
from spark_queue.spark.read import fetch, lease_renewer, opening, prefetch
from spark_queue.spark.read.abandoned import AbandonedEpochs
from spark_queue.spark.read.batches import Batches
from spark_queue.spark.read.consumer import Consumer
from spark_queue.spark.read.fetch import FetchRange, ZippedRange, fetch_messages, fetch_zipped
from spark_queue.spark.read.multi_input import MultiInputPlanner
from spark_queue.spark.read.offsets import batch_of as batch_of_offset
from spark_queue.spark.read.queue_input import QueueInput
from spark_queue.stores import named, open_store
from spark_queue.stores.base import Store
from spark_queue.stores.conformance.limits import limits_of
from spark_queue.stores.mongodb.store import MongoStore
from spark_queue.stores.redis.store import RedisStore
from spark_queue.stores.services.ledger import LEDGER_PREFIX, batch_of
from spark_queue.stores.services.owner import Batch
from spark_queue.stores.services.ownership import Ownership
from spark_queue.stores.services.publishing import Publisher
from tests.spark.drive import TEXT, Write, task

#: Limits of processes that stand still for a part of a second: no heartbeat, and no lease is renewed. A query that
#: stands still may hold messages, and readers of several inputs do not wait for its heartbeat. A claim is one step
#: on SQLite. Others may take several, so here each takes one message.
STILL = {
    "heartbeat": 3_600, "owner_timeout_ms": 3_600_000, "order_timeout": 0, "command_chunk": 1, "script_chunk": 1,
}  # fmt: skip

#: Seconds that a step may take.
PATIENCE = 60

#: Where a process may stand, by the steps of the model; those of `TIDY` are before the claim, too.
ORDER = (
    "own", "ask", "commit", "tidy", "abandon", "give", "claim", "keep", "note", "log", "unread", "release", "plan",
    "hold", "whole", "bind", "read", "stage", "complete", "decide", "take", "publish", "sweep", "finish",
)  # fmt: skip
RANK = {name: place for place, name in enumerate(ORDER)}

#: Steps that are taken in one input after the other, or in one database of the sink.
TIDY = ("tidy", "abandon", "give")
EACH = ("own", "ask", "commit", *TIDY, "claim", "note", "release", "plan", "hold", "take", "publish", "sweep")

#: The last columns of rows for a sink of several databases.
ROUTED = pa.schema([*TEXT, pa.field("ns", pa.string())])


class Refused(Exception):
    """Spark's checkpoint refuses to go on."""


class Failed(Exception):
    """The driver fails where it stands, and aborts its write."""


class _Killed(BaseException):
    """Ends a thread where it stands."""


@dataclass
class Checkpoint:
    """Spark's logs: the offset of each batch, and the last batch that is finished."""

    query: str
    offsets: list[dict[str, Any]] = field(default_factory=list)
    finished: int = -1

    def copy(self) -> Checkpoint:
        """Return a copy."""
        return Checkpoint(self.query, list(self.offsets), self.finished)

    def log(self, query: str, batch: int, end: dict[str, Any]) -> None:
        """Write an offset: a new file, which must not be there."""
        if self.query != query or len(self.offsets) != batch:
            raise Refused("another query has written this offset")
        self.offsets.append(end)

    def finish(self, query: str, batch: int) -> None:
        """Note that a batch is finished."""
        if self.query != query or len(self.offsets) <= batch:
            raise Refused("the checkpoint has changed")
        self.finished = max(self.finished, batch)


_here = threading.local()


class Process:
    """A driver, its reader process and its tasks in one thread."""

    def __init__(
        self,
        source: dict[str, str],
        sink: dict[str, str],
        disk: Callable[[], Checkpoint],
        *,
        old: bool = False,
        notes: bool = False,
    ) -> None:
        """Start, and read the checkpoint; stand before the first step.

        `disk`: what is there at the moment. `old`: with the calls of Spark 4.0 and 4.1. `notes`: stand before it
        notes what it has reserved, too.
        """
        self._old, self.notes = old, notes
        self._options = parse_options(source, "stream")
        self._sink, self._disk = sink, disk
        self._found = disk().copy()
        self.query = self._found.query
        self.batch = self._found.finished + 1
        self.at = ""  #: where it stands; empty once it has ended
        self.input = 0  #: and in which input
        self.databases = [*json.loads(sink.get("urls", "{}")).values()]  #: URLs of a sink of several
        self.attempt = 0  #: the number of its attempt to write: rows go to other databases in each
        self.away = ""  #: the URL of a database that it cannot read
        self.begins_empty = False  #: whether a batch without messages is logged if nothing is found
        self.error: Exception | None = None  #: with which it has ended
        self.consumer: Consumer | MultiInputPlanner | None = None
        self._killed = self._fails = False
        self.in_task = False  # whether it is a task that reads
        self._go, self._stands = threading.Semaphore(0), threading.Semaphore(0)
        fetch._bind_once.cache_clear()  # each process has workers of its own
        self._thread = threading.Thread(target=self._run, name="a query", daemon=True)
        self._thread.start()
        self._wait()

    @property
    def place(self) -> tuple[int, int, int]:
        """Where it stands: in which batch, before which step, and in which input."""
        return self.batch, RANK[self.at], self.input if self.at in EACH else 0

    @property
    def members(self) -> list[Consumer]:
        """The consumer of each input."""
        if isinstance(self.consumer, MultiInputPlanner):
            return [*self.consumer.queues.values()]
        return [] if self.consumer is None else [self.consumer]

    def input_of(self, queue: object) -> int:
        """Return the number of the input that reads this queue."""
        return [*self._queues, queue].index(queue) % len(self._queues)

    @property
    def several(self) -> str:
        """How several inputs are combined; empty for one."""
        return self._options.combine if self._options.inputs else ""

    @property
    def _queues(self) -> list[str]:
        inputs = self._options.inputs
        return [one.queue for one in inputs.values()] if inputs else [self._options.queue]

    def go_on(self) -> None:
        """Let it take one step."""
        self._go.release()
        self._wait()

    def kill(self) -> None:
        """Let it end where it stands."""
        self._killed = True
        if self.at:
            self.go_on()

    def fail(self, away: str = "") -> None:
        """Let it fail where it stands, and abort its write. `away`: the URL of a database that it cannot read."""
        self._fails, self.away = True, away
        self.go_on()

    def _wait(self) -> None:
        assert self._stands.acquire(timeout=PATIENCE), f"a step takes more than {PATIENCE} s"
        if not self.at:
            self._thread.join()

    def stand(self, at: str, queue: object = None, database: int | None = None) -> None:
        """Stand still before a step, in the input that reads `queue` or in a database; of the thread alone."""
        self.at, self.input = at, self.input_of(queue) if database is None else database
        context = TaskContext.get()  # of all threads: another process may run a task meanwhile
        self._stands.release()
        self._go.acquire()
        TaskContext._setTaskContext(context)
        if self._killed:
            raise _Killed
        if self._fails:
            self._fails = False
            raise Failed

    # --- what the thread does

    def _run(self) -> None:
        _here.process = self
        try:
            self._work()
        except _Killed:
            pass
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.error = error
        _here.process = None
        if self.consumer is not None:
            with suppress(FencedError):
                self.consumer.close()
        self.at = ""
        self._stands.release()

    def _work(self) -> None:
        consumer = self.consumer = MultiInputPlanner(self._options) if self.several else Consumer(self._options)
        known = self._found.offsets[self.batch :]
        start: Any = self._found.offsets[self.batch - 1] if self.batch else consumer.initial
        if self._old and self._found.offsets:
            assert consumer.plan(self._found.offsets[-1], self._found.offsets[-1]) == []
        while True:
            end = known.pop() if known else self._next(consumer, start)
            self._write(consumer.plan(start, end))
            self.stand("finish")
            self._disk().finish(self.query, self.batch)
            self.batch += 1
            start = end

    def _next(self, consumer: Any, start: Any) -> Any:
        while True:
            begin = consumer.planned if self._old else start
            end = consumer.next(begin, self._options.max_records_per_trigger)
            if end != begin or self.begins_empty:
                break
            time.sleep(0.02)  # the result of an empty look is cached for a moment
        self.begins_empty = False
        self.stand("log")
        self._disk().log(self.query, self.batch, end)
        return end

    def _write(self, shares: Sequence[FetchRange | ZippedRange]) -> None:
        """Run a task that reads and writes all, and let the driver commit.

        What fails is not aborted, as if the process were killed then, unless it is to fail.
        """
        with task(0, self.query, self.batch):
            self.in_task = True
            batches = [one.select(["payload"]) for part in shares for one in self._read(part)]
            self.in_task = False
        rows = [one.set_column(0, "payload", one.column("payload").cast("string")) for one in batches]
        self.stand("stage")
        write = Write(ROUTED if self.databases else TEXT, query=self.query, batch=self.batch, **self._sink)
        written = write.task(map(self._routed, rows) if self.databases else rows)
        try:
            self.stand("complete")
            write.commit(written)
        except Failed:
            write.abort(written)
            raise

    def _routed(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Add the database of each row, by its number and that of the attempt."""
        numbers = [json.loads(one) for one in rows.column("payload").to_pylist()]
        names = [str((one + self.attempt) % len(self.databases)) for one in numbers]
        return pa.record_batch([rows.column("payload"), pa.array(names, pa.string())], schema=ROUTED)

    def _read(self, part: FetchRange | ZippedRange) -> Iterator[pa.RecordBatch]:
        if isinstance(part, FetchRange):
            return fetch_messages(self._options, part)
        return (one for batches in fetch_zipped(self._options, part) for one in batches.values())


# --- where it stands ------------------------------------------------------------------------------------------------


class _Clients:
    """Clients of a store that are used one after the other: to connect takes longer than all else."""

    def __init__(self) -> None:
        self._free: defaultdict[str, list[Store]] = defaultdict(list)
        # Held until the end: one could be collected with the generator of a crashed driver. Then it would come back
        # here from the `finally` of the generator, with sockets that are closed already.
        self._all: list[Store] = []

    def open(self, url: str, *, retry_timeout: int = 5_000, create: bool = True) -> Store:
        """Return a client that is not in use; `close` gives it back."""
        free = self._free[url]
        if not free:
            store = open_store(url, limits=limits_of(url, **STILL))
            self._all.append(store)
            store.close = lambda: free.append(store)  # type: ignore[method-assign]
            return store
        return free.pop()

    def open_database(self, database: Database, *, create: bool = True) -> Store:
        """Return a client of the database of some options."""
        return self.open(database.url, create=create)

    def end(self) -> None:
        """Close all."""
        for store in self._all:
            type(store).close(store)


@contextmanager
def points() -> Iterator[None]:
    """Let the threads of processes stand before the calls with which the steps of the model begin."""
    clients = _Clients()
    with pytest.MonkeyPatch.context() as patch:

        def before(holder: Any, name: str, at: str, when: Callable[..., bool] = lambda *_: True) -> None:
            real = getattr(holder, name)

            def stands(*arguments: Any, **named: Any) -> Any:
                process: Process | None = getattr(_here, "process", None)
                if process is not None and when(process, *arguments):
                    queue = getattr(arguments[0], "queue", arguments[1] if len(arguments) > 1 else None)
                    process.stand(at, arguments[1] if isinstance(arguments[0], Store) else queue)
                return real(*arguments, **named)

            patch.setattr(holder, name, stands)

        before(Ownership, "take", "own")
        before(Ownership, "check_newest", "ask")
        before(Store, "commit", "commit")
        before(Batches, "clean_up", "tidy", lambda _, batches, *rest: not batches.leftovers_released)
        before(AbandonedEpochs, "_remove_owner", "abandon")
        before(AbandonedEpochs, "_give_back", "give")
        before(Batches, "reserve", "claim", _claims_alone)
        before(MongoStore, "_hold", "claim", lambda _, store, queue, due, now, request, parts: 0 not in parts)
        patch.setattr(RedisStore, "_run", _run_of(RedisStore._run))
        before(MultiInputPlanner, "_reserve_from_first", "claim")
        before(MultiInputPlanner, "_reserve_from_each", "claim")
        before(QueueInput, "trim", "keep", lambda _, one, start, rows, most: sum(rows) > most)
        patch.setattr(Ownership, "note_reserved", _note_reserved_of(Ownership.note_reserved))
        before(MultiInputPlanner, "_release_unread", "unread")
        before(QueueInput, "release_unread", "release")
        before(Batches, "start", "plan", lambda _, batches, end: batches._started != batch_of_offset(end))
        before(Store, "renew", "hold")
        before(MultiInputPlanner, "_can_replay", "whole", lambda process, *_: process.several == "zip")
        before(fetch, "bind", "bind")
        before(Store, "read_reserved", "read", lambda process, *_: process.in_task)  # and not as the batch is planned
        before(Store, "set_note", "decide", _decides)
        patch.setattr(Publisher, "_take", _take_of(Publisher._take))
        patch.setattr(Store, "publish", _publish_of(Store.publish))
        patch.setattr(Store, "note", _note_of(Store.note))
        for module in (common, lease_renewer, named, fetch):
            patch.setattr(module, "open_store", clients.open)
        for module in (prefetch, opening, fetch):
            patch.setattr(module, "open_database", clients.open_database)
        yield
    clients.end()


def _claims_alone(process: Process, batches: Batches, *_: object) -> bool:
    """Whether a claim is a step of its own: of several inputs, with `zip`, all but the first, which waits for all."""
    return not process.several or (process.several == "zip" and process.input_of(batches.queue) > 0)


def _run_of(real: Callable[..., Any]) -> Callable[..., Any]:
    def run(store: Store, script: str, queue: str, *arguments: Any, **more: Any) -> Any:
        process: Process | None = getattr(_here, "process", None)
        if process is not None and script == "claim":
            *_, partitions, _, _, progress = arguments
            if partitions > 1 and progress:
                process.stand("claim", queue)
        return real(store, script, queue, *arguments, **more)

    return run


def _decides(process: Process, store: Store, key: str, value: Any, *_: object) -> bool:
    """Whether a note is a decision, which another database has not made before."""
    return key.startswith(LEDGER_PREFIX) and value["batch"] == process.batch and process.at != "take"


def _take_of(real: Callable[..., None]) -> Callable[..., None]:
    def take(publisher: Publisher, name: str, ledger: Any, decided: Any, **named: Any) -> None:
        process: Process | None = getattr(_here, "process", None)
        if process is not None and process.databases and decided.batch == process.batch:
            process.stand("take", database=int(name))
        real(publisher, name, ledger, decided, **named)

    return take


def _note_reserved_of(real: Callable[..., None]) -> Callable[..., None]:
    def note_reserved(ownership: Ownership, batch: Batch) -> None:
        process: Process | None = getattr(_here, "process", None)
        if process is None or process.notes:
            if process is not None:
                process.stand("note", ownership.queue)
            real(ownership, batch)
        else:  # no step: a process that lost its consumer goes on, and is refused when it starts the batch
            with suppress(FencedError):
                real(ownership, batch)

    return note_reserved


def _note_of(real: Callable[..., Any]) -> Callable[..., Any]:
    def note(store: Store, key: str) -> Any:
        process: Process | None = getattr(_here, "process", None)
        if process is not None and process.away == store.url:
            raise StoreUnavailable("it is away")
        return real(store, key)

    return note


def _publish_of(real: Callable[..., int]) -> Callable[..., int]:
    def publish(store: Store, stages: Any) -> int:
        process: Process | None = getattr(_here, "process", None)
        if process is None or any(batch_of(one) < process.batch for one in stages):
            return real(store, stages)  # what was decided before is completed in one step with the look for it
        database = process.databases.index(store.url) if process.databases else 0
        process.stand("publish", database=database)
        published = real(store, stages)
        process.stand("sweep", database=database)
        return published

    return publish
