"""What a task of Spark's knows of the query that it works for."""

from __future__ import annotations

from pyspark import TaskContext


def query_of(task: TaskContext | None) -> str | None:
    """Return the id of the query; `None` if no query runs the task, or that is not known (see `in_a_job`)."""
    return task.getLocalProperty("sql.streaming.queryId") if task else None


def run_of(task: TaskContext) -> str | None:
    """Return the id of the run of the query: its jobs are a group of that name."""
    return task.getLocalProperty("spark.jobGroup.id")


def batch_of(task: TaskContext) -> int | None:
    """Return the number of the micro-batch, if the query is known."""
    number = task.getLocalProperty("streaming.sql.batchId")
    return None if number is None else int(number)


def in_a_job(task: TaskContext) -> bool:
    """Return whether no query runs the task. Over Spark Connect, tasks of `foreachBatch` do not know their query."""
    return query_of(task) is None and "SparkConnect_" not in (task.getLocalProperty("spark.job.tags") or "")
