"""What earlier processes of a query, and other checkpoints, have left reserved."""

from __future__ import annotations

import logging
from collections import Counter

from spark_queue.spark.read.offsets import Offset, tag_of
from spark_queue.stores.base import Store

log = logging.getLogger(__name__)


def release_leftovers(store: Store, queue: str, start: Offset) -> None:
    """Release what earlier processes reserved beyond `start` that is not in Spark's log.

    Only reservations with a lease that ends: another process may have started the others meanwhile. The end of
    these leases would do the same, but would count a failed try.
    """
    consumer = start["consumer"]
    for one in store.reservations(queue, consumer):
        if one.tag.startswith((f"{consumer}/parked/", f"{tag_of(start)}/")):
            continue
        if one.until is None:
            log.warning(
                "%d messages of %s were left reserved under %s, for ever; to release them: "
                "spark-queue release URL %s %s",
                one.rows, queue, one.tag, queue, one.tag,
            )  # fmt: skip
        elif given := store.rollback(queue, one.tag, delay=None, failed=False, endless=False):
            log.info(
                "%d messages of %s that an earlier process of this query had reserved under %s, and not begun to "
                "work on, were released",
                given, queue, one.tag,
            )  # fmt: skip


def log_others(store: Store, queue: str, consumer: str) -> None:
    """Log what other epochs of a consumer hold: only an operator knows whether their queries start again."""
    name = consumer.partition("/")[0]
    held: Counter[str] = Counter()
    for one in store.reservations(queue, name):
        held["/".join(one.tag.split("/")[:2])] += one.rows
    del held[consumer]
    for other, rows in held.items():
        log.warning(
            "consumer %s, of another checkpoint, still holds %d messages of %s; if its query never starts again: "
            "spark-queue recover URL %s %s --sink URL",
            other, rows, queue, queue, other,
        )  # fmt: skip
