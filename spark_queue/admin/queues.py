"""Queues: list, peek, move, purge, pause."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Collection, Iterable
from datetime import datetime
from typing import Any

from spark_queue.admin.common import STEP, open_existing
from spark_queue.admin.reservations import check_not_owned
from spark_queue.consuming.browsing import MessagePage
from spark_queue.consuming.browsing import browse as browse_store
from spark_queue.messages.message import Message, messages
from spark_queue.messages.times import MAX_TIME_MS
from spark_queue.stores.base import PAGE_ROWS, Store
from spark_queue.stores.services.existence import check_exists
from spark_queue.stores.types import Condition


def list_ids(url: str, queue: str, *, held: bool = False) -> list[str]:
    """Return the ids of the free messages, or of the reserved ones (`held`), in reverse order."""
    with open_existing(url, queue) as store:
        native_listing = getattr(store, "listq", None)
        if native_listing is not None:
            return list(native_listing(queue, "nextlog" if held else "backlog"))
        reserved = _reserved_ids(store, queue)
        found: list[tuple[datetime, str]] = []
        for batch in store.peek(queue):
            columns = batch.column("mature").to_pylist(), batch.column("id").to_pylist()
            found += [(due, id) for due, id in zip(*columns, strict=True) if (id in reserved) is held]
        return [id for _, id in sorted(found, reverse=True)]


def peek(url: str, queue: str, limit: int | None = 10, ids: Collection[str] | None = None) -> list[Message]:
    """Return the first messages in order, or those with `ids`; reserved ones too."""
    with open_existing(url, queue) as store:
        check_exists(store, queue)
        where = [] if ids is None else [Condition("id", "in", tuple(ids))]
        return [one for batch in store.peek(queue, where, limit=limit) for one in messages(batch)]


def browse(url: str, queue: str, limit: int = 100, after: str | None = None) -> MessagePage:
    """Return messages as `peek` does, page by page; `after` is the cursor of the page before.

    Raises `OptionError` for a cursor that is damaged, or of another queue.
    """
    with open_existing(url, queue) as store:
        check_exists(store, queue)
        return browse_store(store, queue, limit, after)


def queues(url: str) -> list[str]:
    """Return the names of the queues, sorted. An empty queue is listed until it is dropped."""
    with open_existing(url) as store:
        return store.queues()


def move(
    url: str,
    queue: str,
    to: str,
    *,
    ids: Collection[str] | None = None,
    limit: int | None = None,
    create: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Move free messages to another queue of the store, and return their number.

    It moves the messages with `ids`, else the first in order: up to `limit`, or as many as the
    queue holds now. They keep id, payload, headers and maturity; their tries start at 0. Up to
    5,000 move in one step; if the move is interrupted, call it again. `progress` gets the numbers
    of messages moved and wanted after each step. Raises `OptionError` if the target does not exist,
    unless `create`.
    """
    with open_existing(url, queue, to) as store:
        check_exists(store, queue)
        if not create:
            check_exists(store, to, "To create it, use --create (create=True).")
        if ids is not None:
            unique_ids = list(dict.fromkeys(ids))
            steps: Iterable[dict[str, Any]] = (
                {"ids": unique_ids[at : at + STEP]} for at in range(0, len(unique_ids), STEP)
            )
            wanted = len(unique_ids)
        else:
            sizes = store.sizes(queue)
            wanted = min(sizes.ready + sizes.scheduled, MAX_TIME_MS if limit is None else limit)
            steps = ({"limit": min(STEP, wanted - at)} for at in range(0, wanted, STEP))
        moved = 0
        for step in steps:
            moved += store.move(queue, to, **step)
            if progress is not None:
                progress(moved, wanted)
        return moved


def purge(url: str, queue: str, *, held: bool = False) -> list[str]:
    """Remove the free messages, or the reserved ones (`held`); return their ids, in order.

    Raises `UsageError` if a running query or a log holds them. Other consumers notice it when they
    settle the messages. With the layout `rfq`, which records no owners, this is rfq's own purge.
    """
    with open_existing(url, queue) as store:
        native_purge = getattr(store, "purge_list", None)
        if held:
            if native_purge is not None:
                return list(native_purge(queue, "nextlog"))
            check_not_owned(store, queue)
            return settle_reserved(store, queue, store.commit)
        removed: list[str] = [] if native_purge is None else list(native_purge(queue, "backlog"))
        run = f"cli/{uuid.uuid4().hex[:6]}"
        for sequence in itertools.count(1):
            tag = f"{run}/{sequence}"
            if not store.reserve(queue, tag, PAGE_ROWS):
                break
            removed += settle_reserved(store, queue, store.commit, tag)
        # The other free messages are scheduled, so they cannot be reserved.
        scheduled_ids = [id for batch in store.peek(queue) for id in batch.column("id").to_pylist()]
        reserved_ids = _reserved_ids(store, queue)
        if store.purge(queue):
            removed += [id for id in scheduled_ids if id not in reserved_ids]
        return removed


def settle_reserved(store: Store, queue: str, settle: Callable[[str, str], int], tag: str = "") -> list[str]:
    """Settle reserved messages, tag by tag, and return their ids.

    `settle` gets the queue and a tag. With `tag`, only messages under it and the tags below it.
    """
    settled: list[str] = []
    for one in store.reservations(queue, tag):
        ids = store.held_ids(queue, one.tag)
        if settle(queue, one.tag):
            settled += ids
    return settled


def _reserved_ids(store: Store, queue: str) -> set[str]:
    return {id for one in store.reservations(queue) for id in store.held_ids(queue, one.tag)}


def pause(url: str, queue: str) -> None:
    """Pause a queue: no client can reserve messages until `resume`.

    Reserved messages can be settled, and pushes go on.
    """
    with open_existing(url, queue) as store:
        store.pause(queue)


def resume(url: str, queue: str) -> None:
    """Resume a paused queue."""
    with open_existing(url, queue) as store:
        store.resume(queue)


def paused(url: str, queue: str) -> bool:
    """Return whether the queue is paused."""
    with open_existing(url, queue) as store:
        return store.is_paused(queue)
