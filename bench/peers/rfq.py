"""rfq: pushes in batches; works by consuming one by one, as its API has it."""

from __future__ import annotations

import sys

from redis import Redis
from rfq.rfq import Queue

from peers.job import QUEUE, URL, done, payloads, told

queue = Queue(redis=Redis.from_url(URL, decode_responses=True))


def push() -> None:
    for chunk in payloads():
        queue.publish_batch(QUEUE, chunk)


def work() -> None:
    while True:
        task = queue.consume(QUEUE)
        done(task.result())
        task.done()


if __name__ == "__main__":
    if sys.argv[1] == "push":
        told(push, "rfq", "redis")
    else:
        work()
