"""Consume messages: reserve, pop, commit, roll back, release."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from spark_queue.admin.common import STEP, open_existing
from spark_queue.admin.queues import settle_reserved
from spark_queue.admin.reservations import check_not_owned
from spark_queue.errors import OptionError, StoreError, UsageError
from spark_queue.messages.message import Message
from spark_queue.options.arguments import check_seconds
from spark_queue.options.queue_names import check_dead_letter_queue
from spark_queue.stores.base import Store
from spark_queue.stores.policy import NOT_GIVEN, NotGiven, QueuePolicy
from spark_queue.stores.queue import Consumed, StoredQueue
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
    max_tries: int | None = None,
    dead: str | None = None,
    history: float = 0.0,
) -> ReservedMessages:
    """Reserve up to `limit` messages under a new tag.

    They stay reserved for `lease` seconds (`None`: forever), or until `commit`, `rollback` or
    `release`. The result has no messages if none is ready within `timeout` seconds (`None`: wait
    forever). Messages that have failed `max_tries` times, and records that cannot be read, move to
    the queue `dead` (default `<queue>.dead`) instead; the history keeps them for `history` seconds.
    Raises `OptionError` for an invalid argument.
    """
    check_tag(consumer)
    if lease is not None:
        check_seconds("lease", lease, minimum=0.1)
    policy = _policy(queue, max_tries, dead, history, None if lease is None else round(lease * 1000))
    with open_existing(url, queue, *_named(dead)) as store:
        tag = f"{consumer}/{uuid.uuid4().hex[:6]}/1"
        return ReservedMessages(tag, _consume(store.queue(queue, policy), tag, limit, timeout).messages)


def _policy(
    queue: str, max_tries: int | None, dead: str | None, history: float, lease: int | NotGiven | None = NOT_GIVEN
) -> QueuePolicy:
    """Return the policy of a command. `lease`: ms. Raises `OptionError` for an invalid argument."""
    check_seconds("history", history)
    check_dead_letter_queue(queue, dead, "--dead (dead=…)")
    if max_tries is not None and max_tries < 1:
        raise OptionError(f"max_tries must be 1 or more, not {max_tries}", option="maxTries")
    return QueuePolicy(
        lease=lease, max_tries=NOT_GIVEN if max_tries is None else max_tries, dead_letter_queue=dead or NOT_GIVEN,
        history=round(history * 1000) or NOT_GIVEN,
    )  # fmt: skip


def _named(dead: str | None) -> tuple[str, ...]:
    """Return the dead-letter queue if one was named: its name is checked, too."""
    return () if dead is None else (dead,)


def _consume(stored: StoredQueue[Store], tag: str, limit: int, timeout: float | None) -> Consumed:
    """Consume messages; warn before the wait for the first one if the queue does not exist."""
    found = stored.consume(limit, tag=tag)
    if found.batches or timeout == 0:
        return found
    check_before_read(stored.store, stored.name, fail=False)
    return stored.consume(limit, timeout=timeout, tag=tag)


def pop(
    url: str,
    queue: str,
    handle: Callable[[list[Message]], None],
    *,
    limit: int | None = 1,
    timeout: float | None = 0.0,
    max_tries: int | None = None,
    dead: str | None = None,
    history: float = 0.0,
) -> int:
    """Pass messages to `handle`, then remove them; return their number.

    It pops up to `limit` messages (`None`: all), at most 5,000 in one step. It ends earlier if none
    is ready within `timeout` seconds (`None`: wait forever). If `handle` raises, the messages of
    this step are released: they may be delivered twice, but none is lost. The history keeps
    messages for `history` seconds. `max_tries` and `dead`: as in `reserve`. Raises `OptionError` as
    `reserve` does.
    """
    policy = _policy(queue, max_tries, dead, history)
    with open_existing(url, queue, *_named(dead)) as store:
        stored = store.queue(queue, policy)
        run = f"cli/{uuid.uuid4().hex[:6]}"
        done = 0
        for sequence in itertools.count(1):
            step = STEP if limit is None else min(STEP, limit - done)
            tag = f"{run}/{sequence}"
            found: list[Message] = []
            try:
                found = _consume(stored, tag, step, timeout).messages if step else []
                if found:
                    handle(found)
                    done += stored.commit(tag)
            except BaseException as error:
                if found or not isinstance(error, StoreError):  # a reserve that failed holds nothing
                    stored.release(tag)
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
    history: float = 0.0,
) -> tuple[int, int]:
    """Roll back the messages under a tag and the tags below it, and count a failed try.

    With `ids`, only these. They are due again in `delay` seconds. A message that has failed
    `max_tries` times moves to the queue `dead` (default `<queue>.dead`) instead; the history keeps
    it for `history` seconds. Return the numbers of messages rolled back and moved. Raises
    `OptionError` for an invalid `delay`, `max_tries`, `dead` or `history`, and `UsageError` if a
    running query or a log holds the messages.
    """
    check_seconds("delay", delay)
    policy = _policy(queue, max_tries, dead, history)
    with open_existing(url, queue, *_named(dead)) as store:
        _check_can_settle(store, queue, tag)
        return store.queue(queue, policy).roll_back(tag, ids, delay=round(delay * 1000))


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
