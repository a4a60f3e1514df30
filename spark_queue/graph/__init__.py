"""Graphs of steps: loading, checks and drawing. No database, no Spark."""
