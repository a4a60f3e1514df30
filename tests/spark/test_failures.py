"""The dead letter of a poison message has its error, in a program that just starts again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.functions import udf

from spark_queue import Queue, open_store
from spark_queue.messages.message import messages
from spark_queue.spark import drain, failures
from spark_queue.stores.services.poison import MAX_FAILED_RUNS, NO_ERROR, failure_key
from spark_queue.stores.types import queue_note_key
from tests.spark_session import SPARK

HERE = Path(__file__)
ROOT = HERE.parents[2]


@pytest.fixture
def listening(spark):
    """Note what queries of the shared session fail with, as one of `spark_queue.session()` does."""
    failures.add_listener(spark)


def letters(url, name):
    """The reasons of dead letters, by payload."""
    with open_store(url) as store:
        found = [one for batch in store.peek(f"{name}.dead") for one in messages(batch)]
    return {str(one.payload): one.headers["x-error"] for one in found}


def line(code):
    """The number of the line of this file that holds this code."""
    return next(n for n, one in enumerate(HERE.read_text().splitlines(), 1) if one.strip() == code)


def restarted(q, work, most=20, **options):
    """Run a query until its queue is empty; restart it at once if it fails, as a simple program."""
    for _ in range(most):
        query = q.run(q.stream(maxTries="1", numPartitions="1", **options), work)
        try:
            query.awaitTermination()
        except StreamingQueryException:
            continue
        drain(query, q.url)
        if not q.sizes().total:
            return query
    raise AssertionError(f"it still fails; {q.sizes()}")


@pytest.fixture
def work(spark):
    """What fails on one message in `foreachBatch`, on one in a UDF, and on one in `mapInArrow`."""

    @udf("string")
    def checked(payload):
        if payload == '"udf"':
            raise KeyError("no key")
        return payload

    def eat(batches):
        for batch in batches:
            if '"arrow"' in batch.column(0).to_pylist():
                json.loads("none")
            yield batch

    def work(df, batch_id):
        rows = df.select(checked("payload").alias("payload")).mapInArrow(eat, "payload string").collect()
        for row in rows:
            if row.payload == '"batch"':
                raise ValueError("no fare")

    return work


def test_the_dead_letter_has_the_exception_and_the_last_line_of_the_users_code(q, work, listening):
    q.push(["batch", "fine", "udf", "arrow"])
    query = restarted(q, work)
    place = f"({HERE}, line {{}}, in {{}})"
    assert letters(q.url, q.name) == {
        "batch": "ValueError: no fare " + place.format(line('raise ValueError("no fare")'), "work"),
        "udf": "KeyError: 'no key' " + place.format(line('raise KeyError("no key")'), "checked"),
        "arrow": "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0) "
        + place.format(line('json.loads("none")'), "eat"),
    }
    if SPARK < (4, 2):  # which ends a run after a batch, and does not ask for another
        restarted(q, work)
    with open_store(q.url) as store:
        assert store.notes(queue_note_key(q.name, "failing")) == {}
        assert store.note(failure_key(query.id)) is None, "nothing is left of it"


# --- what is noted --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "url", "shown"),
    [
        ("no fare", "sqlite:///x.db", "no fare"),
        ("no\x00fare\x1b[0m\x7f", "sqlite:///x.db", "no fare [0m "),
        ("bad: geheim%21 and geheim!", "mongodb://u:geheim%21@h/x", "bad: *** and ***"),
        ("at redis://me:other@h:1/0 again", "sqlite:///x.db", "at redis://me:***@h:1/0 again"),
        ("see https://example.com/a/b?c=d", "sqlite:///x.db", "see https://example.com/a/b?c=d"),
        ("x" * 5_000, "sqlite:///x.db", "x" * failures.ERROR_CHARACTERS),
    ],
)
def test_a_reason_is_one_line_without_passwords(text, url, shown):
    assert failures.failure_reason(StreamingQueryException(text), url) == shown


# --- full -----------------------------------------------------------------------------------------


@pytest.mark.full
def test_it_is_noted_though_spark_says_it_late(q, work, listening, monkeypatch):
    """The query starts again before Spark has said that it ended: here it never says so."""
    monkeypatch.setattr(failures.QueryListener, "onQueryTerminated", lambda *_: None)
    q.push(["batch"])
    restarted(q, work)
    (error,) = letters(q.url, q.name).values()
    assert error.startswith("ValueError: no fare (")


@pytest.mark.full
def test_a_worker_that_is_killed_is_an_error_that_spark_gives(q, listening):
    q.push(["fine", "deadly"])

    def eat(batches):
        for batch in batches:
            if '"deadly"' in batch.column("payload").to_pylist():
                os._exit(3)
            yield batch

    restarted(q, lambda df, _: df.mapInArrow(eat, df.schema).collect())
    (error,) = letters(q.url, q.name).values()
    assert "Python worker exited" in error


@pytest.mark.full
def test_two_queries_of_a_session_have_their_own_errors(q, listening):
    names = [f"{q.name}.one", f"{q.name}.two"]
    for name in names:
        with Queue(q.url, name) as queue:
            queue.push_many(["bad", "fine"])

    def start(name):
        def fail(df, batch_id):
            if '"bad"' in [row.payload for row in df.collect()]:
                raise ValueError(name)

        df = q.stream(queue=name, maxTries="1", numPartitions="1")
        return q.run(df, fail, checkpoint=f"{q.checkpoint}.{name}")

    left = {*names}
    for _ in range(20):
        queries = {name: start(name) for name in left}
        for name, query in queries.items():
            try:
                query.awaitTermination()
            except StreamingQueryException:
                continue
            drain(query, q.url)
            left -= {name} if not q.sizes(name).total else set()
        if not left:
            break
    for name in names:
        (error,) = letters(q.url, name).values()
        assert error.startswith(f"ValueError: {name} (")


@pytest.mark.full
def test_one_queue_among_inputs_has_its_error_and_several_bury_nothing(q, listening):
    """Messages of several inputs belong together and are not split: none is the one that failed."""
    q.push(["batch"])

    def start(inputs, checkpoint):
        given = {"url": q.url, "inputs": json.dumps(inputs), "maxTries": "1", "waitTimeout": "200ms"}
        return q.spark.readStream.format("queue").options(**given).load(), f"{q.checkpoint}.{checkpoint}"

    def fail(df, batch_id):
        if df.collect():
            raise ValueError("no fare")

    def runs(inputs, checkpoint, most):
        for _ in range(most):
            df, folder = start(inputs, checkpoint)
            try:
                q.run(df, fail, checkpoint=folder).awaitTermination()
            except StreamingQueryException:
                continue

    runs({"a": {"queue": q.name}}, "one", MAX_FAILED_RUNS + 1)
    (error,) = letters(q.url, q.name).values()
    assert error.startswith("ValueError: no fare (")
    q.push(["left"])
    with Queue(q.url, f"{q.name}.right") as right:
        right.push("right")
    runs({"a": {"queue": q.name}, "b": {"queue": f"{q.name}.right"}}, "two", MAX_FAILED_RUNS + 1)
    assert (q.sizes().total, q.sizes(f"{q.name}.right").total) == (1, 1)
    assert set(letters(q.url, q.name)) == {"batch"}


PROGRAM = """
import os, sys
from pyspark.sql import SparkSession
import spark_queue
from spark_queue.spark import failures

