"""Huey on Redis: pushes one by one, there being no bulk; its own command works."""

from __future__ import annotations

from huey import RedisHuey

from peers.job import QUEUE, URL, done, payloads, told

huey = RedisHuey(QUEUE, url=URL, results=False)
job = huey.task()(done)


def push() -> None:
    for chunk in payloads():
        for one in chunk:
            job(one)


if __name__ == "__main__":
    told(push, "huey", "redis")
