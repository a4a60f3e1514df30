"""Stages in MongoDB: messages that nobody sees yet, and the step that shows them.

They lie in the collection `spark_queue.staged`, in chunks of some thousands:

    _id         {stage, part, queue, rows, bytes}, which sorts by stage and part; lists need nothing else
    ids, docs   the messages as documents of their queue, which are relayed as they are, and the `_id` of each
    generation, taken, shown    how far a publish without transactions has come

A **transaction** moves one chunk, or several small ones, into the queue: its messages appear in one step, and
whoever comes second finds the chunk gone. One that a killed publisher left open would keep the next waiting until
the server ends it, so the publishers of a stage are known by their sessions, in a document of the same collection:

    _id         the stage
    sessions    those that publish it

and whoever waits too long for a chunk ends the sessions of the others. One that lives starts again.

**Without transactions** messages are inserted hidden, then the chunk is marked as shown, and only then they become
visible, one after the other. Before the mark every publisher inserts what is missing; after it nobody inserts any
more, so none appears a second time when it has been taken in between. Each publisher that takes over a chunk begins
a new *generation* of it. One that was merely slow can do no harm then: it cannot set the mark, and the messages it
still inserts belong to a generation that nobody will show. It removes them; if it dies before, they stay, and are in
nobody's way: a hidden message makes way for any other with its id.
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
from spark_queue.messages.batching import grouped
from spark_queue.stores.mongodb.bson_json import CODEC
from spark_queue.stores.mongodb.documents import (
    BY_ID,
    NO_END_DATE,
    Document,
    Filter,
    Weigh,
    insert,
    insert_new,
    only_duplicates,
    weight,
)
from spark_queue.stores.types import Staged, below

#: What begins so is ours, and no queue.
OWN = "spark_queue."
STAGED = "staged"

#: Most messages, and bytes, of one chunk, and of one transaction. A message that is larger has a chunk of its own.
CHUNK_ROWS, CHUNK_BYTES = 5_000, 8 << 20

#: Stages that are published side by side.
LANES = 4

#: Seconds until a publisher that keeps others waiting is taken for dead; twice as many after each time.
PUBLISHER_TIMEOUT = 1.5

#: Hands documents on without reading them.
RAW: CodecOptions[Any] = CODEC.with_options(document_class=RawBSONDocument)

#: A chunk that no publish without transactions has begun with.
UNTOUCHED: Filter = {"generation": None}

#: Error codes of the server.
WRITE_CONFLICT, INTERRUPTED = 112, 11601


class Stages:
    """The stages of one database, for one operation.

    `queue` gives the collection of a queue, with its indexes; `attempt` calls again while that may help; `name` is
    that of the collection where they lie.
    """

    def __init__(
        self,
        database: Database[Document],
        queue: Callable[[str], Collection[Document]],
        attempt: Callable[..., Any],
        patience: float,
        name: str = OWN + STAGED,
        weigh: Weigh = weight,
    ) -> None:
        self._weigh = weigh
        self._client = database.client
        self._chunks = database[name]
        self._raw = database.get_collection(name, codec_options=RAW)
        self._queue, self._attempt = queue, attempt
        self._busy = min(PUBLISHER_TIMEOUT, patience / 3)

    # --- in and out ---------------------------------------------------------------------------------------------

    def put(
        self, queue: str, stage: str, part: str, documents: Iterable[Document], session: ClientSession | None
    ) -> None:
        """Keep the documents, as that part of the stage. May be repeated."""
        encoded = ((one, bson.encode(one, codec_options=CODEC)) for one in documents)
        chunks: list[Document] = []
        for some in grouped(encoded, (CHUNK_ROWS, CHUNK_BYTES), lambda one: (1, len(one[1]))):
            name = f"{part}.{len(chunks):06}"
            size = sum(len(one) for _, one in some)
            ids, docs = [one["_id"] for one, _ in some], [RawBSONDocument(one) for _, one in some]
            rows = self._weigh(ids, [one for one, _ in some])
            key = {"stage": stage, "part": name, "queue": queue, "rows": rows, "bytes": size}
            chunks.append({"_id": key, "ids": ids, "docs": docs})
        try:
            self._chunks.insert_many(chunks, ordered=False, session=session)
        except BulkWriteError as error:  # a first attempt may have inserted them
            if not only_duplicates(error):
                raise

    def held(self, stage: str) -> list[Staged]:
        """What the stage and those below it hold, or all stages."""
        rows: Counter[tuple[str, str]] = Counter()
        for key in self._keys(_tree(stage)):
            rows[key["stage"], key["queue"]] += key["rows"]
        return [Staged(*name, number) for name, number in rows.items()]

    def publish(self, stages: Sequence[str], transactions: bool) -> dict[str, int]:
        """Make messages of what the stages hold, and give their number by queue."""
        keys = [key for stage in stages for key in self._keys(_chunks_of(stage))]
        published: Counter[str] = Counter({key["queue"]: 0 for key in keys})
        if keys and transactions:
            groups = grouped(keys, (CHUNK_ROWS, CHUNK_BYTES), lambda key: (key["rows"], key["bytes"]))
            published.update(self._transfer_all(list(groups)))
            keys = self._attempt(self._keys, {"_id": {"$in": keys}})  # begun before there were transactions
        for key in keys:
            published[key["queue"]] += self._attempt(self._show, key)
        self._attempt(self._chunks.delete_many, {"_id": {"$in": list(stages)}})  # its publishers, dead ones included
        return published

    def remove(self, stage: str, keep: Sequence[str]) -> int:
        """Remove what the stage and those below it hold, but for the stages to keep; give the number of rows."""
        keys = [key for key in self._keys(_tree(stage)) if key["stage"] not in keep]
        first, end = below(stage)
        names: Filter = {
            "$or": [{"_id": stage}, {"_id": {"$gte": first, "$lt": end}}],
            "$nor": [{"_id": {"$in": list(keep)}}],
        }
        self._end_publishers(names)  # chunks in a transaction of theirs would keep us waiting
        self._chunks.delete_many({"_id": {"$in": keys}, **UNTOUCHED})
        begun = self._keys({"_id": {"$in": keys}})
        left = sum(int(key["rows"]) - self._withdraw(key) for key in begun)
        self._chunks.delete_many(names)
        return sum(int(key["rows"]) for key in keys) - left

    def _keys(self, which: Filter) -> list[Document]:
        return [one["_id"] for one in self._chunks.find(which, {"_id": 1}, **BY_ID).sort("_id", 1)]

    # --- with transactions --------------------------------------------------------------------------------------

    def _transfer_all(self, groups: list[list[Document]]) -> Counter[str]:
        """Publish groups of chunks, those of different stages side by side: within a stage the order counts."""
        lanes: list[list[list[Document]]] = []
        for group in groups:
            if lanes and lanes[-1][-1][-1]["stage"] == group[0]["stage"]:
                lanes[-1].append(group)
            else:
                lanes.append([group])

        def publish(lane: list[list[Document]]) -> Counter[str]:
            stages = {key["stage"] for group in lane for key in group}
            with self._publisher(sorted(stages)) as session:
                return sum((self._transfer(group, session) for group in lane), Counter())

        if len(lanes) == 1:
            return publish(lanes[0])
        with ThreadPoolExecutor(min(len(lanes), LANES), "spark_queue publish") as pool:
            done = [pool.submit(publish, lane) for lane in lanes]
            try:
                return sum((one.result() for one in done), Counter())
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    @contextmanager
    def _publisher(self, stages: Sequence[str]) -> Iterator[ClientSession]:
        """A session that is known to publish the stages."""
        with self._client.start_session() as session:
            names, me = list(stages), session.session_id
            known = [UpdateOne({"_id": one}, {"$addToSet": {"sessions": me}}, upsert=True) for one in names]
            self._attempt(self._chunks.bulk_write, known, False)
            try:
                yield session
            except BaseException:
                with suppress(PyMongoError):  # it goes back to the pool, and should be ended by nobody
                    self._chunks.update_many({"_id": {"$in": names}}, {"$pull": {"sessions": me}})
                raise

    def _transfer(self, keys: list[Document], session: ClientSession) -> Counter[str]:
        """Publish chunks in one transaction, those that are still there, and give the number of messages by queue."""
        queues = {name: self._attempt(self._queue, name) for name in {key["queue"] for key in keys}}
        end = time.monotonic() + self._busy
        published: Counter[str] = Counter()

        def transfer() -> Counter[str]:
            with session.start_transaction(read_concern=ReadConcern("snapshot")):
                found = self._raw.find({"_id": {"$in": keys}, **UNTOUCHED}, session=session, **BY_ID)
                chunks = list(found.sort("_id", 1))
                self._raw.delete_many({"_id": {"$in": [one["_id"] for one in chunks]}}, session=session)
                published.clear()
                for name, queue in queues.items():
                    here = [one for one in chunks if one["_id"]["queue"] == name]
                    ids = [id for one in here for id in one["ids"]]
                    docs = [doc for one in here for doc in one["docs"]]
                    published[name] = insert_new(queue, ids, docs, session, self._weigh)
            return published

        def insist() -> Counter[str]:
            nonlocal end
            try:
                return transfer()
            except WriteConcernError as error:
                if error.code != INTERRUPTED:
                    raise
                _wait_for_copies(session)
                return published
            except OperationFailure as error:
                if error.code == INTERRUPTED:
                    raise StoreUnavailable(
                        "another process publishes this stage now: it assumed that this process had died"
                    ) from error
                if error.code != WRITE_CONFLICT or time.monotonic() < end:
                    raise
                self._end_publishers({"_id": {"$in": [key["stage"] for key in keys]}}, session)
                self._busy *= 2  # of two that live, one gets through
                end = time.monotonic() + self._busy
            return insist()

        done: Counter[str] = self._attempt(insist)
        return done

    def _end_publishers(self, names: Filter, me: ClientSession | None = None) -> None:
        """End the sessions, but for my own, that publish such stages."""
        known = [session for one in self._chunks.find(names) for session in one["sessions"]]
        others = [one for one in known if me is None or one != me.session_id]
        if others:
            with suppress(OperationFailure):  # where it is not allowed, the server ends them in the end
                self._client.admin.command("killSessions", others)

    # --- without --------------------------------------------------------------------------------------------------

    def _show(self, key: Document) -> int:
        """Publish a chunk, or what is missing of it, and give the number of messages that became visible."""
        queue, which = self._queue(key["queue"]), {"_id": key}
        stale = {"$expr": {"$lt": ["$taken", {"$subtract": ["$$NOW", round(self._busy * 1000)]}]}}
        chunk = self._raw.find_one_and_update(
            {**which, "shown": None, **stale},
            {"$inc": {"generation": 1}, "$currentDate": {"taken": True}},
            return_document=ReturnDocument.AFTER,
        )
        if chunk is not None:
            generation = chunk["generation"]
            _insert_hidden(queue, chunk["ids"], chunk["docs"], key["part"], generation)
            self._chunks.update_one({**which, "generation": generation}, {"$set": {"shown": True}})
        found = self._chunks.find_one(which, {"docs": 0})
        if found is None:
            if chunk is not None:
                self._clear(key, chunk["ids"])  # they came too late
            return 0
        if "shown" not in found:
            if chunk is not None:  # somebody took us for dead: it has as long now
                self._busy *= 2
            raise StoreUnavailable(
                f"another process is publishing stage {key['stage']!r} just now", stage=key["stage"]
            )
        shown = queue.update_many(
            {**_hidden(found["ids"], key["part"]), "_hidden.generation": found["generation"]},
            [{"$set": {"mature": "$_mature"}}, {"$unset": ["processed", "_mature", "_hidden"]}],
            **BY_ID,
        ).modified_count
        self._clear(key, found["ids"] if found["generation"] > 1 else [])
        return shown

    def _withdraw(self, key: Document) -> int:
        """Remove a chunk and give the number of rows. One that is visible in part is published instead."""
        found = self._chunks.find_one_and_update({"_id": key, "shown": None}, {"$inc": {"generation": 1}}, {"ids": 1})
        if found is None:
            self._show(key)
            return 0
        self._clear(key, found["ids"])
        return int(key["rows"])

    def _clear(self, key: Document, ids: Sequence[Any]) -> None:
        """Remove a chunk, and then those of its messages that are still hidden: nobody will show them."""
        self._chunks.delete_one({"_id": key})
        if ids:
            self._queue(key["queue"]).delete_many(_hidden(ids, key["part"]), **BY_ID)


def _wait_for_copies(session: ClientSession) -> None:
    """Wait until a transaction that is committed is as durable as it has to be, though others end such a wait.

    They do so while they take its publisher for dead, and no more once they see what it has done.
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
    """Make the documents messages of this generation that nobody sees, but for those whose ids are visible.

    To whoever reads the queue they look like a history of the future: not even keuss would deliver them.
    """
    marks = {"mature": NO_END_DATE, "processed": NO_END_DATE, "_hidden": {"part": part, "generation": generation}}
    hidden = [{**one, **marks, "_mature": one["mature"]} for one in documents]
    insert(queue, hidden, instead={"_hidden.part": {"$ne": part}})
    older = {**_hidden(ids, part), "_hidden.generation": {"$lt": generation}}
    queue.update_many(older, {"$set": {"_hidden.generation": generation}}, **BY_ID)


def _hidden(ids: Iterable[Any], part: str) -> Document:
    return {"_id": {"$in": list(ids)}, "_hidden.part": part}


def _chunks_of(stage: str) -> Filter:
    """The chunks of one stage."""
    return {"_id": {"$gte": {"stage": stage}, "$lt": {"stage": stage, "part": MaxKey()}}}


def _tree(stage: str) -> Filter:
    """The chunks of a stage and of those below it, or all."""
    if not stage:
        return {"_id": {"$type": "object"}}
    first, end = below(stage)
    return {"$or": [_chunks_of(stage), {"_id": {"$gte": {"stage": first}, "$lt": {"stage": end}}}]}
