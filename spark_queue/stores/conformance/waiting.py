"""How the conformance suite waits: for a condition, never for a number of seconds. What it needs to end, it ends."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.context import ForkServerContext
from typing import TypeVar

from spark_queue.stores import STORES
from spark_queue.stores.base import Store

T = TypeVar("T")

MINUTE = 60_000
REAL = 200  #: ms: the few leases and delays that the database's clock ends. However late a test looks, it may pass

#: Seconds until what did not happen will not. MongoDB holds what a dead client had in a transaction for 60.
DEADLINE = 100


def until(
    condition: Callable[..., T], seconds: float = DEADLINE, pause: float = 0.01, *, what: str = "the condition"
) -> T:
    """Call `condition` until its result is true, and return that result.

    Raises `AssertionError` after `seconds`, which only have to be more than any healthy machine needs.
    """
    end = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < end, f"{what} did not come true in {seconds} s: the last result was {result!r}"
        time.sleep(pause)
    return result


def tick(store: Store) -> None:
    """Wait until the database's clock shows another ms, so that what follows is due later than what was."""
    then = store.now()
    until(lambda: store.now() > then + 1, what="the next ms", pause=0)


def end_lease(store: Store, queue: str, tag: str) -> int:
    """End the lease of a tag and of those below it now, by the database's clock; return the number of messages.

    Its end moves a second into the past. The tag holds the messages until another one takes them.
    """
    ended = store._renew(queue, tag, -1_000)
    assert ended, f"{tag} holds nothing of {queue}"
    return ended


def processes() -> ForkServerContext:
    """Return what starts processes at little cost: they are forked from one that has imported the stores."""
    context = multiprocessing.get_context("forkserver")
    modules = {one.path.partition(":")[0] for one in STORES.values()}
    context.set_forkserver_preload(["__main__", "spark_queue.stores.conformance.conformance", *modules])
    return context


def die_within(ms: int) -> None:
    """Kill this process at a random moment of the next `ms`, wherever it is then."""
    threading.Timer(random.uniform(0, ms / 1000), os.kill, (os.getpid(), signal.SIGKILL)).start()
