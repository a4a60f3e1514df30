"""Helpers of the conformance suite: they wait for conditions, never for a number of seconds.

They also run functions in threads, and processes that are killed.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.context import ForkServerContext
from typing import TypeVar

from spark_queue.stores import STORES
from spark_queue.stores.base import Store

T = TypeVar("T")

MINUTE_MS = 60_000
REAL_MS = 200  #: ms of the few leases and delays that the database's clock ends. A test may check much later.

#: Seconds after which a test fails that waits for a condition. MongoDB locks the documents in a
#: transaction of a dead client for 60.
DEADLINE = 100


def wait_until(
    condition: Callable[..., T], seconds: float = DEADLINE, pause: float = 0.01, *, description: str = "the condition"
) -> T:
    """Call `condition` until its result is true, and return that result.

    Raises `AssertionError` after `seconds`, which must be more than a slow machine needs.
    """
    end = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < end, (
            f"{description} did not come true in {seconds} s: the last result was {result!r}"
        )
        time.sleep(pause)
    return result


def tick(store: Store) -> None:
    """Wait until the database's clock shows a later ms, so later messages are due later."""
    then = store.now()
    wait_until(lambda: store.now() > then + 1, description="the next ms", pause=0)


def end_lease(store: Store, queue: str, tag: str) -> int:
    """End the leases of a tag and of the tags below it now. Return the number of their messages.

    The end is set to one second ago by the database's clock. The tag holds the messages until
    another tag takes them.
    """
    ended = store._renew(queue, tag, -1_000)
    assert ended, f"{tag} holds nothing of {queue}"
    return ended


def process_context() -> ForkServerContext:
    """Return a context that starts processes fast: it forks one that has imported the stores."""
    context = multiprocessing.get_context("forkserver")
    modules = {one.path.partition(":")[0] for one in STORES.values()}
    context.set_forkserver_preload(["__main__", "spark_queue.stores.conformance.conformance", *modules])
    return context


def run_together(*works: Callable[[], object]) -> None:
    """Call functions at the same time, each in its own thread. Raise the first error."""
    with ThreadPoolExecutor(len(works)) as pool:
        for running in [pool.submit(work) for work in works]:
            running.result()


def run_until_killed(work: Callable[..., None], *arguments: object) -> None:
    """Call a function in a new process, which must kill itself by `kill_self_within`."""
    victim = process_context().Process(target=work, args=arguments, daemon=True)
    victim.start()
    victim.join(DEADLINE)
    assert victim.exitcode == -signal.SIGKILL


def kill_self_within(ms: int) -> None:
    """Kill this process at a random moment of the next `ms`."""
    threading.Timer(random.uniform(0, ms / 1000), os.kill, (os.getpid(), signal.SIGKILL)).start()
