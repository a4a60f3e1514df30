"""Data of another program that has the name of a queue: look at it, and make it a queue."""

from __future__ import annotations

from spark_queue.admin.common import open_existing
from spark_queue.stores.types import ForeignData


def inspect_foreign(url: str, queue: str) -> ForeignData:
    """Return the data that has the name of a queue, and whether it is one. Changes nothing.

    Raises `OptionError` if there is none, or if nothing can be adopted in this database. Raises
    `NotAQueue` if it cannot become a queue: a view, for example.
    """
    with open_existing(url, queue) as store:
        return store.inspect_foreign(queue)


def adopt(url: str, queue: str) -> ForeignData:
    """Make data of another program a queue, and return what it was before.

    That creates indexes, and from then on its documents are messages: consumers reserve, change and
    remove them. A queue stays as it is. Raises as `inspect_foreign` does.
    """
    with open_existing(url, queue) as store:
        return store.adopt(queue)
