"""Writes of Spark: push rows, publish whole batches, settle single messages."""
