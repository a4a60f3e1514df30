"""Growth curves: the time of operations at points of growing size, on one store.

Each point is a queue of its own. It is created once and measured in every round; a measurement
leaves it unchanged. In SQLite it also has a file of its own, because a file holds all queues.
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

from common import STORES, check, fill, payloads, push_documents, turns

from spark_queue import Buckets, open_store
from spark_queue.messages.buckets import Layout
from spark_queue.stores.base import Store, set_layout
from spark_queue.stores.types import COUNT_LIMIT

#: Operations that are timed per call. All others are timed per message.
CALLS = ("reserve one", "first reserve", "reserve a hundred", "sizes")

#: Reserves of a single message, and reads of the sizes, in one measurement.
SINGLE_RESERVES, SIZES_READS = 20, 5

#: Ready messages in addition to those of the curve.
READY = 10_000

#: Messages per reserve of a consumer.
CONSUMER_BATCH = 100

#: Leases and delays in ms: one that ends at once, and one that lasts longer than a benchmark.
SHORT_MS, LONG_MS = 1, 86_400_000

#: Approximate bytes of messages per push or fetch, and minimum messages for a median.
BYTES, MIN_MESSAGES = 32 << 20, 20

#: Seconds that consumers may take to start, and that a store retries.
TIMEOUT_S = 300

#: Open files that MongoDB needs for ten thousand queues.
FILES = 64_000

#: Modules that the fork server imports once. Otherwise each process spends a second on them.
IMPORTS = ["curves", "report", *(f"spark_queue.stores.{one}" for one in STORES)]

#: Concurrent calls when there are many to make.
THREADS = 8


class Point:
    """A queue of its own, in the given database or, for SQLite, in a file of its own."""

    def __init__(self, url: str, folder: Path, layout: Layout = "single") -> None:
        self.queue = f"bench{uuid.uuid4().hex[:8]}"
        self._file = folder / f"{self.queue}.db" if url.startswith("sqlite:") else None
        self.url = f"sqlite:///{self._file}" if self._file else url
        self.store: Store = open_store(self.url, retry_timeout=TIMEOUT_S * 1000)
        if isinstance(layout, Buckets):
            set_layout(self.store, self.queue, layout)

    def close(self) -> None:
        """Remove the queue."""
        if self._file is None:
            self.store.drop(self.queue)
        self.store.close()
        if self._file is not None:
            for one in self._file.parent.glob(f"{self._file.name}*"):
                one.unlink()


class Curve(ABC):
    """One growing quantity on one store. `batch`: messages per operation on a batch."""

    #: The quantity that grows.
    axis: ClassVar[str]
    sizes: ClassVar[tuple[int, ...]]

    #: Size, by store, from which a curve takes long or needs server settings: only with --full.
    heavy: ClassVar[Mapping[str, int]] = {}

    #: How the queue keeps its messages.
    layout: ClassVar[Layout] = "single"

    def __init__(self, url: str, folder: Path, batch: int) -> None:
        self.url, self.folder, self.batch = url, folder, batch
        self.points: dict[int, Point] = {}

    @classmethod
    def chosen(cls, store: str, *, full: bool = False, most: int | None = None) -> list[int]:
        """Return the sizes on this store, up to `most`, and heavy ones only if `full`.

        The first size is always included.
        """
        heavy = None if full else cls.heavy.get(store)
        return [
            size
            for at, size in enumerate(cls.sizes)
            if at == 0 or ((heavy is None or size < heavy) and (most is None or size <= most))
        ]

    def prepare(self, sizes: Sequence[int]) -> None:
        """Create the points."""
        for size in sizes:
            self.points[size] = Point(self.url, self.folder, self.layout)
            self.fill(self.points[size], size)

    @abstractmethod
    def fill(self, point: Point, size: int) -> None:
        """Push the initial messages of a point of this size."""

    def measured(self, sizes: Sequence[int], rounds: int) -> Iterator[tuple[int, int, dict[str, float]]]:
        """Measure all points in rounds from 0. Yield round, size, and seconds of operations."""
        for number in range(rounds):
            for size in turns(sizes, number):
                yield number, size, self.measure(self.points[size], size)

    def measure(self, point: Point, size: int) -> dict[str, float]:
        return cycle(point, payloads(self.batch + SINGLE_RESERVES))

    def close(self) -> None:
        """Remove the queues."""
        for point in self.points.values():
            point.close()


class Backlog(Curve):
    """Messages that are ready."""

    axis = "messages ready"
    sizes = (10_000, 100_000, 1_000_000, 10_000_000)
    heavy: ClassVar[Mapping[str, int]] = dict.fromkeys(STORES, 10_000_000)

    def fill(self, point: Point, size: int) -> None:
        push_documents(point.store, point.queue, size)


class Bucketed(Backlog):
    """Messages that are ready, in buckets. Only sizes are read: a reserve could split a bucket."""

    axis = "messages ready, in buckets"
    sizes = (100_000, 1_000_000, 10_000_000, 100_000_000)
    layout = Buckets()

    def measure(self, point: Point, size: int) -> dict[str, float]:
        return {"sizes": read_sizes(point)}


class Scheduled(Curve):
    """Messages that are due tomorrow, in addition to some that are ready."""

    axis = "messages scheduled"
    sizes = (0, 10_000, 100_000, 1_000_000)

    def fill(self, point: Point, size: int) -> None:
        push_documents(point.store, point.queue, READY)
        push_documents(point.store, point.queue, size, LONG_MS)


class Queues(Curve):
    """Other queues in the same database, with one message each.

    A database cannot have few and many queues at the same time, and ten thousand take minutes to
    create. So sizes do not take turns: from few to many, each is measured in all its rounds.
    MongoDB keeps five files open per queue, and exits when it may open no more. Ten thousand
    queues are created only if this process, which started MongoDB, may open 64,000 files
    (`ulimit -n`).
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
        push_documents(self.point.store, self.point.queue, READY)

    def fill(self, point: Point, size: int) -> None:
        new = [f"{point.queue}.{number}" for number in range(len(self.others) + 1, size)]
        self.others += new  # before they are created, so that they are always removed
        in_threads(lambda queue: fill(point.store, queue, payloads(1)), new)

    def measured(self, sizes: Sequence[int], rounds: int) -> Iterator[tuple[int, int, dict[str, float]]]:
        for size in sorted(sizes):
            self.fill(self.point, size)
            for number in range(rounds):
                yield number, size, self.measure(self.point, size)

    def close(self) -> None:
        if self.points:
            in_threads(self.point.store.drop, self.others)
        super().close()


