"""Exchanges: a graph of queues as streaming queries. `ExchangeGraph` runs them; see `spark_queue.graph`."""

from spark_queue.exchange.runner import ExchangeGraph, Status
from spark_queue.exchange.selector import Env
from spark_queue.graph import isomorphic

__all__ = ["Env", "ExchangeGraph", "Status", "isomorphic"]
