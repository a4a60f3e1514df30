"""The ways to push and to drain messages: the bare driver, our client, Spark, and Spark's ceiling."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ceiling import Rows
from common import DOCUMENT, check, fill, payloads
from measured import Measured
from meter import Meter, server_cpu
from pyspark.sql import SparkSession
from raw import BATCH, Raw, RawMongo, RawRedis, RawSqlite

from spark_queue import open_store
from spark_queue.options import AT_LEAST_ONCE, EXACTLY_ONCE

#: Messages in a micro-batch.
TRIGGER = 50_000


@dataclass(frozen=True)
class Way:
    """One way to do one thing: `what` is push or drain."""

    who: str
    what: str

    def __str__(self) -> str:
        return f"{self.who}, {self.what}"


RAW, CLIENT, CEILING = "raw driver", "client", "Spark's ceiling"
SPARK = {
    f"Spark, {partitions} partition{'s' if partitions > 1 else ''}, {delivery}": (partitions, delivery)
    for delivery in (AT_LEAST_ONCE, EXACTLY_ONCE)
    for partitions in (1, 2)
}
WHO = (RAW, CLIENT, *SPARK, CEILING)

#: What peers are compared with: how messages lie in the database, and who drains them.
BESIDE_PEERS = {"one record per message": f"Spark, 2 partitions, {AT_LEAST_ONCE}"}


class Ways:
    """All ways of one store. Queues are those of a run, and dropped after it."""

    def __init__(self, spark: SparkSession, scheme: str, url: str, folder: Path) -> None:
        self.spark, self.scheme, self.url, self.folder = spark, scheme, url, folder
        self._server = server_cpu(url)

    def names(self) -> list[Way]:
        """What can be measured, a push before its drain."""
        return [Way(who, what) for what in ("push", "drain") for who in WHO]

    def measure(self, way: Way, n: int) -> Measured:
        """Do it with `n` messages."""
        queue = f"bench{uuid.uuid4().hex[:8]}"
        if way.who == RAW:
            return self._raw(way.what, n)
        if way.who == CEILING:
            return self._push_ceiling(n) if way.what == "push" else self._drain_ceiling(n)
        with open_store(self.url) as store:
            try:
                if way.what == "push":
                    push = self._client_push if way.who == CLIENT else self._spark_push
                    measured = push(way, store, queue, n)
                    check(store.sizes(queue).ready, n)
                else:
                    drain = self._client_drain if way.who == CLIENT else self._spark_drain
                    measured = drain(way, store, queue, n)
                    check(store.sizes(queue).total, 0)
            finally:
                store.drop(queue)
        return measured

    def _metered(self, n: int, *, tree: bool, work: Callable[[], float | None]) -> Measured:
        """What work with `n` messages took, which may tell its rate itself."""
        with Meter(self._server, tree=tree) as meter:
            rate = work()
        found = Measured.of(n, seconds=meter.seconds, client=meter.client, server=meter.server, peak=meter.peak)
        return replace(found, rate=rate) if rate else found

    # --- in this process ----------------------------------------------------------------------------------------

    def _raw(self, what: str, n: int) -> Measured:
        texts = payloads(n)
        raw: Raw
        if self.scheme == "sqlite":
            raw = RawSqlite(self.folder)
        else:
            raw = RawMongo(self.url) if self.scheme == "mongodb" else RawRedis(self.url)
        try:
            if what == "push":
                return self._metered(n, tree=False, work=lambda: raw.push(texts))
            raw.push(texts)
            return self._metered(n, tree=False, work=lambda: check(raw.drain(), n))
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

        return self._metered(n, tree=False, work=work)

    # --- through Spark ------------------------------------------------------------------------------------------

    def _spark_push(self, way: Way, store: Any, queue: str, n: int) -> Measured:
        partitions, delivery = SPARK[way.who]
        options = {"url": self.url, "queue": queue, "delivery": delivery}
        rows = self.spark.range(0, n, 1, partitions).selectExpr(f"{DOCUMENT} payload")
        writer = rows.write.format("queue").mode("append").options(**options)
        return self._metered(n, tree=True, work=writer.save)

    def _spark_drain(self, way: Way, store: Any, queue: str, n: int) -> Measured:
        """Without the first batch, which pays for the start of the workers; CPU is that of all batches."""
        partitions, delivery = SPARK[way.who]
        fill(store, queue, payloads(n + TRIGGER))
        options = {"url": self.url, "queue": queue, "delivery": delivery, "numPartitions": partitions}
        return self._drained("queue", options, n + TRIGGER)

    def _push_ceiling(self, n: int) -> Measured:
        self.spark.dataSource.register(Rows)
        rows = self.spark.range(0, n, 1, 2).selectExpr(f"{DOCUMENT} payload")
        return self._metered(n, tree=True, work=rows.write.format("bench_rows").mode("append").save)

    def _drain_ceiling(self, n: int) -> Measured:
        self.spark.dataSource.register(Rows)
        return self._drained("bench_rows", {"rows": n + TRIGGER, "numPartitions": 2}, n + TRIGGER)

    def _drained(self, source: str, options: dict[str, Any], n: int) -> Measured:
        stream = self.spark.readStream.format(source).options(**options, maxRecordsPerTrigger=TRIGGER).load()
        checkpoint = str(self.folder / f"checkpoint-{uuid.uuid4().hex[:8]}")
        writer = stream.writeStream.format("noop").option("checkpointLocation", checkpoint)

        def work() -> float:
            query = writer.trigger(availableNow=True).start()
            query.awaitTermination()
            return _rate([one for one in query.recentProgress if one["numInputRows"]], n)

        return self._metered(n, tree=True, work=work)


def _rate(batches: list[Any], n: int) -> float:
    """Messages per second of all batches but the first."""
    check(sum(one["numInputRows"] for one in batches), n)
    rows = sum(one["numInputRows"] for one in batches[1:])
    return float(rows / sum(one["durationMs"]["triggerExecution"] for one in batches[1:]) * 1000)