class Consumers(Curve):
    """Processes that drain one queue, CONSUMER_BATCH messages at a time, until it is empty."""

    axis = "processes on one queue"
    sizes = (1, 4, 16, 64)

    def fill(self, point: Point, size: int) -> None:
        pass  # each measurement pushes its own messages and drains them

    def measure(self, point: Point, size: int) -> dict[str, float]:
        push_documents(point.store, point.queue, n := 4 * self.batch)
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(IMPORTS)
        with ProcessPoolExecutor(size, context, _join, (context.Barrier(size),)) as pool:
            results = [one.result() for one in [pool.submit(consume, point.url, point.queue) for _ in range(size)]]
        begun, ended, done, times = zip(*results, strict=True)
        check(sum(done), n)
        return {
            "reserve a hundred": statistics.median(one for some in times for one in some),
            "drain": (max(ended) - min(begun)) / n,
        }


class Bytes(Curve):
    """Bytes of one message. A batch has about 32 MB at most."""

    axis = "bytes of a message"
    sizes = (100, 1_000, 10_000, 100_000, 1_000_000)

    def fill(self, point: Point, size: int) -> None:
        fill(point.store, point.queue, self._texts(size))

    def measure(self, point: Point, size: int) -> dict[str, float]:
        return cycle(point, self._texts(size))

    def _texts(self, size: int) -> list[bytes]:
        """Return JSON documents of `size` bytes, random so that no database compresses them."""
        noise, n = random.Random(size), max(MIN_MESSAGES, min(self.batch, BYTES // size)) + SINGLE_RESERVES
        frame = len('{"text":""}')
        return [b'{"text":"%s"}' % b64encode(noise.randbytes(size))[: size - frame] for _ in range(n)]


class Dead(Curve):
    """Reservations of one message each whose consumers ended: their leases have expired."""

    axis = "reservations of dead consumers"
    sizes = (0, 100, 10_000)

    def fill(self, point: Point, size: int) -> None:
        push_documents(point.store, point.queue, READY + size)

    def measure(self, point: Point, size: int) -> dict[str, float]:
        store, queue, tag = point.store, point.queue, f"dead-{uuid.uuid4().hex[:8]}"
        in_threads(lambda number: store.reserve(queue, f"{tag}/{number}", 1, lease=LONG_MS), range(size))
        check(store.renew(queue, tag, SHORT_MS), size)
        time.sleep(10 * SHORT_MS / 1000)
        with clock() as first:
            check(sum(store.reserve(queue, f"{tag}-next", 1)), 1)
        store.rollback(queue, f"{tag}-next", failed=False)
        found = {"first reserve": first()} | super().measure(point, size)
        store.rollback(queue, tag, failed=False)  # those that no reserve has taken yet
        return found


CURVES: dict[str, type[Curve]] = {
    "backlog": Backlog,
    "buckets": Bucketed,
    "scheduled": Scheduled,
    "queues": Queues,
    "consumers": Consumers,
    "bytes": Bytes,
    "dead": Dead,
}


# --- measuring ------------------------------------------------------------------------------------


@contextmanager
def clock() -> Iterator[Callable[[], float]]:
    """Time the block. Yield a function that returns its seconds after the block."""
    begun, ended = time.perf_counter(), 0.0
    yield lambda: ended - begun
    ended = time.perf_counter()


def cycle(point: Point, texts: Sequence[bytes]) -> dict[str, float]:
    """Return the seconds of each operation.

    The queue holds at least `texts` messages, and as many afterwards as before.
    """
    store, queue, tag = point.store, point.queue, f"bench-{uuid.uuid4().hex[:8]}"
    n = len(texts) - SINGLE_RESERVES
    ones: list[float] = []
    for number in range(SINGLE_RESERVES):
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
    each = {"reserve": reserve() / n, "fetch": fetch() / n, "commit": commit() / n, "push": push() / len(texts)}
    return {"reserve one": statistics.median(ones), **each, "sizes": read_sizes(point)}


def read_sizes(point: Point) -> float:
    """Return the median seconds of a count for the progress of a query."""
    times: list[float] = []
    for _ in range(SIZES_READS):
        with clock() as one:
            point.store.sizes(point.queue, COUNT_LIMIT)
        times.append(one())
    return statistics.median(times)


def in_threads(work: Callable[..., object], items: Sequence[object]) -> None:
    """Call `work` for each item, in THREADS threads."""
    with ThreadPoolExecutor(THREADS) as pool:
        for _ in pool.map(work, items):
            pass


# --- consumers, each in a process of its own ------------------------------------------------------

_barrier: Barrier


def _join(barrier: Barrier) -> None:
    global _barrier
    _barrier = barrier


def consume(url: str, queue: str) -> tuple[float, float, int, list[float]]:
    """Drain a queue. Return start, end, number of messages, and the seconds of each reserve."""
    times: list[float] = []
    done = 0
    with open_store(url, retry_timeout=TIMEOUT_S * 1000) as store:
        store.sizes(queue)  # connects
        _barrier.wait(TIMEOUT_S)
        begun = ended = time.monotonic()
        while True:
            tag = f"bench-{uuid.uuid4().hex[:8]}"
            with clock() as reserve:
                taken = store.reserve(queue, tag, CONSUMER_BATCH)
            if not taken:
                return begun, ended, done, times
            times.append(reserve())
            done += sum(page.num_rows for page in store.fetch(queue, f"{tag}/0"))
            store.commit(queue, tag)
            ended = time.monotonic()
