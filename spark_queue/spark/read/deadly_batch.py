"""Refuse to repeat a batch that cannot be split, if processes died while they worked on it.

With at-least-once, such a batch is split: see `services/poison.py`. A batch that was planned with
exactly-once must be repeated with the same messages, since its sink may have some of its rows; and
so must the rows of several inputs. If its messages do not fit into memory, each start would die.
"""

from __future__ import annotations

from collections.abc import Sequence

from spark_queue.errors import CheckpointError, plural
from spark_queue.spark.read.batches import Batches
from spark_queue.spark.read.offsets import Offset, batch_of
from spark_queue.stores.services.poison import BATCH_PARTS, MAX_DEATHS


def check_deaths(batches: Sequence[tuple[Batches, Offset]]) -> None:
    """Raise `CheckpointError` if processes died twice while they worked on a batch.

    `batches`: it, in each of its queues. Deaths are then counted anew, so another start repeats the
    batch: the deaths may have another cause.
    """
    if not any(one.isolation is None and one.ownership.deaths >= MAX_DEATHS for one, _ in batches):
        return
    for one, _ in batches:
        one.ownership.forget_deaths()
    first, end = batches[0]
    consumer = end["consumer"]
    rows = max(sum(one.get("rows", [])) for _, one in batches)
    steps = "; ".join(f"spark-queue recover URL {one.queue} {consumer} --sink URL" for one, _ in batches)
    raise CheckpointError(
        f"batch {batch_of(end)} of consumer {consumer} of queue {first.queue!r}: the process has died "
        f"{MAX_DEATHS} times while it worked on this batch of {plural(rows, 'message')}, and the batch must be "
        "repeated as a whole. If its messages do not fit into memory, settle it and read fewer at once: "
        f"{steps}; then start with a new checkpoint, and with maxRecordsPerTrigger={max(1, rows // BATCH_PARTS)} "
        "(--sink: where the query writes; without such a sink, --written or --not-written). If the process died for "
        "another reason, start the query again: it repeats the batch",
        queue=first.queue,
        consumer=consumer,
    )
