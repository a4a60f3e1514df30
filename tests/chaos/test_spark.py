"""Spark queries of which something is killed with SIGKILL in the middle of a batch."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from spark_queue import Queue, open_store
from spark_queue.messages.message import messages
from spark_queue.spark import drain
from spark_queue.stores.conformance.waiting import wait_until
from tests.chaos.processes import descendants, kill_tree, send, start
from tests.registered import embedded

pytestmark = pytest.mark.full


# --- the whole query ------------------------------------------------------------------------------------------------


class Supervised:
    """A query into Parquet, as a program that is started again until its queue is empty."""

    def __init__(self, url, name, folder):
        self.url, self.name, self.folder = url, name, folder
        self.process: Any = None

    def start(self):
        options = {"maxRecordsPerTrigger": "600", "numPartitions": "2"}
        self.process = start("drain", url=self.url, queue=self.name, folder=str(self.folder), options=options)

    def last(self, log):
        """The number of the last batch in a log of the checkpoint, -1 if there is none."""
        files = Path(self.folder, "checkpoint", log).glob("*")
        return max((int(file.name) for file in files if file.name.isdigit()), default=-1)

    def offset(self, batch):
        return json.loads(Path(self.folder, "checkpoint", "offsets", str(batch)).read_text().splitlines()[-1])

    def kill_in_flight(self, rng):
        """Kill it while a batch is in Spark's log of offsets, not in that of commits; give it, or None for a miss."""
        skipped = self.last("commits") + rng.randint(1, 3)
        while self.process.poll() is None:
            batch = self.last("offsets")
            if batch > max(skipped, self.last("commits")):
                time.sleep(rng.uniform(0, 0.3))
                if self.last("commits") < batch:
                    kill_tree(self.process)
                    return batch if self.last("offsets") == batch > self.last("commits") else None
            time.sleep(0.005)
        assert self.process.returncode == 0, f"it failed, with exit code {self.process.returncode}"
        return None

    def kill_reserved(self):
        """Kill it when it has reserved a batch that is not in Spark's log yet; give the batch, None for a miss."""
        with open_store(self.url) as store:
            while self.process.poll() is None:
                planned = self.last("offsets")
                if any(sequence(one.tag) > planned + 1 > 1 for one in store.reservations(self.name)):
                    kill_tree(self.process)
                    return planned + 1 if self.last("offsets") == planned else None
                time.sleep(0.005)
        assert self.process.returncode == 0, f"it failed, with exit code {self.process.returncode}"
        return None

    def held(self, batch):
        """What the queue holds for a batch: {id: tries}."""
        with open_store(self.url) as store:
            return {
                message.id: message.tries
                for one in store.reservations(self.name)
                if sequence(one.tag) == batch + 1
                for rows in store.fetch(self.name, one.tag)
                for message in messages(rows)
            }

    def output(self, batch=None):
        """The rows that a batch, or all of them, have written, by the sink's own log."""
        logs = Path(self.folder, "out", "_spark_metadata").glob("[0-9]*")
        lines = [line for log in logs if batch in (None, int(log.name)) for line in log.read_text().splitlines()[1:]]
        files = [json.loads(line)["path"].removeprefix("file://") for line in lines]
        return [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]


def sequence(tag):
    """Batch 0 of a query is reserved under consumer/epoch/1.process/partition."""
    return int(tag.split("/")[2].partition(".")[0])


def test_a_killed_query_that_is_started_again_writes_every_message_once(scheme, any_url, name, rng, tmp_path):
    aims, url = ["in flight", "reserved"][: 2 if embedded(scheme) else 1], any_url
    total = 0
    ids: Counter[str] = Counter()
    supervised = Supervised(url, name, tmp_path)

    def push(batches):
        nonlocal total
        with Queue(url, name) as queue:
            ids.update(queue.push_many([{"n": n} for n in range(total, total + 600 * batches)]))
        total += 600 * batches

    try:
        replayed = {}
        for aim in aims:
            for _ in range(5):  # the batch may end between the look and the kill
                push(5)
                supervised.start()
                batch = supervised.kill_reserved() if aim == "reserved" else supervised.kill_in_flight(rng)
                print(f"killed with batch {batch} {aim}")
                if batch is not None:
                    break
            assert batch is not None, "no kill has hit"
            replayed[batch] = supervised.held(batch)
            assert len(replayed[batch]) == 600
            if aim == "in flight":
                assert sum(supervised.offset(batch)["rows"]) == 600
        for _ in range(3):
            supervised.start()
            assert supervised.process.wait(120) == 0
            with Queue(url, name) as queue:
                if queue.sizes().total == 0:
                    break
        with Queue(url, name) as queue:
            assert queue.sizes().total == 0
        rows = supervised.output()
        assert Counter(row["id"] for row in rows) == ids, "lost, doubled or invented"
        assert sorted(json.loads(row["payload"])["n"] for row in rows) == list(range(total))
        assert {row["tries"] for row in rows} == {0}
        for batch, held in replayed.items():
            assert {row["id"]: row["tries"] for row in supervised.output(batch)} == held, "other rows than before"
    finally:
        if supervised.process is not None and supervised.process.poll() is None:
            kill_tree(supervised.process)


