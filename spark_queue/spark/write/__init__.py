"""Writes: rows become messages, and whole batches visible at once; single messages are settled."""
