"""The real rfq, driven by JSON lines: one command per line on stdin, one answer per line on stdout, in order.

    {"do": "publish", "topic", "message": {…}, "front"}      {"do": "publish_batch", "topic", "messages", "front"}
    {"do": "consume", "topic"}       blocks, as rfq does
    {"do": "done" | "cancel" | "published", "id"}                    of a task that was consumed here
    {"do": "info" | "harvest", "topic"}   {"do": "listq" | "purge", "topic", "which"}   {"do": "peek", "topic", "id"}
    {"do": "topics"}

Answers: {"ok": true, "result": …} or {"ok": false, "error": text}. It runs in an environment of its own, for rfq
needs an old redis-py; its argument is the URL of the server.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import UTC
from typing import Any

from redis import Redis
from rfq.rfq import Queue

queue = Queue(redis=Redis.from_url(sys.argv[1], decode_responses=True))
tasks: dict[str, Any] = {}


def consume(topic):
    task = queue.consume(topic)
    tasks[task.msgid] = task
    return {"id": task.msgid, "message": task.result()}


COMMANDS: dict[str, Callable[..., Any]] = {
    "publish": lambda topic, message, front=False: queue.publish(topic, message, front=front),
    "publish_batch": lambda topic, messages, front=False: queue.publish_batch(topic, messages, front=front),
    "consume": consume,
    "done": lambda id: tasks[id].done(),
    "cancel": lambda id: tasks[id].cancel(),
    "published": lambda id: tasks[id].published().replace(tzinfo=UTC).isoformat(),
    "info": lambda topic: list(queue.info(topic)),
    "harvest": lambda topic: queue.harvest(topic),
    "listq": lambda topic, which: queue.listq(topic, which),
    "purge": lambda topic, which: queue.purge(topic, which),
    "peek": lambda topic, id: queue.peek(topic, id),
    "topics": lambda: queue.topics(),
}

for line in sys.stdin:
    given = json.loads(line)
    try:
        answer = {"ok": True, "result": COMMANDS[given.pop("do")](**given)}
    except Exception as error:  # noqa: BLE001 whatever rfq raises is an answer
        answer = {"ok": False, "error": f"{type(error).__name__}: {error}"}
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
