"""Tasks on another machine do not use a SQLite file of that machine: the job fails instead."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from spark_queue import CheckpointError, Queue
from tests.elsewhere import Place
from tests.spark.drive import Write, payloads, rows

#: Each job is tried, and its error printed.
PROGRAM = """
import json, pathlib, sys
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from spark_queue import Queue
from spark_queue.events import Events
from spark_queue.events.spark_query import ExecutorQuery
from tests.spark.begun import begin_batch

url, folder, *chosen = sys.argv[1:]
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
spark = builder.config("spark.sql.shuffle.partitions", "1").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
rows = spark.range(400).select(F.to_json(F.struct("id")).alias("payload"))


def write(queue, **options):
    rows.write.format("queue").mode("append").options(url=url, queue=queue, **options).save()


def write_to_several():
    several = rows.withColumn("ns", F.lit("a"))
    several.write.format("queue").mode("append").options(urls=json.dumps({"a": url}), queue="several").save()


def run(frame, to, name, **options):
    writer = frame.writeStream.format(to).options(**options).option("checkpointLocation", f"{folder}/{name}")
    writer.trigger(availableNow=True).start().awaitTermination()


def stream(name, **options):
    run(spark.readStream.format("queue").options(url=url, **options).load(), "noop", name)


def sink():
    source = pathlib.Path(folder, "source")
    source.mkdir()
    (source / "one.txt").write_text("1\\n")
    text = spark.readStream.schema("payload STRING").text(str(source))
    run(text, "queue", "sink", url=url, queue="sink")


def settle():
    begin_batch(url, "full")
    frame = spark.createDataFrame([("1", "commit")], "id STRING, outcome STRING").write.format("queue")
    frame.mode("append").options(url=url, queue="full", operation="settle", consumer="etl").save()


def events():
    with Events(url, "events") as made:
        made.create("s", "t")
        ExecutorQuery(made, f"{folder}/events").start(spark, available_now=True).awaitTermination()


def fill(*queues):
    for one in queues:
        with Queue(url, one) as queue:
            queue.push_many(list(range(10)))


PAIR = json.dumps({"left": {"queue": "left"}, "right": {"queue": "right"}})
JOBS = {
    "at least once": lambda: write("once", delivery="at-least-once"),
    "exactly once": lambda: write("exactly"),
    "several databases": write_to_several,
    "stream": lambda: (fill("full"), stream("stream", queue="full")),
    "inputs": lambda: (fill("left", "right"), stream("inputs", inputs=PAIR)),
    "log": lambda: (fill("kept"), stream("log", queue="kept", mode="log")),
    "read": lambda: spark.read.format("queue").options(url=url, queue="full").load().collect(),
    "read a log": lambda: spark.read.format("queue").options(url=url, queue="kept", mode="log").load().collect(),
    "sink": sink,
    "settle": settle,
    "events": events,
}
said = {}
for name in chosen or JOBS:
    try:
        JOBS[name]()
        said[name] = ""
    except PySparkException as error:
        said[name] = str(error)
print("said", json.dumps(said))
spark.stop()
"""


def run_jobs(place, folder, *jobs):
    """What these jobs say, or all: an error, or nothing."""
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "SPARK_LOCAL_IP": "127.0.0.1"}
    env |= dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"), str(place.python(folder)))
    done = subprocess.run(
        [str(place.python(folder)), "-c", PROGRAM, place.url, str(folder), *jobs],
        cwd=place.home, env=env, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    found = [line for line in done.stdout.splitlines() if line.startswith("said ")]
    assert found, done.stderr[-3000:]
    return json.loads(found[0].removeprefix("said "))


@pytest.mark.parametrize(
    "jobs", [pytest.param(["at least once"], id="a write"), pytest.param([], id="all", marks=pytest.mark.full)]
)
def test_no_task_elsewhere_uses_a_file_of_its_own(tmp_path, monkeypatch, jobs):
    place = Place(tmp_path, machine=True)
    said = run_jobs(place, tmp_path, *jobs)
    monkeypatch.chdir(place.home)
    with Queue(place.url, "once") as queue:
        assert queue.sizes().total == 0
    assert list(place.other.iterdir()) == []
    assert "at least once" in said
    for job, error in said.items():
        assert "OptionError: option 'url': the driver" in error and "use a server: mongodb://" in error, (job, error)


@pytest.mark.full
def test_tasks_in_another_container_use_the_volume_that_it_shares(tmp_path):
    place = Place(tmp_path, shared=True)
    said = run_jobs(place, tmp_path)
    assert not any(said.values()), said
    assert len(said) == 11
    with Queue(place.url, "once") as once, Queue(place.url, "exactly") as exactly:
        assert once.sizes().total == exactly.sizes().total == 400


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_a_query_whose_sink_was_deleted_between_two_batches(tmp_path, delivery):
    """The next batch is in a file that others find, or the query is refused: its ledger is gone."""
    path = tmp_path / "queues.db"
    url, options = f"sqlite:///{path}", {"queue": "out", "delivery": delivery}
    Write(query="q", batch=0, url=url, **options).run(rows([0]))
    for file in tmp_path.iterdir():
        file.unlink()
    again = Write(query="q", batch=1, url=url, **options)
    if delivery == "exactly-once":
        with pytest.raises(CheckpointError, match="there is no ledger"):
            again.run(rows([1]))
        assert payloads(url, "out") == []
    else:
        again.run(rows([1]))
        assert payloads(url, "out") == [1]
