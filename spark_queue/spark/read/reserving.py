"""Reserve a batch without messages that have failed too often."""

from __future__ import annotations

import logging

from spark_queue.options.queue_options import QueueOptions
from spark_queue.spark.read.limits import cores
from spark_queue.stores.base import Store
from spark_queue.stores.services.dead_letters import dead_letter_exhausted

log = logging.getLogger(__name__)


def reserve_batch(
    store: Store, options: QueueOptions, tag: str, limit: int, *, lease: int, before: int | None
) -> list[int]:
    """Reserve up to `limit` messages under a tag for `lease` ms; return the rows by partition.

    `before`: reserve only messages that are due by then (ms). Messages that reached `maxTries`
    become dead letters.
    """
    queue = options.queue or ""
    partitions, least = options.partition_limits(cores())
    while True:
        rows = store.reserve(
            queue,
            tag,
            limit,
            partitions=partitions,
            min_partitions=least,
            lease=lease,
            **({} if before is None else {"before": before}),
        )
        if not rows or options.max_tries is None:
            return rows
        dead = options.dead_letter_queue_of(queue)
        buried = dead_letter_exhausted(store, queue, tag, options.max_tries, dead, options.history_ms)
        if not buried:
            return rows
        log.warning("%d messages of %s failed too often: moved to %s", buried, queue, dead)
        held = {one.tag: one.rows for one in store.reservations(queue, tag)}
        if held:
            return [held.get(f"{tag}/{partition}", 0) for partition in range(len(rows))]
