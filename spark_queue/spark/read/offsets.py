"""The offsets of a consumer in Spark's checkpoint, and the tags that they name.

An offset of version 2 names the process that reserved its batch (`by`). An offset of version 1, and
its tag, do not. Both versions can be read.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, TypedDict

from spark_queue.errors import CheckpointError
from spark_queue.options.stream import StreamOptions
from spark_queue.stores.base import Store
from spark_queue.stores.services.owner import Batch

OFFSET_VERSION = 2
READABLE_VERSIONS = (1, OFFSET_VERSION)


class Offset(TypedDict, total=False):
    """The offset of one consumer: it reserved `seq` batches, the last with `rows` by partition.

    `by`: the number of the process that reserved the last one. `delivery`: that with which the
    last one was planned, unless it is at-least-once. `places`: of a log among several inputs, see
    `LogInput`. `onUnread`: the option, unless it is `warn`. `arrived`: see `arrival.py`. `size` and
    `firstFull`: see `pacing.py`.
    """

    v: int
    queue: str
    consumer: str
    seq: int
    by: int
    rows: list[int]
    delivery: str
    places: list[dict[str, Any]]
    onUnread: str
    arrived: int
    size: int
    firstFull: bool


class MultiInputOffset(TypedDict, total=False):
    """The offset of a consumer of several inputs: as `Offset`, with inputs and rows by binding.

    `by`: by binding too, since each queue has its own note of the consumer. `places`: for each log,
    the places before and after the rows of the last batch.
    """

    v: int
    inputs: dict[str, dict[str, str]]
    consumer: str
    seq: int
    by: dict[str, int]
    rows: dict[str, list[int]]
    delivery: str
    places: dict[str, list[dict[str, Any]]]
    onUnread: str
    arrived: int
    size: int
    firstFull: bool


def input_offsets(offset: MultiInputOffset) -> dict[str, Offset]:
    """Return the offset of each input alone, by binding."""
    rows, places, by = offset.get("rows", {}), offset.get("places", {}), offset.get("by", {})
    found: dict[str, Offset] = {}
    for binding, one in offset["inputs"].items():
        found[binding] = {
            "v": offset["v"],
            "queue": one["queue"],
            "consumer": offset["consumer"],
            "seq": offset["seq"],
            "by": by.get(binding, 0),
            "rows": rows.get(binding, []),
        }
        if "delivery" in offset:
            found[binding]["delivery"] = offset["delivery"]
        if "onUnread" in offset:
            found[binding]["onUnread"] = offset["onUnread"]
        if "arrived" in offset:
            found[binding]["arrived"] = offset["arrived"]
        if binding in places:
            found[binding]["places"] = places[binding]
    return found


def new_consumer(options: StreamOptions) -> str:
    """Return the consumer of a new checkpoint, `name/epoch`.

    Each checkpoint is a new epoch: it does not own messages that an older epoch still holds.
    """
    return f"{options.consumer or uuid.uuid4().hex[:12]}/{uuid.uuid4().hex[:6]}"


def batch_of(offset: Mapping[str, Any]) -> Batch:
    """Return the batch that ends at this offset."""
    return Batch(offset["seq"], offset.get("by", 0))


def tag_of(offset: Mapping[str, Any]) -> str:
    """Return the tag of the batch that ends at this offset, without a partition."""
    return f"{offset['consumer']}/{batch_of(offset)}"


def delivery_of(offset: Mapping[str, Any]) -> str:
    """Return the name of the batch that ends at this offset, without the number of its process."""
    return f"{offset['consumer']}/{offset['seq']}"


def delivery_of_tag(tag: str) -> str:
    """Return the same name for the tag of a partition."""
    consumer, batch, _ = tag.rsplit("/", 2)
    return f"{consumer}/{batch.partition('.')[0]}"


def batch_of_tag(tag: str) -> tuple[str, Batch | None]:
    """Return the consumer and the batch that the tag of a partition names.

    The batch is `None` if it is no tag of a batch.
    """
    consumer, _, rest = tag.rpartition("/")[0].rpartition("/")
    seq, _, by = rest.partition(".")
    if consumer.count("/") != 1 or not (seq.isdecimal() and (by or "0").isdecimal()):
        return consumer, None
    return consumer, Batch(int(seq), int(by or 0))


def check_offset(offset: Mapping[str, Any], options: StreamOptions) -> None:
    """Raise `CheckpointError` if an offset of Spark does not match the options of this query."""
    queue = options.queue
    if offset.get("v") not in READABLE_VERSIONS:
        raise CheckpointError(
            f"the checkpoint of the query on queue {queue!r} holds an offset of version {offset.get('v')!r}, this "
            f"version of spark_queue reads {' and '.join(map(str, READABLE_VERSIONS))}: run it with the version "
            "that wrote it, or start with a new checkpoint",
            queue=queue,
        )
    if "segment" in offset:
        raise CheckpointError(
            f"the checkpoint is that of a query on queue {queue!r} with mode=log: set mode=log, or start with a new "
            "checkpoint",
            queue=queue,
        )
    check_query(offset.get("queue"), offset.get("consumer", ""), options)


def check_query(queue: str | None, consumer: str, options: StreamOptions) -> None:
    """Raise `CheckpointError` if the checkpoint is that of another queue or consumer."""
    if queue != options.queue:
        raise CheckpointError(
            f"the checkpoint is that of a query on queue {queue!r}, but option 'queue' is {options.queue!r}: a "
            "query keeps its queue, another queue needs a new checkpoint",
            queue=options.queue,
        )
    name = consumer.partition("/")[0]
    if options.consumer not in (None, name):
        raise CheckpointError(
            f"the checkpoint is that of consumer {name!r}, but option 'consumer' is {options.consumer!r}: set the "
            "same, or start with a new checkpoint",
            consumer=name,
        )


def commit_offset(store: Store, end: Offset, history: int) -> int:
    """Commit only the partitions that an offset names; return the number of messages removed.

    Under a tag without `by`, a suspended process may have continued to reserve this batch after its
    successor planned it. No task worked on messages that the offset does not name.
    """
    parts = [part for part, rows in enumerate(end.get("rows", [])) if rows]
    return sum(store.commit(end["queue"], f"{tag_of(end)}/{part}", history=history) for part in parts)
