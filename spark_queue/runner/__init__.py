"""Runs graphs of queues as streaming queries: `ExchangeGraph`; see `spark_queue.graph.model`."""

from spark_queue.graph.model import isomorphic
from spark_queue.runner.graph import ExchangeGraph
from spark_queue.runner.running_step import Status
from spark_queue.runner.selector import Env

__all__ = ["Env", "ExchangeGraph", "Status", "isomorphic"]
