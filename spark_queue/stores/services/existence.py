"""Checks that a queue exists. A missing queue is an error or a warning, not an empty result."""

from __future__ import annotations

import logging

from spark_queue.errors import OptionError, did_you_mean
from spark_queue.options.masking import mask, masked_repr
from spark_queue.options.queue_names import is_dead_letter_queue, source_queue
from spark_queue.stores.base import Store
from spark_queue.stores.services.owner import consumers

log = logging.getLogger(__name__)


def known_queues(store: Store) -> set[str]:
    """Return the queues that exist: with messages, history, statistics or a consumer."""
    if store.missing_database():
        return set()
    return {*store.queues(), *(queue for queue, _, _ in consumers(store))}


def exists(store: Store, queue: str) -> bool:
    """Return whether a queue exists.

    The default dead-letter queue of an existing queue does too.
    """
    if store.missing_database():
        return False
    return (
        store.exists(queue)
        or any(consumers(store, queue))
        or (is_dead_letter_queue(queue) and exists(store, source_queue(queue)))
    )


def check_exists(store: Store, queue: str, remedy: str = "") -> None:
    """Raise `OptionError` if there is no such queue.

    `remedy`: a sentence at the end of the error.
    """
    if not exists(store, queue):
        raise OptionError(_missing_message(store, queue, remedy), option="queue", queue=queue)


def check_before_read(store: Store, queue: str, *, fail: bool) -> None:
    """Check that a queue exists before it is read. If it does not, raise `OptionError`, or warn."""
    if fail:
        check_exists(store, queue, "Set failIfMissing=false to wait for its first message.")
    elif not exists(store, queue):
        log.warning("%s", _missing_message(store, queue, "Waiting for its first message."))


def _missing_message(store: Store, queue: str, remedy: str) -> str:
    """Return the message for a queue that does not exist, with similar names."""
    hint = did_you_mean(queue, known_queues(store))
    sentence = store.missing_database() or f"queue {masked_repr(queue)} does not exist in {mask(store.url)}{hint}"
    return f"{sentence}{'' if sentence.endswith('?') else '.'} {remedy}" if remedy else sentence
