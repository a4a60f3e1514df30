"""rfq: pushes in batches, and consumes one by one, as its API requires."""

from __future__ import annotations

import sys

from redis import Redis
from rfq.rfq import Queue

from peers.job import QUEUE, URL, done, payloads, report

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
        report(push, "rfq", "redis")
    else:
        work()
