"""`format("slow_queue")`: `format("queue")` that pauses before and after each step that decides something.

Between two steps lie milliseconds, which no kill meets on purpose. What must hold between them does not depend on how
long that is.
"""

from __future__ import annotations

import functools
import random
import time

from spark_queue.spark.data_source import QueueDataSource
from spark_queue.spark.write.data_writers import StreamWriter
from spark_queue.stores.base import Store

#: The steps, and how many seconds each pause lasts at most. What decides and what shows are furthest apart.
PAUSES = {"reserve": 0.05, "commit": 0.05, "stage": 0.05, "unstage": 0.05, "set_note": 0.15, "publish": 0.15}


def slowly(step, most):
    @functools.wraps(step)
    def slow(*arguments, **options):
        time.sleep(random.uniform(0, most))
        done = step(*arguments, **options)
        time.sleep(random.uniform(0, most))
        return done

    return slow


# Whatever process of Spark's unpickles one of the classes below is slow from then on.
for name, most in PAUSES.items():
    setattr(Store, name, slowly(getattr(Store, name), most))


class SlowWriter(StreamWriter):
    """The sink."""


class SlowQueue(QueueDataSource):
    """The source, and the way to the sink."""

    @classmethod
    def name(cls):
        return "slow_queue"

    def streamWriter(self, schema, overwrite):
        return SlowWriter(super().streamWriter(schema, overwrite).operation)


class SlowExchangeQueue(SlowQueue):
    """The same under the name that exchanges use."""

    @classmethod
    def name(cls):
        return "queue"
