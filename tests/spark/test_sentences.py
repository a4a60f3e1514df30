"""Errors as users of Spark read them: our sentence in the first line or two, no lines of Java."""

from __future__ import annotations

import os
import re
import sys

import pytest
from pyspark.errors import PySparkException

from spark_queue import OptionError
from spark_queue.spark.tracebacks import hide_tracebacks


@pytest.fixture
def read(spark, sqlite_url, name):
    """Read a queue that has messages, in a batch."""

    def run(schema=None, **options):
        reader = spark.read.format("queue").options(**{"url": sqlite_url, "queue": name, **options})
        return (reader.schema(schema) if schema else reader).load().collect()

    return run


@pytest.fixture
def write(spark, sqlite_url, name):
    def run(*columns, mode="append", **options):
        rows = spark.createDataFrame([(1, "book"), (2, "lamp")], "number INT, item STRING").selectExpr(*columns)
        options = {"url": sqlite_url, "queue": name, **options}
        given = {key: value for key, value in options.items() if value is not None}
        writer = rows.write.format("queue").options(**given)
        (writer.mode(mode) if mode else writer).save()

    return run


@pytest.fixture
def stream(spark, sqlite_url, name, tmp_path):
    def run(schema=None, **options):
        reader = spark.readStream.format("queue").options(**{"url": sqlite_url, "queue": name, **options})
        source = (reader.schema(schema) if schema else reader).load()
        sink = source.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
        sink.trigger(availableNow=True).start().awaitTermination()

    return run


JSON = "to_json(struct(*)) AS payload"
UNREACHABLE = {"url": "redis://:sesame@127.0.0.1:1/0", "retryTimeout": "100ms"}


def said(call, *args, **options):
    """Return the error, which must be short and no Java."""
    with pytest.raises(PySparkException) as caught:
        call(*args, **options)
    lines = str(caught.value).splitlines()
    assert len(lines) <= 15, lines
    assert not [line for line in lines if line.lstrip().startswith(("at org.", "at java.", "Traceback"))]
    assert "sesame" not in str(caught.value)
    (sentence,) = [line for line in lines[:4] if "spark_queue.errors." in line]  # below what Spark says first
    return sentence.partition("spark_queue.errors.")[2]


def test_mistakes_of_a_batch_read(read, write, name):
    write(JSON)
    assert said(read, maxRecordPerTrigger="3") == (
        "OptionError: unknown option 'maxrecordpertrigger'; "
        "did you mean 'maxRecordsPerTrigger' or 'maxBytesPerTrigger'?"
    )
    assert said(read, "nunber INT").startswith("SchemaError: a queue has no column 'nunber'")
    assert re.search(f"does not exist in .*; did you mean '{name}'", said(read, queue=f"{name}s"))
    assert "cannot be reached" in said(read, **UNREACHABLE)
    assert "redis://:***@127.0.0.1:1/0" in said(read, **UNREACHABLE)


def test_mistakes_of_a_write(write):
    assert said(write, "item AS payload").endswith(
        "for plain text set payloadFormat=text; to write columns as JSON, to_json(struct(*)) AS payload"
    )
    assert said(write, "item AS payload", delivery="at-least-once").startswith("MessageError: queue ")
    assert said(write, "number", "item").endswith("put your columns into one, as to_json(struct(*)) AS payload")
    assert 'name the queue in option("queue", …)' in said(write, JSON, queue=None)
    assert said(write, JSON, "number AS mature") == "SchemaError: column 'mature' is int but must be timestamp"
    assert said(write, JSON, url=None).startswith("OptionError: option 'url' is missing: set it, to sqlite")
    assert "write with mode('append')" in said(write, JSON, mode="overwrite")
    assert "cannot be reached" in said(write, JSON, **UNREACHABLE)


def test_the_default_save_mode_is_refused_by_spark_itself_and_names_append(write):
    with pytest.raises(PySparkException, match='use either the "Append"'):
        write(JSON, mode=None)


def test_mistakes_of_a_stream(stream, write, name):
    write(JSON)
    assert "did you mean 'reserveTimeout'" in said(stream, reserveTimeot="3s")
    assert "cannot be reached" in said(stream, **UNREACHABLE)
    assert "SchemaError: column 'payload' cannot be binary: with payloadFormat=json" in said(stream, "payload BINARY")
    stream()
    write(JSON, queue=f"{name}.other")
    assert said(stream, queue=f"{name}.other").startswith(
        f"CheckpointError: the checkpoint is that of a query on queue '{name}', but option 'queue' is '{name}.other'"
    )


@pytest.mark.stores(server=True)
def test_a_wrong_password(read, url_of, scheme):
    wrong = url_of(scheme).replace("://", "://:sesame@" if scheme == "redis" else "://me:sesame@", 1)
    assert said(read, url=wrong, retryTimeout="100ms").startswith("StoreError: ")


def test_errors_of_others_and_outside_of_sparks_workers_keep_their_traceback(monkeypatch):
    monkeypatch.delenv("SPARK_HIDE_TRACEBACK", raising=False)

    @hide_tracebacks
    class Reader:
        def read(self, error):
            yield 1
            raise error

        def commit(self, error):
            raise error

    def raised(call):
        with pytest.raises((OptionError, ValueError)):
            call()
        return os.environ.get("SPARK_HIDE_TRACEBACK")

    for call in (lambda error: list(Reader().read(error)), lambda error: Reader().commit(error)):
        assert raised(lambda: call(OptionError("ours"))) is None  # noqa: B023
    main = type("Main", (), {"__spec__": type("Spec", (), {"name": "pyspark.daemon"})})
    monkeypatch.setitem(sys.modules, "__main__", main)
    for call in (lambda error: list(Reader().read(error)), lambda error: Reader().commit(error)):
        assert raised(lambda: call(ValueError("of others"))) is None  # noqa: B023
        assert raised(lambda: call(OptionError("ours"))) == "1"  # noqa: B023
        monkeypatch.delenv("SPARK_HIDE_TRACEBACK")
