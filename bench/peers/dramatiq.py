"""Dramatiq on Redis: pushes one by one, there being no bulk; its own command works."""

from __future__ import annotations

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from peers.job import QUEUE, URL, done, payloads, told

broker = RedisBroker(url=URL, namespace=QUEUE)
job = dramatiq.actor(done, broker=broker)


def push() -> None:
    for chunk in payloads():
        for one in chunk:
            job.send(one)


if __name__ == "__main__":
    told(push, "dramatiq", "redis")
