"""Spark Connect in local mode: the same source and sink, over the wire."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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


def test_a_queue_is_written_and_read_over_spark_connect(tmp_path, sqlite_url):
    root = Path(__file__).parents[2]
    env = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_CONNECT")}
    env |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, sqlite_url, str(tmp_path / "checkpoint"), str(tmp_path / "out")],
        cwd=tmp_path, env=env, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout.strip().endswith("ok"), done.stderr[-3000:]
