"""The layout of a queue: one record per message, or buckets of many."""

from __future__ import annotations

from spark_queue.admin.common import open_existing
from spark_queue.messages.buckets import Buckets
from spark_queue.stores import open_store
from spark_queue.stores.base import read_layout
from spark_queue.stores.base import set_layout as write_layout
from spark_queue.stores.services.existence import check_exists
from spark_queue.stores.support.bucket_split import compact as put_together


def layout(url: str, queue: str) -> Buckets | None:
    """Return the buckets that new messages of a queue go to; `None`: each message is a record."""
    with open_existing(url, queue) as store:
        return read_layout(store, queue)


def set_layout(url: str, queue: str, layout: Buckets | None) -> None:
    """Set the layout of new messages, for all producers that do not set one themselves.

    Messages in the queue do not change: it may hold both forms. Running producers follow within 30
    seconds. The queue need not exist.
    """
    with open_store(url) as store:
        write_layout(store, queue, layout)


def compact(url: str, queue: str) -> int:
    """Merge ready messages that are single or in small buckets; return the number of records saved.

    It uses the buckets of the queue's layout, or default ones. Producers and consumers can go on.
    """
    with open_existing(url) as store:
        check_exists(store, queue)
        return put_together(store, queue, read_layout(store, queue) or Buckets())


def shrink(url: str) -> int:
    """Shrink a SQLite file to its content; return the number of bytes saved.

    Other processes can go on, but their writes wait while the file is rewritten. That needs free
    disk space: up to twice the final size of the file. Raises `OptionError` for a store with a
    server.
    """
    with open_existing(url) as store:
        return store.shrink()
