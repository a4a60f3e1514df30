"""Ways to push and drain messages: the bare driver, our client, Spark, and Spark's ceiling."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ceiling import Rows
from common import DOCUMENT, check, fill, payloads
from measured import Measured
from meter import READER, Meter, python_processes, server_cpu
from pyspark.sql import SparkSession
from raw import BATCH, drain, raw_of

from spark_queue import Buckets, open_store
from spark_queue.messages.buckets import Layout
from spark_queue.options.url import StoreUrl
from spark_queue.options.values import AT_LEAST_ONCE, EXACTLY_ONCE
from spark_queue.stores.base import set_layout

#: Messages of a micro-batch, and its scale on each store and in buckets. A micro-batch has a fixed
#: cost of a third of a second, so it should hold one or two seconds of work. The number of measured
#: messages has the same scale.
TRIGGER = 50_000
SCALES = {"mongodb": 1, "sqlite": 5, "redis": 5}
BUCKETS_SCALE = 10

#: Batches in the queue that are not measured. One comes before, because it starts the workers. Two
#: come after, because each batch also reserves the next one.
BESIDE = 3


#: What is measured. A drain of Spark has batches of a fixed size; by default they find their size.
PUSH, DRAIN, DEFAULT_DRAIN = "push", "drain", "drain by default"


@dataclass(frozen=True)
class Way:
    """One way, `who`, to do one thing: `what` is PUSH, DRAIN or DEFAULT_DRAIN."""

    who: str
    what: str

    def __str__(self) -> str:
        return f"{self.who}, {self.what}"


@dataclass(frozen=True)
class Through:
    """Settings of one of our ways. `partitions` of Spark; 0: our client."""

    partitions: int
    delivery: str = AT_LEAST_ONCE
    layout: Layout = "single"


RAW, CEILING, LARGE_CEILING = "raw driver", "Spark's ceiling", "Spark's ceiling, large batches"
BOTH = (AT_LEAST_ONCE, EXACTLY_ONCE)
OURS = {
    "client": Through(0),
    "client, buckets": Through(0, layout=Buckets()),
    **{f"Spark, 1 partition, {delivery}": Through(1, delivery) for delivery in BOTH},
    **{f"Spark, 2 partitions, {delivery}": Through(2, delivery) for delivery in BOTH},
    **{f"Spark, buckets, {delivery}": Through(2, delivery, Buckets()) for delivery in BOTH},
}
WHO = (RAW, *OURS, CEILING, LARGE_CEILING)


def has_default(who: str) -> bool:
    """Return whether this way drains in micro-batches, so also in those that find their size."""
    return who in OURS and OURS[who].partitions > 0


def ceiling_of(who: str) -> str:
    """Return the ceiling of Spark in batches of the same size."""
    return LARGE_CEILING if who == LARGE_CEILING or in_buckets(who) else CEILING


def in_buckets(who: str) -> bool:
    """Return whether this way keeps messages in buckets."""
    return who in OURS and OURS[who].layout != "single"


#: Our ways that peers are compared with, by layout.
BESIDE_PEERS = {
    "one record per message": f"Spark, 2 partitions, {AT_LEAST_ONCE}",
    "buckets": f"Spark, buckets, {AT_LEAST_ONCE}",
}


class Ways:
    """All ways of one store. Each measurement has its own queue, and drops it."""

    def __init__(self, spark: SparkSession, scheme: str, url: str, folder: Path) -> None:
        self.spark, self.scheme, self.url, self.folder = spark, scheme, url, folder
        self._server = server_cpu(StoreUrl.parse(url).url)

    def names(self) -> list[Way]:
        """Return all ways, pushes first."""
        defaults = [Way(who, DEFAULT_DRAIN) for who in WHO if has_default(who)]
        return [*(Way(who, what) for what in (PUSH, DRAIN) for who in WHO), *defaults]

    def measure(self, way: Way, n: int) -> Measured:
        """Measure a way with `n` messages, times its scale."""
        queue = f"bench{uuid.uuid4().hex[:8]}"
        scale = self._scale(way)
        n *= scale
        if way.who == RAW:
            return self._raw(way.what, n)
        if way.who in (CEILING, LARGE_CEILING):
            return self._push_ceiling(n) if way.what == PUSH else self._drain_ceiling(n, TRIGGER * scale)
        how = OURS[way.who]
        with open_store(self.url) as store:
            if isinstance(how.layout, Buckets):
                set_layout(store, queue, how.layout)
            try:
                if way.what == PUSH:
                    push = self._spark_push if how.partitions else self._client_push
                    measured = push(way, store, queue, n)
                    check(store.sizes(queue).ready, n)
                else:
                    drain = self._spark_drain if how.partitions else self._client_drain
                    measured = drain(way, store, queue, n)
            finally:
                store.drop(queue)
        return measured

    def _scale(self, way: Way) -> int:
        return BUCKETS_SCALE if ceiling_of(way.who) == LARGE_CEILING else SCALES[self.scheme]

    def _metered(self, n: int, *, tree: bool, work: Callable[[], float | None]) -> Measured:
        """Run work on `n` messages, and return its result. Work may return its own rate."""
        with Meter(self._server, tree=tree) as meter:
            rate = work()
        found = Measured.of(n, seconds=meter.seconds, client=meter.client, server=meter.server, peak=meter.peak)
        return replace(found, rate=rate) if rate else found

    # --- in this process --------------------------------------------------------------------------

    def _raw(self, what: str, n: int) -> Measured:
        texts = payloads(n)
        raw = raw_of(self.scheme, self.url, self.folder)
        try:
            if what == PUSH:
                return self._metered(n, tree=False, work=lambda: raw.push(texts))
            raw.push(texts)
            return self._metered(n, tree=False, work=lambda: check(drain(raw), n))
        finally:
            raw.close()

    def _client_push(self, way: Way, store: Any, queue: str, n: int) -> Measured:
        texts = payloads(n)
        return self._metered(n, tree=False, work=lambda: fill(store, queue, texts))

    def _client_drain(self, way: Way, store: Any, queue: str, n: int) -> Measured:
        fill(store, queue, payloads(n))

        def work() -> None:
            done = sequence = 0
            while store.reserve(queue, f"bench/{sequence}", BATCH):
                done += sum(page.num_rows for page in store.fetch(queue, f"bench/{sequence}/0"))
                store.commit(queue, f"bench/{sequence}")
                sequence += 1
            check(done, n)
            check(store.sizes(queue).total, 0)

        return self._metered(n, tree=False, work=work)

    # --- through Spark ----------------------------------------------------------------------------

    def _spark_push(self, way: Way, store: Any, queue: str, n: int) -> Measured:
        how = OURS[way.who]
        layout = "single" if how.layout == "single" else "bucket"
        options = {"url": self.url, "queue": queue, "delivery": how.delivery, "layout": layout}
        rows = self.spark.range(0, n, 1, how.partitions).selectExpr(f"{DOCUMENT} payload")
        writer = rows.write.format("queue").mode("append").options(**options)
        return self._metered(n, tree=True, work=writer.save)

    def _spark_drain(self, way: Way, store: Any, queue: str, n: int) -> Measured:
        how = OURS[way.who]
        trigger = TRIGGER * self._scale(way)
        fill(store, queue, payloads(n + BESIDE * trigger))
        return self.drained(queue, how, n, trigger, fixed=way.what == DRAIN)

    def drained(self, queue: str, how: Through, n: int, trigger: int, *, fixed: bool = True) -> Measured:
        """Drain `n` messages of a queue that also holds BESIDE batches of `trigger` messages.

        The batches have `trigger` messages if `fixed`, else they find their size.
        """
        options = {"url": self.url, "queue": queue, "delivery": how.delivery, "numPartitions": how.partitions}
        if fixed:
            options["maxRecordsPerTrigger"] = trigger
        return self._drained("queue", options, n, trigger)

    def _push_ceiling(self, n: int) -> Measured:
        self.spark.dataSource.register(Rows)
        rows = self.spark.range(0, n, 1, 2).selectExpr(f"{DOCUMENT} payload")
        return self._metered(n, tree=True, work=rows.write.format("bench_rows").mode("append").save)

    def _drain_ceiling(self, n: int, trigger: int) -> Measured:
        self.spark.dataSource.register(Rows)
        options = {"rows": n + BESIDE * trigger, "numPartitions": 2, "maxRecordsPerTrigger": trigger}
        return self._drained("bench_rows", options, n, trigger)

    def _drained(self, source: str, options: dict[str, Any], n: int, trigger: int) -> Measured:
        """Drain `n` messages after a first batch. More are left, so each batch prepares the next.

        The rate is without the first batch, which starts the workers. CPU is that of all batches.
        """
        stream = self.spark.readStream.format(source).options(**options).load()
        checkpoint = str(self.folder / f"checkpoint-{uuid.uuid4().hex[:8]}")
        writer = stream.writeStream.format("noop").option("checkpointLocation", checkpoint)
        wanted = trigger + -(-n // trigger) * trigger

        def work() -> float:
            query = writer.start()
            try:
                while sum(one["numInputRows"] for one in query.recentProgress) < wanted:
                    if not query.isActive:
                        raise SystemExit(f"a query of the benchmark ended: {query.exception()}")
                    time.sleep(0.02)
                return _rate(list(query.recentProgress), wanted, exact="maxRecordsPerTrigger" in options)
            finally:
                query.stop()

        measured = self._metered(wanted, tree=True, work=work)
        # The reader must end before the next measurement starts.
        while any(name == READER for name, _ in python_processes()):
            time.sleep(0.05)
        return measured


def _rate(batches: list[Any], n: int, *, exact: bool) -> float:
    """Return messages per second of the batches that hold the first `n`, except the first batch.

    `exact`: whether these batches must hold no more than `n`.
    """
    rows: list[int] = []
    seconds: list[float] = []
    for one in batches:
        if sum(rows) < n:
            rows.append(one["numInputRows"])
            seconds.append(one["durationMs"]["triggerExecution"] / 1000)
    if exact:
        check(sum(rows), n)
    return sum(rows[1:]) / sum(seconds[1:])
