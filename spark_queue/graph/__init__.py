"""Graphs of steps: loading, checks and drawing. No database, no Spark."""

from spark_queue.graph import validation as validation  # sets `Graph.check`
