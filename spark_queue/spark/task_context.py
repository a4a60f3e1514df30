"""The query, the run and the micro-batch that a Spark task works for."""

from __future__ import annotations

from pyspark import TaskContext


def query_id_of(task: TaskContext | None) -> str | None:
    """Return the id of the query, or `None` if none runs or it is unknown (see `is_batch_job`)."""
    return task.getLocalProperty("sql.streaming.queryId") if task else None


def run_id_of(task: TaskContext) -> str | None:
    """Return the id of the query's run, which is the name of its job group."""
    return task.getLocalProperty("spark.jobGroup.id")


def batch_id_of(task: TaskContext) -> int | None:
    """Return the number of the micro-batch, or `None` if the query is unknown."""
    number = task.getLocalProperty("streaming.sql.batchId")
    return None if number is None else int(number)


def is_batch_job(task: TaskContext) -> bool:
    """Return whether no query runs the task.

    Always false with Spark Connect: tasks of its `foreachBatch` do not know their query.
    """
    return query_id_of(task) is None and "SparkConnect_" not in (task.getLocalProperty("spark.job.tags") or "")
