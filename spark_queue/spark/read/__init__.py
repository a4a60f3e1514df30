"""Reads of Spark: micro-batches are planned, reserved, fetched and committed."""
