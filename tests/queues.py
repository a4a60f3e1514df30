"""What several tests do with queues."""

from __future__ import annotations

from spark_queue import Queue


def push_numbers(url: str, name: str, total: int) -> list[str]:
    """Push the messages `{"n": 0}`, `{"n": 1}`, …; return their ids."""
    with Queue(url, name) as queue:
        return queue.push_many([{"n": n} for n in range(total)])
