"""Tasks in workers that Spark's daemon forks while it has the queue open: acknowledged messages stay."""

from __future__ import annotations

from functools import partial

import pytest

from spark_queue import Queue, StoreError
from tests.forked import Beside
from tests.spark import drive
from tests.spark.drive import Query, Write, attempt, found, payloads
from tests.spark.worker_daemon import Daemon


def read(reader, part, query, batch):
    """Read a partition, as a task."""
    with drive.task(0, query, batch):
        return [row["payload"] for rows in reader.read(part) for row in rows.to_pylist()]


def write(writer, values, query, batch):
    """Write rows, as a task; return the task's message to the driver."""
    with drive.task(0, query, batch):
        rows = [attempt(values)]
        return writer.write(iter(rows))


@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
def test_tasks_in_forked_workers_lose_and_double_nothing(any_url, name, out, delivery):
    """The daemon closes what its workers inherited, and another program opens the file: SQLite's log begins anew."""
    with Queue(any_url, name) as queue:
        queue.push_many(range(20))
    with Daemon(any_url, name) as daemon:
        workers = [daemon.worker() for _ in range(2)]
        daemon.close_queue()
        with Beside(any_url, f"{name}.beside"):

            def work(batch):
                one, other = workers[:: 1 if batch.number % 2 else -1]
                facts = query.id, batch.number
                values = [row for part in batch._partitions for row in one(partial(read, batch.reader, part, *facts))]
                sink = Write(attempt(values).schema, query=query.id, batch=batch.number, **options)
                sink.commit(other(partial(write, sink.writer, values, *facts)))

            options = {"url": any_url, "queue": out, "delivery": delivery}
            source = {"url": any_url, "queue": name, "delivery": delivery, "maxRecordsPerTrigger": "7"}
            query = Query(work, **source)
            query.run()
            assert query.finished >= 3, "each worker has read and written"
    assert sorted(payloads(any_url, out)) == sorted(['"daemon"', *map(str, range(20))])
    assert found(any_url, name) == [], "all are committed"


def test_a_worker_that_cannot_use_the_file_says_so(sqlite_url):
    """It was forked while a thread of the daemon was in a call to SQLite: it writes nothing."""

    def push():
        with Queue(sqlite_url, "q") as queue:
            queue.push("worker")

    with Daemon(sqlite_url, "q", busy=True) as daemon:
        run = daemon.worker()
        with pytest.raises(StoreError, match=r"forked while its parent was in a call to a SQLite file.*nothing was"):
            run(push)
    assert payloads(sqlite_url, "q") == ["daemon"]
