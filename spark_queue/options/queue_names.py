"""How the dead-letter queue of a queue is called, unless option `deadLetterQueue` names another."""

from __future__ import annotations

_ENDING = ".dead"


def dead_letter_queue(queue: str) -> str:
    """Return the name of the dead-letter queue of `queue`."""
    return queue + _ENDING


def is_dead_letter_queue(name: str) -> bool:
    """Return whether a name is that of a dead-letter queue."""
    return name.endswith(_ENDING)


def source_queue(name: str) -> str:
    """Return the queue whose dead letters are in `name`; of another queue, the queue itself."""
    return name.removesuffix(_ENDING)
