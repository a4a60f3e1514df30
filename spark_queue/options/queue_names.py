"""The names of dead-letter queues, unless option `deadLetterQueue` sets another one."""

from __future__ import annotations

_DEAD_LETTER_SUFFIX = ".dead"

#: Most bytes of a name. The suffix does not count, so each queue can have a dead-letter queue.
MAX_QUEUE_BYTES = 200


def dead_letter_queue(queue: str) -> str:
    """Return the name of the dead-letter queue of `queue`."""
    return queue + _DEAD_LETTER_SUFFIX


def is_dead_letter_queue(name: str) -> bool:
    """Return whether this is the name of a dead-letter queue."""
    return name.endswith(_DEAD_LETTER_SUFFIX)


def source_queue(name: str) -> str:
    """Return the queue whose dead letters are in `name`; `name` itself if it is another queue."""
    return name.removesuffix(_DEAD_LETTER_SUFFIX)
