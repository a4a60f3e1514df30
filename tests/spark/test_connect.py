"""Spark Connect in local mode: the same source and sink, over the wire."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark_session import SPARK

PROGRAM = """
import sys
from pyspark.sql import SparkSession
from spark_queue import drain, register

url, checkpoint, out = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").getOrCreate()
assert "connect" in type(spark).__module__
if "register" in out:
    register(spark)
spark.range(2_000).selectExpr("to_json(named_struct('n', id)) payload").write.format("queue").mode("append").options(
    url=url, queue="a"
).save()
assert spark.read.format("queue").options(url=url, queue="a").load().where("tries = 0").count() == 2_000
for _ in range(3):  # Spark 4.0 and 4.1 take one batch in each run
    query = (
        spark.readStream.format("queue").options(url=url, queue="a", maxRecordsPerTrigger="1000").load()
        .writeStream.format("parquet").options(path=out, checkpointLocation=checkpoint)
        .trigger(availableNow=True).start()
    )
    drain(query, url)
rows = spark.read.parquet(out)
assert rows.count() == rows.select("id").distinct().count() == 2_000, rows.count()
assert spark.read.format("queue").options(url=url, queue="a").load().count() == 0
spark.stop()
print("ok")
"""


FOREACH_BATCH = """
import sys
from pyspark.sql import SparkSession
from spark_queue import Queue, drain, register

url, checkpoint, _ = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").getOrCreate()
register(spark)


def write(batch, number):
    out = {"url": url, "queue": "b", "txnAppId": "app", "txnVersion": str(number)}
    batch.select("payload").write.format("queue").mode("append").options(**out).save()


def run(checkpoint):
    a = {"url": url, "queue": "a", "delivery": "exactly-once", "maxRecordsPerTrigger": "5"}
    for _ in range(2):
        query = (
            spark.readStream.format("queue").options(**a).load().writeStream.foreachBatch(write)
            .option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        )
        drain(query, url)


with Queue(url, "a") as a, Queue(url, "b") as b:
    a.push_many(list(range(10)))
    run(checkpoint)
    assert (a.sizes().total, b.sizes().total) == (0, 10)
    a.push_many(list(range(10, 20)))
    try:
        run(f"{checkpoint}.2")
    except Exception as error:  # noqa: BLE001 whatever rfq raises is an answer
        assert "set a new txnAppId" in str(error), error
    else:
        raise AssertionError("a version that was written under another checkpoint is not refused")
    assert (a.sizes().total, b.sizes().total) == (10, 10)
spark.stop()
print("ok")
"""

FAILING = """
import sys
from pyspark.sql import SparkSession
from spark_queue import Queue, drain, register, supervise

url, checkpoint, _ = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").getOrCreate()
register(spark)


def eat(batches):
    for batch in batches:
        if any("bad" in one for one in batch.column("payload").to_pylist()):
            raise ValueError("no fare")
        yield batch


def start(queue):
    a = {"url": url, "queue": queue, "maxTries": "1", "numPartitions": "1", "waitTimeout": "200ms"}
    df = spark.readStream.format("queue").options(**a).load()
    df = df.mapInArrow(eat, df.schema)
    return (
        df.writeStream.format("noop").option("checkpointLocation", f"{checkpoint}.{queue}")
        .trigger(availableNow=True).start()
    )


def reason(queue):
    with Queue(url, f"{queue}.dead") as dead:
        return [one.headers["x-error"] for one in dead.peek()]


with Queue(url, "a") as a, Queue(url, "b") as b:
    a.push("bad")
    b.push("bad")
supervise(lambda: start("a"), url, restarts=9, initial_backoff=0.01)
assert reason("a")[0].startswith("ValueError: no fare ("), reason("a")
for _ in range(4):
    try:
        start("b").awaitTermination()
    except Exception as error:  # noqa: BLE001 whatever rfq raises is an answer
        assert "no fare" in str(error), error
assert "Spark gave no error" in reason("b")[0], reason("b")
spark.stop()
print("ok")
"""


def over_connect(program, url, folder):
    """Run a program with a server of its own."""
    root = Path(__file__).parents[2]
    env = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_CONNECT")}
    env |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(root)}
    env["SPARK_TESTING"] = "1"  # a free port
    done = subprocess.run(
        [sys.executable, "-c", program, url, str(folder / "checkpoint"), str(folder / "out")],
        cwd=folder, env=env, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout.strip().endswith("ok"), done.stderr[-3000:]


def test_a_queue_is_written_and_read_over_spark_connect(tmp_path, sqlite_url):
    over_connect(PROGRAM, sqlite_url, tmp_path)


@pytest.mark.full
@pytest.mark.skipif(SPARK < (4, 1), reason="Spark 4.0 loses the Python worker of a source there: key not found")
def test_foreach_batch_with_a_new_checkpoint_loses_nothing(tmp_path, sqlite_url):
    """It does not know its query: the version of the application says that it was written."""
    over_connect(FOREACH_BATCH, sqlite_url, tmp_path)


@pytest.mark.full
def test_a_dead_letter_has_the_error_that_supervise_notes(tmp_path, sqlite_url):
    """Without `supervise` none is known: there is no JVM to ask which store a query reads."""
    over_connect(FAILING, sqlite_url, tmp_path)
