"""Events in Spark: created from rows, executed by a query, read as rows; and a killed query."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from spark_queue import Queue
from spark_queue.errors import SchemaError
from spark_queue.events import Events, Executor, spark_source
from spark_queue.events.dataframes import as_messages, view
from spark_queue.events.spark_query import ExecutorQuery
from spark_queue.events.spark_source import EventStream
from spark_queue.options.roles import parse_options
from spark_queue.stores.conformance.waiting import wait_until

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "jobs"))
job, executor, heartbeat = (importlib.import_module(name) for name in ("_job", "executor", "heartbeat"))

S = "http://example.org/flights"


def executors(folder):
    """Functions that Spark takes to its workers as they are."""

    def report(event):
        with open(f"{folder}/ran", "a") as file:
            file.write(f"{event.id} {event.type} {os.getpid()}\n")

    def work(event, config):
        report(event)
        if event.type == "slow":
            time.sleep(60)
        if event.type == "bad" or (event.type == "flaky" and event.tries < 1):
            raise ValueError(f"no flight {event.payload}")
        return config

    def here(event, config):
        report(event)
        return str(SparkSession.builder.getOrCreate().range(3).count())

    return [
        Executor(S, ["good", "bad"], work),
        Executor(S, "own", work, config="http://my/status"),
        Executor(S, "slow", work, time_limit=200),
        Executor(S, "flaky", work, retries=1, backoff=1),
        Executor(S, "here", here, where="driver"),
    ]


def ran(folder):
    lines = [line.split() for line in (folder / "ran").read_text().splitlines()]
    return Counter(type for _, type, _ in lines), {type: int(pid) for _, type, pid in lines}


@pytest.mark.parametrize("quick", [False, True])
def test_events_are_reserved_ahead_while_batches_are_quick(sqlite_url, name, monkeypatch, quick):
    monkeypatch.setattr(spark_source, "QUICK", 60.0 if quick else 0.0)  # decided in Spark's reader
    with Queue(sqlite_url, name) as queue:
        queue.push_many([{"n": n} for n in range(40)])
    raw = {"url": sqlite_url, "queue": name, "numPartitions": "1", "maxRecordsPerTrigger": "10"}
    stream = EventStream(parse_options(raw, "stream"), StructType(), None)
    start, ahead = stream.initialOffset(), []
    for _ in range(3):
        end = stream.latestOffset(start)
        stream.partitions(start, end)
        ahead.append(stream.planner.has_prefetched)
        start = end
    stream.stop()
    assert ahead == [False, quick, quick], "how long a batch takes is known after the first"
    with Queue(sqlite_url, name) as queue:
        assert (queue.sizes().ready, queue.sizes().reserved) == (10, 10), "what was reserved ahead is given back"


def test_a_query_gives_each_event_its_status(spark, any_url, name, tmp_path):
    rows = spark.range(6).selectExpr(
        f"'{S}' AS source",
        "element_at(array('good', 'own', 'bad', 'slow', 'flaky', 'here'), int(id + 1)) AS type",
        "named_struct('n', id) AS payload",
        "if(id = 0, sequence(1, 1001), if(id = 1, NULL, array(1))) AS uris",
        "id = 5 AS priority",
    )
    rows = rows.withColumn("uris", rows.uris.cast("array<string>"))
    made = as_messages(rows, transaction="first")
    made.write.format("queue").option("url", any_url).option("queue", name).mode("append").save()
    with Events(any_url, name, executors=executors(tmp_path)) as events:
        assert events.summary()["new"] == 8
        assert {one.event.transaction for one in events.all()} == {"first"}
        assert {one.event.payload["n"] for one in events.all()} == set(range(6))
        missing = events.create(S, "missing", {"n": 7})
        events.store.push(name, as_noise())
        query = ExecutorQuery(events, str(tmp_path / "checkpoint"), parallel=2)
        while events.summary()["new"]:  # what failed comes again
            query.run(spark, available_now=True, restarts=3)
        assert events.summary() == {
            "new": 0, "pending": 0, "executing": 0, "finished": 4, "failed": 4, "http://my/status": 1, "3": 1,
        }  # fmt: skip
        times, pids = ran(tmp_path)
        assert times == {"good": 3, "own": 1, "bad": 1, "slow": 1, "flaky": 2, "here": 1}
        assert pids["here"] == os.getpid() and pids["good"] != os.getpid()
        records = events.log.records()
        errors = {id: error for one in records for id, error in one.errors.items()}
        assert any("took longer than 0.2 s" in one for one in errors.values())
        assert any("ValueError: no flight {'n': 2}" in one and "Traceback" in one for one in errors.values())
        assert errors["noise"].startswith("it is not an event") and "no executor" in errors[missing]
        assert {one.transaction.partition("/")[0] for one in records} == {"executing.events"}
        parts = {one.transaction for one in records if one.message == "Events begun"}
        assert len(parts) > 2 and {one.rpartition("/")[2] for one in parts} == {"0", "1"}, "few events, both workers"
        known = {one.event.id: one.status for one in events.all()}

    def seen(what):
        return view(spark, any_url, name, what)

    assert {row["id"]: row["status"] for row in seen("status").collect()} == {**known, "noise": "failed"}
    assert seen("uris").where("uri <> '1' AND transaction = 'first'").count() == 1000
    together = {row["transaction"] for row in seen("queue").where("id <> 'noise'").collect()}
    assert len(together) == 2 and "first" in together
    first = seen("queue").where("priority").collect()
    assert [(row["type"], row["payload"], row["kind"], row["tries"]) for row in first] == [
        ("here", '{"n":5}', "map", 0)
    ]
    ends = seen("log").where("`to` = 'failed'").selectExpr("explode(ids) AS id", "errors[id] AS error").collect()
    assert {row["id"] for row in ends} == {id for id, status in known.items() if status == "failed"} | {"noise"}


def as_noise():
    from spark_queue.messages.message import pushes

    return pushes([{"no": "event"}], ids=["noise"])


def test_rows_that_are_no_events_are_refused(spark):
    for columns, message in (
        ("'s' AS source", "events need the column 'type'"),
        ("'s' AS source, 't' AS typ", r"events have no column 'typ'; did you mean 'type'\?"),
        ("'s' AS source, 't' AS type, '1' AS id, array('u') AS uris", "so they cannot have ids"),
    ):
        with pytest.raises(SchemaError, match=message):
            as_messages(spark.range(1).selectExpr(*columns.split(", ")))


def test_the_jobs_execute_events_and_make_those_of_heartbeats(spark, sqlite_url, name, tmp_path):
    where = ["--url", sqlite_url, "--queue", name]
    beat = [*where, "FiveMinute", "--conf", str(ROOT / "conf" / "heartbeats.yaml")]
    assert heartbeat.main(beat) == 0
    plan = heartbeat.prepare(
        heartbeat.parser().parse([*beat, "--every", "100ms", "--checkpoint", str(tmp_path / "b")])
    )
    watch = job.Watch("test")
    with Events(sqlite_url, name) as events:

        def stop_soon():
            wait_until(lambda: events.summary()["new"] >= 6, 240)
            watch.signal = signal.SIGTERM

        threading.Thread(target=stop_soon, daemon=True).start()
        assert heartbeat.work(spark, plan, watch).facts["events"] >= 4
        made = events.summary()["new"]
        counted = events.create(S, "landed", {"flight": 1545}, ["/1545.json"])
        args = [*where, str(ROOT / "conf" / "executors.yaml"), "--available-now", "--checkpoint", str(tmp_path / "c")]
        facts = executor.work(spark, executor.prepare(executor.parser().parse(args)), job.Watch("test")).facts
        assert (facts["executed"], facts["status"]["finished"], facts["status"]["new"]) == (made + 1, made, 0)
        assert events.status([counted]) == {counted: "counted"}


@pytest.mark.full
def test_a_query_that_is_killed_leaves_each_event_with_one_status(any_url, name, tmp_path):
    (tmp_path / "killed_work.py").write_text(
        "import os, time\n"
        "def work(event, config):\n"
        "    while event.payload['n'] >= 40 and 'TO_BE_KILLED' in os.environ: time.sleep(0.01)\n"
        "    if event.payload['n'] in (20, 21): time.sleep(0.6)  # so that what was done before is settled\n"
        "    with open(config, 'a') as file: file.write(event.id + '\\n')\n"
        "    if event.payload['n'] % 10 == 0: raise ValueError('ten')\n"
        "    return 'odd' if event.payload['n'] % 2 else None\n"
    )
    log = tmp_path / "ran"
    log.touch()
    conf = tmp_path / "conf.yaml"
    conf.write_text(
        json.dumps({"executors": [{"source": S, "type": "t", "function": "killed_work:work", "config": str(log)}]})
    )
    program = [
        sys.executable, str(ROOT / "jobs" / "executor.py"), str(conf), "--url", any_url, "--queue", name,
        "--available-now", "--checkpoint", str(tmp_path / "c"), "--batch", "150", "--parallel", "2", "--json",
    ]  # fmt: skip
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
    with Events(any_url, name) as events:
        ids = [events.create(S, "t", {"n": n}) for n in range(200)]
        died = subprocess.Popen(
            program, env=environ | {"TO_BE_KILLED": "1"}, cwd=tmp_path, stderr=subprocess.PIPE, text=True
        )
        begun = lambda: len(log.read_text().split()) == 40 and events.summary()["finished"]  # noqa: E731
        wait_until(lambda: died.poll() is not None or begun(), 240)
        assert died.poll() is None, died.communicate()
        died.kill()
        died.communicate(timeout=300)
        at_death = events.status(ids)
        assert set(at_death.values()) - {None} <= {"new", "executing", "finished", "failed", "odd"}
        settled = {id for id, status in at_death.items() if status in ("finished", "failed", "odd")}
        assert settled and "executing" in at_death.values()
        done = subprocess.run(
            program, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["status"] == {
            "new": 0, "pending": 0, "executing": 0, "finished": 80, "failed": 20, "odd": 100,
        }  # fmt: skip
        wanted = {id: "odd" if n % 2 else "finished" if n % 10 else "failed" for n, id in enumerate(ids)}
        assert events.status(ids) == wanted
        times = Counter(log.read_text().split())
        assert set(times) == set(ids) and max(times.values()) <= 2
        assert {times[id] for id in settled} == {1}, "what was settled does not run again"
