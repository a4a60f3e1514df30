"""The names of dead-letter queues: the default, and which ones may be set instead."""

from __future__ import annotations

from spark_queue.errors import OptionError

_DEAD_LETTER_SUFFIX = ".dead"

#: Most bytes of a name. The suffix does not count, so each queue can have a dead-letter queue.
MAX_QUEUE_BYTES = 200


def dead_letter_queue(queue: str) -> str:
    """Return the name of the dead-letter queue of `queue`."""
    return queue + _DEAD_LETTER_SUFFIX


def takes_dead_letters(dead: str, queue: str) -> bool:
    """Return whether `dead` may be the dead-letter queue of `queue`.

    It may not be the queue itself, nor one whose own dead letters come back to the queue.
    """
    return queue not in (dead, dead_letter_queue(dead))


def check_dead_letter_queue(queue: str, dead: str | None, name: str) -> None:
    """Raise `OptionError` if `dead` cannot be the dead-letter queue of `queue`.

    `name`: what the user calls it, in the option or argument. `None` is the default, which can be.
    """
    if dead is None or takes_dead_letters(dead, queue):
        return
    why = "the queue itself" if dead == queue else f"a queue whose own dead letters come back, to {queue!r}"
    raise OptionError(
        f"{name} is {dead!r}, {why}: its messages would fail forever. Name another queue, or leave it out for "
        f"{dead_letter_queue(queue)!r}",
        option="deadLetterQueue",
        queue=queue,
    )


def is_dead_letter_queue(name: str) -> bool:
    """Return whether this is the name of a dead-letter queue."""
    return name.endswith(_DEAD_LETTER_SUFFIX)


def source_queue(name: str) -> str:
    """Return the queue whose dead letters are in `name`; `name` itself if it is another queue."""
    return name.removesuffix(_DEAD_LETTER_SUFFIX)
