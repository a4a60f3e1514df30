"""Makes the runnable step of a declared step."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from pyspark.sql import SparkSession

from spark_queue.graph.model import Graph
from spark_queue.graph.step import Step
from spark_queue.runner.step import RunnableStep


def build_runnable(spark: SparkSession, name: str, step: Step, graph: Graph) -> RunnableStep[Any]:
    """Return a step of a graph, ready to run: an object of the class that its declaration names."""
    module, _, kind = step.runner.partition(":")
    made: RunnableStep[Any] = getattr(import_module(module), kind)(spark, name, step, graph)
    return made
