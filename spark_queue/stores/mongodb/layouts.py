"""Other layouts of keuss in MongoDB: the parameter `layout` of the URL selects them.

`ps-mongo` keeps processed messages for `ttl` seconds (3600): it is `mongo` with a history that is
always on. Messages that keuss processed are in the same history, until keuss' own index removes
them.

`pl-mongo` keeps the queues of a *pipeline* in one collection, which the parameter `pipeline` names
(`default`). Each document has

    _q          the name of its queue.

So one update moves a message to another queue, as the links of keuss do. The message is in exactly
one of the queues at every moment, on a standalone server too, and keeps its `_id`. An id therefore
names one message in the whole pipeline. A push of an id that another queue of it holds counts as a
repeat: that message has moved on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, cast

import pyarrow as pa
from bson import DatetimeMS, ObjectId
from pymongo import IndexModel, UpdateMany, UpdateOne
from pymongo.collection import Collection
from pymongo.command_cursor import CommandCursor
from pymongo.cursor import Cursor
from pymongo.errors import BulkWriteError
from pymongo.results import DeleteResult, UpdateResult

from spark_queue.errors import MessageError, OptionError
from spark_queue.messages.columns import fill_null_payloads
from spark_queue.stores.base import chunked
from spark_queue.stores.mongodb.bson_json import MAX_DOCUMENT_BYTES
from spark_queue.stores.mongodb.documents import (
    DUE,
    ID_HINT,
    INDEXES,
    OLD_INDEXES,
    RESERVATION_FIELDS,
    Document,
    Filter,
    dead_letter_headers,
    held_by,
)
from spark_queue.stores.mongodb.forms import Form, pipeline_form
from spark_queue.stores.mongodb.marks import HINTED_AGE
from spark_queue.stores.mongodb.stages import OWN_PREFIX
from spark_queue.stores.mongodb.store import COMMAND_CHUNK, DOCUMENT_TOO_LARGE, MongoStore
from spark_queue.stores.types import DeadLetterInfo, LayoutFeature, Selection

#: The largest `expireAfterSeconds` that MongoDB accepts: keuss gives its index the same `ttl`.
MAX_TTL = 2**31 - 1


class HistoryStore(MongoStore):
    """Queues that keep committed messages as history.

    Raises `OptionError` if `ttl` in the URL is not a whole number of seconds, or larger than
    MAX_TTL.
    """

    layout_name: ClassVar[str] = "ps-mongo"
    parameters: ClassVar[tuple[str, ...]] = (*MongoStore.parameters, "ttl")
    always_keeps_history: ClassVar[bool] = True

    def __init__(self, url: str, *, retry_timeout: int = 5_000) -> None:
        super().__init__(url, retry_timeout=retry_timeout)
        text = self._address.parameters.get("ttl", "3600")
        seconds = float(text) if text.isdecimal() else 0  # `int` refuses thousands of digits
        if not 1 <= seconds <= MAX_TTL:
            shown = self._address.masked_parameter("ttl")
            raise OptionError(f"option 'url': ttl={shown} must be a number of seconds, 1 to {MAX_TTL}", option="url")
        self._ttl = int(seconds) * 1000

    def _history(self, history: int) -> int:
        return history or self._ttl

    def _move(self, queue: str, to: str, selection: Selection, dead_letter: DeadLetterInfo | None) -> int:
        with_history = dead_letter and replace(dead_letter, history=self._history(dead_letter.history))
        return super()._move(queue, to, selection, with_history)


def _per_queue_index(index: IndexModel) -> IndexModel:
    """Return the index for a collection that holds several queues."""
    document = dict(index.document)
    keys = document.pop("key")
    single_field = "expireAfterSeconds" in document  # the server allows one field only
    return index if single_field else IndexModel([("_q", 1), *keys.items()], **document)


class PipelineStore(MongoStore):
    """The queues of one pipeline."""

    layout_name: ClassVar[str] = "pl-mongo"
    parameters: ClassVar[tuple[str, ...]] = (*MongoStore.parameters, "pipeline")
    ids_unique_per_store: ClassVar[bool] = True
    supports_forward: ClassVar[bool] = True
    unsupported: ClassVar[frozenset[LayoutFeature]] = frozenset({"buckets"})
    form: ClassVar[Form] = pipeline_form(
        tuple(map(_per_queue_index, INDEXES)), tuple(map(_per_queue_index, OLD_INDEXES))
    )

    def __init__(self, url: str, *, retry_timeout: int = 5_000) -> None:
        super().__init__(url, retry_timeout=retry_timeout)
        self.pipeline = self._address.parameters.get("pipeline", "default")
        self._own_prefix = f"{OWN_PREFIX}{self.layout_name}.{self.pipeline}."
        super().check_queue(self.pipeline)

    def check_queue(self, queue: str) -> None:
        super(MongoStore, self).check_queue(queue)  # the queue's name is not that of a collection

    def _collection_name(self, queue: str) -> str:
        return self.pipeline

    def _queue_fields(self, queue: str) -> Document:
        return {"_q": queue}

    def _queue_view(self, queue: str, *, create: bool = False, max_age: float = HINTED_AGE) -> Collection[Document]:
        # It has only those methods of a collection that this store calls.
        found = self._collection(queue, create=create, max_age=max_age)
        return cast("Collection[Document]", _QueueView(found, queue))

    def _move(self, queue: str, to: str, selection: Selection, dead_letter: DeadLetterInfo | None) -> int:
        if selection.limit == 0:
            return 0
        protected = selection.tag is not None or selection.ids is None
        collection = self._queue_view(queue, create=True, max_age=HINTED_AGE if protected else 0)
        now = self._now()
        if selection.tag is None:
            self._free_unseen(collection, now)
        state, moving = self._find_moving(collection, selection, now, to_dead_letters=dead_letter is not None)
        due = {"$cond": [{"$eq": [{"$type": "$mature"}, "date"]}, DUE, DatetimeMS(now)]}
        change: Document = {"_q": {"$literal": to}, "mature": due, "tries": 0}
        if dead_letter is not None:
            change["hdrs"] = dead_letter_headers(queue, state.pending_tries, dead_letter, now)
        update = [{"$set": change}, {"$unset": list(RESERVATION_FIELDS)}]
        moved = 0
        for part in chunked(moving, COMMAND_CHUNK):
            query = {**state.query, "_id": {"$in": part}}
            if dead_letter is not None:
                moved += self._attempt(self._move_large, queue, query, state.pending_tries, to, dead_letter, now)
            moved += self._attempt(collection.update_many, query, update).modified_count
        return moved

    def _move_large(
        self, queue: str, query: Filter, pending_tries: int, to: str, dead_letter: DeadLetterInfo, now: int
    ) -> int:
        """Make dead letters of messages that have no room for the reason; return their number."""
        collection, moved = self._collection(queue), 0
        large = {"$and": [{"_q": queue}, query, {"$expr": {"$gt": [{"$bsonSize": "$$ROOT"}, MAX_DOCUMENT_BYTES]}}]}
        for document in collection.find(large, **ID_HINT):
            (letter,) = self._moved_documents(document, queue, pending_tries, dead_letter, now)
            same = {"$and": [{"_q": queue}, query, {"_id": {"$eq": document["_id"]}}]}
            moved += collection.replace_one(same, {**letter, "_q": to}, **ID_HINT).modified_count
        return moved

    def _forward(self, queue: str, to: str, tag: str, batch: pa.RecordBatch) -> int:
        collection = self._collection(queue, create=True)
        payload, headers = batch.column("payload"), batch.column("headers")
        documents = self._documents(to, fill_null_payloads(batch), self._now())
        changes: list[UpdateOne | UpdateMany] = []
        unchanged: dict[tuple[DatetimeMS, int], list[ObjectId | str]] = {}
        changed_rows: list[int] = []  # those of the first changes
        rows = zip(documents, payload.is_valid().to_pylist(), headers.is_valid().to_pylist(), strict=True)
        for row, (document, new_payload, new_headers) in enumerate(rows):
            if not (new_payload or new_headers):
                unchanged.setdefault((document["mature"], document["tries"]), []).append(document["_id"])
                continue
            change = {"_q": to, "mature": document["mature"], "tries": document["tries"]}
            if new_payload:
                change["payload"] = document["payload"]
            if new_headers:
                change["hdrs"] = document["hdrs"]
            unset = RESERVATION_FIELDS
            if "_sid" in document:
                change["_sid"] = document["_sid"]
            else:
                unset = {**RESERVATION_FIELDS, "_sid": ""}  # that of a damaged record may have any value
            query = {**held_by(tag), "_q": queue, "_id": document["_id"]}
            changes.append(UpdateOne(query, {"$set": change, "$unset": unset}, **ID_HINT))
            changed_rows.append(row)
        for (mature, tries), keys in unchanged.items():
            query = {**held_by(tag), "_q": queue, "_id": {"$in": keys}}
            change = {"_q": to, "mature": mature, "tries": tries}
            changes.append(UpdateMany(query, {"$set": change, "$unset": RESERVATION_FIELDS}, **ID_HINT))
        try:
            return int(collection.bulk_write(changes, ordered=False).modified_count)
        except BulkWriteError as error:
            failed = error.details["writeErrors"]
            if {one["code"] for one in failed} != {DOCUMENT_TOO_LARGE} or error.details["writeConcernErrors"]:
                raise
            large = "its document would be larger than 16 MiB with what changes, which MongoDB does not allow"
            rules = {changed_rows[one["index"]]: large for one in failed}
            ids = ", ".join(repr(batch.column("id")[row].as_py()) for row in list(rules)[:3])
            raise MessageError(f"queue {to!r}, messages {ids}: {large}; they were not moved", rows=rules) from error

    def _queues(self) -> list[str]:
        return [] if self._is_foreign(self.pipeline) else list(self._database()[self.pipeline].distinct("_q"))

    def _find_foreign(self, queues: Iterable[str]) -> set[str]:
        return set(queues) if self._is_foreign(self.pipeline) else set()

    def _has_collection(self, queue: str) -> bool:
        return False  # it has others, too

    def _drop(self, queue: str) -> None:
        self._marks.read(self.pipeline, queue)
        collection = self._queue_view(queue)
        collection.delete_many({}, **self._hint(collection, self.form.indexes[0]))


class _QueueView:
    """One queue of a collection that holds several, with the methods of a collection of its own."""

    def __init__(self, collection: Collection[Document], queue: str) -> None:
        self._collection = collection
        self._queue_filter: Document = {"_q": queue}
        self.name = collection.name

    def find(self, query: Filter, *args: Any, **kwargs: Any) -> Cursor[Document]:
        return self._collection.find({**self._queue_filter, **query}, *args, **kwargs)

    def find_one(self, query: Filter, *args: Any, **kwargs: Any) -> Document | None:
        return self._collection.find_one({**self._queue_filter, **query}, *args, **kwargs)

    def count_documents(self, query: Filter, **kwargs: Any) -> int:
        return self._collection.count_documents({**self._queue_filter, **query}, **kwargs)

    def aggregate(self, steps: Sequence[Document], **kwargs: Any) -> CommandCursor[Document]:
        return self._collection.aggregate([{"$match": self._queue_filter}, *steps], **kwargs)

    def update_many(self, query: Filter, change: Any, **kwargs: Any) -> UpdateResult:
        return self._collection.update_many({**self._queue_filter, **query}, change, **kwargs)

    def delete_many(self, query: Filter, **kwargs: Any) -> DeleteResult:
        return self._collection.delete_many({**self._queue_filter, **query}, **kwargs)

    def index_information(self) -> Any:
        return self._collection.index_information()
