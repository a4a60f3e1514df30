"""What an operation may grow with: a curve for each, made of points of growing size on one store.

Each point is a queue of its own, made once and measured in every round; a measurement leaves it as it was. In SQLite
it has a file of its own too, for one file holds all queues.
"""

from __future__ import annotations

import multiprocessing
import random
import resource
import statistics
import time
import uuid
from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import ClassVar

from common import STORES, check, fill, payloads, turns

from spark_queue import open_store
from spark_queue.stores.base import Store

#: What is timed by the call; everything else is timed by the message.
CALLS = ("reserve one", "first reserve", "reserve a hundred", "sizes")

#: How often a single message is reserved in one measurement, and how often sizes are asked.
LOOKS, ASKED = 20, 5

#: Ready messages beside those that a curve is about.
READY = 10_000

#: Messages of one reserve of a consumer.
FEW = 100

#: ms that are over at once, and ms that are not over before a benchmark is.
AT_ONCE, LONG = 1, 86_400_000

#: Bytes of messages that one call pushes or fetches, about, and messages that make a median at least.
BYTES, LEAST = 32 << 20, 20

#: Seconds until all consumers are there.
PATIENCE = 300

#: Open files that MongoDB asks to be allowed.
FILES = 64_000

#: What all processes need, imported once: else that takes each of them a second.
IMPORTS = ["curves", "report", *(f"spark_queue.stores.{one}" for one in STORES)]

#: Calls at a time, where there are many to make.
THREADS = 8


class Point:
    """A queue of its own, in a database that is there or, of SQLite, in a file of its own."""

    def __init__(self, url: str, folder: Path) -> None:
        self.queue = f"bench{uuid.uuid4().hex[:8]}"
        self._file = folder / f"{self.queue}.db" if url.startswith("sqlite:") else None
        self.url = f"sqlite:///{self._file}" if self._file else url
        self.store: Store = open_store(self.url, retry_timeout=PATIENCE * 1000)

    def close(self) -> None:
        """Remove the queue."""
        if self._file is None:
            self.store.drop(self.queue)
        self.store.close()
        if self._file is not None:
            for one in self._file.parent.glob(f"{self._file.name}*"):
                one.unlink()


class Curve(ABC):
    """One thing that grows, on one store. `batch`: messages of an operation that takes many."""

    #: What the sizes are sizes of.
    axis: ClassVar[str]
    sizes: ClassVar[tuple[int, ...]]

    #: The size, by store, from which on it takes long, or more than a server is set up for: by word only.
    heavy: ClassVar[Mapping[str, int]] = {}

    def __init__(self, url: str, folder: Path, batch: int) -> None:
        self.url, self.folder, self.batch = url, folder, batch
        self.points: dict[int, Point] = {}

    @classmethod
    def chosen(cls, store: str, *, full: bool = False, most: int | None = None) -> list[int]:
        """The sizes on this store, heavy ones only where all are wanted, none above `most`; the first in any case."""
        heavy = None if full else cls.heavy.get(store)
        return [
            size
            for at, size in enumerate(cls.sizes)
            if at == 0 or ((heavy is None or size < heavy) and (most is None or size <= most))
        ]

    def prepare(self, sizes: Sequence[int]) -> None:
        """Make the points."""
        for size in sizes:
            self.points[size] = Point(self.url, self.folder)
            self.fill(self.points[size], size)

    @abstractmethod
    def fill(self, point: Point, size: int) -> None:
        """Push what a point of this size has from the beginning."""

    def measured(self, sizes: Sequence[int], rounds: int) -> Iterator[tuple[int, int, dict[str, float]]]:
        """Measure all points in rounds, from round 0; gives round, size, and the seconds that operations took."""
        for number in range(rounds):
            for size in turns(sizes, number):
                yield number, size, self.measure(self.points[size], size)

    def measure(self, point: Point, size: int) -> dict[str, float]:
        return cycle(point, payloads(self.batch + LOOKS))

    def close(self) -> None:
        """Remove what was made."""
        for point in self.points.values():
            point.close()


