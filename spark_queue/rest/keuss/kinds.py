"""The names and capabilities that keuss has for the layouts of stores."""

from __future__ import annotations

from typing import Any, NamedTuple

from spark_queue.options.masking import mask
from spark_queue.stores.base import Store


class KeussKind(NamedTuple):
    """The type of a queue as keuss names it, and what this server can do besides push and pop.

    In keuss itself, a queue of `redis:list` has no delays, no reservations and no removal.
    """

    type: str
    sched: bool = True
    reserve: bool = True
    pipeline: bool = False
    tape: bool = False
    remove: bool = True

    @property
    def capabilities(self) -> dict[str, bool]:
        """The capabilities, as a status has them."""
        return {name: value for name, value in self._asdict().items() if name != "type"}


#: By the name of the layout. keuss has no queues in SQLite and none of rfq.
KINDS = {
    "mongo": KeussKind("mongo:simple"),
    "ps-mongo": KeussKind("mongo:persistent", tape=True),
    "pl-mongo": KeussKind("mongo:pipeline", pipeline=True),
    "bucket-mongo-safe": KeussKind("mongo:bucket-safe"),
    "redis-oq": KeussKind("redis:oq"),
    "redis-list": KeussKind("redis:list"),
    "rfq": KeussKind("redis:rfq"),
    "": KeussKind("sqlite"),  # it has one layout, without a name
}


def describe_queue(ns: str, store: Store) -> dict[str, Any]:
    """Return the fields of a status that are the same for all queues of a namespace."""
    kind = KINDS[store.layout_name]
    factory = {"name": ns, "type": kind.type, "opts": {"name": ns, "url": mask(store.url).partition("?")[0]}}
    return {"type": kind.type, "capabilities": kind.capabilities, "factory": factory}
