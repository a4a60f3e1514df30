"""The delivery with which a batch was planned: it decides what a restart does with the batch.

The restart may have changed the option `delivery`. So the end offset of a batch has the key
`delivery`, unless the batch was planned with at-least-once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, cast

from spark_queue.options.stream import StreamOptions
from spark_queue.options.values import AT_LEAST_ONCE, AT_MOST_ONCE, EXACTLY_ONCE, WARN
from spark_queue.spark.read.pacing import SIZE_FIELDS

#: The log message for a dropped batch. Its arguments: the number of messages, and the queue.
DROPPED_MESSAGE = (
    "%d messages of %s were in progress when the query ended: with delivery=at-most-once they are dropped"
)

#: The field of an offset with the option `onUnread`, unless it is the default: the driver's program
#: sees only the offset.
ON_UNREAD = "onUnread"

OffsetType = TypeVar("OffsetType", bound=Mapping[str, Any])


def mark_delivery(end: OffsetType, options: StreamOptions) -> OffsetType:
    """Return the end offset of a batch that is planned now, with its `delivery` and `onUnread`.

    Fields of the batch before it, from whose end it was copied, are left out.
    """
    offset = {key: value for key, value in end.items() if key not in ("delivery", ON_UNREAD, *SIZE_FIELDS)}
    if options.guarantee.delivery != AT_LEAST_ONCE:
        offset["delivery"] = options.guarantee.delivery
    if options.on_unread != WARN:
        offset[ON_UNREAD] = options.on_unread
    return cast("OffsetType", offset)


def is_dropped(end: Mapping[str, Any], options: StreamOptions) -> bool:
    """Return whether a replayed batch is dropped.

    It is dropped if it was planned with at-most-once, or if the option is at-most-once now.
    """
    return AT_MOST_ONCE in (end.get("delivery"), options.guarantee.delivery)


def is_noted(end: Mapping[str, Any]) -> bool:
    """Return whether the note of the consumer names the batch as reserved.

    It does if the batch was planned with exactly-once. Earlier versions did not write that into an
    offset.
    """
    return end.get("delivery") == EXACTLY_ONCE and any(end.get("rows", []))
