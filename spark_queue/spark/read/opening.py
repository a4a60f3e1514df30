"""Open the store of a query, and check whether the query can run safely."""

from __future__ import annotations

from spark_queue.errors import NotAQueue, OptionError
from spark_queue.options.stream import StreamOptions
from spark_queue.stores import open_database
from spark_queue.stores.base import Store
from spark_queue.stores.services.dead_letters import check_dead_letters_stay
from spark_queue.stores.services.eviction import check_eviction
from spark_queue.stores.services.existence import check_before_read


def open_query_store(options: StreamOptions) -> Store:
    """Return the store of a query.

    Raises `OptionError`, or warns, if the store evicts messages or the queue does not exist. Raises
    `NotAQueue` if data of another program has the name of the queue or of its dead-letter queue.
    Raises `OptionError` if a query moves dead letters of that one back.
    """
    fail = options.reading.fail_if_missing
    store = open_database(options.database, create=not fail)
    try:
        check_eviction(store, exactly_once=options.guarantee.exactly_once, allowed=options.guarantee.allow_eviction)
        check_before_read(store, options.queue, fail=fail)
        _check_dead_letter_queue(store, options.dead_letters.queue_of(options.queue))
        for dead in options.dead_letters.named:
            check_dead_letters_stay(store, options.queue, dead)
    except BaseException:
        store.close()
        raise
    return store


def _check_dead_letter_queue(store: Store, queue: str) -> None:
    try:
        store.check_is_queue(queue)
    except NotAQueue:
        raise
    except OptionError:
        pass  # a name that is too long matters only if a message dies
