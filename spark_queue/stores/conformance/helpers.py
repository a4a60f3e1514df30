"""Helpers of the conformance suite that push, reserve and read messages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from spark_queue.messages.message import Message, messages
from spark_queue.stores.base import Store


def messages_of(batches: Iterable[pa.RecordBatch]) -> list[Message]:
    """Return the messages of several batches, in order."""
    return [one for batch in batches for one in messages(batch)]


def payloads_of(batches: Iterable[pa.RecordBatch]) -> list[Any]:
    """Return the payloads of several batches, in order."""
    return [one.payload for one in messages_of(batches)]


def ids_of(batches: Iterable[pa.RecordBatch]) -> list[str]:
    """Return the ids of several batches, in order."""
    return [id for batch in batches for id in batch.column("id").to_pylist()]


def push_and_reserve(
    store: Store, queue: str, batch: pa.RecordBatch, limit: int | None = None, tag: str = "c/1", **options: Any
) -> list[int]:
    """Push a batch, and reserve `limit` messages of the queue, by default as many as it has rows.

    Return the number of messages of each partition, as `Store.reserve` does.
    """
    store.push(queue, batch)
    return store.reserve(queue, tag, batch.num_rows if limit is None else limit, **options)


def reserve_again(store: Store, queue: str, batch: pa.RecordBatch) -> list[Message]:
    """Push a batch, reserve it, roll it back, and reserve it under `c/2`; return its messages."""
    push_and_reserve(store, queue, batch)
    store.rollback(queue, "c/1")
    store.reserve(queue, "c/2", batch.num_rows)
    return messages_of(store.fetch(queue, "c/2/0"))


def check_sizes_up_to(limit: int, store: Store, queue: str) -> frozenset[str]:
    """Check that sizes up to a limit are exact or lower bounds; return the states of the latter."""
    exact, counted = store.sizes(queue), store.sizes(queue, limit)
    assert not exact.capped
    for state in ("ready", "scheduled", "reserved"):
        found, number = getattr(exact, state), getattr(counted, state)
        assert number <= found if state in counted.capped else number == found
        assert number >= min(limit, found) or state == "scheduled", "it counts as far as it may"
    return counted.capped
