"""A batch of a consumer, as a query that works on it leaves it in the database."""

from __future__ import annotations

from spark_queue import open_store
from spark_queue.stores.services.owner import Batch
from spark_queue.stores.services.ownership import INITIAL_BATCH, Ownership


def begin_batch(url: str, name: str, last: Batch = INITIAL_BATCH) -> str:
    """Run the consumer `etl/1` here, reserve up to 8 messages and start the batch after `last`.

    Return the tag of the batch.
    """
    with open_store(url) as store:
        owner = Ownership(store, name, "etl/1")
        owner.take(last)
        batch = Batch(last.seq + 1, owner.number)
        store.reserve(name, f"etl/1/{batch}", 8, lease=None)
        owner.start(batch)
        return f"etl/1/{batch}"