how, url, name, checkpoint = sys.argv[1:]
conf = {"spark.master": "local[1]", "spark.ui.enabled": "false"}
if how == "not heard":
    builder = SparkSession.builder
    for key, value in conf.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
else:
    spark = spark_queue.session(**conf)
if how == "at exit":
    failures.QueryListener.onQueryTerminated = lambda *_: None


def work(df, batch_id):
    if '"bad"' not in [row.payload for row in df.collect()]:
        return
    if how == "killed":
        os.kill(os.getpid(), 9)
    raise ValueError("no fare")


def start():
    df = spark.readStream.format("queue").options(url=url, queue=name, maxTries="1", waitTimeout="200ms").load()
    writer = df.writeStream.foreachBatch(work).option("checkpointLocation", checkpoint).trigger(availableNow=True)
    return writer.start()


query = start()
try:
    query.awaitTermination()
finally:
    if how == "stopped":
        spark.stop()
"""


@pytest.mark.full
@pytest.mark.parametrize("how", ["at exit", "stopped", "killed", "not heard"])
def test_a_program_that_is_started_again(q, listening, how):
    """It fails twice in this process, then in its own program; the next start has the error."""

    def fail(df, batch_id):
        if df.collect():
            raise ValueError("earlier")

    def start():
        return q.run(q.stream(maxTries="1"), fail)

    q.push(["bad"])
    for _ in range(MAX_FAILED_RUNS - 1):
        with pytest.raises(StreamingQueryException, match="earlier"):
            start().awaitTermination()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, how, q.url, q.name, q.checkpoint],
        cwd=q.folder, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=280,
        check=False,
    )  # fmt: skip
    assert done.returncode == (-9 if how == "killed" else 1), done.stderr[-3000:]
    assert how == "killed" or "ValueError: no fare" in done.stderr, done.stderr[-3000:]
    start().awaitTermination()
    (error,) = letters(q.url, q.name).values()
    heard = how in ("at exit", "stopped")
    assert error.startswith("ValueError: no fare (" if heard else f"{NO_ERROR}; before that: ValueError: earlier (")