class Backlog(Curve):
    """Messages that are ready."""

    axis = "messages ready"
    sizes = (10_000, 100_000, 1_000_000, 10_000_000)
    heavy: ClassVar[Mapping[str, int]] = dict.fromkeys(STORES, 10_000_000)

    def fill(self, point: Point, size: int) -> None:
        pour(point, size)


class Scheduled(Curve):
    """Messages that are due tomorrow, beside some that are ready."""

    axis = "messages scheduled"
    sizes = (0, 10_000, 100_000, 1_000_000)

    def fill(self, point: Point, size: int) -> None:
        pour(point, READY)
        pour(point, size, LONG)


class Queues(Curve):
    """Other queues in the same database, of one message each.

    They cannot be there and not be there at the same time, and to make ten thousand takes minutes: here the sizes do
    not take turns, they come one after the other, each with all its rounds, from few to many. MongoDB keeps five
    files open for a queue, and ends itself when it may open no more: ten thousand queues are made only where we, who
    have started it, may have 64,000 files open (`ulimit -n`).
    """

    axis = "queues in the database"
    sizes = (1, 100, 1_000, 10_000)
    heavy: ClassVar[Mapping[str, int]] = {"mongodb": 10_000}

    @classmethod
    def chosen(cls, store: str, *, full: bool = False, most: int | None = None) -> list[int]:
        _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
        return super().chosen(store, full=full and (files < 0 or files >= FILES), most=most)

    def prepare(self, sizes: Sequence[int]) -> None:
        self.point = Point(self.url, self.folder)
        self.points = {sizes[0]: self.point}
        self.others: list[str] = []
        pour(self.point, READY)

    def fill(self, point: Point, size: int) -> None:
        new = [f"{point.queue}.{number}" for number in range(len(self.others) + 1, size)]
        self.others += new  # before they are there: whatever happens, they are removed
        at_once(lambda queue: fill(point.store, queue, payloads(1)), new)

    def measured(self, sizes: Sequence[int], rounds: int) -> Iterator[tuple[int, int, dict[str, float]]]:
        for size in sorted(sizes):
            self.fill(self.point, size)
            for number in range(rounds):
                yield number, size, self.measure(self.point, size)

    def close(self) -> None:
        if self.points:
            at_once(self.point.store.drop, self.others)
        super().close()


class Consumers(Curve):
    """Processes that drain one queue, some messages at a time, until it is empty."""

    axis = "processes on one queue"
    sizes = (1, 4, 16, 64)

    def fill(self, point: Point, size: int) -> None:
        pass  # each measurement drains what it has pushed

    def measure(self, point: Point, size: int) -> dict[str, float]:
        pour(point, n := 4 * self.batch)
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(IMPORTS)
        with ProcessPoolExecutor(size, context, _join, (context.Barrier(size),)) as pool:
            told = [one.result() for one in [pool.submit(consume, point.url, point.queue) for _ in range(size)]]
        begun, ended, done, times = zip(*told, strict=True)
        check(sum(done), n)
        return {
            "reserve a hundred": statistics.median(one for some in times for one in some),
            "drain": (max(ended) - min(begun)) / n,
        }


