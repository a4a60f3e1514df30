"""The client of a queue for programs without Spark: push, reserve, commit.

    with Queue("sqlite:///queues.db", "flights") as queue:
        queue.push({"carrier": "UA", "flight": 1545}, delay=5)
        for message in queue:
            work_on(message.payload)
            queue.commit(message)

Durations are seconds; moments are `datetime` with a time zone. All methods raise `StoreUnavailable`
if the database cannot be reached for 5 seconds, and `StoreError` if it refuses the operation. You
can repeat the call.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Self

from spark_queue.consuming.browsing import MessagePage, browse
from spark_queue.consuming.holdings import Holdings
from spark_queue.consuming.iteration import Lead, MessageIterator
from spark_queue.consuming.reserver import MessageReserver
from spark_queue.errors import MessageError, OptionError
from spark_queue.messages.buckets import Layout
from spark_queue.messages.ids import new_id_array
from spark_queue.messages.message import Message, pushes
from spark_queue.messages.payload import Json
from spark_queue.messages.value_errors import error_for_rows
from spark_queue.options.arguments import check_count, check_keywords, check_seconds
from spark_queue.options.parsers import reserving_consumer_name
from spark_queue.options.queue_names import check_dead_letter_queue
from spark_queue.stores import open_store
from spark_queue.stores.base import Store
from spark_queue.stores.policy import NOT_GIVEN, NotGiven, QueuePolicy
from spark_queue.stores.support.bucket_split import compact
from spark_queue.stores.support.counters import Statistics
from spark_queue.stores.types import Commit, Rollback, Sizes, seen_tag

#: Number of messages that an iteration reserves at once.
PREFETCH = 100


@dataclass(frozen=True, slots=True)
class QueueSizes(Sizes):
    """The numbers of messages of a queue by state; `dead`: those in its dead-letter queue."""

    dead: int = 0


class Queue:
    """A client of one queue: a producer, a consumer, or both.

    Many clients, keuss programs and Spark queries can use a queue at the same time: each message is
    reserved by one of them. `close` puts messages that are reserved and not settled back into the
    queue; their tries do not change. Use a client in one thread at a time.
    """

    @check_keywords
    def __init__(
        self,
        url: str | Store,
        queue: str,
        *,
        consumer: str | None = None,
        lease: float | NotGiven | None = NOT_GIVEN,
        max_tries: int | NotGiven | None = NOT_GIVEN,
        dead_letter_queue: str | None = None,
        history: float | NotGiven = NOT_GIVEN,
        layout: Layout = None,
    ) -> None:
        """Prepare a client; it connects at its first call.

        `consumer`: the name of this consumer in reservations and history (default: a generated
        one). `lease`: seconds until others can reserve a message again (`None`: never).
        `max_tries`: failed tries after which a message moves to `dead_letter_queue` (default:
        `<queue>.dead`); `None`: it is tried forever. `history`: seconds for which committed and
        dead-lettered messages are kept. `layout`: `Buckets()` or `"single"` for pushed messages,
        instead of the setting of the queue.

        Raises `OptionError` for an invalid argument, URL or name, and `DriverMissing` if the driver
        of the database is not installed.
        """
        if isinstance(url, str) and "://" in queue and "://" not in url:  # not shown: it may be a password
            raise OptionError("the URL comes before the queue: Queue(url, queue)", option="url")
        policy = _policy(lease, max_tries, dead_letter_queue, history, layout)
        self._owns_store = isinstance(url, str)
        self.store = open_store(url) if isinstance(url, str) else url
        check_dead_letter_queue(queue, dead_letter_queue, "dead_letter_queue")
        self._queue = self.store.queue(queue, policy)
        self.name = queue
        self.dead_name = self._queue.dead_letter_queue
        self.store.check_queue(self.dead_name)
        self.consumer = consumer or f"py-{uuid.uuid4().hex[:12]}"
        try:
            reserving_consumer_name(self.consumer)
        except ValueError as error:
            raise OptionError(f"consumer {consumer!r} must be {error}", option="consumer") from None
        self._holdings = Holdings(self.consumer)
        self._reserver = MessageReserver(self._queue, self._holdings)
        self._leads: list[Lead] = []  # of iterations

    # --- push -------------------------------------------------------------------------------------

    @check_keywords
    def push(
        self,
        payload: Json | bytes,
        *,
        id: str | None = None,
        headers: Mapping[str, str] | None = None,
        mature: datetime | None = None,
        delay: float | None = None,
        tries: int = 0,
    ) -> str:
        """Push one message and return its id.

        The arguments are those of `push_many`, for one message. Raises `MessageError` and
        `OptionError` as it does.
        """
        ids = None if id is None else [id]
        try:
            return self.push_many([payload], ids=ids, headers=headers, mature=mature, delay=delay, tries=tries)[0]
        except MessageError as error:
            if not error.rows:
                raise
            named = {row: f"message {id!r}: {rule}" if id is not None else rule for row, rule in error.rows.items()}
            raise error_for_rows(self.name, named, 1) from error.__cause__

    @check_keywords
    def push_many(
        self,
        payloads: Collection[Json | bytes],
        *,
        ids: Sequence[str] | None = None,
        headers: Sequence[Mapping[str, str]] | Mapping[str, str] | None = None,
        mature: Sequence[datetime | None] | datetime | None = None,
        delay: float | None = None,
        tries: Sequence[int] | int = 0,
    ) -> list[str]:
        """Push messages in one batch and return their ids, in order.

        A payload that is `bytes` stays bytes, `str` stays text, all else becomes JSON. `headers`,
        `mature` and `tries` are one for all, or a sequence with one for each. `mature`: the moment
        from which a message can be reserved (without a time zone: UTC). `delay`: seconds until
        then, by the database's clock. Without both, a message can be reserved at once. `tries`: the
        number of failed tries that a message already has.

        Raises `MessageError` for values that cannot become messages, and `OptionError` for an
        invalid argument; no message is pushed then. A push is atomic on SQLite, for some 5,000
        messages on Redis, and for each message on MongoDB. If it raises `StoreError`, some messages
        may be pushed. A message whose id is in the queue is skipped, so you can repeat a push with
        the same `ids`.
        """
        if isinstance(payloads, str | bytes | Mapping):
            raise OptionError("push_many takes a list of payloads; for one payload use push", option="payloads")
        payloads = payloads if isinstance(payloads, Sequence) else list(payloads)
        if delay is not None:
            check_seconds("delay", delay, minimum=-math.inf)  # the store refuses negative ones
        ms = None if delay is None else round(delay * 1000)
        message_ids = self.store.native_ids(new_id_array(len(payloads))).to_pylist() if ids is None else ids
        batch = pushes(
            payloads, ids=message_ids, headers=headers, mature=mature, delay=ms, tries=tries, queue=self.name
        )
        self._queue.push(batch)
        pushed: list[str] = batch.column("id").to_pylist()
        return pushed

    # --- reserve ----------------------------------------------------------------------------------

    @check_keywords
    def reserve(self, limit: int = 1, *, timeout: float = 0.0) -> list[Message]:
        """Reserve up to `limit` messages, in order; wait up to `timeout` seconds for the first.

        No other consumer gets them until this client commits, rolls back or dead-letters them, or
        until the lease ends. Returns an empty list if no message came. Messages that have failed
        `max_tries` times, and records that cannot be read, move to the dead-letter queue and are
        not returned.
        """
        check_seconds("timeout", timeout)
        self._release_dropped()
        return self._reserver.reserve(limit, timeout)

    @check_keywords
    def pop(self, *, timeout: float = 0.0) -> Message | None:
        """Remove the first message and return it; `None` if none comes within `timeout` seconds.

        At most once: if the program dies before it has processed the message, the message is lost.
        For at-least-once, use `reserve` and `commit`.
        """
        taken = self.reserve(1, timeout=timeout)
        if not taken or not self.commit(taken[0]):
            return None
        # keuss counts a message that is taken in one step as `get`.
        self.store.count(self.name, reserve=-1, commit=-1, get=1)
        return taken[0]

    @check_keywords
    def messages(
        self, *, timeout: float | None = None, prefetch: int = PREFETCH, renew: bool = True
    ) -> MessageIterator:
        """Yield messages as they come; end if none comes for `timeout` seconds (`None`: never).

        Settle each with `commit`, `rollback` or `dead_letter`. `prefetch` messages are reserved
        together. A message counts a try when it is yielded; those that were only reserved go back
        with their tries as they were, when the iteration is closed or dropped, or when their lease
        ends.

        While your code works on a message, the thread `spark_queue renewal` renews the leases of
        it and of those that were reserved together with it; with `renew=False` they are renewed
        only between two messages. A message that was lost all the same is skipped, and the first
        time a warning is logged. A message that you have not settled when those of the next
        reservation begin is renewed no longer.
        """
        if timeout is not None:
            check_seconds("timeout", timeout)
        check_count("prefetch", prefetch)
        self._release_dropped()
        return MessageIterator(self._reserver, self._leads, timeout=timeout, prefetch=prefetch, renew=renew)

    def __iter__(self) -> MessageIterator:
        return self.messages()

    def _release_dropped(self) -> None:
        """Put back what iterations that were dropped have reserved ahead."""
        for lead in [one for one in self._leads if one.stopped]:
            lead.release()
            self._leads.remove(lead)

    # --- outcomes ---------------------------------------------------------------------------------

    def commit(self, *done: Message) -> int:
        """Remove these messages: they are processed. Return how many this client still held.

        The lease of the others has ended: another consumer may process them again. Atomic for each
        message, and on SQLite for all together.
        """
        how = Commit(history=self._queue.history)
        return sum(self._settle(*held, how) for held in self._holdings.settle(one.id for one in done))

    @check_keywords
    def rollback(self, *failed: Message, delay: float = 0.0) -> int:
        """Put these messages back into the queue, with one more failed try.

        Return how many this client still held. They can be reserved after `delay` seconds. A
        message that has failed `max_tries` times moves to the dead-letter queue instead. Atomic for
        each message.
        """
        check_seconds("delay", delay)
        how, tries = Rollback(delay=round(delay * 1000)), {one.id: one.tries for one in failed}
        settled = 0
        for tag, ids, complete in self._holdings.settle(tries):
            most = max(tries[id] for id in ids)
            moved = self._queue.move_failed(tag, None if complete else ids, tries=most)
            settled += moved
            if moved < len(ids):
                settled += self._settle(tag, ids, complete, how)
        return settled

    @check_keywords
    def dead_letter(self, *failed: Message, reason: str | None = None) -> int:
        """Move these messages to the dead-letter queue. Return how many this client still held.

        `reason` becomes the header `x-error`. Atomic for each message.
        """
        return sum(
            self._queue.dead_letter(tag, None if complete else ids, reason=reason)
            for tag, ids, complete in self._holdings.settle(one.id for one in failed)
        )

    def _settle(self, tag: str, ids: Sequence[str], complete: bool, how: Commit | Rollback) -> int:
        """Settle messages of a tag, and hand out the next one if an iteration goes on with it."""
        for lead in self._leads:
            if (settled := lead.settle(tag, ids, how)) is not None:
                return settled
        return self.store.settle(self.name, tag, None if complete else ids, how)

    def renew(self, *held: Message) -> int:
        """Restart the lease of these messages. Return how many messages were renewed.

        Messages that were reserved in the same call are renewed, too.
        """
        tags = self._holdings.tags_of(one.id for one in held)
        ahead = {seen_tag(one.batch.tag): one.batch.tag for one in self._leads if one.batch is not None}
        return sum(self._queue.renew(ahead.get(tag, tag)) for tag in tags)

    # --- sizes, pauses, cleaning up ---------------------------------------------------------------

    def sizes(self) -> QueueSizes:
        """Return the numbers of ready, scheduled, reserved and dead messages.

        `oldest_ready_age` is the age of the first ready message in ms.
        """
        own = self.store.sizes(self.name)
        dead = self.store.sizes(self.dead_name).total
        return QueueSizes(own.ready, own.scheduled, own.reserved, own.oldest_ready_age, dead=dead)

    def statistics(self) -> Statistics:
        """Return how many messages all clients have pushed (`put`), reserved, committed, ….

        Calls of other clients in the last 0.1 seconds may be missing.
        """
        return self.store.statistics(self.name)

    def pause(self) -> None:
        """Pause the queue: no client can reserve messages until `resume`.

        That includes Spark queries and programs of keuss. Messages can be pushed, and reserved
        messages can be settled. A pause survives restarts.
        """
        self.store.pause(self.name)

    def resume(self) -> None:
        """Resume the queue; clients that wait for a message continue."""
        self.store.resume(self.name)

    def paused(self) -> bool:
        """Return whether the queue is paused."""
        return self.store.is_paused(self.name)

    @check_keywords
    def peek(self, limit: int = 10) -> list[Message]:
        """Return the first messages in order, also reserved and scheduled ones; reserve none."""
        return browse(self.store, self.name, limit).messages if limit else []

    @check_keywords
    def browse(self, limit: int = 100, after: str | None = None) -> MessagePage:
        """Return the first messages in order as `peek` does, and the cursor of the next page.

        `after`: the cursor of the page before. No page reads earlier ones again, so all cost the
        same. Each message comes once. Those that others move meanwhile may be missing; those that
        are pushed again or rolled back to a later due time may come again. Raises `OptionError` for
        a cursor of another queue.
        """
        check_count("limit", limit)
        return browse(self.store, self.name, limit, after)

    def compact(self) -> int:
        """Merge single ready messages and small buckets into large buckets.

        Return by how many the number of records decreased. Use it for queues with the layout
        `bucket` whose producers push few messages at a time. Other clients can use the queue
        meanwhile.
        """
        return compact(self.store, self.name, self._queue.compaction_layout())

    def purge(self) -> int:
        """Remove all messages that are not reserved; return their number.

        They cannot be restored.
        """
        return self.store.purge(self.name)

    def close(self) -> None:
        """Put messages that are still reserved back into the queue, and close the connections.

        Iterations end.
        """
        for lead in self._leads:
            lead.stop()
        self._release_dropped()
        if self._holdings.clear():
            self.store.rollback(self.name, self._holdings.branch, delay=None, failed=False)
        if self._owns_store:
            self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Queue({type(self.store).__name__}, {self.name!r}, consumer={self.consumer!r})"


def _policy(
    lease: float | NotGiven | None,
    max_tries: int | NotGiven | None,
    dead_letter_queue: str | None,
    history: float | NotGiven,
    layout: Layout,
) -> QueuePolicy:
    """Return the policy of a client, in ms. Raises `OptionError` for an invalid argument."""
    if lease is not None and lease is not NOT_GIVEN:
        check_seconds("lease", lease, minimum=0.001)
        lease = round(lease * 1000)
    if history is not NOT_GIVEN:
        check_seconds("history", history)
        history = round(history * 1000)
    if max_tries is not None and max_tries is not NOT_GIVEN:
        check_count("max_tries", max_tries)
    return QueuePolicy(
        lease=lease, max_tries=max_tries, dead_letter_queue=dead_letter_queue or NOT_GIVEN, history=history,
        layout=layout or NOT_GIVEN,
    )  # fmt: skip
