"""Queues of one's own, in each store."""

from tests.spark.conftest import name  # noqa: F401
