"""What becomes of a batch that comes again after a restart, which may have brought another option `delivery`.

The offset that ends a batch tells what it was planned as, where that is at most once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, cast

from spark_queue.options.queue_options import QueueOptions
from spark_queue.options.values import AT_MOST_ONCE

#: What the log is told of a batch that is `given_up`: with the number of its messages, and their queue.
GIVEN_UP = (
    "%d messages of %s were being worked on when the query ended: with delivery=at-most-once they do not come again"
)

Ended = TypeVar("Ended", bound=Mapping[str, Any])


def planned_as(end: Ended, options: QueueOptions) -> Ended:
    """The offset that ends a batch which is planned now, told as what."""
    offset = {key: value for key, value in end.items() if key != "delivery"}
    if options.delivery == AT_MOST_ONCE:
        offset["delivery"] = AT_MOST_ONCE
    return cast("Ended", offset)


def given_up(end: Mapping[str, Any], options: QueueOptions) -> bool:
    """Whether a batch that comes again is dropped instead.

    It is where it was planned as at most once, whatever the option says by now, and where the option says so now.
    """
    return AT_MOST_ONCE in (end.get("delivery"), options.delivery)
