"""Move damaged records to the dead-letter queue; set those aside that it does not accept.

A dead letter has the id of the record, the raw document as payload, and the reason in `x-error`
(`messages/dead_letter.py`). It is pushed before the record is committed, and its id depends on the
record alone. So after a crash in between, the next reader finds the dead letter, and completes the
rest.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any

import pyarrow as pa

from spark_queue.errors import MessageError, OptionError, plural
from spark_queue.messages.buckets import count_rows
from spark_queue.messages.columns import header_dicts
from spark_queue.messages.dead_letter import DIGEST_HEADER, ERROR_HEADER, FROM_HEADER, NewDeadLetter, batch_of
from spark_queue.messages.schema import WRITTEN
from spark_queue.stores.support.damaged import Records, digest_header
from spark_queue.stores.support.record_store import RecordStore
from spark_queue.stores.types import Condition, DeadLetterInfo

log = logging.getLogger(__name__)

#: The tag of records that the dead-letter queue does not accept; its lease never ends.
SET_ASIDE_TAG = "damaged/0"


@dataclass(frozen=True, slots=True)
class DamagedLetter:
    """A dead letter of a damaged record. `record_id`: the id of the record."""

    record_id: str
    letter: NewDeadLetter

    @property
    def places(self) -> Iterator[tuple[str, str, str]]:
        """How the queue shows that it has the letter: its id, and the headers that identify it."""
        reasons = self.letter.reasons
        for id in (self.letter.id, self.letter.spare_id):
            yield id, reasons[FROM_HEADER], reasons[DIGEST_HEADER]


def dead_letter_damaged(
    store: RecordStore,
    queue: str,
    tag: str,
    records: Records,
    dead: str,
    *,
    history: int = 0,
    before_settle: Callable[[int], None] | None = None,
) -> pa.RecordBatch:
    """Move the damaged records of a page of one tag to the queue `dead`; return the other rows.

    The history keeps them for `history` ms. `before_settle` is called first, with the number of
    their messages. May be repeated.
    """
    damaged = records.batch.take(pa.array(sorted(records.damaged), pa.int64()))
    if before_settle is not None:
        before_settle(count_rows(damaged.column("id")))
    letters = _make_letters(store, queue, damaged)
    sent = _LetterSender(store, queue, tag, dead).send(letters)
    delivered = [one.record_id for one in letters if one.record_id in sent]
    aside = [one.record_id for one in letters if one.record_id not in sent]
    if delivered:
        done = store.commit(queue, tag, delivered, history=history, outcome="dead")
        store.count(queue, commit=-done, deadletter=done)
        log.warning("%s of queue %s cannot be read: moved to %s", plural(len(delivered), "record"), queue, dead)
    if aside:
        store.transfer(queue, tag, SET_ASIDE_TAG, aside, lease=None)
        log.warning(
            "%s of queue %s cannot be read, and queue %s does not accept them: set aside under tag %s, see "
            "spark-queue doctor URL",
            plural(len(aside), "record"), queue, dead, SET_ASIDE_TAG,
        )  # fmt: skip
    return records.readable()


def _make_letters(store: RecordStore, queue: str, damaged: pa.RecordBatch) -> list[DamagedLetter]:
    now = store.now()
    columns = (damaged.column(name).to_pylist() for name in ("id", "payload", "payload_kind", "tries", "pushed"))
    letters: list[DamagedLetter] = []
    for id, payload, kind, tries, pushed, headers in zip(*columns, header_dicts(damaged), strict=True):
        reasons = DeadLetterInfo(headers[ERROR_HEADER]).headers(queue, tries, now)
        letters.append(_make_letter(queue, id, payload, kind, headers, reasons, pushed))
    return letters


def _make_letter(
    queue: str,
    id: str,
    payload: bytes,
    kind: str,
    headers: Mapping[str, str],
    reasons: Mapping[str, str],
    pushed: datetime | None,
) -> DamagedLetter:
    digest = headers.get(DIGEST_HEADER) or digest_header(payload)[DIGEST_HEADER]
    derived = sha256(f"{queue}\0{id}\0{digest}".encode()).hexdigest()[:24]
    others = {name: value for name, value in headers.items() if name not in (DIGEST_HEADER, *reasons)}
    letter = NewDeadLetter(
        id, payload, kind, others, {DIGEST_HEADER: digest, **reasons}, derived, pushed=pushed
    )  # fmt: skip
    return DamagedLetter(id, letter)


class _LetterSender:
    """Pushes dead letters to their queue."""

    def __init__(self, store: RecordStore, queue: str, tag: str, dead: str) -> None:
        self._store = store
        self._queue = queue
        self._tag = tag
        self._dead = dead

    def send(self, letters: Sequence[DamagedLetter]) -> set[str]:
        """Push dead letters, and return the record ids of those that the queue has now.

        An earlier attempt may have pushed some.
        """
        try:
            self._store.check_queue(self._dead)
        except OptionError:  # the database forbids the name
            return set()
        already_sent = self._find_sent(letters)
        left = [one for one in letters if one.record_id not in already_sent]
        try:
            whole = self._push([next(one.letter.variants()) for one in left]) == len(left) if left else True
        except MessageError:
            whole = False
        return {one.record_id for one in letters if whole or one.record_id in already_sent or self._ensure_sent(one)}

    def _ensure_sent(self, one: DamagedLetter) -> bool:
        """Push a dead letter in one of its variants, and return whether the queue has it now.

        It does not if all are rejected, or other messages have its ids.
        """
        if self._find_sent([one]):
            return True
        for variant in one.letter.variants():
            with suppress(MessageError):
                if self._push([variant]) == 1 or self._find_sent([one]):  # another reader may be faster
                    return True
        return False

    def _push(self, rows: Sequence[Mapping[str, Any]]) -> int:
        batch = batch_of(rows, WRITTEN)
        if self._store.supports_forward and self._dead != self._queue:  # an id is in one queue
            return self._store.forward(self._queue, self._dead, self._tag, batch)
        return self._store.push(self._dead, batch)

    def _find_sent(self, letters: Sequence[DamagedLetter]) -> set[str]:
        """Return the record ids of dead letters that the queue has already."""
        return self._store._attempt(self._find_sent_once, letters)  # `peek` does not retry

    def _find_sent_once(self, letters: Sequence[DamagedLetter]) -> set[str]:
        record_ids = {place: one.record_id for one in letters for place in one.places}
        found: set[str] = set()
        where = [Condition("id", "in", tuple({id for id, _, _ in record_ids}))]
        for batch in self._store.peek(self._dead, where, check_json=False):
            for id, headers in zip(batch.column("id").to_pylist(), header_dicts(batch), strict=True):
                place = record_ids.get((id, headers.get(FROM_HEADER, ""), headers.get(DIGEST_HEADER, "")))
                found |= set() if place is None else {place}
        return found
