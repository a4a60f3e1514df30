"""Celery on Redis: pushes one by one through one producer, as it has no bulk. Its command works."""

from __future__ import annotations

from celery import Celery

from peers.job import QUEUE, URL, done, payloads, report

app = Celery("peers", broker=URL)
app.conf.update(
    broker_transport_options={"global_keyprefix": f"{QUEUE}:"},
    task_default_queue="jobs",
    task_ignore_result=True,
    worker_prefetch_multiplier=128,
)
job = app.task(name="done")(done)


def push() -> None:
    with app.producer_pool.acquire(block=True) as producer:
        for chunk in payloads():
            for one in chunk:
                job.apply_async((one,), producer=producer)


if __name__ == "__main__":
    report(push, "celery", "kombu", "redis")
