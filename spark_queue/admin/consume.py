"""Messages out: reserve, pop, and what becomes of what is reserved."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from spark_queue.admin.common import STEP, opened
from spark_queue.admin.queues import ids_under
from spark_queue.admin.reservations import check_free
from spark_queue.errors import OptionError, StoreError, UsageError
from spark_queue.messages.message import Message, messages
from spark_queue.messages.schema import LATEST
from spark_queue.options.queue_names import dead_letter_queue
from spark_queue.stores.base import Store
from spark_queue.stores.services.dead_letters import give_back
from spark_queue.stores.services.existence import check_exists, expect
from spark_queue.stores.types import check_tag


@dataclass(frozen=True, slots=True)
class Taken:
    """What a reservation holds: its tag, by which it is settled, and the messages."""

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
) -> Taken:
    """Take up to `limit` messages under a tag that is new; none where none comes for `timeout` seconds.

    They are held for `lease` seconds (`None`: for ever), unless `commit`, `rollback` or `release` end that. A
    `timeout` of `None` waits as long as it takes.
    """
    check_tag(consumer)
    if lease is not None and not 0.1 <= lease <= LATEST / 2000:
        raise OptionError(f"lease must be 0.1 seconds or more and end before the year 5000, not {lease}")
    with opened(url) as store:
        store.check_queue(queue)
        tag = f"{consumer}/{uuid.uuid4().hex[:6]}/1"
        return Taken(tag, _reserve(store, queue, tag, limit, lease, timeout))


def _reserve(
    store: Store, queue: str, tag: str, limit: int, lease: float | None, timeout: float | None
) -> list[Message]:
    end = float("inf") if timeout is None else time.monotonic() + timeout
    looked = timeout == 0  # a call that does not wait must not say that it waits
    while True:
        rows = store.reserve(queue, tag, limit, lease=None if lease is None else round(lease * 1000))
        if rows and (found := list(_held(store, queue, tag))):
            return found
        if rows:
            continue  # none of them can be read
        if not looked:
            expect(store, queue, fail=False)
            looked = True
        left = end - time.monotonic()
        if left <= 0:
            return []
        store.wait(queue, round(min(left, 60) * 1000))


def _held(store: Store, queue: str, tag: str) -> Iterator[Message]:
    """What a tag and those below it hold."""
    for one in store.reservations(queue, tag):
        for batch in store.fetch(queue, one.tag, decoded=True):
            yield from messages(batch)


def pop(
    url: str,
    queue: str,
    take: Callable[[list[Message]], None],
    *,
    limit: int | None = 1,
    timeout: float | None = 0.0,
) -> int:
    """Hand messages to `take`, then remove them for good; give their number.

    Up to `limit` (`None`: all), some thousand in one step, until none comes for `timeout` seconds (`None`: never).
    What `take` did not come back from is given back: so a message that was handed over may come again, but none is
    lost.
    """
    with opened(url) as store:
        store.check_queue(queue)
        run = f"cli/{uuid.uuid4().hex[:6]}"
        done = 0
        for sequence in itertools.count(1):
            step = STEP if limit is None else min(STEP, limit - done)
            tag = f"{run}/{sequence}"
            found: list[Message] = []
            try:
                found = _reserve(store, queue, tag, step, 120.0, timeout) if step else []
                if found:
                    take(found)
                    done += store.commit(queue, tag)
            except BaseException as error:
                if found or not isinstance(error, StoreError):  # one that was refused holds none
                    store.rollback(queue, tag, failed=False)
                raise
            if not found:
                break
        return done


def commit(url: str, queue: str, tag: str, ids: Collection[str] | None = None, *, history: float = 0.0) -> int:
    """Remove what a tag and those below it hold (of `ids`, where given), and give the number of messages.

    They are kept in the history for so many seconds. What the tag no longer holds is not removed.
    """
    with opened(url) as store:
        _check_settled(store, queue, tag)
        return store.commit(queue, tag, None if ids is None else list(ids), history=round(history * 1000))


def rollback(
    url: str,
    queue: str,
    tag: str,
    ids: Collection[str] | None = None,
    *,
    delay: float = 0.0,
    max_tries: int | None = None,
    dead: str | None = None,
) -> tuple[int, int]:
    """Give back what a tag and those below it hold (of `ids`, where given) as failed, mature in `delay` seconds.

    Where that makes `max_tries` failures, a message moves to the queue `dead` (default `<queue>.dead`) instead. Gives
    the numbers of both.
    """
    with opened(url) as store:
        _check_settled(store, queue, tag)
        if max_tries is not None and max_tries < 1:
            raise OptionError(f"max_tries must be 1 or more, not {max_tries}", option="maxTries")
        grave = dead or dead_letter_queue(queue)
        store.check_queue(grave)
        which = None if ids is None else list(ids)
        return give_back(store, queue, tag, which, delay=round(delay * 1000), max_tries=max_tries, dead=grave)


def _check_settled(store: Store, queue: str, tag: str) -> None:
    store.check_queue(queue)
    check_tag(tag)
    check_exists(store, queue)
    check_free(store, queue, tag)


def harvest(url: str, queue: str, older_than: float | None = None) -> list[str]:
    """Give back what anybody holds, at once and with no try counted; give the ids.

    In the layout `rfq` that is rfq's own harvest: also of what its programs have taken, back to the end of the queue,
    and only of what was published more than `older_than` seconds ago, where that is told, and is not held by ours
    under a lease that lasts.
    """
    with opened(url) as store:
        store.check_queue(queue)
        own = getattr(store, "harvest", None)
        if own is not None:
            given: list[str] = own(queue, None if older_than is None else round(older_than * 1000))
            return given
        if older_than is not None:
            raise UsageError("--older-than needs the layout rfq: leave it out, or use --layout rfq")
        check_free(store, queue)
        held: list[str] = []
        for one in store.reservations(queue):
            ids = ids_under(store, queue, one.tag)
            if store.rollback(queue, one.tag, failed=False):
                held += ids
        return held
