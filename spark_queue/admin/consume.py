"""Consume messages: reserve, pop, commit, roll back, release."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from spark_queue.admin.common import STEP, open_existing
from spark_queue.admin.queues import settle_reserved
from spark_queue.admin.reservations import check_not_owned
from spark_queue.errors import OptionError, StoreError, UsageError
from spark_queue.messages.message import Message, messages
from spark_queue.options.arguments import check_seconds
from spark_queue.options.queue_names import check_dead_letter_queue, dead_letter_queue
from spark_queue.stores.base import Store
from spark_queue.stores.services.dead_letters import roll_back_or_dead_letter
from spark_queue.stores.services.existence import check_before_read, check_exists
from spark_queue.stores.types import check_tag


@dataclass(frozen=True, slots=True)
class ReservedMessages:
    """Reserved messages, and the tag that settles them."""

    tag: str
    messages: list[Message]


def reserve(
    url: str,
    queue: str,
    limit: int = 1,
    *,
    lease: float | None = 120.0,
    timeout: float | None = 0.0,
    consumer: str = "cli",
) -> ReservedMessages:
    """Reserve up to `limit` messages under a new tag.

    They stay reserved for `lease` seconds (`None`: forever), or until `commit`, `rollback` or
    `release`. The result has no messages if none is ready within `timeout` seconds (`None`: wait
    forever). Raises `OptionError` if `lease` or `consumer` is invalid.
    """
    check_tag(consumer)
    if lease is not None:
        check_seconds("lease", lease, minimum=0.1)
    with open_existing(url, queue) as store:
        tag = f"{consumer}/{uuid.uuid4().hex[:6]}/1"
        return ReservedMessages(tag, _reserve(store, queue, tag, limit, lease, timeout))


def _reserve(
    store: Store, queue: str, tag: str, limit: int, lease: float | None, timeout: float | None
) -> list[Message]:
    end = float("inf") if timeout is None else time.monotonic() + timeout
    existence_checked = timeout == 0  # without a wait there is no warning that the call waits
    while True:
        rows = store.reserve(queue, tag, limit, lease=None if lease is None else round(lease * 1000))
        if rows and (found := list(_fetch_messages(store, queue, tag))):
            return found
        if rows:
            continue  # all of them were damaged
        if not existence_checked:
            check_before_read(store, queue, fail=False)
            existence_checked = True
        left = end - time.monotonic()
        if left <= 0:
            return []
        store.wait(queue, round(min(left, 60) * 1000))


def _fetch_messages(store: Store, queue: str, tag: str) -> Iterator[Message]:
    """Yield the messages under a tag and the tags below it."""
    for one in store.reservations(queue, tag):
        for batch in store.fetch(queue, one.tag, check_json=True):
            yield from messages(batch)


def pop(
    url: str,
    queue: str,
    handle: Callable[[list[Message]], None],
    *,
    limit: int | None = 1,
    timeout: float | None = 0.0,
) -> int:
    """Pass messages to `handle`, then remove them; return their number.

    It pops up to `limit` messages (`None`: all), at most 5,000 in one step. It ends earlier if none
    is ready within `timeout` seconds (`None`: wait forever). If `handle` raises, the messages of
    this step are released: they may be delivered twice, but none is lost.
    """
    with open_existing(url, queue) as store:
        run = f"cli/{uuid.uuid4().hex[:6]}"
        done = 0
        for sequence in itertools.count(1):
            step = STEP if limit is None else min(STEP, limit - done)
            tag = f"{run}/{sequence}"
            found: list[Message] = []
            try:
                found = _reserve(store, queue, tag, step, 120.0, timeout) if step else []
                if found:
                    handle(found)
                    done += store.commit(queue, tag)
            except BaseException as error:
                if found or not isinstance(error, StoreError):  # a reserve that failed holds nothing
                    store.rollback(queue, tag, failed=False)
                raise
            if not found:
                break
        return done


def commit(url: str, queue: str, tag: str, ids: Sequence[str] | None = None, *, history: float = 0.0) -> int:
    """Remove the messages under a tag and the tags below it; return their number.

    With `ids`, only these. The history keeps them for `history` seconds. Messages that the tag no
    longer holds are not removed. Raises `UsageError` if a running query or a log holds them, and
    `OptionError` for an invalid `history`.
    """
    check_seconds("history", history)
    with open_existing(url, queue) as store:
        _check_can_settle(store, queue, tag)
        return store.commit(queue, tag, ids, history=round(history * 1000))


def rollback(
    url: str,
    queue: str,
    tag: str,
    ids: Sequence[str] | None = None,
    *,
    delay: float = 0.0,
    max_tries: int | None = None,
    dead: str | None = None,
) -> tuple[int, int]:
    """Roll back the messages under a tag and the tags below it, and count a failed try.

    With `ids`, only these. They are due again in `delay` seconds. A message that has failed
    `max_tries` times moves to the queue `dead` (default `<queue>.dead`) instead. Return the numbers
    of messages rolled back and moved. Raises `OptionError` for an invalid `delay`, `max_tries` or
    `dead`, and `UsageError` if a running query or a log holds the messages.
    """
    check_seconds("delay", delay)
    check_dead_letter_queue(queue, dead, "--dead (dead=…)")
    dead_queue = dead or dead_letter_queue(queue)
    with open_existing(url, queue, dead_queue) as store:
        _check_can_settle(store, queue, tag)
        if max_tries is not None and max_tries < 1:
            raise OptionError(f"max_tries must be 1 or more, not {max_tries}", option="maxTries")
        return roll_back_or_dead_letter(
            store, queue, tag, ids, delay=round(delay * 1000), max_tries=max_tries, dead=dead_queue
        )


def _check_can_settle(store: Store, queue: str, tag: str) -> None:
    check_tag(tag)
    check_exists(store, queue)
    check_not_owned(store, queue, tag)


def harvest(url: str, queue: str, older_than: float | None = None) -> list[str]:
    """Release all reserved messages of a queue, and return their ids. No try is counted.

    With the layout `rfq` this is rfq's own harvest, which also returns messages that rfq's programs
    took. They go to the end of the queue. With `older_than` (seconds), it leaves out messages
    published since, and those that a lease of ours holds. Raises `UsageError` if another layout
    gets `older_than`, or if a running query or a log holds messages, and `OptionError` for an
    invalid `older_than`.
    """
    if older_than is not None:
        check_seconds("older_than", older_than)
    with open_existing(url, queue) as store:
        native_harvest = getattr(store, "harvest", None)
        if native_harvest is not None:
            return list(native_harvest(queue, None if older_than is None else round(older_than * 1000)))
        if older_than is not None:
            raise UsageError("--older-than needs the layout rfq: leave it out, or use --layout rfq")
        check_not_owned(store, queue)
        return settle_reserved(store, queue, partial(store.rollback, failed=False))
