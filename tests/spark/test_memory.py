"""Batches that fit into memory, and what becomes of one that does not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from spark_queue import Queue, open_store
from spark_queue.stores.conformance.waiting import wait_until
from spark_queue.stores.services.owner import consumers, load_consumer_state
from tests.command_line import Run

KB = 1024


def state_of(store, queue, consumer):
    state = load_consumer_state(store, queue, consumer)
    assert state is not None
    return state


def test_each_batch_of_a_query_fits_into_its_bytes(q):
    """As with foreachBatch(collect), whose process would die of a batch that is too large."""
    with Queue(q.url, q.name) as queue:
        queue.push_many([{"n": n, "x": "x" * (20 * KB if n % 2 else 10)} for n in range(60)])
    batches = q.drain(maxBytesPerTrigger="200k", numPartitions="2")
    sizes = [sum(len(row.payload) for row in batch) for batch in batches]
    assert max(sizes) <= 200 * KB and sum(map(len, batches)) == 60
    assert len([size for size in sizes if size]) >= 4, "600 KB"


def test_a_query_that_was_stopped_within_a_batch_did_not_die_of_it(q):
    with Queue(q.url, q.name) as queue:
        queue.push_many([{"n": n} for n in range(100)])
    for _ in range(2):
        works, goes_on, rows = threading.Event(), threading.Event(), []

        def work(df, batch_id, rows=rows, works=works, goes_on=goes_on):
            rows.append(df.count())
            works.set()
            goes_on.wait(60)
            raise RuntimeError("the batch is not done")

        query = q.run(q.stream(consumer="c"), work, trigger={"processingTime": "0 seconds"})
        stopping = threading.Thread(target=query.stop)
        try:
            assert works.wait(60)
        finally:
            stopping.start()
            wait_until(lambda query=query: not query.isActive)
            goes_on.set()
            stopping.join()
        assert rows == [100]
        with open_store(q.url) as store:
            ((_, consumer, _),) = consumers(store, q.name)
            wait_until(lambda one=consumer, store=store: state_of(store, q.name, one).ended)
            assert state_of(store, q.name, consumer).deaths == 0


PROGRAM = """
import os, signal, sys
from spark_queue import session

url, checkpoint, log, victim, delivery, most = sys.argv[1:]
spark = session()

def work(df, batch_id):
    numbers = [row.n for row in df.selectExpr("get_json_object(payload, '$.n') AS n").collect()]
    if len(numbers) > 10:  # as if the system had killed it for its memory
        jvm = int(spark._jvm.java.lang.ProcessHandle.current().pid())
        os.kill(jvm if victim == "jvm" else os.getpid(), signal.SIGKILL)
    sink = df.select("payload").write.format("queue").mode("append").options(url=url, queue="out")
    sink.options(txnAppId="copy", txnVersion=batch_id).save()
    with open(log, "a") as file:
        print(*numbers, file=file)

stream = spark.readStream.format("queue").options(url=url, queue="q", waitTimeout="200ms", delivery=delivery)
stream = stream.option("maxRecordsPerTrigger", most).load()
query = stream.writeStream.foreachBatch(work).option("checkpointLocation", checkpoint)
query.trigger(availableNow=True).start().awaitTermination()
"""


class Program:
    """A program whose batches of more than 10 messages kill it, as too little memory does."""

    def __init__(self, url, folder, victim, delivery):
        self.url, self.folder, self.victim, self.delivery = url, folder, victim, delivery
        self.checkpoint, self.most = "one", "auto"
        self.log = folder / "log"

    def run(self):
        arguments = self.url, self.folder / self.checkpoint, self.log, self.victim, self.delivery, self.most
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
        command = [sys.executable, "-c", PROGRAM, *map(str, arguments)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)

    @property
    def done(self):
        return len(self.log.read_text().split()) if self.log.exists() else 0

    def finish(self, most=20):
        """Start it until all is done: in one run on Spark 4.2 and later."""
        while self.done < 100 and most:
            most -= 1
            self.run()
        with Queue(self.url, "out") as queue:
            assert sorted(one.payload["n"] for one in queue.peek(200)) == list(range(100)), "each comes once"
        with open_store(self.url) as store:
            assert store.sizes("q").ready == 0


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("victim", ["program", "jvm"])
def test_a_batch_that_kills_its_driver_is_split_at_the_third_start(sqlite_url, tmp_path, victim):
    with Queue(sqlite_url, "q") as queue:
        queue.push_many([{"n": n} for n in range(100)])
    program = Program(sqlite_url, tmp_path, victim, "at-least-once")
    for _ in range(2):
        program.run()
        assert not program.done
    third = program.run()
    assert program.done, third.stderr[-2000:]
    program.finish()


@pytest.mark.full
@pytest.mark.timeout(900)
def test_with_exactly_once_the_commands_of_the_error_help(sqlite_url, tmp_path):
    program = Program(sqlite_url, tmp_path, "program", "exactly-once")
    with Queue(sqlite_url, "q") as queue:
        queue.push_many([{"n": n} for n in range(5)])
        program.run()
        assert program.done == 5, "the ledger of the sink has this batch"
        queue.push_many([{"n": n} for n in range(5, 100)])
    for _ in range(2):
        assert "died 2 times" not in program.run().stderr
    error = program.run().stderr
    (recover,) = set(re.findall(r"spark-queue (recover URL \S+ \S+ --sink URL)", error))
    (program.most,) = set(re.findall(r"maxRecordsPerTrigger=(\d+)", error))
    assert program.done == 5 and program.most == "5"
    settled = Run(*recover.replace("URL", sqlite_url).split(), "--yes")
    assert settled.code == 0, settled.err
    program.checkpoint = "two"
    program.finish()
