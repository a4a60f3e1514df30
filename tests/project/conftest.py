"""Queues of one's own, for the jobs."""

from tests.spark.conftest import name  # noqa: F401
