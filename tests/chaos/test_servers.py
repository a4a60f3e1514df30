"""Servers that are killed with SIGKILL under a running query, and come back in time or too late."""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter

import pytest
from pyspark.errors import StreamingQueryException

from spark_queue import Queue
from spark_queue.stores import STORES
from spark_queue.stores.conformance.waiting import wait_until
from tests.chaos.servers import PASSWORD, Server
from tests.services import ServiceError

pytestmark = pytest.mark.stores(server=True)


@pytest.fixture
def server(scheme, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    try:
        own = Server(STORES[scheme].server, folder)
    except ServiceError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    yield own
    own.kill()
    shutil.rmtree(folder)


def test_a_query_survives_a_server_that_is_killed_and_loses_nothing_if_it_comes_back_too_late(
    server,
    spark,
    name,
    rng,
    tmp_path,
):
    got = []

    def look(df, batch_id):
        got.extend(df.collect())
        time.sleep(0.2)

    def run(retry):
        options = {"url": server.url, "queue": name, "maxRecordsPerTrigger": "50", "waitTimeout": "200ms"}
        stream = spark.readStream.format("queue").options(**options, retryTimeout=retry).load()
        writer = stream.writeStream.foreachBatch(look).trigger(processingTime="0 seconds")
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    def push(numbers):
        with Queue(server.url, name) as queue:
            return queue.push_many([{"n": n} for n in numbers])

    def seen(ids):
        return {row.id for row in got} >= set(ids)

    def through(query):
        assert query.isActive, query.exception()
        with Queue(server.url, name) as queue:
            return queue.sizes().total == 0

    first = push(range(400))
    query = run("60s")
    try:
        wait_until(lambda: len(got) >= 100)
        time.sleep(rng.uniform(0, 0.4))
        server.kill()
        assert not seen(first), "it is killed in the middle"
        time.sleep(rng.uniform(0.2, 1.5))
        server.start()
        wait_until(lambda: through(query))
        assert Counter(row.id for row in got) == Counter(first), "it went on, and no batch had to come again"
    finally:
        query.stop()

    got.clear()
    second = push(range(400, 700))
    query = run("2s")
    try:
        wait_until(lambda: len(got) >= 100)
        time.sleep(rng.uniform(0, 0.4))
        server.kill()
        begun = time.monotonic()
        with pytest.raises(StreamingQueryException) as failure:
            query.awaitTermination(60)
        assert time.monotonic() - begun < 30
    finally:
        query.stop()
    reported = str(failure.value)
    assert "StoreUnavailable" in reported and f":***@127.0.0.1:{server.port}" in reported
    assert PASSWORD not in reported
    assert not seen(second), "it was killed in the middle"

    server.start()
    query = run("60s")
    try:
        wait_until(lambda: through(query))
    finally:
        query.stop()
    times = Counter(row.id for row in got)
    assert times.keys() == set(second), "lost or invented"
    assert sum(n > 1 for n in times.values()) <= 50, "only the batch in flight comes again"
    assert {row.tries for row in got} == {0}
