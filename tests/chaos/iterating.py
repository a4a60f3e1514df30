"""Consumers that iterate, with messages that are reserved ahead, for `programs.py`; and what their kills may do."""

from __future__ import annotations

import random
import time

from spark_queue import Queue, open_store
from spark_queue.messages.message import messages
from tests.chaos.programs import AWAY, HISTORY, logger

#: Leases are longer than in other worlds: on a busy machine, their renewal may be late.
LEASE = 6.0


def consume_ahead(url, queue, log, consumer, lease, seed):
    """Iterate and commit one by one; a message of which one try has failed becomes a dead letter."""
    rng, log = random.Random(seed), logger(log, sync=True)
    store = open_store(url, retry_timeout=AWAY * 1000)
    with Queue(store, queue, consumer=consumer, lease=LEASE, history=HISTORY, max_tries=1) as client:
        while True:
            begun = time.monotonic()
            for message in client.messages(prefetch=rng.randint(1, 200), timeout=0.5):
                log(did="reserve", ids=[message.id], begun=begun, ended=time.monotonic())
                if rng.random() < 0.02:
                    time.sleep(rng.uniform(0, 0.3))
                begun = time.monotonic()
                done = client.commit(message)
                log(did="commit" if done else "late", ids=[message.id], begun=begun, ended=time.monotonic())
                begun = time.monotonic()
                if rng.random() < 0.01:
                    break  # the rest goes back


def judge_tries(world):
    """Report if more messages have failed than consumers were killed, or late."""
    late = sum(
        one["did"] == "late" for consumer in world.consumers for life in consumer.logs().values() for one in life
    )
    killed = world.result.kills["consumer"]
    failed = [
        one
        for batch in world.store_b.peek("b.dead")
        for one in messages(batch)
        if one.headers.get("x-error", "").startswith("failed 1 time")
    ]
    if len(failed) > killed + late:
        world.result.wrong.append(
            f"{len(failed)} messages have failed, but {killed} consumers were killed, and {late} commits were late"
        )
    world.say(f"{len(failed)} of {killed} killed consumers had a message in their hands")
