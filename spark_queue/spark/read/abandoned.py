"""Give back what abandoned epochs hold.

Each new checkpoint is a new epoch of its consumer. A process knows the epoch from Spark's offset
log, which has it only after the first batch was reserved. If the process dies before that, its
restart is another epoch. The messages would stay reserved until their lease ends.

An epoch is *abandoned* if no batch of it was ever started, and its owner does not live. That is: it
was removed, is dead, or is silent by the database's clock. No task has seen what it holds. The
process that finds it removes its owner first, in one compare-and-set; if that fails, it gives
nothing back. An owner that only stood still is then refused when it starts its batch. Tries do not
change.
"""

from __future__ import annotations

import logging
import math
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from spark_queue.spark.read.offsets import batch_of_tag
from spark_queue.stores.base import Store
from spark_queue.stores.services.owner import OWNER_NOTE, ConsumerState
from spark_queue.stores.types import Note, Reservation, queue_note_key

log = logging.getLogger(__name__)

#: The part of the time that looks may take, in a queue with many reserved messages.
SHARE_OF_TIME = 0.01


class AbandonedEpochs:
    """Looks for abandoned epochs in one queue, for a process that is about to reserve there."""

    def __init__(self, store: Store, queue: str, consumer: str) -> None:
        """`consumer`: the one of this process, whose own reservations are left alone."""
        self._store, self.queue, self._consumer = store, queue, consumer
        self._look_at = -math.inf  # when to look again (monotonic s)
        self._seen: dict[str, int] = {}  # consumer -> the version of its note at the first look
        #: The messages of unstarted epochs whose owners count as alive. Since the first look, these
        #: owners have shown no sign of life.
        self.undecided = 0

    def release_when_due(self) -> None:
        """Give back what abandoned epochs hold.

        It looks at the first call, and then every 10 seconds. So it comes before the end of the
        lease of an unstarted batch, which would count as a try.
        """
        if (began := time.monotonic()) >= self._look_at:
            self.release()
            took = time.monotonic() - began
            self._look_at = began + max(self._store.limits.owner_timeout_ms / 1000, took / SHARE_OF_TIME)

    def release(self) -> int:
        """Give back what abandoned epochs hold, and return the number of messages.

        Atomic for each epoch as `rollback`. Raises `StoreError`.
        """
        self.undecided = released = 0
        for consumer, held in self._unstarted().items():
            key = queue_note_key(self.queue, OWNER_NOTE, consumer)
            note = self._store.note(key)
            if note is None or not _began_nothing(state := ConsumerState.from_note(note)):
                continue
            if state.alive_owner(self._store.now()):
                if self._seen.setdefault(consumer, note.version) == note.version:
                    self.undecided += sum(one.rows for one in held)
            elif state.owner is None or self._remove_owner(key, note, state):
                released += self._give_back(held)
        return released

    def _unstarted(self) -> dict[str, list[Reservation]]:
        """Return the reservations that may be of abandoned epochs, by consumer.

        Their lease has an end: an unlimited one was set for a task. Their tag names a process:
        without one, an earlier version has reserved them, which recorded no start.
        """
        found: dict[str, list[Reservation]] = defaultdict(list)
        for one in self._store.reservations(self.queue):
            consumer, batch = batch_of_tag(one.tag)
            if batch is not None and batch.by and consumer != self._consumer and one.until is not None:
                found[consumer].append(one)
        return found

    def _remove_owner(self, key: str, note: Note, state: ConsumerState) -> bool:
        """Remove the owner of an epoch. Returns false if another process has changed its note."""
        return self._store.set_note(key, replace(state, owner=None).note_value, note.version)

    def _give_back(self, held: Sequence[Reservation]) -> int:
        """Give back what an epoch holds that has no owner, and return the number of messages."""
        released = 0
        for one in held:
            rows = self._store.rollback(self.queue, one.tag, delay=None, failed=False, include_endless=False)
            if rows:
                log.info(
                    "released %d messages of %s under %s: its process has died before its query began",
                    rows, self.queue, one.tag,
                )  # fmt: skip
            released += rows
        return released


def _began_nothing(state: ConsumerState) -> bool:
    """Return whether no batch of an epoch was ever started.

    A note of the first version, whose number is 0, does not say so.
    """
    return state.number > 0 and (state.started is None or state.started.initial)
