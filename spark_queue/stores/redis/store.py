"""Queues in Redis 6.2 or later. For the forms of URLs, see `address.py`.

Messages are stored as keuss' `redis-oq` stores them, so that keuss' programs can share a queue. Our
own keys are beside them; the head of `lua/common.lua` lists all keys. keuss compares times as text
of 13 digits: for keuss, a message due before 2001-09-09 is not due yet.

* Each call of a script is atomic and takes at most about 5,000 messages. So a push, a commit or a
  move is atomic in parts of that size. One that is cut short leaves no message half done; repeated,
  it completes the rest.
* A stage is stored in chunks of that size, each a string beside its target queue. A chunk is
  published in one step, which removes it. Its name is not used again for ten minutes, so that a
  late call does not write it again. The registry of a sink is a set of its chunks. It contains a
  chunk from before it is written until it is gone. After a crash, `staged` may thus report a chunk
  without rows, until it is published or removed.
* How durable an acknowledged write is depends on the server's AOF policy. `appendfsync always`
  loses nothing, `everysec` up to a second of writes. Without AOF, a crash goes back to the last
  snapshot.
* The time is the server's `TIME`.
* Scripts declare their keys. On Redis Cluster a hash tag in the queue's name (`{flights}`) keeps a
  queue's keys together. Queues between which messages move need the same hash tag. The URL is that
  of the node that holds the queue; registries and notes may be on any node.
* If `maxmemory` is reached and the policy is `noeviction`, Redis refuses to add messages, and
  staged messages stay staged. All operations that drain a queue still work. With `allkeys-*`
  messages are lost. With `volatile-*` Redis can lose the history, and the marks of ended chunks.
  Then a late call may stage messages that were published already. See `services/eviction.py`.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import cache
from hashlib import sha1
from itertools import chain, groupby
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import orjson
import pyarrow as pa
import redis

from spark_queue.errors import NotAQueue, StoreError
from spark_queue.messages.batching import batch_by_size
from spark_queue.messages.buckets import MAX_BUCKET_BYTES, Record
from spark_queue.messages.columns import due_ms, pushed_ms
from spark_queue.messages.schema import BUCKET_PREFIX
from spark_queue.messages.times import MAX_TIME_MS
from spark_queue.options.masking import cause_without_secrets, mask
from spark_queue.options.url import StoreUrl
from spark_queue.stores.base import PAGE_BYTES, PAGE_ROWS, chunked
from spark_queue.stores.limits import StoreLimits
from spark_queue.stores.redis.address import RedisAddress
from spark_queue.stores.redis.connections import ServerConnections, pool_text
from spark_queue.stores.redis.documents import as_records, pack_pieces, read_entry, to_documents
from spark_queue.stores.redis.failures import is_away, to_store_error
from spark_queue.stores.redis.foreign import expected_type, find_foreign
from spark_queue.stores.redis.keys import (
    DEFAULT_LAYOUT,
    PARTS,
    Chunk,
    DueId,
    Keys,
    due_and_id,
    ids_of,
    messages_of,
    note_key,
    queue_keys,
    registry_key,
    single_run,
)
from spark_queue.stores.redis.limits import RedisLimits
from spark_queue.stores.redis.scanning import Scanner
from spark_queue.stores.redis.signals import RedisSubscription
from spark_queue.stores.services import eviction
from spark_queue.stores.services.listener import Subscription
from spark_queue.stores.services.signals import SignallingStore
from spark_queue.stores.spans import WHOLE, Sample, Span
from spark_queue.stores.support.budget import current_budget, spend
from spark_queue.stores.support.claiming import ClaimRequest, without_empty
from spark_queue.stores.support.conditions import meets
from spark_queue.stores.support.counters import Counts, Statistics
from spark_queue.stores.support.damaged import EMPTY_PAGE, Records, filter_records, id_of
from spark_queue.stores.support.damaged import keys_of as keys_of_id
from spark_queue.stores.support.scan import Scanned, ScanStep
from spark_queue.stores.support.summary import Summary, SummaryRequest
from spark_queue.stores.types import (
    Claim,
    Commit,
    Condition,
    DeadLetterInfo,
    Finding,
    HandOut,
    RawNote,
    Reservation,
    Rollback,
    Selection,
    Sizes,
    Staged,
    View,
    consumer_of,
    seen_tag,
    unseen_tag,
)

T = TypeVar("T")

READ_BATCH = 500  #: most documents that one command reads: their size is not known before
SIZES_CHUNK = 25  #: most queues whose messages one script call counts
MAX_COUNTED = 1_000  #: most buckets, and leases, that a count with a limit looks at
NOTE_FIELDS = ("value", "version", "written")  #: the fields of a note
NO_END = MAX_TIME_MS  #: the end (ms) of a lease that does not end

LUA_DIRECTORY = Path(__file__).with_name("lua")


@cache
def load_scripts(limits: RedisLimits, layout: str = DEFAULT_LAYOUT) -> dict[str, tuple[str, str]]:
    """Return the scripts of a layout by name: SHA-1 and text."""
    constants = {
        "CHUNK": limits.script_chunk, "RUN": limits.run_size, "BYTES": limits.script_bytes, "NEVER": NO_END,
        "BUCKET_BYTES": MAX_BUCKET_BYTES, "PARTS": PARTS,
    }  # fmt: skip
    common = f"local {', '.join(constants)} = {', '.join(map(str, constants.values()))}\n"
    heads = [LUA_DIRECTORY / "common.lua"]
    if layout != DEFAULT_LAYOUT:
        heads += [LUA_DIRECTORY / name / f"{name}.lua" for name in ("lists", layout)]
    common += "".join(head.read_text("utf-8") for head in heads)
    files = [file for head in heads for file in head.parent.glob("*.lua") if file not in heads]
    texts = {file.stem: common + file.read_text("utf-8") for file in files}
    return {name: (sha1(text.encode(), usedforsecurity=False).hexdigest(), text) for name, text in texts.items()}


class RedisStore(SignallingStore):
    """Queues in one database of a Redis server. Safe to share among threads, and across a fork."""

    default_limits: ClassVar[RedisLimits] = RedisLimits()
    limits: RedisLimits
    layout_name: ClassVar[str] = DEFAULT_LAYOUT
    parameters: ClassVar[tuple[str, ...]] = ("ns",)
    layouts: ClassVar[Mapping[str, str]] = {
        DEFAULT_LAYOUT: "spark_queue.stores.redis.store:RedisStore",
        "redis-list": "spark_queue.stores.redis.lists:ListStore",
        "rfq": "spark_queue.stores.redis.lists:RfqStore",
    }
    max_payload = 500_000_000  # its document, longer by escapes or base64, must fit into LARGEST_DOCUMENT
    shrink_hint = "Redis frees memory by itself; see MEMORY PURGE"
    adoption_hint = "queues have keys of their own in Redis"

    @classmethod
    def resolve(cls, url: str) -> str:
        StoreUrl.parse(url).check_parameters(cls.layout_name, cls.parameters)
        RedisAddress.parse(url)
        return url

    def __init__(
        self, url: str, *, retry_timeout: int = 5_000, create: bool = True, limits: StoreLimits | None = None
    ) -> None:
        super().__init__(url, retry_timeout=retry_timeout, create=create, limits=limits)
        self._connections = ServerConnections(RedisAddress.parse(self.url), self.limits)
        self._scripts = load_scripts(self.limits, self.layout_name)

    # --- the connection ---------------------------------------------------------------------------

    @contextmanager
    def _connection(self) -> Iterator[Any]:
        """Yield the client. Raises `StoreError` for an error of redis-py.

        `Any`, since redis-py types an answer as a union for all its kinds of clients.
        """
        client = None
        try:
            client = self._connections.client()
            if eviction.check_on_open and not eviction.is_checked(self.url):
                eviction.warn_once(self.url, _eviction_policy(client))
            yield client
        except (redis.RedisError, redis.exceptions.RedisClusterException) as error:
            if client is not None and is_away(error):
                self._connections.drop(client)
            raise self._to_store_error(error) from cause_without_secrets(error, self.url)
        finally:
            if client is not None:
                self._connections.end_operation(client)

    @contextmanager
    def _cluster_connection(self) -> Iterator[Any]:
        """Yield a client for keys that belong to no queue: any node of a cluster may have them.

        Raises `StoreError`.
        """
        with self._connection() as client:
            yield self._connections.cluster(client)

    def _to_store_error(self, error: Exception) -> StoreError:
        return to_store_error(error, self.url, pool_text(self.limits))

    def _check_is_queue(self, queue: str) -> None:
        with self._connection() as client:
            key = find_foreign(client, (*self._keys(queue), *self._list_keys(queue)))
        if key is not None:
            raise NotAQueue(
                f"{mask(self.url)}: the key {key!r} belongs to another program: it lacks the type of a queue's key. "
                "It was not changed. Use another name",
                option="queue",
                queue=queue,
            )

    def _keys(self, queue: str) -> Keys:
        return queue_keys(queue, self.layout_name)

    def _list_keys(self, queue: str) -> Sequence[str]:
        """Return the keys that a layout with lists has besides: see `lists.py`."""
        return ()

    def _message_lists(self, queue: str) -> Sequence[str]:
        """Return those of these keys that are lists of messages."""
        return ()

    def _push_order(self, parts: list[T]) -> list[T]:
        """Return parts of a push or a publish in the order in which a queue must get them."""
        return parts

    def _script(self, name: str) -> tuple[str, str]:
        return self._scripts[name]

    def _run(self, script: str, queue: str, *arguments: Any, extra_keys: Sequence[str] = ()) -> Any:
        """Call a script with the keys of a queue and `extra_keys`. Raises `StoreError`."""
        with self._connection() as client:
            keys = [*self._keys(queue), *extra_keys, *self._list_keys(queue)]
            return _call_script(client, self._script(script), keys, *arguments)

    def _run_each(self, queue: str, *calls: tuple[str, Sequence[Any]]) -> list[Any]:
        """Call scripts of a queue, each with its arguments, one after the other in one round trip.

        Raises `StoreError`.
        """
        keys = [*self._keys(queue), *self._list_keys(queue)]
        with self._connection() as client:
            pipeline = client.pipeline(transaction=False)
            for name, arguments in calls:
                pipeline.evalsha(self._script(name)[0], len(keys), *keys, *arguments)
            answers: list[Any] = pipeline.execute(raise_on_error=False)
            for at, (name, arguments) in enumerate(calls):
                if isinstance(answers[at], redis.exceptions.NoScriptError):
                    answers[at] = _call_script(client, self._script(name), keys, *arguments)
                elif isinstance(answers[at], redis.RedisError):
                    raise answers[at]
        return answers

    def close(self) -> None:
        super().close()
        self._connections.close()

    # --- signals ----------------------------------------------------------------------------------

    def _send(self, queue: str, signal: int | str) -> None:
        with self._connection() as client:
            client.publish(self.topic(queue), signal)

    @contextmanager
    def _open_subscription(self) -> Iterator[Subscription]:
        try:
            with (
                self._connections.listen() as (heard, is_valid),
                closing(RedisSubscription(heard, self.topic(""), self._to_store_error, is_valid)) as subscription,
            ):
                yield subscription
        except redis.RedisError as error:
            raise self._to_store_error(error) from cause_without_secrets(error, self.url)

    # --- push -------------------------------------------------------------------------------------

    def _push(self, queue: str, batch: pa.RecordBatch) -> int:
        parts = self._pack_pieces(queue, batch)
        return sum(self._run("push", queue, part) for _, part in self._push_order(parts))

    def _pack_pieces(self, queue: str, batch: pa.RecordBatch) -> list[tuple[int, bytes]]:
        """Return a batch in pieces: see `pack_pieces`. All are checked before one is sent.

        Raises `StoreError`, and `MessageError` as `pack_pieces` does.
        """
        now = self._now()
        return list(
            pack_pieces(queue, batch, due_ms(batch, now), self._pushed_ms(batch, now), self.limits.script_chunk)
        )

    def _pushed_ms(self, batch: pa.RecordBatch, now: int | None) -> Sequence[int | None]:
        """Return when rows were pushed, as the layout stores it: see `pushed_ms`."""
        return [None] * batch.num_rows if "pushed" in self.unsupported else pushed_ms(batch, now)

    # --- stage and publish ------------------------------------------------------------------------

    def _stage(self, queue: str, stage: str, part: str, batch: pa.RecordBatch) -> None:
        contents = self._pack_pieces(queue, batch)
        chunks = [
            Chunk(stage, f"{part}.{number:06}.{rows}", queue, self.layout_name)
            for number, (rows, _) in enumerate(contents)
        ]
        with self._cluster_connection() as client:
            client.sadd(registry_key(stage, self.layout_name), *(chunk.member for chunk in chunks))
        for chunk, (_, content) in zip(chunks, contents, strict=True):
            self._run("stage", queue, content, extra_keys=[chunk.key])

    def _publish(self, stages: Sequence[str]) -> dict[str, int]:
        named = set(stages)
        sinks = {registry_key(stage, self.layout_name): stage for stage in stages}
        found = (chunk for stage in sinks.values() for chunk in self._registered_chunks(stage))
        published: Counter[str] = Counter()
        chunks = self._push_order([chunk for chunk in found if chunk.stage in named])
        for chunk, rows in self._end_chunks("publish", chunks):
            published[chunk.queue] += rows
        return published

    def _staged(self, stage: str) -> list[Staged]:
        chunks = [chunk for chunk in self._registered_chunks(stage) if chunk.belongs_to(stage)]
        rows: Counter[tuple[str, str]] = Counter()
        with self._cluster_connection() as client:
            pipeline = client.pipeline(transaction=False)
            for chunk in chunks:
                pipeline.strlen(chunk.key)
            for chunk, size in zip(chunks, pipeline.execute(), strict=True):
                rows[chunk.stage, chunk.queue] += chunk.rows if size else 0
        return [Staged(*which, n) for which, n in rows.items()]

    def _unstage(self, stage: str, keep: Sequence[str]) -> int:
        kept, found = set(keep), self._registered_chunks(stage)
        ending = [chunk for chunk in found if chunk.belongs_to(stage) and chunk.stage not in kept]
        return sum(chunk.rows for chunk, there in self._end_chunks("unstage", ending) if there)

    def _registered_chunks(self, stage: str) -> list[Chunk]:
        """Return the chunks of the sink of a stage, in order. An empty stage means all sinks.

        Raises `StoreError`.
        """
        with self._cluster_connection() as client:
            sinks = [registry_key(stage, self.layout_name)]
            if not stage:
                sinks = client.scan_iter(match=registry_key("*", self.layout_name), count=PAGE_ROWS)
            members = {member for sink in sinks for member in client.smembers(sink)}
            return sorted(Chunk.from_member(member, self.layout_name) for member in members)

    def _end_chunks(self, script: str, chunks: Sequence[Chunk]) -> list[tuple[Chunk, int]]:
        """Publish or remove chunks, and then remove them from their registries.

        Return each with the answer of the script. Raises `StoreError`.
        """
        answers = [(chunk, self._run(script, chunk.queue, extra_keys=[chunk.key])) for chunk in chunks]
        with self._cluster_connection() as client:
            for registry, ended in groupby(chunks, lambda chunk: registry_key(chunk.stage, self.layout_name)):
                client.srem(registry, *(chunk.member for chunk in ended))
        return answers

    # --- reservations -----------------------------------------------------------------------------

    def _claim(self, queue: str, request: ClaimRequest) -> Claim:
        several = request.partitions > 1
        tag = request.tag if several else request.tag_of(0)
        arguments = (
            tag, request.rows, _lease_argument(request.lease), request.before,
            "" if request.bytes is None else request.bytes, request.partitions, request.min_partitions,
            request.smallest,
        )  # fmt: skip
        state, progress = b"more", b""
        while state == b"more":
            state, progress, size, full, large, *rows = self._run("claim", queue, *arguments, progress)
        if state == b"held":
            held = {one.tag: one.rows for one in self._reservations(queue, tag)} if several else {}
            return Claim(request.held_rows(held or {tag: self._count_held(queue, tag)}), already_held=True)
        bucket = id_of(large) if state == b"large" else None
        return Claim(without_empty(rows), bucket, bytes=int(size), full=bool(full))

    def _ready(self, queue: str, limit: int, before: int) -> int:
        return min(self._sweep_expired(queue, before), limit)

    def _sweep_expired(self, queue: str, before: int = NO_END) -> int:
        """Free the messages of expired leases.

        Return the number of messages that are then ready and were due by `before` (ms). Raises
        `StoreError`.
        """
        swept = False
        while not swept:
            swept, ready = self._run("ready", queue, before)
        return int(ready)

    def _scan_free(self, queue: str, after: DueId | None, rows: int) -> Records:
        self._sweep_expired(queue)
        low, start = (after[0] if after else "-inf"), 0
        while True:
            with self._connection() as client:
                now = _time_ms(client.time())
                found = client.zrangebyscore(
                    self._keys(queue).moments, low, f"({now + 1}", start, PAGE_ROWS, withscores=True
                )
            spare = [row for row in ((_place(score), id) for id, score in found) if after is None or row > after]
            for part, documents in self._document_pages(queue, "messages", spare, rows):
                return as_records(queue, part, documents)._replace(after=part[-1])
            if len(found) < PAGE_ROWS:
                return EMPTY_PAGE
            start += PAGE_ROWS

    def _replace_records(self, queue: str, tag: str | None, records: Sequence[Record], batch: pa.RecordBatch) -> bool:
        dues = due_ms(batch, 0)
        documents = to_documents(queue, batch, dues, self._pushed_ms(batch, None))
        rows = zip(batch.column("id").to_pylist(), dues, documents, strict=True)
        new = list(chain.from_iterable(rows))
        old = [single_run(tag or "", one.mature, one.id) for one in records]
        return bool(self._run("replace", queue, tag or "", len(new), *new, *old))

    def _page(self, queue: str, tag: str, after: DueId | None, rows: int) -> Records:
        cursor = single_run(tag, *after) if after else b""
        missed: set[DueId] = set()
        while runs := self._run("page", queue, tag, cursor, rows):
            found = [(due, id) for run in runs for _, due, id in messages_of(run)][:rows]
            read_count, existing, documents = self._read_documents(queue, "messages", found)
            gone = set(found[:read_count]).difference(existing) if len(existing) < read_count else set()
            if gone != missed and any(id.startswith(BUCKET_ID_PREFIX) for _, id in gone):
                missed = gone
                continue  # a bucket was split meanwhile: its messages are in other records now
            if KEUSS_RESERVED in b"".join(documents):  # one search for all of them is fast
                found_documents = zip(existing, documents, strict=True)
                marked = [single_run(tag, *row) for row, one in found_documents if KEUSS_RESERVED in one]
                for start in range(0, len(marked), self.limits.script_chunk):
                    self._run("unmark", queue, *marked[start : start + self.limits.script_chunk])
            if existing:
                return as_records(queue, existing, documents)._replace(after=existing[-1])
            cursor = single_run(tag, *found[read_count - 1])
        return EMPTY_PAGE

    def _record_sizes(self, queue: str, tag: str, limit: int) -> list[tuple[str, int]]:
        start = tag.encode() + b"\0"
        runs = sorted((run for run in self._read_runs(queue, tag) if run.startswith(start)), key=due_and_id)
        ids = [id for run in runs for id in ids_of(run)][:limit]
        found: list[tuple[str, int]] = []
        for at in range(0, len(ids), self.limits.script_chunk):
            some = ids[at : at + self.limits.script_chunk]
            found += zip(map(id_of, some), self._run("bytes", queue, *some), strict=True)
        return found

    def _last_due(self, queue: str, tag: str) -> int | None:
        with self._connection() as client:
            for run in client.zrevrangebylex(self._keys(queue).held, f"({tag}\1", f"[{tag}\0", 0, 1):
                return int(due_and_id(run)[0])
        return None

    def _renew(self, queue: str, tag: str, lease: int | None) -> int:
        tags = [one for one, _ in self._lease_ends(queue, tag)]
        return sum(self._renew_or_count(queue, one, _lease_argument(lease)) for one in tags)

    def _count_held(self, queue: str, tag: str) -> int:
        return self._renew_or_count(queue, tag, "as it is")

    def _renew_or_count(self, queue: str, tag: str, lease: str | int) -> int:
        rows = 0
        cursor = target = resumed = b""
        while True:
            more, cursor, target, resumed = self._run("renew", queue, tag, lease, cursor, target, resumed)
            rows += int(more)
            if not cursor:
                if resumed != b"yes":
                    return rows
                rows, target = 0, b""

    def _commit(self, queue: str, tag: str, ids: Sequence[str] | None, history: int, outcome: str) -> int:
        arguments = (tag, history, consumer_of(tag) or "", outcome)
        return self._settle_tag(queue, tag, ids, "commit", arguments)

    def _rollback(
        self, queue: str, tag: str, ids: Sequence[str] | None, delay: int | None, failed: bool, include_endless: bool
    ) -> int:
        # One due time for all calls, so that their messages are ordered by id.
        due = "" if delay is None else min(self._now() + delay, MAX_TIME_MS)
        tags = [tag] if include_endless else [one for one, until in self._lease_ends(queue, tag) if until != NO_END]
        arguments = due, int(failed), int(include_endless)
        return sum(self._settle_tag(queue, one, ids, "rollback", (one, *arguments)) for one in tags)

    def _settle_tag(
        self, queue: str, tag: str, ids: Sequence[str] | None, script: str, arguments: tuple[Any, ...]
    ) -> int:
        """Run a script over the messages that a tag holds, or those of `ids`. Return their number.

        A run is passed as a whole if `ids` contains all of its messages: to take messages out of a
        run one by one takes the server much longer. The script skips such a run if it has changed
        meanwhile. So the rest is read again, until nothing is left. Raises `StoreError`.
        """
        if ids is None:
            return self._settle_runs(script, queue, arguments, None)
        wanted, rows = {key for id in ids for key in keys_of_id(id)}, 0
        before: list[tuple[bytes, int]] = []
        while rows < len(set(ids)) and (named := self._find_runs(queue, tag, wanted)) != before:
            for some in batch_by_size(named, (self.limits.script_chunk,), lambda one: (one[1],)):
                rows += self._settle_runs(script, queue, arguments, [run for run, _ in some])
            before = named
        return rows

    def _settle_runs(self, script: str, queue: str, arguments: tuple[Any, ...], runs: list[bytes] | None) -> int:
        """Run a script on these runs (`None`: on all of the tag) until nothing is left to do.

        Return the number of messages. Raises `StoreError`.
        """
        rows = 0
        for start in range(0, 1 if runs is None else len(runs), self.limits.script_chunk):
            more = True
            while more:
                done, more = self._run(
                    script, queue, *arguments, *(runs or ())[start : start + self.limits.script_chunk]
                )
                rows += done
        return rows

    def _find_runs(self, queue: str, tag: str, wanted: set[bytes]) -> list[tuple[bytes, int]]:
        """Return the held messages of these ids as runs, each with the number of its messages.

        Those of the tag and of the tags below it, in order of due time and id. Raises `StoreError`.
        """
        found: list[tuple[bytes, int]] = []
        for run in self._read_runs(queue, tag):
            ids = ids_of(run)
            if wanted.issuperset(ids):
                found.append((run, len(ids)))
            else:
                found += [(single_run(*one), 1) for one in messages_of(run) if one[2] in wanted]
        return sorted(found, key=lambda one: due_and_id(one[0]))

    def _read_single_runs(self, queue: str, tag: str, ids: Sequence[str] | None) -> list[bytes]:
        """Return the messages of a tag and of the tags below it, each as a run of one message.

        With `ids`, only those of these ids. They are in order of due time and id. Raises
        `StoreError`.
        """
        if ids is not None and not ids:
            return []
        wanted = None if ids is None else {key for id in ids for key in keys_of_id(id)}
        messages = (one for run in self._read_runs(queue, tag) for one in messages_of(run))
        found = [single_run(*one) for one in messages if wanted is None or one[2] in wanted]
        return sorted(found, key=due_and_id)

    def _read_runs(self, queue: str, tag: str) -> list[bytes]:
        """Return the runs of a tag and of the tags below it. Raises `StoreError`."""
        held, page_size, found = self._keys(queue).held, PAGE_ROWS // 10, []
        left: list[tuple[str | bytes, str]] = [(f"[{tag}\0", f"({tag}\1"), (f"[{tag}/", f"({tag}0")]
        with self._connection() as client:
            while left:
                pipeline = client.pipeline(transaction=False)
                for low, high in left:
                    pipeline.zrangebylex(held, low, high, 0, page_size)
                pages: list[list[bytes]] = pipeline.execute()
                found += [run for page in pages for run in page]
                left = [
                    (b"(" + page[-1], high)
                    for (_, high), page in zip(left, pages, strict=True)
                    if len(page) == page_size
                ]
        return found

    def _lease_ends(self, queue: str, tag: str) -> list[tuple[str, int]]:
        """Return a tag and the tags below it, with the ends of their leases (ms).

        An empty tag means all tags. Raises `StoreError`.
        """
        found = self._run("tags", queue, tag)
        return [(name.decode(), int(until)) for name, until in zip(found[::2], found[1::2], strict=True)]

    def _transfer(self, queue: str, tag: str, to: str, ids: Sequence[str] | None, lease: int | None) -> int:
        self._renew_or_count(queue, to, _lease_argument(lease))  # so that all its messages get one lease
        start = to.encode() + b"\0"
        members = self._read_single_runs(queue, tag, ids)
        transferred = sorted(member for member in members if not member.startswith(start))  # by tag
        return self._settle_runs("transfer", queue, (to, _lease_argument(lease)), transferred)

    def _settle_and_hand_out(
        self, queue: str, tag: str, records: Sequence[Record], how: Commit | Rollback, next: HandOut
    ) -> tuple[int, int]:
        runs = [single_run(tag, one.mature, one.id) for one in records]
        if isinstance(how, Commit):
            settle = "commit", (tag, how.history, consumer_of(tag) or "", how.outcome, *runs)
        else:
            due = "" if how.delay is None else min(self._now() + how.delay, MAX_TIME_MS)
            settle = "rollback", (tag, due, int(how.failed), 1, *runs)
        handed_out = single_run(unseen_tag(next.tag), next.record.mature, next.record.id)
        transfer = "transfer", (seen_tag(next.tag), _lease_argument(next.lease), handed_out)
        if len(runs) > self.limits.script_chunk:
            return 0, self._run_each(queue, transfer)[0][0]
        settled, transferred = self._run_each(queue, settle, transfer)
        return settled[0], transferred[0]

    def _reservations(self, queue: str, tag: str) -> list[Reservation]:
        counted = ((name, self._count_held(queue, name), until) for name, until in self._lease_ends(queue, tag))
        return [Reservation(name, rows, None if until == NO_END else until) for name, rows, until in counted if rows]

    # --- between queues ---------------------------------------------------------------------------

    def _move(self, queue: str, to: str, selection: Selection, dead_letter: DeadLetterInfo | None) -> int:
        if selection.tag is None:
            members = self._find_free(queue, selection.ids)
        elif selection.ids is None and selection.min_tries:
            members = self._find_exhausted(queue, selection.tag, selection.min_tries)
        else:
            members = self._read_single_runs(queue, selection.tag, selection.ids)
        headers = b""
        if dead_letter:
            values = dead_letter.headers(queue, 0, self._now())
            del values["x-dl-tries"]  # each message has its own
            headers = orjson.dumps({name: orjson.dumps(value).decode() for name, value in values.items()})
        target, death = self._keys(to), dead_letter or DeadLetterInfo()
        arguments = death.failed, death.history, consumer_of(selection.tag) or "", headers
        target_keys = (target.moments, target.hash, target.buckets, *self._list_keys(to))
        limit = NO_END if selection.limit is None else selection.limit
        position = moved = 0
        while position < len(members) and moved < limit:
            chunk = members[position : position + self.limits.script_chunk]
            limits = limit - moved, selection.min_tries
            done, last, limit_met = self._run("move", queue, *limits, *arguments, *chunk, extra_keys=target_keys)
            moved += done
            if limit_met:
                break
            position = members.index(last, position) + 1 if last else position + len(chunk)
        return moved

    def _find_exhausted(self, queue: str, tag: str, tries: int) -> list[bytes]:
        """Return the messages of a tag and of the tags below it that have at least `tries` tries.

        They are in order, each as a run of one message. Raises `StoreError`.
        """
        found: list[bytes] = []
        for some in batch_by_size(
            self._read_runs(queue, tag), (self.limits.script_chunk,), lambda run: (len(ids_of(run)),)
        ):
            left = some
            while left:
                exhausted, last = self._run("exhausted", queue, tries, *left)
                found += exhausted
                members = [single_run(*one) for run in left for one in messages_of(run)] if last else []
                left = members[members.index(last) + 1 :] if last else []
        return sorted(found, key=due_and_id)

    def _find_free(self, queue: str, ids: Iterable[str] | None = None) -> list[bytes]:
        """Return the messages that no tag holds, or those of `ids`, in order.

        Each is a run of one message, with an empty tag. Raises `StoreError`.
        """
        self._sweep_expired(queue)
        free, _, _ = self._snapshot(queue, None if ids is None else [key for id in ids for key in keys_of_id(id)])
        return [single_run("", due, id) for due, id in sorted(free)]

    # --- statistics and pause ---------------------------------------------------------------------

    def _statistics_key(self, queue: str) -> str:
        """Return the key of a queue's statistics: keuss' own key."""
        return f"keuss:stats:{self.ns}:{queue}"

    def _count(self, counts: Counts) -> None:
        with self._cluster_connection() as client:
            pipeline = client.pipeline(transaction=False)
            for queue, acts in counts.items():
                self._register_queue(pipeline, queue)
                for act, number in acts.items():
                    pipeline.hincrby(self._statistics_key(queue), f"counter_{act}", number)
            pipeline.execute()

    def _statistics(self, queues: Sequence[str] | None) -> dict[str, Statistics]:
        start = self._statistics_key("")
        with self._cluster_connection() as client:
            keys = [self._statistics_key(queue) for queue in queues or ()]
            if queues is None:
                keys += (
                    key.decode() for key in client.scan_iter(match=_escape_pattern(start) + "?*", count=PAGE_ROWS)
                )
            pipeline = client.pipeline(transaction=False)
            for key in keys:
                pipeline.hgetall(key)
            found = dict(zip(keys, pipeline.execute(), strict=True))
        return {
            key.removeprefix(start): Statistics.from_counts(
                {name.decode().removeprefix("counter_"): value for name, value in fields.items()},
                fields.get(b"paused") == b"true",
            )
            for key, fields in found.items()
            if fields
        }

    def _set_paused(self, queue: str, paused: bool) -> None:
        with self._cluster_connection() as client:
            pipeline = client.pipeline(transaction=False)
            self._register_queue(pipeline, queue)
            pipeline.hset(self._statistics_key(queue), "paused", "true" if paused else "false")
            pipeline.execute()

    def _register_queue(self, pipeline: Any, queue: str) -> None:
        for name, value in (("name", queue), ("ns", self.ns), ("opts", "{}")):
            pipeline.hsetnx(self._statistics_key(queue), name, value)

    def _delete_statistics(self, queue: str) -> None:
        with self._cluster_connection() as client:
            client.unlink(self._statistics_key(queue))

    # --- notes ------------------------------------------------------------------------------------

    def _note(self, key: str) -> RawNote | None:
        with self._cluster_connection() as client:
            return _to_note(*client.hmget(note_key(key, self.layout_name), *NOTE_FIELDS))

    def _notes_of(self, keys: Sequence[str]) -> dict[str, RawNote]:
        with self._cluster_connection() as client:
            pipeline = client.pipeline(transaction=False)
            for key in keys:
                pipeline.hmget(note_key(key, self.layout_name), *NOTE_FIELDS)
            found = {key: _to_note(*fields) for key, fields in zip(keys, pipeline.execute(), strict=True)}
        return {key: note for key, note in found.items() if note}

    def _set_note(self, key: str, value: dict[str, Any] | None, version: int) -> bool:
        text = b"" if value is None else orjson.dumps(value)
        with self._cluster_connection() as client:
            return bool(_call_script(client, self._script("note"), [note_key(key, self.layout_name)], text, version))

    def _notes(self, prefix: str) -> dict[str, RawNote]:
        start = len(note_key("", self.layout_name))
        with self._cluster_connection() as client:
            pattern = note_key(_escape_pattern(prefix), self.layout_name) + "*"
            keys = list(client.scan_iter(match=pattern, count=PAGE_ROWS))
            pipeline = client.pipeline(transaction=False)
            for key in keys:
                pipeline.hmget(key, *NOTE_FIELDS)
            found = {
                key.decode()[start:]: _to_note(*facts) for key, facts in zip(keys, pipeline.execute(), strict=True)
            }
        return {key: note for key, note in found.items() if note}  # one may have been removed in between

    # --- reading ----------------------------------------------------------------------------------

    def _now(self) -> int:
        with self._connection() as client:
            return _time_ms(client.time())

    def _server(self) -> str:
        with self._connection() as client:
            return f"redis {client.info('server').get('redis_version', 'of an unknown version')}"

    def eviction(self) -> str | None:
        return self._attempt(self._read_eviction)

    def _read_eviction(self) -> str | None:
        with self._connection() as client:
            return _eviction_policy(client)

    def _examine(self) -> list[Finding]:
        with self._connection() as client:
            facts = client.info()
            aof = bool(facts.get("aof_enabled"))
            try:
                policy = client.config_get("appendfsync").get("appendfsync")
            except redis.ResponseError:  # managed servers may refuse CONFIG
                policy = None
        if not aof:
            text = "off: a crash of the server loses all writes since the last snapshot"
            todo = "run CONFIG SET appendonly yes, and set appendonly in redis.conf"
        elif policy == "everysec":
            text = "on, synced every second: a crash of the machine loses the last second"
            todo = "run CONFIG SET appendfsync always if that is too much"
        elif policy == "no":
            text = "on, synced by the operating system: its crash may lose half a minute"
            todo = "run CONFIG SET appendfsync always, or everysec"
        else:
            text, todo = f"on, synced {'with every write' if policy else 'by an unknown policy'}", ""
        persistence = Finding("append-only file", "worry" if todo else "good", text, todo)
        evicted = _policy_of_info(facts)
        if not evicted:
            full_memory = Finding("full memory", "good", "nothing is evicted")
        else:
            all_of_it = eviction.evicts(evicted)
            what = "messages are" if all_of_it else "the history is"
            full_memory = Finding(
                "full memory", "bad" if all_of_it else "worry", f"{evicted}: {what} evicted when memory is full",
                "run CONFIG SET maxmemory-policy noeviction",
            )  # fmt: skip
        return [persistence, full_memory]

    def _sizes(self, queues: Sequence[str], limit: int | None) -> dict[str, Sizes]:
        with self._connection() as client:
            return self._read_sizes(client, queues, limit)[0]

    def _summary(self, request: SummaryRequest) -> Summary:
        def ask(pipeline: Any) -> None:
            for queue in request.queues:
                pipeline.hmget(self._statistics_key(queue), "name", "paused")
            for key in request.notes:
                pipeline.hmget(note_key(key, self.layout_name), *NOTE_FIELDS)

        with self._connection() as client:
            cluster = self._connections.cluster(client)
            is_cluster = cluster is not client
            sizes, found = self._read_sizes(client, request.places, request.limit, None if is_cluster else ask)
            if is_cluster:
                pipeline = cluster.pipeline(transaction=False)
                ask(pipeline)
                found = pipeline.execute()
        flags = zip(request.queues, found, strict=False)
        notes = zip(request.notes, found[len(request.queues) :], strict=True)
        return Summary(
            sizes,
            {queue: paused == b"true" for queue, (name, paused) in flags if name or paused},
            {key: note for key, fields in notes if (note := _to_note(*fields))},
        )

    def _read_sizes(
        self, client: Any, queues: Sequence[str], limit: int | None, ask: Callable[[Any], None] | None = None
    ) -> tuple[dict[str, Sizes], list[Any]]:
        """Return the sizes of queues by name, and the answers to what `ask` adds to the pipeline.

        Raises redis-py's `ResponseError` for an answer that is an error.
        """
        # Redis counts records at once, but has to look at each bucket and lease.
        most = 0 if limit is None else min(limit, MAX_COUNTED)
        in_cluster = self._connections.cluster(client) is not client  # then the keys of a call are of one queue
        parts = list(chunked(list(queues), 1 if in_cluster else SIZES_CHUNK))
        keys = [[key for queue in part for key in (*self._keys(queue), *self._list_keys(queue))] for part in parts]
        width = len(keys[0]) // len(parts[0]) if parts else 0
        answers = _call_on_each(client, self._script("sizes"), keys, most, width, ask=ask)
        for one in answers:
            if isinstance(one, redis.RedisError):
                raise one
        found: dict[str, Sizes] = {}
        counted = chain.from_iterable(answers[: len(parts)])
        for queue, answer in zip(queues, counted, strict=True):
            if not isinstance(answer, bytes):
                found[queue] = _to_sizes(answer)
            elif b"WRONGTYPE" not in answer:  # else another program uses the name
                raise redis.ResponseError(answer.decode(errors="replace"))
        return found, answers[len(parts) :]

    def _next_mature(self, queue: str) -> int | None:
        keys = self._keys(queue)
        with self._connection() as client:
            pipeline = client.pipeline(transaction=False)
            pipeline.time()
            pipeline.zrange(keys.moments, 0, 0, withscores=True)
            pipeline.zcount(keys.leases, NO_END, NO_END)
            for key in self._message_lists(queue)[:1]:  # of messages that can be reserved
                pipeline.llen(key)
            now, first, never, *lengths = pipeline.execute()
        if any(lengths):
            return 0
        if not first or (first[0][1] >= NO_END and never):
            return None
        return _score_ms(first[0][1]) - _time_ms(now)

    def _scan(self, step: ScanStep) -> Scanned:
        keys = self._keys(step.queue)
        return Scanner(step.queue, keys, self._connection, self._run, self._read_documents).read(
            step, self.limits.script_chunk
        )

    def _peek(
        self, queue: str, where: Sequence[Condition], view: View, rows: int, span: Span = WHOLE
    ) -> Iterator[Records]:
        if view == "history":
            yield from self._peek_history(queue, where, rows, span)
            return
        ids = _ids_in_conditions(where)
        if ids is not None:
            ids |= set(self._attempt(self._bucket_ids, queue))
        free, held, _ = self._attempt(self._snapshot, queue, ids, span)
        found = free + held
        if where:
            found = [
                (due, id)
                for due, id in found
                if id.startswith(BUCKET_ID_PREFIX)
                or (meets(where, "mature", int(due)) and meets(where, "id", id_of(id)))
            ]
        for part, documents in self._document_pages(queue, "messages", found, rows):
            page = filter_records(as_records(queue, part, documents), where)
            if page.batch.num_rows:
                yield page

    def _peek_history(self, queue: str, where: Sequence[Condition], rows: int, span: Span) -> Iterator[Records]:
        kept = [id for id in self._attempt(self._history_ids, queue) if _is_within(id, span)]
        ids = _ids_in_conditions(where)
        found = [(0, id) for id in kept if ids is None or id in ids or id.startswith(BUCKET_ID_PREFIX)]
        for part, entries in self._document_pages(queue, "history", found, rows):
            dues, processed, documents = zip(*map(read_entry, entries), strict=True)
            named = [(due, id) for due, (_, id) in zip(dues, part, strict=True)]
            page = filter_records(as_records(queue, named, documents, processed), where)
            if page.batch.num_rows:
                yield page

    def _sample(self, queue: str, view: View, size: int) -> Sample:
        keys = self._keys(queue)
        key = keys.processed if view == "history" else keys.moments
        with self._connection() as client:
            if view == "messages" and client.zcard(keys.buckets):
                return Sample()
            return Sample(sorted(client.zrandmember(key, size)), client.zcard(key))

    def _buckets(self, queue: str, id: str | None) -> Iterator[Records]:
        ids = self._attempt(self._bucket_ids, queue) if id is None else [id.encode()]
        free, held, _ = self._attempt(self._snapshot, queue, ids)
        for part, documents in self._document_pages(queue, "messages", sorted(free + held), PAGE_ROWS):
            yield as_records(queue, part, documents)

    def _bucket_ids(self, queue: str) -> list[bytes]:
        with self._connection() as client:
            if current_budget() is not None:
                spend(client.zcard(self._keys(queue).buckets))
            found: list[bytes] = client.zrange(self._keys(queue).buckets, 0, -1)
            return found

    def _history_ids(self, queue: str) -> list[bytes]:
        """Return the ids in the history. Raises `StoreError`."""
        with self._connection() as client:
            now = _time_ms(client.time())
            if current_budget() is not None:
                spend(client.zcard(self._keys(queue).processed))
            found: list[bytes] = client.zrangebyscore(self._keys(queue).processed, f"({now}", "+inf")
            return found

    def _snapshot(
        self, queue: str, ids: Iterable[bytes] | None = None, span: Span = WHOLE
    ) -> tuple[list[DueId], list[DueId], list[list[bytes]]]:
        """Return the free messages, the held ones, and the lists of messages, at one moment.

        Return all messages of a span, or those of `ids` in it. They are unordered. Each has its due
        time (ms), even if it is held. Raises `StoreError`.
        """
        keys, wanted = self._keys(queue), None if ids is None else list(ids)
        if wanted is not None and not wanted:
            return [], [], []
        with self._connection() as client:
            self._spend_snapshot(client, queue, wanted)
            for whole in (True, False):
                pipeline = client.pipeline(transaction=whole)
                if wanted is None:
                    pipeline.zrange(keys.moments, 0, -1, withscores=True)
                else:
                    pipeline.zmscore(keys.moments, wanted)
                pipeline.zrange(keys.held, 0, -1)
                pipeline.zrange(keys.leases, 0, -1, withscores=True)
                for key in self._message_lists(queue):
                    pipeline.lrange(key, 0, -1)
                try:
                    answers, runs, leases, *waiting = pipeline.execute()
                    break
                except redis.exceptions.OutOfMemoryError:  # a full server refuses transactions, but no reads
                    if not whole:
                        raise
            pairs = answers if wanted is None else zip(wanted, answers, strict=True)
            low, high = span.low or b"", span.high
            scores = {
                id: score for id, score in pairs if score is not None and id >= low and (high is None or id < high)
            }
            lease_ends: dict[bytes, set[float]] = {}
            for name, end in leases:
                lease_ends.setdefault(name.rstrip(b"\0"), set()).add(end)
            holders = {id: (tag, due) for run in runs for tag, due, id in messages_of(run)}
        held = {id: due for id, (tag, due) in holders.items() if scores.get(id) in lease_ends.get(tag, ())}
        free = [(_place(score), id) for id, score in scores.items() if id not in held]
        return free, [(due, id) for id, due in held.items()], waiting

    def _spend_snapshot(self, client: Any, queue: str, ids: Sequence[bytes] | None) -> None:
        """Spend the budget of a look for `_snapshot`, before that reads whole keys."""
        if current_budget() is None:
            return
        keys, lists = self._keys(queue), list(self._message_lists(queue))
        pipeline = client.pipeline(transaction=False)
        pipeline.zcard(keys.moments)
        for key in lists:
            pipeline.llen(key)
        for key in (keys.held, keys.leases, *lists):
            pipeline.memory_usage(key)
        indexed, *more = pipeline.execute(raise_on_error=False)  # a user may have no right to MEMORY
        in_lists, sizes = more[: len(lists)], more[len(lists) :]
        if ids is not None:
            indexed = len(ids)
        spend(indexed + sum(in_lists), sum(one for one in sizes if isinstance(one, int)))

    def _document_pages(
        self, queue: str, view: View, found: Sequence[DueId], rows: int
    ) -> Iterator[tuple[list[DueId], list[bytes]]]:
        """Yield rows that still exist, with their documents.

        At most `rows` and about PAGE_BYTES at a time.
        """
        at = 0
        while at < len(found):
            part = found[at : at + min(rows, PAGE_ROWS)]
            read_count, existing, documents = self._attempt(self._read_documents, queue, view, part)
            at += read_count
            if existing:
                yield existing, documents

    def _read_documents(self, queue: str, view: View, rows: Sequence[DueId]) -> tuple[int, list[DueId], list[bytes]]:
        """Read documents of the first rows, until they have about PAGE_BYTES.

        Return how many rows were read, those that still exist, and their documents. No script is
        used: to pass a document through Lua takes the server twice as long. Raises `StoreError`.
        """
        keys = self._keys(queue)
        key = keys.history if view == "history" else keys.hash
        found: list[bytes | None] = []
        size, step = 0, 1
        with self._connection() as client:
            while len(found) < len(rows) and size < PAGE_BYTES:
                some = client.hmget(key, [id for _, id in rows[len(found) : len(found) + step]])
                found += some
                got = sum(map(len, filter(None, some)))
                spend(size=got)
                size += got
                fits = (PAGE_BYTES - size) * len(found) // (size + 1)  # if they have the same size
                step = max(1, min(READ_BATCH, fits))
        existing = list(rows[: len(found)])
        documents = [one for one in found if one is not None]
        if len(documents) < len(existing):
            existing = [row for row, one in zip(existing, found, strict=True) if one is not None]
        return len(found), existing, documents

    def _queues(self) -> list[str]:
        keys = self._keys("*")
        found: set[str] = set()
        with self._connection() as client:
            for pattern in (keys.moments, keys.history, *self._message_lists("*")):
                head, tail = pattern.split("*")
                for key in client.scan_iter(match=pattern, count=PAGE_ROWS, _type=expected_type(pattern)):
                    found.add(key.decode().removeprefix(head).removesuffix(tail))
        return list(found)

    # --- housekeeping -----------------------------------------------------------------------------

    def _purge(self, queue: str, ids: Sequence[str] | None) -> int:
        return self._settle_runs("commit", queue, ("", 0, "", ""), self._find_free(queue, ids))

    def _delete_history(self, queue: str, ids: Sequence[str]) -> int:
        keys, removed = self._keys(queue), 0
        with self._connection() as client:
            for start in range(0, len(ids), self.limits.script_chunk):
                some = [key for id in ids[start : start + self.limits.script_chunk] for key in keys_of_id(id)]
                with client.pipeline() as pipeline:
                    pipeline.hdel(keys.history, *some)
                    pipeline.zrem(keys.processed, *some)
                    removed += pipeline.execute()[0]
        return removed

    def _drop(self, queue: str) -> None:
        self._check_is_queue(queue)
        with self._connection() as client:
            client.unlink(*self._keys(queue))


# --- talking to the server ------------------------------------------------------------------------


def _eviction_policy(client: Any) -> str | None:
    """Return the eviction policy; `None` if the user may not call INFO.

    INFO is used, since many users may not call CONFIG.
    """
    try:
        return _policy_of_info(client.info("memory"))
    except redis.ResponseError:  # this user may not call INFO either
        return None


def _policy_of_info(facts: Mapping[str, Any]) -> str:
    """Return the policy by which keys are evicted; an empty text if none are."""
    policy = str(facts.get("maxmemory_policy", "noeviction"))
    return policy if policy != "noeviction" and facts.get("maxmemory") else ""


def _call_script(client: Any, script: tuple[str, str], keys: Sequence[str], *arguments: Any) -> Any:
    digest, text = script
    try:
        return client.evalsha(digest, len(keys), *keys, *arguments)
    except redis.exceptions.NoScriptError:  # the first call since the server started
        return client.eval(text, len(keys), *keys, *arguments)


def _call_on_each(
    client: Any,
    script: tuple[str, str],
    keys: Sequence[Sequence[str]],
    *arguments: Any,
    ask: Callable[[Any], None] | None = None,
) -> list[Any]:
    """Call a script that only reads, once for each list of keys, in one round trip.

    `ask` adds commands to the pipeline. Return the answers. Some may be errors.
    """
    digest, text = script
    answers: list[Any] = []
    for loads in (False, True):  # the server knows no script at the first call since it started
        pipeline = client.pipeline(transaction=False)
        for number, some in enumerate(keys):
            if loads and not number:
                pipeline.eval(text, len(some), *some, *arguments)
            else:
                pipeline.evalsha(digest, len(some), *some, *arguments)
        if ask is not None:
            ask(pipeline)
        answers = pipeline.execute(raise_on_error=False)
        if not any(isinstance(one, redis.exceptions.NoScriptError) for one in answers):
            break
    return answers


# --- plain values ---------------------------------------------------------------------------------

#: The prefix of ids of buckets.
BUCKET_ID_PREFIX = BUCKET_PREFIX.encode()

#: A document that keuss has reserved contains this.
KEUSS_RESERVED = b'reserved":true'


def _lease_argument(lease: int | None) -> str | int:
    return "" if lease is None else lease


def _score_ms(score: float) -> int:
    """Return a score as a time (ms) within our range; other programs may write any score."""
    return int(min(max(score, -NO_END), NO_END))


def _place(score: float) -> float:
    """Return a score as a time within our range (ms, with parts)."""
    return math.floor(min(max(score, -NO_END), NO_END) * PARTS) / PARTS


def _to_sizes(answer: Sequence[Any]) -> Sizes:
    """Return the sizes from the answer of sizes.lua."""
    # An answer ends before its first nil, which is `first` in an empty queue.
    now, ready, scheduled, reserved, *more, more_leases, first = (*answer, None)[:9]
    capped = {state for state, is_more in zip(("ready", "scheduled", "reserved"), more, strict=True) if is_more}
    if more_leases:  # those that are not counted hold some of the others
        scheduled, capped = 0, capped | {"scheduled", "reserved"}
    wait = None if first is None or float(first) >= NO_END else _score_ms(float(first)) - now
    age = None
    if ready and first is not None:
        age, wait = now - _score_ms(float(first)), min(0, wait or 0)
    return Sizes(ready, scheduled, reserved, age, frozenset(capped), wait)


def _time_ms(time: tuple[int, int]) -> int:
    """Return an answer of TIME in ms."""
    return time[0] * 1000 + time[1] // 1000


def _to_note(value: bytes | None, version: bytes | None, written: bytes | None) -> RawNote | None:
    return RawNote(value, int(version), int(written) if written else None) if value and version else None


def _escape_pattern(text: str) -> str:
    """Return a pattern of SCAN that matches only this text."""
    return re.sub(r"[]\\*?[]", r"\\\g<0>", text)


def _is_within(id: bytes, span: Span) -> bool:
    return (span.low is None or id >= span.low) and (span.high is None or id < span.high)


def _ids_in_conditions(where: Sequence[Condition]) -> set[bytes] | None:
    """Return the only ids that can meet the conditions; `None` if no condition names ids."""
    named = []
    for one in where:
        if one.column == "id" and one.op in ("=", "in"):
            named.append({key for id in one.values if isinstance(id, str) for key in keys_of_id(id)})
    return set.intersection(*named) if named else None