class Bytes(Curve):
    """Bytes of one message; as many messages as make some 32 MB, or a batch."""

    axis = "bytes of a message"
    sizes = (100, 1_000, 10_000, 100_000, 1_000_000)

    def fill(self, point: Point, size: int) -> None:
        fill(point.store, point.queue, self._texts(size))

    def measure(self, point: Point, size: int) -> dict[str, float]:
        return cycle(point, self._texts(size))

    def _texts(self, size: int) -> list[bytes]:
        """JSON documents of so many bytes, which do not get smaller when a database packs them."""
        noise, n = random.Random(size), max(LEAST, min(self.batch, BYTES // size)) + LOOKS
        frame = len('{"text":""}')
        return [b'{"text":"%s"}' % b64encode(noise.randbytes(size))[: size - frame] for _ in range(n)]


class Dead(Curve):
    """Reservations of one message each, of consumers that have died: their leases have ended."""

    axis = "reservations of dead consumers"
    sizes = (0, 100, 10_000)

    def fill(self, point: Point, size: int) -> None:
        pour(point, READY + size)

    def measure(self, point: Point, size: int) -> dict[str, float]:
        store, queue, tag = point.store, point.queue, f"dead-{uuid.uuid4().hex[:8]}"
        at_once(lambda number: store.reserve(queue, f"{tag}/{number}", 1, lease=LONG), range(size))
        check(store.renew(queue, tag, AT_ONCE), size)
        time.sleep(10 * AT_ONCE / 1000)
        with clock() as first:
            check(sum(store.reserve(queue, f"{tag}-next", 1)), 1)
        store.rollback(queue, f"{tag}-next", failed=False)
        found = {"first reserve": first()} | super().measure(point, size)
        store.rollback(queue, tag, failed=False)  # where nobody has taken them yet
        return found


CURVES: dict[str, type[Curve]] = {
    "backlog": Backlog,
    "scheduled": Scheduled,
    "queues": Queues,
    "consumers": Consumers,
    "bytes": Bytes,
    "dead": Dead,
}


# --- measuring ----------------------------------------------------------------------------------------------------


@contextmanager
def clock() -> Iterator[Callable[[], float]]:
    """Times its block; what it gives tells the seconds, once the block is over."""
    begun, ended = time.perf_counter(), 0.0
    yield lambda: ended - begun
    ended = time.perf_counter()


def cycle(point: Point, texts: Sequence[bytes]) -> dict[str, float]:
    """The seconds that operations take; the queue has as many messages after it as before, and at least `texts`."""
    store, queue, tag = point.store, point.queue, f"bench-{uuid.uuid4().hex[:8]}"
    n = len(texts) - LOOKS
    ones: list[float] = []
    asked: list[float] = []
    for number in range(LOOKS):
        with clock() as one:
            check(sum(store.reserve(queue, f"{tag}/{number}", 1)), 1)
        ones.append(one())
        store.commit(queue, f"{tag}/{number}")
    with clock() as reserve:
        check(sum(store.reserve(queue, f"{tag}/many", n)), n)
    with clock() as fetch:
        check(sum(page.num_rows for page in store.fetch(queue, f"{tag}/many/0")), n)
    with clock() as commit:
        check(store.commit(queue, f"{tag}/many"), n)
    with clock() as push:
        fill(store, queue, texts)
    for _ in range(ASKED):
        with clock() as one:
            store.sizes(queue)
        asked.append(one())
    each = {"reserve": reserve() / n, "fetch": fetch() / n, "commit": commit() / n, "push": push() / len(texts)}
    return {"reserve one": statistics.median(ones), **each, "sizes": statistics.median(asked)}


def pour(point: Point, n: int, delay: int | None = None) -> None:
    """Push so many messages of 100 bytes, a part at a time: ten million do not fit into the memory at once."""
    part = 100_000
    for first in range(0, n, part):
        fill(point.store, point.queue, payloads(min(part, n - first)), delay)


def at_once(work: Callable[..., object], items: Sequence[object]) -> None:
    """Call it for each, some at a time."""
    with ThreadPoolExecutor(THREADS) as pool:
        for _ in pool.map(work, items):
            pass


# --- consumers: each is a process of its own ----------------------------------------------------------------------

_barrier: Barrier


def _join(barrier: Barrier) -> None:
    global _barrier
    _barrier = barrier


def consume(url: str, queue: str) -> tuple[float, float, int, list[float]]:
    """Drain a queue; gives when it began and ended, the number of messages, and the seconds of each reserve."""
    times: list[float] = []
    done = 0
    with open_store(url, retry_timeout=PATIENCE * 1000) as store:
        store.sizes(queue)  # connects
        _barrier.wait(PATIENCE)
        begun = ended = time.monotonic()
        while True:
            tag = f"bench-{uuid.uuid4().hex[:8]}"
            with clock() as reserve:
                taken = store.reserve(queue, tag, FEW)
            if not taken:
                return begun, ended, done, times
            times.append(reserve())
            done += sum(page.num_rows for page in store.fetch(queue, f"{tag}/0"))
            store.commit(queue, tag)
            ended = time.monotonic()
