"""Find messages that a run leaves in its queues, and those that earlier ones left reserved."""

from __future__ import annotations

import logging
from collections import Counter

from spark_queue.spark.read.offsets import Offset, tag_of
from spark_queue.stores.base import Store
from spark_queue.stores.types import COUNT_LIMIT

log = logging.getLogger(__name__)


def release_leftovers(store: Store, queue: str, start: Offset) -> None:
    """Release batches after `start` of earlier processes: they are not in Spark's log.

    Releases only reservations with a limited lease, since another process may have started the
    others. The end of these leases would release them too, but would count a failed try.
    """
    consumer = start["consumer"]
    for one in store.reservations(queue, consumer):
        if one.tag.startswith((f"{consumer}/parked/", f"{tag_of(start)}/")):
            continue
        if one.until is None:
            log.warning(
                "%d messages of %s are still reserved under %s, with an unlimited lease; to release them: "
                "spark-queue release URL %s %s",
                one.rows, queue, one.tag, queue, one.tag,
            )  # fmt: skip
        elif released := store.rollback(queue, one.tag, delay=None, failed=False, include_endless=False):
            log.info(
                "released %d messages of %s that an earlier process of this query had reserved under %s, but not "
                "started",
                released, queue, one.tag,
            )  # fmt: skip


def log_others(store: Store, queue: str, consumer: str) -> None:
    """Log messages that other epochs of a consumer hold: only you know if their queries restart."""
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


def log_what_is_left(store: Store, queue: str) -> None:
    """Log which messages a run that has ended leaves in a queue; warn if some are reserved.

    Counts up to `COUNT_LIMIT` messages of each state.
    """
    sizes = store.sizes(queue, COUNT_LIMIT)
    states = {"ready": sizes.ready, "scheduled": sizes.scheduled, "reserved": sizes.reserved}
    counts = [
        f"{count:,}{' or more' if state in sizes.capped else ''} {state}" for state, count in states.items() if count
    ]
    if not counts:
        return
    log.log(logging.WARNING if sizes.reserved else logging.INFO, "queue %r still holds %s", queue, ", ".join(counts))
