"""Write checkpoints without a process for each file, and mend those that a stop has broken."""

from __future__ import annotations

import re
import uuid
from typing import Any

import pyspark
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

#: The conf that names the class by which Spark writes checkpoints.
CHECKPOINT_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"

#: The condition of Spark's error about a new checkpoint whose logs contain files.
NOT_EMPTY = "STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY"

#: The logs of a checkpoint, and the file of a first offset whose write has not ended.
_LOGS = ("offsets", "commits")
_UNFINISHED_OFFSET = re.compile(r"offsets/\.0\.[0-9a-f-]{36}\.tmp")

#: The file with the id of a folder of checkpoints. Spark leaves out files whose names begin so.
_FOLDER_FILE = "_spark_queue_folder"


def checkpoint_conf() -> dict[str, str]:
    """Return the conf of a session with a local master, whose checkpoints are local files.

    Spark writes two files per micro-batch. By default, it does so by Hadoop's `FileContext`, which
    starts processes for local files. That takes over half of the time of a small batch, and
    `FileSystem` starts none. Both refuse to replace a file of another query. But `FileSystem` first
    checks, then renames: two queries on one checkpoint may both go on for a batch. The owner's note
    of a consumer stops the second of them.
    """
    package = "org.apache.spark.sql.execution.streaming"
    if tuple(int(part) for part in pyspark.__version__.split(".")[:2]) >= (4, 1):
        package += ".checkpointing"
    return {CHECKPOINT_MANAGER: f"{package}.FileSystemBasedCheckpointFileManager"}


def folder_id(spark: SparkSession, root: str) -> str:
    """Return the id of a folder of checkpoints; create the folder, and a file with its id.

    Processes that share the folder get the same id. Raises `PySparkException` or py4j's error if
    it cannot be written.
    """
    jvm: Any = spark._jvm
    file = jvm.org.apache.hadoop.fs.Path(jvm.org.apache.hadoop.fs.Path(root), _FOLDER_FILE)
    files = file.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    new = jvm.org.apache.hadoop.fs.Path(f"{file.toString()}.{uuid.uuid4().hex}")
    while not files.exists(file):  # written as a whole, then renamed: no process reads a part of it
        stream = files.create(new)
        stream.writeBytes(uuid.uuid4().hex)
        stream.close()
        if files.exists(file) or not files.rename(new, file):
            files.delete(new, False)
    stream = files.open(file)
    try:
        return bytes(stream.readAllBytes()).decode()
    finally:
        stream.close()


def remove_unfinished_offset(query: StreamingQuery) -> bool:
    """Remove the first offset that a stopped query has not written to its end.

    Returns whether there was one. A query that is stopped while it writes its first offset leaves
    an unfinished file. From 4.1 on, Spark refuses to start on such a checkpoint (error
    `NOT_EMPTY`), again and again. Nothing is removed if a log has any other file, also an
    unfinished one of a later batch or of a commit: then the checkpoint has lost a part.

    `query`: one that has failed with that error. That of Spark Connect has no access to its files.
    """
    if not isinstance(query, StreamingQuery):
        return False
    running: Any = query._jsq.streamingQuery()
    path: Any = SparkContext._jvm.org.apache.hadoop.fs.Path  # type: ignore[union-attr]
    root = path(running.resolvedCheckpointRoot())
    files = root.getFileSystem(running.sparkSession().sessionState().newHadoopConf())
    folders = {log: path(root, log) for log in _LOGS}
    found = {
        f"{log}/{status.getPath().getName()}": status.getPath()
        for log, folder in folders.items()
        if files.exists(folder)
        for status in files.listStatus(folder)
    }
    if not found or not all(map(_UNFINISHED_OFFSET.fullmatch, found)):
        return False
    for one in found.values():
        files.delete(one, False)
    return True
