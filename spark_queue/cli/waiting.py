"""Waiting for a message, and why no message is ready."""

from __future__ import annotations

from spark_queue import admin
from spark_queue.cli.output import echo_err
from spark_queue.errors import UsageError


def say_if_paused(url: str, queue: str, timeout: float) -> None:
    """Print a note if a queue is paused, before a wait for its messages that may be long."""
    if timeout and admin.queues.paused(url, queue):
        echo_err(f"{queue} is paused; waiting until it is resumed: spark-queue resume URL {queue}")


def explain_nothing_ready(url: str, queue: str) -> str:
    """Return why no message of a queue is ready: it is paused, missing or empty, or its sizes."""
    if admin.queues.paused(url, queue):
        return f"{queue} is paused: no message can be reserved. To resume it: spark-queue resume URL {queue}"
    try:
        (found,) = admin.sizes.sizes(url, [queue])
    except UsageError:
        return f"no message of {queue} is ready: there is no such queue{admin.suggest(url, queue)}"
    counts = [f"{number:,} {state}" for state in ("scheduled", "reserved") if (number := getattr(found, state))]
    return f"no message of {queue} is ready ({', '.join(counts) or 'it is empty'})"
