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


#: The conf, and the local property of a task, that names the time zone of its session. Spark sets
#: the property if the session has set the conf.
TIME_ZONE = "spark.sql.session.timeZone"


def time_zone_of(task: TaskContext | None) -> str | None:
    """Return the time zone of a task's session, or `None` if the session has set none."""
    return task.getLocalProperty(TIME_ZONE) if task else None


#: The local property of a query whose session has our listener (`failures.py`).
LISTENER_PROPERTY = "spark_queue.listener"


def is_heard() -> bool:
    """Return whether the session of this task's query has our listener, as far as it is known.

    A task whose job a thread of the user has started does not know its query.
    """
    task = TaskContext.get()
    return task is None or query_id_of(task) is None or task.getLocalProperty(LISTENER_PROPERTY) is not None


def is_batch_job(task: TaskContext) -> bool:
    """Return whether no query runs the task.

    Always false with Spark Connect: tasks of its `foreachBatch` do not know their query.
    """
    return query_id_of(task) is None and "SparkConnect_" not in (task.getLocalProperty("spark.job.tags") or "")
