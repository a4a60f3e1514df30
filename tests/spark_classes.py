"""spark_classes.py FILE: an archive of the Java classes that Spark loads, from which a JVM has them in half the time.

A JVM takes the file by `-XX:SharedArchiveFile=FILE`. It goes on without it if Java, its options or Spark's jars have
changed since. It also does if the file is empty: a Java that makes no archive leaves it so.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path


def train(folder: str) -> None:
    """Do with Spark what most tests do: push, and drain by a streaming query."""
    from pyspark.sql import SparkSession

    url = f"sqlite:///{folder}/queues.db"
    session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    rows = session.range(100).selectExpr("to_json(struct(id)) AS payload")
    rows.write.format("queue").option("url", url).option("queue", "q").mode("append").save()
    stream = session.readStream.format("queue").option("url", url).option("queue", "q").load()
    query = stream.writeStream.format("noop").option("checkpointLocation", f"{folder}/c").trigger(availableNow=True)
    query.start().awaitTermination()
    session.read.format("queue").option("url", url).option("queue", "q").load().groupBy("tries").count().collect()
    session.stop()


def write(file: Path) -> None:
    """Write the archive; the file is there when it is whole."""
    new = file.with_suffix(".new")
    new.unlink(missing_ok=True)
    options = f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} -XX:ArchiveClassesAtExit={new}"
    with tempfile.TemporaryDirectory() as folder:
        # The JVM writes when Python has ended; it holds the pipe until it is done.
        done = subprocess.run(
            [sys.executable, __file__, "--train", folder],
            env=os.environ | {"SPARK_SUBMIT_OPTS": options},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    if done.returncode:
        sys.exit(f"{done.stdout}\nspark_classes: Spark did not run")
    if not new.exists():
        print("spark_classes: this Java makes no archive; tests go on without")
        new.touch()
    new.replace(file)


if __name__ == "__main__":
    if sys.argv[1] == "--train":
        train(sys.argv[2])
    else:
        write(Path(sys.argv[1]))
