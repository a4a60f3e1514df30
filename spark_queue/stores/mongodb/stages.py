"""Stages in MongoDB: messages that are not visible yet, and the step that publishes them.

They lie in the collection `spark_queue.staged`, in chunks of some thousands:

    _id         {stage, part, queue, rows, bytes}. It sorts by stage and part. Lists need only this.
    ids, docs   The `_id` of each message, and the documents as they enter the queue.
    generation, taken, shown    The progress of a publish without transactions.

A **transaction** moves one chunk, or several small ones, into the queue. The messages appear in one
step, and a second publisher finds the chunk gone. A killed publisher may leave its transaction
open. Then the next publisher would wait until the server ends it. So publishers register their
sessions, in a document of the same collection:

    _id         The stage.
    sessions    The sessions that publish it.

A publisher that waits too long for a chunk ends the sessions of the others. Those that still run
start again.

**Without transactions** messages are inserted hidden, then the chunk is marked as shown. Only then
they become visible, one after the other. Before the mark every publisher inserts missing messages;
after it no publisher inserts any. So a message that is reserved in between does not appear twice.

Each publisher that takes over a chunk begins a new *generation* of it. A slow publisher then does
no harm: it cannot set the mark, and it inserts messages of a generation that is never shown. It
removes them. If it is killed before, they stay hidden, and any message with the same id replaces
them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import bson
from bson import MaxKey
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo import ReturnDocument, UpdateOne
from pymongo.client_session import ClientSession
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import BulkWriteError, OperationFailure, PyMongoError, WriteConcernError
from pymongo.read_concern import ReadConcern

from spark_queue.errors import StoreUnavailable
from spark_queue.messages.batching import batch_by_size
from spark_queue.stores.mongodb.bson_json import CODEC
from spark_queue.stores.mongodb.documents import (
    ID_HINT,
    NO_END_DATE,
    Document,
    Filter,
    MessageCounter,
    insert,
    insert_new,
    only_duplicates,
)
from spark_queue.stores.mongodb.limits import MongoLimits
from spark_queue.stores.types import Staged, tag_range

#: The prefix of our own collections. No queue may have it.
OWN_PREFIX = "spark_queue."
STAGED = "staged"

#: Most bytes of a chunk and of a transaction. A larger message has its own chunk.
CHUNK_BYTES = 8 << 20

#: Most stages that are published in parallel.
MAX_PARALLEL_STAGES = 4

#: Passes documents on without decoding them.
RAW_CODEC: CodecOptions[Any] = CODEC.with_options(document_class=RawBSONDocument)

#: Matches chunks that no publish without transactions has begun.
UNTOUCHED: Filter = {"generation": None}

#: Error codes of the server.
WRITE_CONFLICT, INTERRUPTED = 112, 11601


class Stages:
    """The stages of one database, for one operation.

    `get_collection` returns the collection of a queue, with its indexes. `attempt` calls a
    function, and again while the database is unavailable. `name` is the collection of the chunks.
    `note_insert` gets the name of a collection, and an `_id` that was inserted.
    """

    def __init__(
        self,
        database: Database[Document],
        get_collection: Callable[[str], Collection[Document]],
        attempt: Callable[..., Any],
        retry_timeout: int,
        name: str,
        count: MessageCounter,
        note_insert: Callable[[str, Any], None],
        limits: MongoLimits,
    ) -> None:
        self._count, self._note_insert = count, note_insert
        self._chunk_size = limits.stage_chunk, CHUNK_BYTES
        self._client = database.client
        self._chunks = database[name]
        self._raw = database.get_collection(name, codec_options=RAW_CODEC)
        self._get_collection, self._attempt = get_collection, attempt
        self._publisher_timeout = min(limits.publisher_timeout, retry_timeout / 3000)

    # --- in and out -------------------------------------------------------------------------------

    def put(
        self, queue: str, stage: str, part: str, documents: Iterable[Document], session: ClientSession | None
    ) -> None:
        """Keep the documents as that part of the stage. May be repeated."""
        encoded = ((one, bson.encode(one, codec_options=CODEC)) for one in documents)
        chunks: list[Document] = []
        for some in batch_by_size(encoded, self._chunk_size, lambda one: (1, len(one[1]))):
            name = f"{part}.{len(chunks):06}"
            size = sum(len(one) for _, one in some)
            ids, docs = [one["_id"] for one, _ in some], [RawBSONDocument(one) for _, one in some]
            rows = self._count(ids, [one for one, _ in some])
            key = {"stage": stage, "part": name, "queue": queue, "rows": rows, "bytes": size}
            chunks.append({"_id": key, "ids": ids, "docs": docs})
        try:
            self._chunks.insert_many(chunks, ordered=False, session=session)
        except BulkWriteError as error:  # a first attempt may have inserted them
            if not only_duplicates(error):
                raise

    def list_staged(self, stage: str) -> list[Staged]:
        """Return what the stage and those below it hold, by stage and queue; "" is all stages."""
        rows: Counter[tuple[str, str]] = Counter()
        for key in self._chunk_keys(_subtree_filter(stage)):
            rows[key["stage"], key["queue"]] += key["rows"]
        return [Staged(*name, number) for name, number in rows.items()]

    def publish(self, stages: Sequence[str], transactions: bool) -> dict[str, int]:
        """Make the messages of the stages visible; return their number by queue."""
        keys = [key for stage in stages for key in self._chunk_keys(_stage_filter(stage))]
        for queue in {key["queue"] for key in keys}:
            self._attempt(self._get_collection, queue)  # before any message is visible: it may be no queue
        published: Counter[str] = Counter({key["queue"]: 0 for key in keys})
        if keys and transactions:
            groups = batch_by_size(keys, self._chunk_size, lambda key: (key["rows"], key["bytes"]))
            published.update(self._publish_groups(list(groups)))
            keys = self._attempt(self._chunk_keys, {"_id": {"$in": keys}})  # begun without transactions
        for key in keys:
            published[key["queue"]] += self._attempt(self._publish_without_transaction, key)
        self._attempt(self._chunks.delete_many, {"_id": {"$in": list(stages)}})  # sessions
        return published

    def remove(self, stage: str, keep: Sequence[str]) -> int:
        """Remove the stage and those below it, but not those to keep; return the number of rows.

        Raises `StoreUnavailable` while another process publishes one of them without transactions.
        """
        keys = [key for key in self._chunk_keys(_subtree_filter(stage)) if key["stage"] not in keep]
        first, end = tag_range(stage)
        query: Filter = {
            "$or": [{"_id": stage}, {"_id": {"$gte": first, "$lt": end}}],
            "$nor": [{"_id": {"$in": list(keep)}}],
        }
        self._end_publishers(query)  # their open transactions would block the deletes
        self._chunks.delete_many({"_id": {"$in": keys}, **UNTOUCHED})
        begun = self._chunk_keys({"_id": {"$in": keys}})
        left = sum(int(key["rows"]) - self._remove_begun_chunk(key) for key in begun)
        self._chunks.delete_many(query)
        return sum(int(key["rows"]) for key in keys) - left

    def _chunk_keys(self, query: Filter) -> list[Document]:
        return [one["_id"] for one in self._chunks.find(query, {"_id": 1}, **ID_HINT).sort("_id", 1)]

    # --- with transactions ------------------------------------------------------------------------

    def _publish_groups(self, groups: list[list[Document]]) -> Counter[str]:
        """Publish groups of chunks: different stages in parallel, the groups of one in order."""
        lanes: list[list[list[Document]]] = []
        for group in groups:
            if lanes and lanes[-1][-1][-1]["stage"] == group[0]["stage"]:
                lanes[-1].append(group)
            else:
                lanes.append([group])

        def publish_lane(lane: list[list[Document]]) -> Counter[str]:
            stages = {key["stage"] for group in lane for key in group}
            with self._publisher(sorted(stages)) as session:
                return sum((self._publish_in_transaction(group, session) for group in lane), Counter())

        if len(lanes) == 1:
            return publish_lane(lanes[0])
        with ThreadPoolExecutor(min(len(lanes), MAX_PARALLEL_STAGES), "spark_queue publish") as pool:
            done = [pool.submit(publish_lane, lane) for lane in lanes]
            try:
                return sum((one.result() for one in done), Counter())
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    @contextmanager
    def _publisher(self, stages: list[str]) -> Iterator[ClientSession]:
        """Yield a session that is registered as a publisher of the stages."""
        with self._client.start_session() as session:
            entry = {"sessions": session.session_id}
            registrations = [UpdateOne({"_id": one}, {"$addToSet": entry}, upsert=True) for one in stages]
            self._attempt(self._chunks.bulk_write, registrations, False)
            try:
                yield session
            except BaseException:
                with suppress(PyMongoError):  # the pool reuses it: no publisher may end it
                    self._chunks.update_many({"_id": {"$in": stages}}, {"$pull": entry})
                raise

    def _publish_in_transaction(self, keys: list[Document], session: ClientSession) -> Counter[str]:
        """Publish the chunks that still exist, in one transaction; return the messages by queue."""
        queues = {name: self._attempt(self._get_collection, name) for name in {key["queue"] for key in keys}}
        end = time.monotonic() + self._publisher_timeout
        published: Counter[str] = Counter()
        last_ids: dict[str, Any] = {}  # by the name of a collection

        def publish_once() -> Counter[str]:
            with session.start_transaction(read_concern=ReadConcern("snapshot")):
                found = self._raw.find({"_id": {"$in": keys}, **UNTOUCHED}, session=session, **ID_HINT)
                chunks = list(found.sort("_id", 1))
                self._raw.delete_many({"_id": {"$in": [one["_id"] for one in chunks]}}, session=session)
                published.clear()
                for name, queue in queues.items():
                    queue_chunks = [one for one in chunks if one["_id"]["queue"] == name]
                    ids = [id for one in queue_chunks for id in one["ids"]]
                    docs = [doc for one in queue_chunks for doc in one["docs"]]
                    published[name] = insert_new(queue, ids, docs, session, self._count)
                    if ids:
                        last_ids[queue.name] = ids[-1]
                        self._note_insert(queue.name, ids[-1])
            for name, id in last_ids.items():  # again: a check within the transaction has not seen them
                self._note_insert(name, id)
            return published

        def publish_or_end_others() -> Counter[str]:
            nonlocal end
            try:
                return publish_once()
            except WriteConcernError as error:
                if error.code != INTERRUPTED:
                    raise
                _wait_until_durable(session)
                return published
            except OperationFailure as error:
                if error.code == INTERRUPTED:
                    stages = ", ".join(sorted({f"stage {key['stage']!r}" for key in keys}))
                    raise StoreUnavailable(
                        f"another process is publishing {stages}: it assumed that this process had ended"
                    ) from error
                if error.code != WRITE_CONFLICT or time.monotonic() < end:
                    raise
                self._end_publishers({"_id": {"$in": [key["stage"] for key in keys]}}, session)
                self._publisher_timeout *= 2  # so that one of two running publishers succeeds
                end = time.monotonic() + self._publisher_timeout
            return publish_or_end_others()

        result: Counter[str] = self._attempt(publish_or_end_others)
        return result

    def _end_publishers(self, query: Filter, own_session: ClientSession | None = None) -> None:
        """End the sessions that publish these stages, except `own_session`."""
        sessions = [session for one in self._chunks.find(query) for session in one["sessions"]]
        others = [one for one in sessions if own_session is None or one != own_session.session_id]
        if others:
            with suppress(OperationFailure):  # if it is not allowed, the server ends them later
                self._client.admin.command("killSessions", others)

    # --- without transactions ---------------------------------------------------------------------

    def _publish_without_transaction(self, key: Document) -> int:
        """Publish a chunk, or its missing messages; return how many messages became visible.

        Raises `StoreUnavailable` while another process publishes it.
        """
        queue, query = self._get_collection(key["queue"]), {"_id": key}
        stale = {"$expr": {"$lt": ["$taken", {"$subtract": ["$$NOW", round(self._publisher_timeout * 1000)]}]}}
        chunk = self._raw.find_one_and_update(
            {**query, "shown": None, **stale},
            {"$inc": {"generation": 1}, "$currentDate": {"taken": True}},
            return_document=ReturnDocument.AFTER,
        )
        if chunk is not None:
            generation = chunk["generation"]
            _insert_hidden(queue, chunk["ids"], chunk["docs"], key["part"], generation)
            self._note_insert(queue.name, chunk["ids"][-1])
            self._chunks.update_one({**query, "generation": generation}, {"$set": {"shown": True}})
        found = self._chunks.find_one(query, {"docs": 0})
        if found is None:
            if chunk is not None:
                self._delete_chunk(key, chunk["ids"])  # another publisher was faster
            return 0
        if "shown" not in found:
            if chunk is not None:  # another process has taken the chunk over: give it more time
                self._publisher_timeout *= 2
            raise StoreUnavailable(
                f"another process is publishing stage {key['stage']!r}: try again later", stage=key["stage"]
            )
        shown = queue.update_many(
            {**_hidden_filter(found["ids"], key["part"]), "_hidden.generation": found["generation"]},
            [{"$set": {"mature": "$_mature"}}, {"$unset": ["processed", "_mature", "_hidden"]}],
            **ID_HINT,
        ).modified_count
        self._delete_chunk(key, found["ids"] if found["generation"] > 1 else [])
        return shown

    def _remove_begun_chunk(self, key: Document) -> int:
        """Remove a chunk and return its number of rows; publish a partly visible one and return 0.

        Raises `StoreUnavailable` while another process publishes it.
        """
        found = self._chunks.find_one_and_update({"_id": key, "shown": None}, {"$inc": {"generation": 1}}, {"ids": 1})
        if found is None:
            self._publish_without_transaction(key)
            return 0
        self._delete_chunk(key, found["ids"])
        return int(key["rows"])

    def _delete_chunk(self, key: Document, ids: Sequence[Any]) -> None:
        """Remove a chunk, then its messages that are still hidden: no publisher will show them."""
        self._chunks.delete_one({"_id": key})
        if ids:
            self._get_collection(key["queue"]).delete_many(_hidden_filter(ids, key["part"]), **ID_HINT)


def _wait_until_durable(session: ClientSession) -> None:
    """Wait until a committed transaction is durable, even if other publishers interrupt the wait.

    They do so while they assume that this publisher is dead, until they see what it has committed.
    """
    while True:
        try:
            return session.commit_transaction()
        except WriteConcernError as error:
            if error.code != INTERRUPTED:
                raise


def _insert_hidden(
    queue: Collection[Document], ids: Sequence[Any], documents: Sequence[Document], part: str, generation: int
) -> None:
    """Insert the documents as hidden messages of this generation, unless their ids are visible.

    To readers they look like history with a date in the far future: not even keuss delivers them.
    """
    marks = {"mature": NO_END_DATE, "processed": NO_END_DATE, "_hidden": {"part": part, "generation": generation}}
    hidden = [{**one, **marks, "_mature": one["mature"]} for one in documents]
    insert(queue, hidden, replaceable={"_hidden.part": {"$ne": part}})
    older = {**_hidden_filter(ids, part), "_hidden.generation": {"$lt": generation}}
    queue.update_many(older, {"$set": {"_hidden.generation": generation}}, **ID_HINT)


def _hidden_filter(ids: Iterable[Any], part: str) -> Document:
    return {"_id": {"$in": list(ids)}, "_hidden.part": part}


def _stage_filter(stage: str) -> Filter:
    """Return a filter for the chunks of one stage."""
    return {"_id": {"$gte": {"stage": stage}, "$lt": {"stage": stage, "part": MaxKey()}}}


def _subtree_filter(stage: str) -> Filter:
    """Return a filter for the chunks of a stage and of those below it; "" matches all."""
    if not stage:
        return {"_id": {"$type": "object"}}
    first, end = tag_range(stage)
    return {"$or": [_stage_filter(stage), {"_id": {"$gte": {"stage": first}, "$lt": {"stage": end}}}]}
