"""How the messages of a queue are kept: each as a record, or many in a bucket."""

from __future__ import annotations

from spark_queue.admin.common import opened
from spark_queue.messages.buckets import Buckets
from spark_queue.stores import open_store
from spark_queue.stores.base import layout_of
from spark_queue.stores.base import set_layout as write_layout
from spark_queue.stores.services.existence import check_exists
from spark_queue.stores.support.bucket_split import compact as put_together


def layout(url: str, queue: str) -> Buckets | None:
    """How messages that are pushed to the queue are put into buckets; `None`: each is a record of its own."""
    with opened(url) as store:
        store.check_queue(queue)
        return layout_of(store, queue)


def set_layout(url: str, queue: str, layout: Buckets | None) -> None:
    """Set that, for all who push to the queue and do not say it themselves.

    What the queue holds stays as it is: it may hold both. Those who push already learn it half a minute later. The
    queue need not exist.
    """
    with open_store(url) as store:
        write_layout(store, queue, layout)


def compact(url: str, queue: str) -> int:
    """Put ready messages that lie alone or in small buckets together; give how many records fewer there are.

    In the layout that is set for the queue, the usual one where none is. Nobody needs to be stopped for it.
    """
    with opened(url) as store:
        check_exists(store, queue)
        return put_together(store, queue, layout_of(store, queue) or Buckets())


def shrink(url: str) -> int:
    """Shrink a SQLite file to what it holds; return how many bytes smaller it is.

    Nobody needs to be stopped for it, but writes wait while the file is written anew. That takes as much free disk
    space as the file has after that, twice for a moment. Raises `OptionError` for a store with a server.
    """
    with opened(url) as store:
        return store.shrink()
