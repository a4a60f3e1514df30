"""Dramatiq on Redis: pushes one by one, as it has no bulk. Its command works."""

from __future__ import annotations

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from peers.job import QUEUE, URL, done, payloads, report

broker = RedisBroker(url=URL, namespace=QUEUE)
job = dramatiq.actor(done, broker=broker)


def push() -> None:
    for chunk in payloads():
        for one in chunk:
            job.send(one)


if __name__ == "__main__":
    report(push, "dramatiq", "redis")
