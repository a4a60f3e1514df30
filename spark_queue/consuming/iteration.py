"""Iterate over the messages of a queue: reserve ahead, hand out one after the other, renew leases.

A message counts a try when it is handed out. So a program that is killed fails the message that it
worked on, and no other. The call that settles a message hands out the next one in the same round
trip. Messages that were not handed out go back with their tries as they were: when the iteration
is closed or dropped, or when their lease ends.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Self

from spark_queue.consuming.reserver import MessageReserver
from spark_queue.errors import StoreError, plural
from spark_queue.messages.buckets import Record
from spark_queue.messages.message import Message
from spark_queue.messages.schema import EPOCH
from spark_queue.stores.types import Commit, HandOut, Rollback, seen_tag, unseen_tag

log = logging.getLogger(__name__)

#: Leases are renewed when this part of them has passed.
RENEWED_PART = 1 / 3

#: How long a waiting iteration without a timeout waits at once (s).
LONG_WAIT = 3600.0


def seconds() -> float:
    """Return a time that also passes while the machine sleeps, as leases do."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


@dataclass
class ReservedAhead:
    """Messages that were reserved ahead together. `tag` is above the tags of all of them.

    `current` and `next` are below `seen_tag(tag)`, those `ahead` below `unseen_tag(tag)`.
    """

    tag: str
    ahead: deque[Message]  #: not handed out yet
    next: Message | None = None  #: handed out by the call that settled the one before
    current: Message | None = None  #: handed out to the program last, and not settled
    handed_out_at: float = field(default_factory=seconds)
    renewed_at: float = field(default_factory=seconds)


def record_of(message: Message) -> Record:
    """Return a message as a record."""
    return Record(message.id, round((message.mature - EPOCH).total_seconds() * 1000))


class Lead:
    """What an iteration is ahead of its program: a batch, of which the program has seen a part.

    The thread that renews leases refers to it, and not to the iteration: one that is dropped ends.
    """

    def __init__(self, reserver: MessageReserver) -> None:
        self.reserver = reserver
        self.batch: ReservedAhead | None = None
        self.stopped = False
        # Garbage may be collected within any call: a `SimpleQueue` allows for it, an `Event` not.
        self._stop: SimpleQueue[None] = SimpleQueue()
        self._lock = threading.Lock()  # held by a renewal and by a release
        self._pid = os.getpid()
        self._warned = False

    def stop(self) -> None:
        """Say that the iteration has ended. Calls no database."""
        self.stopped = True
        self._stop.put(None)

    def wait_stopped(self, timeout: float) -> bool:
        """Wait until `stop` is called, at most `timeout` seconds; return whether it was."""
        with suppress(Empty):
            self._stop.get(timeout=timeout)
        return self.stopped

    @property
    def is_inherited(self) -> bool:
        """Whether another process reserved the batch, and forked this one."""
        return self._pid != os.getpid()

    # --- hand out ---------------------------------------------------------------------------------

    def next_message(self) -> Message | None:
        """Return the next message of the batch that is still held; `None` if it has no more."""
        batch = self.batch
        if batch is None:
            return None
        batch.current = None
        while batch.next is not None or batch.ahead:
            if batch.next is not None:
                message, held = batch.next, self._is_held(batch, batch.next)
                batch.next = None  # only now: an error leaves it to the next call
            else:
                message, held = batch.ahead[0], self._hand_out(batch, batch.ahead[0])
                batch.ahead.popleft()
            if held:
                batch.current = message
                return message
            self._drop_lost(batch, 1)
        self.batch = None
        return None

    def _hand_out(self, batch: ReservedAhead, message: Message) -> bool:
        held = self.reserver.store.hand_out(self.reserver.queue, self._order(batch, message))
        if held:
            self._note_handed_out(batch, message)
        return held

    def _order(self, batch: ReservedAhead, message: Message) -> HandOut:
        return HandOut(batch.tag, record_of(message), self.reserver.lease)

    def _note_handed_out(self, batch: ReservedAhead, message: Message) -> None:
        batch.handed_out_at = seconds()
        self.reserver.holdings.add(seen_tag(batch.tag), [message.id])

    def _is_held(self, batch: ReservedAhead, message: Message) -> bool:
        """Return whether a message that was handed out is held: the process may have slept."""
        reserver = self.reserver
        if reserver.lease is None or (seconds() - batch.handed_out_at) * 1000 < reserver.lease:
            return True
        held = message.id in reserver.store.held_ids(reserver.queue, seen_tag(batch.tag))
        if not held:
            reserver.holdings.discard(message.id)
        return held

    def _drop_lost(self, batch: ReservedAhead, lost: int) -> None:
        """Drop all messages ahead that are lost, too, and warn once."""
        reserver = self.reserver
        held = set(reserver.store.held_ids(reserver.queue, unseen_tag(batch.tag)))
        kept = [one for one in batch.ahead if one.id in held]
        lost += len(batch.ahead) - len(kept)
        batch.ahead = deque(kept)
        if not self._warned:
            self._warned = True
            log.warning(
                "queue %r: the iteration skips %s that it had reserved: their lease ended, so others may work on "
                "them. Keep renewal on, or set a longer lease or a smaller prefetch",
                reserver.queue, plural(lost, "message"),
            )  # fmt: skip

    # --- settle -----------------------------------------------------------------------------------

    def settle(self, tag: str, ids: Sequence[str], how: Commit | Rollback) -> int | None:
        """Settle the current message and hand out the next one, in one step.

        Return how many were settled: 0 if it was lost. Return `None`, and do nothing, if these are
        not the current message, or there is no next one.
        """
        batch, reserver = self.batch, self.reserver
        if batch is None or batch.current is None or seen_tag(batch.tag) != tag or list(ids) != [batch.current.id]:
            return None
        if batch.next is not None or not batch.ahead:
            return None
        message = batch.ahead[0]
        done, handed_out = reserver.store.settle_and_hand_out(
            reserver.queue, tag, [record_of(batch.current)], how, self._order(batch, message)
        )
        batch.current = None
        batch.ahead.popleft()
        if handed_out:
            batch.next = message
            self._note_handed_out(batch, message)
        else:
            self._drop_lost(batch, 1)
        return done

    # --- renew and release ------------------------------------------------------------------------

    def renew(self) -> int:
        """Renew the lease of the whole batch; return the number of messages."""
        if self.is_inherited:
            return 0
        with self._lock:
            batch, reserver = self.batch, self.reserver
            if batch is None:
                return 0
            batch.renewed_at = seconds()
            return reserver.store.renew(reserver.queue, batch.tag, reserver.lease)

    def renew_in_time(self) -> None:
        """Renew the lease if a part of it has passed, and messages of the batch are left."""
        batch, lease = self.batch, self.reserver.lease
        if batch is None or not (batch.ahead or batch.next):
            return
        if lease is not None and (seconds() - batch.renewed_at) * 1000 > lease * RENEWED_PART:
            self.renew()

    def release(self) -> None:
        """Put back what no program has seen, with its tries and its place in the queue.

        After it, no renewal calls the database.
        """
        if self.is_inherited:
            self.batch = None
            return
        reserver = self.reserver
        with self._lock:
            batch, self.batch = self.batch, None
            if batch is not None and batch.next is not None:
                reserver.holdings.discard(batch.next.id)
                reserver.store.rollback(
                    reserver.queue, seen_tag(batch.tag), [batch.next.id], delay=None, failed=False
                )
            if batch is not None and batch.ahead:
                reserver.store.rollback(reserver.queue, unseen_tag(batch.tag), delay=None, failed=False)


