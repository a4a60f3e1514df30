"""Huey on Redis: pushes one by one, as it has no bulk. Its command works."""

from __future__ import annotations

from huey import RedisHuey

from peers.job import QUEUE, URL, done, payloads, report

huey = RedisHuey(QUEUE, url=URL, results=False)
job = huey.task()(done)


def push() -> None:
    for chunk in payloads():
        for one in chunk:
            job(one)


if __name__ == "__main__":
    report(push, "huey", "redis")
