"""The kinds of steps: what is declared, and what runs it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession

from spark_queue.graph.model import Exchange, Graph, Link, Processor
from spark_queue.runner.exchange import ExchangeStep
from spark_queue.runner.link import LinkStep
from spark_queue.runner.processor import ProcessorStep
from spark_queue.runner.step import Declared, RunnableStep

STEPS: Mapping[type, type[RunnableStep[Any]]] = {
    Exchange: ExchangeStep,
    Link: LinkStep,
    Processor: ProcessorStep,
}


def runnable(spark: SparkSession, name: str, step: Declared, graph: Graph) -> RunnableStep[Any]:
    """A step of a graph, ready to run."""
    return STEPS[type(step)](spark, name, step, graph)