def _keep_renewing(lead: Lead, interval: float) -> None:
    """Renew the leases of a batch until its iteration ends, then release what is left of it."""
    while not lead.wait_stopped(interval):
        try:
            lead.renew()
        except StoreError as error:
            log.warning("queue %r: leases could not be renewed: %s", lead.reserver.queue, error)
    try:
        lead.release()
    except StoreError as error:
        log.warning("queue %r: messages stay reserved until their lease ends: %s", lead.reserver.queue, error)


class MessageIterator(Iterator[Message], AbstractContextManager["MessageIterator"]):
    """Yields messages as they come. Use it in one thread at a time.

    `close` ends it, and puts back what it has reserved ahead. So does the client's `close`. A
    thread renews the leases of the batch meanwhile, unless `renew` is off.
    """

    def __init__(
        self, reserver: MessageReserver, leads: list[Lead], *, timeout: float | None, prefetch: int, renew: bool
    ) -> None:
        """Reserve nothing yet. `leads`: those of the client, to which that of this one is added."""
        self._reserver, self._leads = reserver, leads
        self._timeout, self._prefetch = timeout, prefetch
        self._interval: float | None = None
        if reserver.lease is not None and renew:
            self._interval = min(reserver.lease * RENEWED_PART / 1000, threading.TIMEOUT_MAX)
        self._ended = False
        self._begin()

    def _begin(self) -> None:
        self.lead = Lead(self._reserver)
        self._leads.append(self.lead)
        self._thread: threading.Thread | None = None
        # A dropped iteration must not call its database: it may be dropped within any other call.
        self._finalizer = weakref.finalize(self, self.lead.stop)
        self._finalizer.atexit = False

    def __next__(self) -> Message:
        if self.lead.is_inherited:  # a forked process iterates for itself
            self._finalizer.detach()
            self._begin()
        while not self._ended:
            self.lead.renew_in_time()
            message = self.lead.next_message()
            if message is not None:
                return message
            self._reserve()
        raise StopIteration

    def _reserve(self) -> None:
        timeout = LONG_WAIT if self._timeout is None else self._timeout
        if self._prefetch == 1:  # nothing is reserved ahead
            found = self._reserver.reserve(1, timeout)
            if found:
                (tag,) = self._reserver.holdings.tags_of([found[0].id])
                self.lead.batch = ReservedAhead(tag, deque(), next=found[0])
        else:
            tag, found = self._reserver.reserve_ahead(self._prefetch, timeout)
            if found:
                self.lead.batch = ReservedAhead(tag, deque(found))
        if not found and self._timeout is not None:
            self.close()
        elif found and self._interval is not None and self._thread is None:
            arguments = (self.lead, self._interval)
            self._thread = threading.Thread(
                target=_keep_renewing, args=arguments, name="spark_queue renewal", daemon=True
            )
            self._thread.start()

    def close(self) -> None:
        """End the iteration. Messages that it has yielded stay reserved until they are settled."""
        self._ended = True
        self._finalizer.detach()
        self.lead.stop()
        self.lead.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
