"""The process that runs a consumer."""

from __future__ import annotations

from spark_queue.stores.base import Store
from spark_queue.stores.services.owner import Owner, load_consumer_state


def owner_of(store: Store, queue: str, consumer: str) -> Owner | None:
    """Return the process that runs a consumer, or `None` if none is known to be alive."""
    standing = load_consumer_state(store, queue, consumer)
    return None if standing is None else standing.alive_owner(store.now())
