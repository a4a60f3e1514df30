"""The right of one process to run a consumer, and to start its batches.

The process writes itself into the note of the consumer, and renews the note every few seconds.
While it is alive, other processes are refused. If it has ended on the same machine, in the same PID
namespace, another process takes over at once. Otherwise that takes 10 seconds without a renewal
(`StoreLimits.owner_timeout_ms`), by the database's clock or that of the waiting process. A process
that is about to end says so in the note; a new one then waits for its end. A process that lost the
consumer fails at its next read of the note.

A database cannot change a note and messages in one step, so no step depends on that. Each process
has a number, which is part of its tags. So a tag names one reservation by one process, and a late
commit or release by tag does no harm. The note has the batch that was started last. A process with
an older checkpoint, or with another batch of the same number, is refused before it removes a
message.

A process that ends in order says so in the note, too (`leave`). Otherwise it died, and the note
counts that: the batch during which processes die again and again may be the cause.

With exactly-once, the note also has the batch that was reserved last, before Spark logs it. Without
that, a database that went back to a copy from just before looks as if the lease of this batch had
ended: its messages would come again in the next batch, although a sink may have them.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from copy import copy
from dataclasses import replace
from typing import Any

from spark_queue.errors import CheckpointError, FencedError
from spark_queue.stores.base import Store
from spark_queue.stores.limits import StoreLimits
from spark_queue.stores.services.owner import OWNER_NOTE, Batch, ConsumerState, Owner, SilenceTimer
from spark_queue.stores.types import Note, queue_note_key

log = logging.getLogger(__name__)

INITIAL_BATCH = Batch(0)  #: the batch before the first one of a consumer

#: How long it waits before it logs that, and how often it then logs it (s).
FIRST_WAIT_LOG, WAIT_LOG_INTERVAL = 1.0, 30.0


class Ownership:
    """The claim of this process to a consumer (`name/epoch`) of a queue.

    For one thread at a time; another thread uses a copy with its own store (`with_store`).
    """

    def __init__(self, store: Store, queue: str, consumer: str) -> None:
        self._store = store
        self.queue = queue
        self.consumer = consumer
        self._key = queue_note_key(queue, OWNER_NOTE, consumer)
        self.token = uuid.uuid4().hex
        self._leaving = threading.Event()
        self._seen: Note | None = None  # the note as this thread read it last
        self.number = 0  #: which process of the consumer this is: 1, 2, 3, …; 0 before `take`
        self.deaths = 0  #: how many processes died while they worked on the batch started last

    @property
    def limits(self) -> StoreLimits:
        """The limits of the store."""
        return self._store.limits

    def with_store(self, store: Store) -> Ownership:
        """Return a copy for another thread, with its own store."""
        claim = copy(self)
        claim._store = store
        return claim

    def announce_exit(self) -> None:
        """Mark this process as about to end, in each renewal from now on."""
        self._leaving.set()

    def take(self, batch: Batch = INITIAL_BATCH, *, noted: bool = False) -> None:
        """Become the owner; wait for an owner that is about to end.

        `batch`: the last one of the checkpoint. `noted`: whether it was passed to `note_reserved`.

        Raises `CheckpointError` if the checkpoint is older than the batch started last, or if the
        consumer has no note; the note does not change then. Raises `FencedError` if another process
        runs the consumer.
        """
        seen: Note | None = None
        limits = self.limits
        watch, began, next_log = SilenceTimer(limits.owner_timeout_ms), time.monotonic(), FIRST_WAIT_LOG
        while True:
            note = self._store.note(self._key)
            standing = self._read_state(note, batch, noted)
            owner = standing.alive_owner(self._store.now())
            silent = watch.is_silent(note)
            if owner is None or owner.token == self.token or silent:
                if owner is not None and silent:
                    log.warning(
                        "consumer %s of queue %r: %s counts as dead, it has sent no heartbeat. Its note is valid "
                        "for longer, so the database's clock was set back",
                        self.consumer, self.queue, owner,
                    )  # fmt: skip
                last = standing.owner  # none if it was released manually
                died = last is not None and last.token != self.token and not standing.ended
                self.number, self.deaths = standing.number + 1, standing.deaths + died
                if self._write(note, replace(standing, number=self.number, deaths=self.deaths, ended=False)):
                    return
                continue
            if seen is not None and note != seen and not owner.leaves:  # the owner has renewed it
                raise FencedError(
                    f"consumer {self.consumer} of queue {self.queue!r} is run by {owner}: a second query on a copy "
                    "of its checkpoint would take the same messages. Stop one of them, or start this one with "
                    "a new checkpoint",
                    queue=self.queue,
                    consumer=self.consumer,
                )
            seen = note
            waited = time.monotonic() - began
            if waited >= next_log:
                next_log += WAIT_LOG_INTERVAL
                log.warning(
                    "consumer %s of queue %r: waiting for %s, %s, for %d s so far",
                    self.consumer, self.queue, owner,
                    "which is about to end" if owner.leaves else "which ran it last and may have died", waited,
                )  # fmt: skip
            time.sleep(limits.takeover_poll)

    def _read_state(self, note: Note | None, batch: Batch, noted: bool) -> ConsumerState:
        """Read a note. Raises `CheckpointError` if the checkpoint does not fit it."""
        if note is not None:
            standing = ConsumerState.from_note(note)
            self._check_age(batch, standing.started)
            if standing.number:  # a note of the first version does not say what was started
                self._check_follows(batch, standing, noted)
            return standing
        if batch.by:
            raise self._checkpoint_error(
                batch,
                "this consumer is unknown: the queue was dropped, or this is another database",
                "Start with a new checkpoint",
            )
        return ConsumerState()

    def _check_age(self, batch: Batch, started: Batch | None) -> None:
        """Raise `CheckpointError` if a later batch was started, or another of the same number."""
        if started is not None and (batch.seq < started.seq or (batch.seq == started.seq and batch != started)):
            raise self._checkpoint_error(
                batch,
                f"batch {started} was started since: the checkpoint is an older copy, or has lost its newest files",
                "Go on with the newest checkpoint. If the query was started while its predecessor ended, start it "
                f"again. If the newest checkpoint is lost: {self._recover_hint}",
            )

    def _check_follows(self, batch: Batch, standing: ConsumerState, noted: bool) -> None:
        """Raise `CheckpointError` unless a batch is the one started last, or the next one.

        The next one must be known as reserved, if that was noted; a later process may have reserved
        it again. The first batch of a checkpoint with offsets of version 1 has any number.
        """
        started = standing.started.seq if standing.started else 0
        unknown = noted and batch.seq == started + 1 and (standing.reserved is None or standing.reserved < batch)
        if batch.by and (unknown or batch.seq > started + 1):
            raise self.went_back(batch, standing.started)

    def went_back(self, batch: Batch, started: Batch | None) -> CheckpointError:
        """Return the error for a database that does not know what the checkpoint knows."""
        known = f"batch {started} at most" if started else "no batch"
        return self._checkpoint_error(
            batch,
            f"the database knows of {known}: it was restored from a backup, or has lost its last moments",
            f"Its messages come again: {self._recover_hint}",
        )

    def _checkpoint_error(self, batch: Batch, reason: str, remedy: str) -> CheckpointError:
        return CheckpointError(
            f"the checkpoint of consumer {self.consumer} of queue {self.queue!r} ends with batch {batch}, but "
            f"{reason}. Nothing was changed. {remedy}",
            queue=self.queue,
            consumer=self.consumer,
        )

    @property
    def _recover_hint(self) -> str:
        command = f"spark-queue recover URL {self.queue} {self.consumer} --sink URL"
        return f"{command}, then start with a new checkpoint"

    def check_newest(self, batch: Batch) -> None:
        """Raise unless this batch was started last: no other may be committed.

        Raises `FencedError` if this process lost the consumer, `CheckpointError` if another batch
        was started last. In a checkpoint with offsets of version 1, the first batch seen counts as
        started.
        """
        started = self.check().started
        if started is None and not batch.by:
            self.start(batch)
            return
        self._check_age(batch, started)
        if started != batch:
            raise self.went_back(batch, started)

    def note_reserved(self, batch: Batch) -> None:
        """Note that this batch is reserved; call it before Spark may log the batch.

        Raises `FencedError` if this process lost the consumer.
        """
        note = self._seen  # usually the note has not changed
        while note is None or not self._write(note, replace(ConsumerState.from_note(note), reserved=batch)):
            self.check()
            note = self._seen

    def start(self, batch: Batch, *, noted: bool = False) -> None:
        """Note that this batch is started: Spark has it in its log, and will run it.

        One compare-and-set; a repeated call changes nothing. `noted`: as in `take`. Raises
        `FencedError` if this process lost the consumer, `CheckpointError` if a later batch was
        started, or another one of the same number.
        """
        note = self._seen  # usually the note has not changed
        while True:
            if note is None:
                self.check()
                note = self._seen
            assert note is not None
            standing = ConsumerState.from_note(note)
            try:
                self._check_age(batch, standing.started)
                self._check_follows(batch, standing, noted)
            except CheckpointError:
                self.check()  # another process may have written that
                raise
            if standing.started == batch:
                self.check()
                return
            if self._write(note, replace(standing, started=batch, deaths=0)):
                self.deaths = 0
                return
            note = None

    def forget_deaths(self) -> None:
        """Count deaths from 0 again. Raises `FencedError` as `check` does."""
        self._change(deaths=0)
        self.deaths = 0

    def leave(self) -> None:
        """Note that this process ends in order. Raises `FencedError` as `check` does."""
        self._leaving.set()
        self._change(ended=True)

    def _change(self, **fields: Any) -> None:
        while True:
            standing = self.check()
            if self._write(self._seen, replace(standing, **fields)):
                return

    def renumber(self) -> None:
        """Get the next number, as another process would. Raises `FencedError` as `check` does."""
        while True:
            standing = self.check()
            self.number = standing.number + 1
            if self._write(self._seen, replace(standing, number=self.number)):
                return

    def renew(self) -> None:
        """Renew the note. Raises `FencedError` if this process lost the consumer."""
        standing = self.check()
        if not self._write(self._seen, standing):
            self.check()

    def check(self) -> ConsumerState:
        """Read the note. Raises `FencedError` if this process lost the consumer."""
        note = self._seen = self._store.note(self._key)
        standing = None if note is None else ConsumerState.from_note(note)
        owner = None if standing is None else standing.owner
        if standing is not None and owner is not None and owner.token == self.token:
            return standing
        if standing is None:
            taker = "its queue was dropped, or the database has lost the note of the consumer"
        elif standing.number < self.number:
            taker = "the database has lost its last writes, and knows only an earlier process of it"
        elif owner is not None:
            taker = f"{owner} has taken over"
        else:
            taker = "it was released manually"
            if standing.started is None:
                taker += ", or it gave no sign of life before its first batch, and others may have its messages"
        raise FencedError(
            f"this query no longer runs consumer {self.consumer} of queue {self.queue!r}: {taker}. Its "
            "reserved messages are not committed: start the query again to go on from its checkpoint",
            queue=self.queue,
            consumer=self.consumer,
        )

    def _write(self, note: Note | None, standing: ConsumerState) -> bool:
        timeout = self.limits.owner_timeout_ms
        me = Owner.current(self.token, self._store.now(), self._leaving.is_set(), timeout)
        value = replace(standing, owner=me).note_value
        version = note.version if note else 0
        if not self._store.set_note(self._key, value, version):
            return False
        self._seen = Note(value, version + 1)
        return True
