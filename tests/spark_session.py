"""One Spark session for all tests."""

from __future__ import annotations

import os
import sys

os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")

import pyspark
import pytest
from pyspark.sql import SparkSession

SPARK = tuple(int(part) for part in pyspark.__version__.split(".")[:2])

#: What writes a checkpoint's files. By default Spark starts `chmod` and `readlink` for them, dozens of times a query.
CHECKPOINTS = "org.apache.spark.sql.execution.streaming.{}FileSystemBasedCheckpointFileManager"

admission = pytest.mark.skipif(SPARK < (4, 2), reason="Spark 4.0 and 4.1 ask a Python source without limits")


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    work = tmp_path_factory.mktemp("spark")
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config(
            "spark.sql.streaming.checkpointFileManagerClass",
            CHECKPOINTS.format("checkpointing." if SPARK >= (4, 1) else ""),
        )
        .config("spark.sql.warehouse.dir", str(work / "warehouse"))
        .config("spark.sql.streaming.stopTimeout", "30s")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.python.filterPushdown.enabled", "true")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
