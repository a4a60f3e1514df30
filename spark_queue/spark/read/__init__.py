"""Reads: micro-batches are planned, reserved, fetched and committed."""
