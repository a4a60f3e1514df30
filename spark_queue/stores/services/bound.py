"""Which epoch of a consumer a query reads, and its last batch there: one note for each query, beside the queue.

A checkpoint may lose its offsets and keep the id of its query. Then the query begins a new epoch, and counts its
batches from 0 again; a sink that knows a batch by its number alone (files, Delta, Kafka) takes them for written and
drops their rows. So each task looks whether its query reads the epoch that it always read.

The note is set when the first batch is read. It goes when the queue is dropped, not before: what a sink remembers of
a query has no end either.
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
    """What a query reads of a queue: the consumer (`name/epoch`), and its last batch.

    `number` is that of Spark's batch, `batch` the one of the tag, `SEQ.BY`. They are known where messages are held
    without an end: to find out whether a sink has written what the consumer holds.
    """

    query: str
    consumer: str
    number: int | None = None
    batch: str | None = None


def bind(store: Store, queue: str, option: str | None, reading: Reading) -> None:
    """Note what a query reads, unless that is noted. `option`: its option `consumer`; it may read a queue twice.

    Atomic. Raises `CheckpointError` where the query reads another epoch.
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
                "cannot go on. Settle what is held, with "
                f"spark-queue recover URL {queue} {known['consumer']} --sink URL, then start with a new checkpoint",
                queue=queue,
                consumer=reading.consumer,
            )
        value: dict[str, Any] = {"v": BOUND_VERSION, "consumer": reading.consumer}
        if reading.number is not None:
            value |= {"number": reading.number, "batch": reading.batch}
        if note is not None and (known == value or known.get("number", -1) > value.get("number", -1)):
            return  # a task that comes late changes nothing
        if store.set_note(key, value, note.version if note else 0):
            return


def readings(store: Store, queue: str, consumer: str) -> list[Reading]:
    """The queries that read this consumer, as far as they have begun to."""
    start = about(queue, QUERY, "")
    found = [(key.removeprefix(start).partition("/")[0], note.value) for key, note in store.notes(start).items()]
    return [
        Reading(query, consumer, one.get("number"), one.get("batch"))
        for query, one in found
        if one["consumer"] == consumer
    ]
