"""RQ on Redis: pushes with enqueue_many, which is one pipeline. Its command works."""

from __future__ import annotations

from redis import Redis
from rq import Queue

from peers.job import QUEUE, URL, done, payloads, report


def push() -> None:
    queue = Queue(QUEUE, connection=Redis.from_url(URL))
    for chunk in payloads():
        queue.enqueue_many([Queue.prepare_data(done, (one,), result_ttl=0) for one in chunk])


if __name__ == "__main__":
    report(push, "rq", "redis")
