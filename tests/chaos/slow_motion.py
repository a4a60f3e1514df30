"""`format("slow_queue")`: `format("queue")` that pauses before and after each step that decides something.

Between two steps lie milliseconds, which no kill meets on purpose. What must hold between them does not depend on how
long that is.
"""

from __future__ import annotations

import functools
import random
import time

from spark_queue.spark.source import QueueDataSource
from spark_queue.spark.writer import StreamWriter
from spark_queue.store.base import Store

#: Seconds, at most.
PAUSE = 0.05


def slowly(step):
    @functools.wraps(step)
    def slow(*arguments, **options):
        time.sleep(random.uniform(0, PAUSE))
        done = step(*arguments, **options)
        time.sleep(random.uniform(0, PAUSE))
        return done

    return slow


# Whatever process of Spark's unpickles one of the classes below is slow from then on.
for name in ("reserve", "commit", "stage", "set_note", "publish", "unstage"):
    setattr(Store, name, slowly(getattr(Store, name)))


class SlowWriter(StreamWriter):
    """The sink."""


class SlowQueue(QueueDataSource):
    """The source, and the way to the sink."""

    @classmethod
    def name(cls):
        return "slow_queue"

    def streamWriter(self, schema, overwrite):
        return SlowWriter(super().streamWriter(schema, overwrite).work)


class SlowExchangeQueue(SlowQueue):
    """The same under the name that exchanges use."""

    @classmethod
    def name(cls):
        return "queue"
