"""Producers and consumers that are forked by a process which has the queue open, for `programs.py`."""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
import time
import traceback

from spark_queue import Queue, open_store
from tests.chaos.programs import AWAY, HISTORY, consume_for_good, end_with, produce

#: Messages that one worker pushes at most: the numbers of the next one begin there.
MOST = 1_000_000


def produce_forked(url, queue, log, producer, seed):
    """`produce` in workers, one after the other, by the client of their parent or by one of their own."""
    with Queue(open_store(url, retry_timeout=0), queue) as shared:

        def work(number, own, seed):
            client = None if own else shared
            produce(url, queue, log, producer, seed, first=number * MOST, client=client)

        _fork_for_good(shared, work, seed)


def consume_forked(url, queue, log, consumer, lease, seed):
    """`consume_for_good` in workers, in the same way."""
    options = {"consumer": consumer, "lease": lease, "history": HISTORY}
    with Queue(open_store(url, retry_timeout=AWAY * 1000), queue, **options) as shared:

        def work(number, own, seed):
            client = None if own else shared
            consume_for_good(url, queue, log, f"{consumer}.{number}", lease, seed, client=client)

        _fork_for_good(shared, work, seed)


def _fork_for_good(shared, work, seed):
    """Fork a worker while `shared` is open, again whenever it was killed; often close it meanwhile."""
    rng = random.Random(seed)
    for number in itertools.count():
        shared.sizes()
        own, seed = rng.random() < 0.5, rng.random()
        pid = os.fork()
        if pid == 0:
            _work(lambda number=number, own=own, seed=seed: work(number, own, seed), os.getppid())
        if rng.random() < 0.7:
            shared.store.close()  # the worker, and other programs, have it alone
        time.sleep(rng.uniform(0, 0.2))
        if rng.random() < 0.3:
            shared.sizes()
        _, status = os.waitpid(pid, 0)
        if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
            raise SystemExit(f"a forked worker has ended by itself: {status}")


def _work(work, parent):
    threading.Thread(target=end_with, args=(parent,), daemon=True).start()
    try:
        work()
    except BaseException:  # noqa: BLE001  # nothing may return into the parent's program
        traceback.print_exc()
    finally:
        os._exit(1)
