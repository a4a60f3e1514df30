"""Selectors for the graph of `test_spark_dies.py`: they end the process of Spark if they see a message."""

from __future__ import annotations

from pyspark.sql import functions as F


def exhaust_memory(env):
    """Need some 20 GB: a real OutOfMemoryError in a task, for which Spark exits."""
    numbers = F.sequence(F.lit(1), F.lit(10_000) + F.length(env.payload.cast("string")))
    return F.size(F.transform(numbers, lambda one: F.repeat(one.cast("string"), 2_000_000))) > 0


def exit_java(env):
    return F.call_function(
        "reflect", F.lit("java.lang.System"), F.lit("exit"), F.length(env.payload.cast("string"))
    ).isNotNull()
