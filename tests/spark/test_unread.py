"""Batches that a query does not read to their end, and rows that a watermark drops, on Spark itself."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.errors import StreamingQueryException

from spark_queue import UnreadError, supervise
from spark_queue.spark import drain, failures
from spark_queue.spark.spark_errors import failure_of
from spark_queue.stores.conformance.waiting import wait_until
from tests.spark_session import admission

#: Rows in a batch; a task may yield all of them before Spark takes the first one.
ROWS = 100


@pytest.fixture(autouse=True)
def listening(spark):
    """Have the listener in the shared session, as `spark_queue.session()` does."""
    failures.add_listener(spark)


@pytest.fixture
def warnings(caplog):
    """Return the warnings about a query, once the listener has heard of all its batches."""
    caplog.set_level(logging.WARNING, "spark_queue.spark.unread")

    def read(query):
        wait_until(lambda: not failures.is_run_heard(query), description="Spark has reported the end")
        return [one.getMessage() for one in caplog.records if str(query.id) in one.getMessage()]

    return read


def save(batch):
    batch.write.format("noop").mode("overwrite").save()


def limit(batch, number):
    save(batch.limit(3))


def take_three(batch, number):
    batch.take(3)


def no_action(batch, number):
    batch.where("id IS NOT NULL")


def whole(batch, number):
    save(batch)


def count_and_write(batch, number):
    if not batch.isEmpty():
        save(batch)


def cached(batch, number):
    batch.persist()
    batch.count()
    batch.take(3)
    batch.unpersist()


def filtered(batch, number):
    save(batch.where("payload = 'x'").select("id"))


def shuffled(batch, number):
    save(batch.repartition(3).dropDuplicates(["payload"]).join(batch.select("id"), "id"))


def unchanged(stream):
    return stream


def ends(q, stream, work, **options):
    """Run a query until it ends, and return it, and its error."""
    query = q.run(stream(q.stream(**options)), work)
    try:
        query.awaitTermination()
        drain(query, q.url)
    except (StreamingQueryException, UnreadError) as error:
        return query, failure_of(error)
    return query, None


full = pytest.mark.full

READ = [
    (unchanged, count_and_write),  # several actions
    pytest.param(unchanged, whole, marks=full),
    pytest.param(unchanged, cached, marks=full),
    pytest.param(unchanged, filtered, marks=full),
    pytest.param(unchanged, shuffled, marks=full),
    pytest.param(lambda df: df.union(df), whole, marks=full),
    pytest.param(lambda df: df.where("id = 'x'"), whole, marks=full),
    pytest.param(lambda df: df.dropDuplicates(["id"]), whole, marks=full),
]
NOT_READ = [
    (unchanged, take_three, 3),
    pytest.param(unchanged, limit, 3, marks=full),
    pytest.param(unchanged, no_action, 0, marks=full),
    pytest.param(lambda df: df.limit(3), whole, 3, marks=full),
]


@pytest.mark.parametrize(("stream", "work"), READ)
def test_a_batch_that_was_read_gives_no_warning_and_is_committed(q, warnings, stream, work):
    q.push(range(ROWS))
    query, error = ends(q, stream, work, onUnread="fail")
    assert (error, q.sizes().total) == (None, 0)
    assert warnings(query) == []


@pytest.mark.parametrize(
    ("stream", "work"), [pytest.param(*one.values, marks=full) if not isinstance(one, tuple) else one for one in READ]
)
def test_by_default_neither(q, warnings, stream, work):
    q.push(range(ROWS))
    query, error = ends(q, stream, work)
    assert (error, q.sizes().total) == (None, 0)
    assert warnings(query) == []


@pytest.mark.parametrize(("stream", "work", "read"), NOT_READ)
def test_a_batch_that_was_not_read_gives_a_warning(q, warnings, stream, work, read):
    q.push(range(ROWS))
    query, error = ends(q, stream, work)
    assert (error, q.sizes().total) == (None, 0)
    (text,) = warnings(query)
    assert f"Spark read {read} of {ROWS} messages of queue '{q.name}'" in text and "docs/unread.md" in text


@pytest.mark.parametrize(("stream", "work", "read"), NOT_READ)
def test_with_fail_it_is_not_committed(q, warnings, stream, work, read):
    """Not even if all its rows are in the buffers between the task and Spark."""
    q.push(range(ROWS))
    for _ in range(2):
        query, error = ends(q, stream, work, onUnread="fail", delivery="exactly-once")
        assert error is not None and error.kind is UnreadError and error.permanent
        assert f"has {ROWS} messages, but " in error.text and "Nothing was removed" in error.text
        assert q.sizes().total == ROWS
        work = whole  # a restart does not help: for Spark the batch is done
    assert warnings(query) == []


@pytest.mark.full
def test_with_ignore_there_is_no_warning(q, warnings):
    q.push(range(ROWS))
    query, _ = ends(q, unchanged, take_three, onUnread="ignore")
    assert (q.sizes().total, warnings(query)) == (0, [])


@pytest.mark.full
def test_a_batch_that_comes_again_in_parts_gives_no_warning(q, warnings):
    """What failed before is split: the first batch of the run has fewer messages than its offset."""
    q.push(range(ROWS))
    runs = []

    def work(batch, number):
        runs.append(len(batch.collect()))
        if len(runs) < 4:
            raise ValueError

    while True:
        query, error = ends(q, unchanged, work)
        assert warnings(query) == []
        if error is None and not q.sizes().total:  # on Spark 4.0 and 4.1, each part is a run
            break
    assert runs[3] < ROWS and sum(runs[3:]) == ROWS


@admission  # without limits, each run has only its first batch
@pytest.mark.full
def test_supervise_warns_where_there_is_no_listener(q, caplog, monkeypatch):
    """As with Spark Connect. It leaves out the first batch, which may be one that comes again."""
    monkeypatch.setattr("spark_queue.spark.supervision.is_run_heard", lambda _: False)
    monkeypatch.setattr(failures.QueryListener, "onQueryProgress", lambda *_: None)
    q.push(range(ROWS))
    supervise(lambda: q.run(q.stream(maxRecordsPerTrigger="50"), take_three), q.url)
    assert [one.getMessage() for one in caplog.records if "Spark read 3 of 50 messages" in one.getMessage()]


@pytest.mark.parametrize(("column", "kept"), [("arrived", True), pytest.param("mature", False, marks=full)])
def test_a_watermark_on_arrived_drops_no_late_message(q, warnings, column, kept):
    """One on `mature` does, and a message is late if it is redriven: the listener warns of that."""
    seen = []

    def run():
        stream = q.spark.readStream.format("queue").schema(
            "id STRING, payload STRING, mature TIMESTAMP, arrived TIMESTAMP"
        )
        df = stream.options(url=q.url, queue=q.name, waitTimeout="200ms").load()
        df = df.withWatermark(column, "0 seconds").dropDuplicates(["id", column])
        query = q.run(df, lambda batch, _: seen.extend(row.payload for row in batch.collect()))
        query.awaitTermination()
        drain(query, q.url)
        return query

    for payload in ("first", "second"):  # on Spark 4.0 and 4.1, the second run begins to drop
        q.push([payload])
        assert warnings(run()) == []
    q.push(["late"], mature=datetime.now(UTC) - timedelta(days=1))
    query = run()
    assert seen == ['"first"', '"second"', '"late"'][: 2 + kept]
    assert q.sizes().total == 0
    texts = warnings(query)
    assert len(texts) == (0 if kept else 1)
    assert all("dropped 1 row" in one and "the column arrived: see docs/unread.md" in one for one in texts)
