"""Look at a queue page by page: see `Store.scan`."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from spark_queue.errors import OptionError
from spark_queue.messages.message import Message, messages
from spark_queue.stores.base import Store
from spark_queue.stores.support.scan import Scan, ScanPage
from spark_queue.stores.types import Condition


class MessagePage(NamedTuple):
    """Messages in order, and the cursor of the next page; `None` at the end."""

    messages: list[Message]
    after: str | None


def browse(
    store: Store, queue: str, limit: int, after: str | None = None, ids: Collection[str] | None = None
) -> MessagePage:
    """Return a page of messages, reserved and scheduled ones too.

    `after` is the cursor of the page before. Raises `OptionError` as `Store.scan` does.
    """
    where = [] if ids is None else [Condition("id", "in", tuple(ids))]
    page = scan(store, Scan(queue, where, limit, cursor=after))
    return MessagePage([one for batch in page.batches for one in messages(batch)], page.cursor)


def scan(store: Store, request: Scan, name: str = "after") -> ScanPage:
    """Return a page of a store, for a caller that knows the cursor by another name.

    Raises `OptionError` as `Store.scan` does.
    """
    try:
        return store.scan(request)
    except OptionError as error:
        if error.facts.get("option") != "cursor":
            raise
        raise OptionError(f"{name}: {error}", option="after") from None
