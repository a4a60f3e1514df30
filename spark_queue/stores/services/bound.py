"""Bind a query to an epoch of a consumer: one note for each query and queue.

A checkpoint may lose its offsets and keep the id of its query. Then the query begins a new epoch,
and counts its batches from 0 again. A sink that knows a batch by its number alone (files, Delta,
Kafka) takes these batches as written, and drops their rows. So each task checks that its query
still reads the same epoch.

The note is written when the first batch is read, and also has the last batch. It is removed with
the queue and not before, since a sink remembers a query forever too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from spark_queue.errors import CheckpointError
from spark_queue.stores.base import Store
from spark_queue.stores.types import about

BOUND_VERSION = 1
QUERY = "query"  #: the kind of note


@dataclass(frozen=True, slots=True)
class Reading:
    """The binding of a query: the consumer (`name/epoch`) that it reads, and the last batch.

    `number` is the number of Spark's batch, `batch` that in the tag, `SEQ.BY`. Both are known if
    leases never end. They show whether a sink has written the messages that the consumer holds.
    """

    query: str
    consumer: str
    number: int | None = None
    batch: str | None = None


def bind(store: Store, queue: str, option: str | None, reading: Reading) -> None:
    """Write the binding of a query, if it is new.

    `option`: its option `consumer`, since a query may read a queue twice. Atomic. Raises
    `CheckpointError` if the query is bound to another epoch.
    """
    key = about(queue, QUERY, f"{reading.query}/{option or ''}")
    while True:
        note = store.note(key)
        known = note.value if note else {"consumer": reading.consumer, "number": -1}
        if known["consumer"] != reading.consumer:
            raise CheckpointError(
                f"query {reading.query} has read queue {queue!r} as consumer {known['consumer']}, and now begins "
                f"again as {reading.consumer}: its checkpoint has lost its first offsets, or it reads the queue "
                "twice. In one query, set a different option 'consumer' for each load(). A lost checkpoint "
                "cannot be resumed. Settle the reserved messages with "
                f"spark-queue recover URL {queue} {known['consumer']} --sink URL, then start with a new checkpoint",
                queue=queue,
                consumer=reading.consumer,
            )
        value: dict[str, Any] = {"v": BOUND_VERSION, "consumer": reading.consumer}
        if reading.number is not None:
            value |= {"number": reading.number, "batch": reading.batch}
        if note is not None and (known == value or known.get("number", -1) > value.get("number", -1)):
            return  # a late task changes nothing
        if store.set_note(key, value, note.version if note else 0):
            return


def readings(store: Store, queue: str, consumer: str) -> list[Reading]:
    """Return the bindings of queries that have begun to read this consumer."""
    start = about(queue, QUERY, "")
    found = [(key.removeprefix(start).partition("/")[0], note.value) for key, note in store.notes(start).items()]
    return [
        Reading(query, consumer, one.get("number"), one.get("batch"))
        for query, one in found
        if one["consumer"] == consumer
    ]
