"""Bind a query to an epoch of a consumer: one note for each query and queue.

A checkpoint may lose its offsets and keep the id of its query. Then the query begins a new epoch,
and counts its batches from 0 again. A sink that knows a batch by its number alone (files, Delta,
Kafka) takes these batches as written, and drops their rows. So each task checks that its query
still reads the same epoch.

The note is written when the first batch is read, and also has the last batch. It is removed with
the queue, or a year after its last write (`ageing.py`), and not when the query ends: a sink
remembers the batches of a query, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from spark_queue.errors import CheckpointError
from spark_queue.stores.base import Store
from spark_queue.stores.types import queue_note_key

BINDING_VERSION = 1
QUERY_NOTE = "query"  #: the kind of note


@dataclass(frozen=True, slots=True)
class QueryBinding:
    """The binding of a query: the consumer (`name/epoch`) that it reads, and the last batch.

    `number` is the number of Spark's batch, `batch` that in the tag, `SEQ.BY`. Both are known if
    leases never end. They show whether a sink has written the messages that the consumer holds.
    """

    query: str
    consumer: str
    number: int | None = None
    batch: str | None = None


def bind(store: Store, queue: str, option: str | None, binding: QueryBinding) -> None:
    """Write the binding of a query, if it is new.

    `option`: its option `consumer`, since a query may read a queue twice. Atomic. Raises
    `CheckpointError` if the query is bound to another epoch.
    """
    value: dict[str, Any] = {"v": BINDING_VERSION, "consumer": binding.consumer}
    if binding.number is not None:
        value |= {"number": binding.number, "batch": binding.batch}

    def change(previous: dict[str, Any] | None) -> dict[str, Any]:
        if previous is None:
            return value
        if previous["consumer"] != binding.consumer:
            raise CheckpointError(
                f"query {binding.query} has read queue {queue!r} as consumer {previous['consumer']}, and now begins "
                f"again as {binding.consumer}: its checkpoint has lost its first offsets, or it reads the queue "
                "twice. A stream cannot be joined with itself: join within foreachBatch. If two readers are to share "
                "the messages, set a different option 'consumer' for each load(). A lost checkpoint cannot be "
                "resumed. Settle the reserved messages with "
                f"spark-queue recover URL {queue} {previous['consumer']} --sink URL, then start with a new "
                "checkpoint",
                queue=queue,
                consumer=binding.consumer,
            )
        late = previous.get("number", -1) > value.get("number", -1)
        return previous if late else value  # a late task changes nothing

    store.change_note(queue_note_key(queue, QUERY_NOTE, f"{binding.query}/{option or ''}"), change)


def query_bindings(store: Store, queue: str, consumer: str) -> list[QueryBinding]:
    """Return the bindings of queries that have begun to read this consumer."""
    start = queue_note_key(queue, QUERY_NOTE, "")
    found = [(key.removeprefix(start).partition("/")[0], note.value) for key, note in store.notes(start).items()]
    return [
        QueryBinding(query, consumer, one.get("number"), one.get("batch"))
        for query, one in found
        if one["consumer"] == consumer
    ]
