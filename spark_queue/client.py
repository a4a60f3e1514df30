"""A queue for programs without Spark: push, reserve, commit, message by message or many at once.

    with Queue("sqlite:///queues.db", "flights") as queue:
        queue.push({"carrier": "UA", "flight": 1545}, delay=5)
        for message in queue:
            work_on(message.payload)
            queue.commit(message)

Durations are seconds here, as everywhere in Python; moments are `datetime` with a time zone.
"""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Self

import pyarrow as pa

from spark_queue.buckets import Buckets, Layout
from spark_queue.errors import OptionError
from spark_queue.message import Json, Message, messages, new_id_array, pushes
from spark_queue.options import name_of_holder
from spark_queue.store import open_store
from spark_queue.store.apart import compact
from spark_queue.store.base import Store, layout_of
from spark_queue.store.counters import Statistics
from spark_queue.store.facts import Death, Sizes
from spark_queue.store.policy import bury_exhausted, give_back

#: Messages that an iteration reserves at once.
PREFETCH = 100


@dataclass(frozen=True, slots=True)
class QueueSizes(Sizes):
    """The sizes of a queue and, as `dead`, that of its dead-letter queue."""

    dead: int = 0


class Queue:
    """One queue and one consumer of it.

    Many clients, keuss and Spark queries may use a queue at the same time: nobody gets what another holds. What
    this client has reserved and not settled when it is closed goes back at once, without counting as a failed try.
    A client is used by one thread at a time.
    """

    def __init__(
        self,
        url: str | Store,
        queue: str,
        *,
        consumer: str | None = None,
        lease: float | None = 120.0,
        max_tries: int | None = None,
        dead_letter_queue: str | None = None,
        history: float = 0.0,
        layout: Layout = None,
    ) -> None:
        """Connect to nothing yet.

        `lease`: seconds that a reservation lasts, `None` for ever. After `max_tries` failures a message moves to
        `dead_letter_queue` (default `<queue>.dead`). `history`: seconds that messages are kept for looking at once
        they are committed or dead-lettered. `layout`: whether messages that are pushed together go into buckets
        (`Buckets()`) or not (`"single"`), whatever is set for the queue. Raises `OptionError` for a URL or a name
        that cannot be meant, `DriverMissing`.
        """
        self._owned = isinstance(url, str)
        self.store = open_store(url) if isinstance(url, str) else url
        if layout is not None:
            self.store.layout = layout
        self.name = queue
        self.dead_name = dead_letter_queue or f"{queue}.dead"
        self.store.check_queue(queue)
        self.store.check_queue(self.dead_name)
        self.consumer = consumer or f"py-{uuid.uuid4().hex[:12]}"
        try:
            name_of_holder(self.consumer)
        except ValueError as error:
            raise OptionError(f"consumer {consumer!r} must be {error}", option="consumer") from None
        self._run = uuid.uuid4().hex[:6]
        self._lease = None if lease is None else round(lease * 1000)
        self._max_tries = max_tries
        self._history = round(history * 1000)
        self._sequence = itertools.count(1)
        self._held: dict[str, str] = {}  # message id -> the tag it was reserved under
        self._whole: dict[str, int] = {}  # tag -> how many messages it holds, where all of them are in `_held`

    # --- messages in --------------------------------------------------------------------------------------------

    def push(
        self,
        payload: Json | bytes,
        *,
        id: str | None = None,
        headers: Mapping[str, str] | None = None,
        mature: datetime | None = None,
        delay: float | None = None,
    ) -> str:
        """Push one message and give its id.

        See `push_many`.
        """
        return self.push_many(
            [payload], ids=None if id is None else [id], headers=headers, mature=mature, delay=delay
        )[0]

    def push_many(
        self,
        payloads: Sequence[Json | bytes],
        *,
        ids: Sequence[str] | None = None,
        headers: Sequence[Mapping[str, str]] | Mapping[str, str] | None = None,
        mature: Sequence[datetime | None] | datetime | None = None,
        delay: float | None = None,
    ) -> list[str]:
        """Push messages in one batch and give their ids, in order.

        `bytes` stay bytes, `str` stays text, everything else becomes JSON. They can be reserved from the moment
        `mature`, or `delay` seconds from the database's now, else at once. An id that the queue holds already is
        left as it is. Raises `MessageError`, and `TypeError` for what JSON cannot hold, before anything is pushed.
        """
        ms = None if delay is None else round(delay * 1000)
        if ids is None:
            ids = self.store.own_ids(new_id_array(len(payloads))).to_pylist()
        batch = pushes(payloads, ids=ids, headers=headers, mature=mature, delay=ms)
        self.store.push(self.name, batch)
        pushed: list[str] = batch.column("id").to_pylist()
        return pushed

    # --- messages out -------------------------------------------------------------------------------------------

    def reserve(self, limit: int = 1, *, timeout: float = 0.0) -> list[Message]:
        """Take up to `limit` messages, waiting up to `timeout` seconds for the first; empty if none came.

        They are this client's until it commits, rolls back or dead-letters them, or until the lease ends.
        """
        end = time.monotonic() + timeout
        while True:
            tag = f"{self.consumer}/{self._run}/{next(self._sequence)}"
            rows = sum(self.store.reserve(self.name, tag, limit, lease=self._lease))
            taken = self._take(tag, rows) if rows else []
            if taken:
                return taken
            left = end - time.monotonic()
            if left <= 0 or not self.store.wait(self.name, round(left * 1000), hint=True):
                return []

    def _take(self, tag: str, rows: int) -> list[Message]:
        if self._max_tries is not None:
            rows -= bury_exhausted(self.store, self.name, tag, self._max_tries, self.dead_name, self._history)
        taken: list[Message] = []
        for batch in self.store.fetch(self.name, f"{tag}/0"):
            taken += messages(batch)
            if len(taken) >= rows:  # no need to be told that there are no more
                break
        self._held.update((one.id, tag) for one in taken)
        if len(taken) == rows:
            self._whole[tag] = rows
        return taken

    def pop(self, *, timeout: float = 0.0) -> Message | None:
        """Take one message out of the queue for good, waiting up to `timeout` seconds; `None` if none came.

        At most once: a message that its taker does not live to work on is gone. Use `reserve` and `commit` otherwise.
        """
        taken = self.reserve(1, timeout=timeout)
        if not taken or not self.commit(taken[0]):
            return None
        self.store.count(self.name, reserve=-1, commit=-1, get=1)  # as keuss counts what is taken in one act
        return taken[0]

    def messages(self, *, timeout: float | None = None, prefetch: int = PREFETCH) -> Iterator[Message]:
        """Reserve message after message; end where none comes for `timeout` seconds (`None`: never).

        Settle each with `commit`, `rollback` or `dead_letter`. `prefetch` messages are reserved at once, and
        renewed while earlier ones are worked on.
        """
        while True:
            batch = self.reserve(prefetch, timeout=3600.0 if timeout is None else timeout)
            if not batch and timeout is not None:
                return
            fresh = time.monotonic()
            for position, message in enumerate(batch):
                if self._lease is not None and time.monotonic() - fresh > self._lease / 3000:
                    self.renew(*batch[position:])
                    fresh = time.monotonic()
                yield message

    def __iter__(self) -> Iterator[Message]:
        return self.messages()

    # --- outcomes -----------------------------------------------------------------------------------------------

    def commit(self, *done: Message) -> int:
        """Remove these messages; give how many were still held by this client.

        The others belong to somebody else now.
        """
        return sum(self.store.commit(self.name, tag, ids, history=self._history) for tag, ids in self._settling(done))

    def rollback(self, *failed: Message, delay: float = 0.0) -> int:
        """Give these messages back as failed, mature in `delay` seconds; give how many were still held.

        Where that makes `max_tries` failures, a message moves to the dead-letter queue instead.
        """
        given = 0
        for tag, ids in self._settling(failed):
            given += sum(
                give_back(
                    self.store,
                    self.name,
                    tag,
                    ids,
                    delay=round(delay * 1000),
                    max_tries=self._max_tries,
                    dead=self.dead_name,
                    history=self._history,
                )
            )
        return given

    def dead_letter(self, *hopeless: Message, reason: str | None = None) -> int:
        """Move these messages to the dead-letter queue; give how many were still held.

        `reason` goes into the header `x-error`.
        """
        death = Death(reason, failed=1, history=self._history)
        return sum(
            self.store.move(self.name, self.dead_name, tag=tag, ids=ids, death=death)
            for tag, ids in self._settling(hopeless)
        )

    def renew(self, *held: Message) -> int:
        """Let the lease of these messages begin anew; give how many are held.

        What was reserved together with them is renewed, too.
        """
        tags = dict.fromkeys(self._held[one.id] for one in held if one.id in self._held)
        return sum(self.store.renew(self.name, tag, self._lease) for tag in tags)

    def _settling(self, settled: Sequence[Message]) -> Iterator[tuple[str, list[str] | None]]:
        """The ids under each tag, `None` where that is all that the tag holds; forgotten when they are settled."""
        by_tag: dict[str, list[str]] = {}
        for id in dict.fromkeys(one.id for one in settled):
            if id in self._held:
                by_tag.setdefault(self._held[id], []).append(id)
        for tag, ids in by_tag.items():
            left = self._whole.get(tag)
            yield tag, None if left == len(ids) else ids
            for id in ids:
                self._held.pop(id, None)
            if left is not None:
                self._whole[tag] = left - len(ids)
                if left == len(ids):
                    del self._whole[tag]

    # --- looking and keeping house ------------------------------------------------------------------------------

    def sizes(self) -> QueueSizes:
        """How many messages are ready, scheduled, reserved, and dead."""
        own = self.store.sizes(self.name)
        dead = self.store.sizes(self.dead_name).total
        return QueueSizes(own.ready, own.scheduled, own.reserved, own.oldest_ready_age, dead)

    def statistics(self) -> Statistics:
        """What was done to the messages of the queue, by all its clients: `put`, `get`, `reserve`, `commit`, ….

        What others did in the last tenth of a second may not be in it yet.
        """
        return self.store.statistics(self.name)

    def pause(self) -> None:
        """Let nobody take messages of the queue until it is resumed: no client, no query, no keuss.

        It holds across restarts. Messages can be pushed, and what is reserved can be settled.
        """
        self.store.pause(self.name)

    def resume(self) -> None:
        """Let messages be taken again; who waits for one is woken."""
        self.store.resume(self.name)

    def paused(self) -> bool:
        """Whether the queue is paused."""
        return self.store.paused(self.name)

    def peek(self, limit: int = 10) -> list[Message]:
        """The first messages in order, reserved ones included, changing nothing."""
        found: Iterator[pa.RecordBatch] = self.store.peek(self.name, limit=limit)
        return [one for batch in found for one in messages(batch)]

    def compact(self) -> int:
        """Put ready messages that lie alone or in small buckets together; give the records that are fewer now.

        For queues whose layout is `bucket`, and producers that push little at a time; safe while others use them.
        """
        how = self.store.layout if isinstance(self.store.layout, Buckets) else layout_of(self.store, self.name)
        return compact(self.store, self.name, how or Buckets())

    def purge(self) -> int:
        """Remove the messages that nobody holds and give their number."""
        return self.store.purge(self.name)

    def close(self) -> None:
        """Give back what is still held, and the connections."""
        if self._held:
            self._held.clear()
            self._whole.clear()
            self.store.rollback(self.name, f"{self.consumer}/{self._run}", failed=False)
        if self._owned:
            self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Queue({type(self.store).__name__}, {self.name!r}, consumer={self.consumer!r})"
