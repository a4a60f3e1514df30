"""Queues of one's own, in each database that a graph has."""

from tests.spark.conftest import name  # noqa: F401
