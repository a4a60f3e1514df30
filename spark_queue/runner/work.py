"""Whether a step has messages in work, and whether another program reads its messages."""

from __future__ import annotations

from collections.abc import Mapping

from spark_queue.graph.step import Step
from spark_queue.stores.base import Store
from spark_queue.stores.services.owner import live_consumer


def has_work(stores: Mapping[str, Store], name: str, step: Step | None) -> bool:
    """Return whether a step may have a batch in work. Raises `StoreError`.

    A log, and a step without a source, hold no messages: they always may.
    """
    if step is None or not step.sources or any(one.shared for one in step.input_queues()):
        return True
    return any(stores[one.ns].reservations(one.queue, name) for one in step.sources)


def is_free(stores: Mapping[str, Store], name: str, step: Step | None) -> bool:
    """Return whether no program that is no server runs the step, such as jobs/exchange.py."""
    if step is None or (src := step.src) is None:
        return True
    return live_consumer(stores[src.ns], src.queue, name) is None