# --- one process of it ----------------------------------------------------------------------------------------------


class InSession:
    """A query of the tests' own session that collects its batches, started again whenever it has failed."""

    def __init__(self, spark, url, name, folder):
        self.spark, self.url, self.name, self.folder = spark, url, name, folder
        self.ids = []
        self.batches = []
        self.failures = []
        self.query = None

    def start(self, look, trigger):
        def collect(df, batch_id):
            rows = look(df)
            if rows:
                self.batches.append((batch_id, sorted((row.id, row.tries) for row in rows)))

        stream = self.spark.readStream.format("queue").options(
            url=self.url, queue=self.name, maxRecordsPerTrigger="300", waitTimeout="200ms"
        )
        writer = stream.load().writeStream.foreachBatch(collect).trigger(**trigger)
        self.query = writer.option("checkpointLocation", str(self.folder / "checkpoint")).start()

    def finish(self, look):
        """Let the query end, well or not, and start it again until the queue is empty."""
        for _ in range(5):
            try:
                drain(self.query, self.url)
            except Exception as error:  # noqa: BLE001 - whatever Spark makes of a process that is gone
                self.failures.append(str(error))
            with Queue(self.url, self.name) as queue:
                if queue.sizes().total == 0:
                    return
            self.start(look, {"availableNow": True})
        raise AssertionError(f"the queue is not empty after five runs: {self.failures}")

    def check(self, ids):
        """Nothing is lost or invented, and a batch that came again was the same."""
        by_batch = {}
        for batch, rows in self.batches:
            assert by_batch.setdefault(batch, rows) == rows, "other rows than before"
        rows = [row for rows in by_batch.values() for row in rows]
        assert Counter(id for id, _ in rows) == Counter(ids), "lost, invented, or in two batches"
        assert {tries for _, tries in rows} == {0}


@pytest.fixture
def query(spark, sqlite_url, name, tmp_path):
    one = InSession(spark, sqlite_url, name, tmp_path)
    with Queue(sqlite_url, name) as queue:
        one.ids = queue.push_many([{"n": n} for n in range(1_500)])
    yield one
    if one.query is not None and one.query.isActive:
        one.query.stop()


def readers():
    return {pid for pid, command in descendants(os.getpid()).items() if "python_streaming_source_runner" in command}


def test_a_query_whose_reader_process_is_killed_loses_nothing(query, rng):
    before, victims = readers(), []

    def look(df):
        rows = df.collect()
        if rows and len(query.batches) == 1 and not victims:
            victims.extend(readers() - before)
            time.sleep(rng.uniform(0, 0.2))
            for pid in victims:
                send(pid, 9)
        return rows

    query.start(look, {"availableNow": True})
    query.finish(look)
    assert len(victims) == 1
    query.check(query.ids)


def test_a_query_whose_python_worker_is_killed_loses_nothing(query, rng):
    note = query.folder / "worker"
    delay = rng.uniform(0, 0.2)

    def work(batches):
        import os
        import time

        if not note.exists():  # the first that works is killed
            note.write_text(str(os.getpid()))
            time.sleep(30)
        yield from batches

    def look(df):
        return (df.mapInArrow(work, df.schema) if len(query.batches) == 1 else df).collect()

    query.start(look, {"availableNow": True})
    pid = int(wait_until(lambda: note.exists() and note.read_text()))
    assert "pyspark" in descendants(os.getpid())[pid]
    time.sleep(delay)
    send(pid, 9)
    query.finish(look)
    assert query.failures, "with one attempt per task, as in local mode, the query fails"
    query.check(query.ids)
