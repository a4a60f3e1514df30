"""Short ways to fill, drain and look at queues with Spark, and sinks without it."""

from __future__ import annotations

import uuid

import pytest

from spark_queue import Queue, open_store
from spark_queue.spark import drain
from spark_queue.stores.services.ledger import delete_sink
from tests.spark_session import SPARK


@pytest.fixture
def name(request):
    """The name of a queue of this test's own, dropped from every store the test used."""
    name = f"t{uuid.uuid4().hex[:16]}"
    yield name
    for fixture in request.fixturenames:
        if fixture.endswith("_url"):
            with open_store(request.getfixturevalue(fixture)) as store:
                for one in {*store.queues(), *store.all_statistics()}:
                    if one.startswith(name):
                        store.drop(one)


# --- sinks without Spark, see drive.py ---


@pytest.fixture
def out(name):
    return f"{name}.out"


@pytest.fixture
def sink(any_url, name):
    """A sink's name: the id of a query, or what `txnAppId` says."""
    yield f"s{name}"
    with open_store(any_url) as store:
        delete_sink(store, f"s{name}")


@pytest.fixture
def driver(any_url, out, sink):
    """Make a driver that writes this batch of a query."""
    from tests.spark.drive import ATTEMPT, Write

    given = {"url": any_url, "queue": out}
    return lambda batch, **options: Write(ATTEMPT, query=sink, batch=batch, **given | options)


@pytest.fixture
def in_query(any_url, out, sink):
    """Write these values in `foreachBatch` of a query, with `txnAppId`, as this version."""
    from tests.spark.drive import attempt, forget_ledger, save

    queries = set()

    def write(query, version, *values, **options):
        queries.add(f"{sink}:{query}")
        given = {"url": any_url, "queue": out, "txnAppId": sink, "txnVersion": str(version)}
        save(attempt(values), within=query, batch=version, **given | options)

    yield write
    for one in queries:
        forget_ledger(any_url, one)


class Harness:
    """A queue and the ways Spark uses it."""

    def __init__(self, spark, url, name, folder):
        self.spark, self.url, self.name = spark, url, name
        self.checkpoint = str(folder / "checkpoint")
        self.folder = folder

    def client(self, **options):
        return Queue(self.url, self.name, **options)

    def push(self, payloads, **options):
        with self.client() as queue:
            return queue.push_many(payloads, **options)

    def sizes(self, name=None):
        with Queue(self.url, name or self.name) as queue:
            return queue.sizes()

    def stream(self, **options):
        return self._with(self.spark.readStream, {"waitTimeout": "200ms"} | options).load()

    def read(self, **options):
        return self._with(self.spark.read, options).load()

    def _with(self, reader, options):
        return reader.format("queue").options(**{"url": self.url, "queue": self.name} | options)

    def writing(self, df, **options):
        return df.write.format("queue").mode("append").options(**{"url": self.url, "queue": self.name} | options)

    def run(self, df, on_batch, trigger=None, checkpoint=None):
        """Start a query that calls `on_batch(df, batch_id)`."""
        writer = df.writeStream.foreachBatch(on_batch).option("checkpointLocation", checkpoint or self.checkpoint)
        return writer.trigger(**(trigger or {"availableNow": True})).start()

    def drain(self, on_batch=None, checkpoint=None, **options):
        """All messages that are ready, as rows, by batches; settled on every Spark."""
        batches = []

        def collect(df, batch_id):
            batches.append(df.collect())
            if on_batch:
                on_batch(df, batch_id)

        while True:
            before = len(batches)
            query = self.run(self.stream(**options), collect, checkpoint=checkpoint)
            query.awaitTermination()
            drain(query, self.url)
            if SPARK >= (4, 2) or not any(batches[before:]):
                return [batch for batch in batches if batch]


@pytest.fixture
def q(spark, sqlite_url, name, tmp_path):
    """A queue in SQLite."""
    return Harness(spark, sqlite_url, name, tmp_path)


@pytest.fixture
def q_any(spark, any_url, name, tmp_path):
    """A queue in each store in turn."""
    return Harness(spark, any_url, name, tmp_path)
