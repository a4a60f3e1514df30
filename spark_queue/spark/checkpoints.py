"""Write checkpoints on a local file system without a process for each file."""

from __future__ import annotations

import pyspark

#: The conf that names the class by which Spark writes checkpoints.
CHECKPOINT_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"


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
