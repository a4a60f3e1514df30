"""Damaged records leave their queue: each becomes a dead letter, or is set aside if no dead-letter queue takes it.

A letter has the id of the record, its raw document as payload, and the reason in `x-error`. It is pushed before the
record is committed, under an id that follows from the record: so after a crash in between, the next reader finds the
letter there, and completes what is missing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

import orjson
import pyarrow as pa

from spark_queue.errors import MessageError, OptionError, plural
from spark_queue.messages.buckets import weigh
from spark_queue.messages.columns import header_dicts
from spark_queue.messages.payload import as_text
from spark_queue.messages.schema import PUSHES
from spark_queue.stores.support.damaged import DIGEST, Records, digest_of, text_or_bytes
from spark_queue.stores.support.needs import RecordStore
from spark_queue.stores.types import ERROR_HEADER, FROM_HEADER, Condition, Death

log = logging.getLogger(__name__)

#: The tag of records that no dead-letter queue takes; its lease does not end.
ASIDE = "damaged/0"

#: The header with the id of the record, if another message has that, or none may have it.
ID = "x-dl-id"


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter of a damaged record. `headers`: why it died; `place`: the id of the record."""

    place: str
    id: str
    payload: bytes
    kind: str
    headers: Mapping[str, str]

    def forms(self) -> Iterator[Letter]:
        """The letter in all forms that a queue may take.

        The payload is as it is, or a text, or an object with a text; the id is that of the record, or one that
        follows from the record.
        """
        payloads = [(self.payload, self.kind)]
        if self.kind == "json":
            payloads.append(text_or_bytes(self.payload))
        text = as_text(self.payload, self.kind).decode()
        payloads.append((orjson.dumps({"document": text}), "json"))
        derived = sha256(f"{self.headers[FROM_HEADER]}\0{self.id}\0{self.headers[DIGEST]}".encode())
        for payload, kind in payloads:
            yield replace(self, payload=payload, kind=kind)
            headers = {**self.headers, ID: self.id}
            yield replace(self, id=derived.hexdigest()[:24], payload=payload, kind=kind, headers=headers)


def bury(
    store: RecordStore,
    queue: str,
    tag: str,
    records: Records,
    dead: str,
    *,
    history: int = 0,
    settling: Callable[[int], None] | None = None,
) -> pa.RecordBatch:
    """Move the damaged records of a page, which one tag holds, to the queue `dead`; return the other rows.

    The history keeps them for `history` ms. `settling` is called before, with the number of messages that they
    hold. May be repeated.
    """
    bad = records.batch.take(pa.array(sorted(records.damaged), pa.int64()))
    if settling is not None:
        settling(weigh(bad.column("id")))
    letters = _letters(store, queue, bad)
    sent = _Sender(store, queue, tag, dead).send(letters)
    gone = [one.place for one in letters if one.place in sent]
    aside = [one.place for one in letters if one.place not in sent]
    if gone:
        done = store.commit(queue, tag, gone, history=history, outcome="dead")
        store.count(queue, commit=-done, deadletter=done)
        log.warning("%s of %s cannot be read: moved to %s", plural(len(gone), "record"), queue, dead)
    if aside:
        store.retag(queue, tag, ASIDE, aside, lease=None)
        log.warning(
            "%s of %s cannot be read, and %s does not take them: set aside under tag %s, see spark-queue doctor URL",
            plural(len(aside), "record"), queue, dead, ASIDE,
        )  # fmt: skip
    kept = [row for row in range(records.batch.num_rows) if row not in records.damaged]
    return records.batch.take(pa.array(kept, pa.int64()))


def _letters(store: RecordStore, queue: str, bad: pa.RecordBatch) -> list[Letter]:
    now = store.now()
    columns = (bad.column(name).to_pylist() for name in ("id", "payload", "payload_kind", "tries"))
    return [
        Letter(
            id, id, payload, kind,
            {**digest_of(payload), **headers, **Death(headers[ERROR_HEADER]).headers(queue, tries, now)},
        )
        for id, payload, kind, tries, headers in zip(*columns, header_dicts(bad), strict=True)
    ]  # fmt: skip


class _Sender:
    """Brings letters to a dead-letter queue."""

    def __init__(self, store: RecordStore, queue: str, tag: str, dead: str) -> None:
        self._store = store
        self._queue = queue
        self._tag = tag
        self._dead = dead

    def send(self, letters: Sequence[Letter]) -> set[str]:
        """Send letters, and return the places of those that the queue has now, perhaps from an earlier attempt."""
        try:
            self._store.check_queue(self._dead)
        except OptionError:  # the database forbids the name
            return set()
        there = self._there(letters)
        left = [one for one in letters if one.place not in there]
        try:
            whole = self._put(left) == len(left) if left else True
        except MessageError:
            whole = False
        return {one.place for one in letters if whole or one.place in there or any(map(self._sent, one.forms()))}

    def _sent(self, letter: Letter) -> bool:
        """Whether the queue has the letter now; not if it is refused, or another message has its id."""
        if self._there([letter]):
            return True
        try:
            return self._put([letter]) == 1
        except MessageError:
            return False

    def _put(self, letters: Sequence[Letter]) -> int:
        rows = [
            {
                "id": one.id, "payload": one.payload, "payload_kind": one.kind, "headers": list(one.headers.items()),
                "tries": 0,
            }
            for one in letters
        ]  # fmt: skip
        batch = pa.RecordBatch.from_pylist(rows, schema=PUSHES)
        if self._store.forwards and self._dead != self._queue:  # one id has one place in all queues of the store
            return self._store.forward(self._queue, self._dead, self._tag, batch)
        return self._store.push(self._dead, batch)

    def _there(self, letters: Sequence[Letter]) -> set[str]:
        """The places of letters that the queue has already."""
        return self._store._attempt(self._look, letters)  # a peek alone does not try again

    def _look(self, letters: Sequence[Letter]) -> set[str]:
        known = {(one.id, one.headers[FROM_HEADER], one.headers[DIGEST]): one.place for one in letters}
        found: set[str] = set()
        where = [Condition("id", "in", tuple({one.id for one in letters}))]
        for batch in self._store.peek(self._dead, where, decoded=False):
            for id, headers in zip(batch.column("id").to_pylist(), header_dicts(batch), strict=True):
                place = known.get((id, headers.get(FROM_HEADER, ""), headers.get(DIGEST, "")))
                found |= set() if place is None else {place}
        return found
