"""A process that runs a query, as Spark would, in a thread that stands still before each step of the model.

It runs the real `Consumer`, the code of tasks and the writer. `points` lets the thread stand before the calls with
which a step begins. So the order of the steps is that of the code. Whoever lets a step be taken sees where the thread
stands next.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from spark_queue import FencedError
from spark_queue.operations import common
from spark_queue.options import QueueOptions
from spark_queue.spark import ahead, keeper, share, writer
from spark_queue.spark import consumer as consumer_module
from spark_queue.spark.consumer import Consumer
from spark_queue.spark.share import fetched
from spark_queue.store import open_store, owner
from spark_queue.store.base import Store
from spark_queue.store.ledger import PREFIX, batch_of
from spark_queue.store.ownership import Ownership
from tests.spark.drive import TEXT, Write, task

#: Seconds that a step may take.
PATIENCE = 60

#: Where a process may stand, by the steps of the model; `tidy` is before the claim, too.
ORDER = (
    "own", "ask", "commit", "tidy", "claim", "keep", "log", "plan", "hold", "whole", "bind", "read", "stage",
    "complete", "decide", "publish", "sweep", "finish",
)  # fmt: skip
RANK = {name: place for place, name in enumerate(ORDER)} | {"tidy": ORDER.index("claim")}


class Refused(Exception):
    """Spark's checkpoint refuses to go on."""


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

    def __init__(self, source: dict[str, str], sink: dict[str, str], disk: Callable[[], Checkpoint]) -> None:
        """Start, and read the checkpoint; stand before the first step. `disk`: what is there at the moment."""
        self._options = QueueOptions.parse(source, "stream", "snapshot")
        self._sink, self._disk = sink, disk
        self._found = disk().copy()
        self.query = self._found.query
        self.batch = self._found.finished + 1
        self.at = ""  #: where it stands; empty once it has ended
        self.error: Exception | None = None  #: with which it has ended
        self.consumer: Consumer | None = None
        self._killed = False
        self._go, self._stands = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, name="a query", daemon=True)
        self._thread.start()
        self._wait()

    @property
    def place(self) -> tuple[int, int]:
        """Where it stands: in which batch, and before which step."""
        return self.batch, RANK[self.at]

    def go_on(self) -> None:
        """Let it take one step."""
        self._go.release()
        self._wait()

    def kill(self) -> None:
        """Let it end where it stands."""
        self._killed = True
        if self.at:
            self.go_on()

    def _wait(self) -> None:
        assert self._stands.acquire(timeout=PATIENCE), f"a step takes more than {PATIENCE} s"
        if not self.at:
            self._thread.join()

    def stand(self, at: str) -> None:
        """Stand still before a step; of the thread alone."""
        self.at = at
        self._stands.release()
        self._go.acquire()
        if self._killed:
            raise _Killed

    # --- what the thread does

    def _run(self) -> None:
        _here.process = self
        try:
            self._work()
        except _Killed:
            pass
        except Exception as error:  # noqa: BLE001 - whoever lets the step be taken looks at it
            self.error = error
        _here.process = None
        if self.consumer is not None:
            with suppress(FencedError):
                self.consumer.close()
        self.at = ""
        self._stands.release()

    def _work(self) -> None:
        consumer = self.consumer = Consumer(self._options)
        known = self._found.offsets[self.batch :]
        start: Any = self._found.offsets[self.batch - 1] if self.batch else consumer.initial
        while True:
            end = known.pop() if known else self._next(consumer, start)
            shares = consumer.plan(start, end)
            self._write(shares)
            self.stand("finish")
            self._disk().finish(self.query, self.batch)
            self.batch += 1
            start = end

    def _next(self, consumer: Consumer, start: Any) -> Any:
        while (end := consumer.next(start, int(self._options.max_records_per_trigger))) == start:
            time.sleep(0.02)  # a look in vain is believed for a moment
        self.stand("log")
        self._disk().log(self.query, self.batch, end)
        return end

    def _write(self, shares: Sequence[Any]) -> None:
        """Run a task that reads and writes all, and let the driver commit.

        What fails is not aborted: as if the process were killed then.
        """
        with task(0, self.query, self.batch):
            batches = [one.select(["payload"]) for part in shares for one in fetched(self._options, part)]
        rows = [one.set_column(0, "payload", one.column("payload").cast("string")) for one in batches]
        self.stand("stage")
        write = Write(TEXT, query=self.query, batch=self.batch, **self._sink)
        written = write.task(rows)
        self.stand("complete")
        write.commit(written)


# --- where it stands ------------------------------------------------------------------------------------------------


class _Clients:
    """Clients of a store that are used one after the other: to connect takes longer than all else."""

    def __init__(self) -> None:
        self._free: list[Store] = []

    def open(self, url: str, *, patience: float = 5.0, create: bool = True) -> Store:
        """Return a client that nobody uses; `close` gives it back."""
        if not self._free:
            store = open_store(url)
            store.close = lambda: self._free.append(store)  # type: ignore[method-assign]
            return store
        return self._free.pop()

    def end(self) -> None:
        """Close all."""
        for store in self._free:
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
                if process is not None and when(*arguments):
                    process.stand(at)
                return real(*arguments, **named)

            patch.setattr(holder, name, stands)

        before(Ownership, "take", "own")
        before(Ownership, "check_newest", "ask")
        before(Store, "commit", "commit")
        before(Consumer, "tidy", "tidy", lambda consumer, _: not consumer._tidied)
        before(Consumer, "take", "claim")
        before(Ownership, "start", "plan")
        before(Store, "renew", "hold")
        before(share, "bind", "bind")
        before(Store, "fetch", "read")
        before(Store, "set_note", "decide", lambda _, key, *rest: key.startswith(PREFIX))
        patch.setattr(Store, "publish", _publish_of(Store.publish))
        for module in (ahead, common, consumer_module, keeper, share, writer):
            patch.setattr(module, "open_store", clients.open)
        # No sign of life in between, and no lease that is renewed: processes stand still for a part of a second.
        patch.setitem(vars(keeper), "BEAT", 3_600)
        patch.setattr(owner, "LIFE", 3_600_000)
        yield
    clients.end()


def _publish_of(real: Callable[..., int]) -> Callable[..., int]:
    def publish(store: Store, stages: Any) -> int:
        process: Process | None = getattr(_here, "process", None)
        if process is None or any(batch_of(one) < process.batch for one in stages):
            return real(store, stages)  # what was decided before is completed in one step with the look for it
        process.stand("publish")
        published = real(store, stages)
        process.stand("sweep")
        return published

    return publish
