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

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, cast

import pyarrow as pa
from bson import DatetimeMS, ObjectId
from pymongo import IndexModel, UpdateMany, UpdateOne
from pymongo.collection import Collection
from pymongo.command_cursor import CommandCursor
from pymongo.cursor import Cursor
from pymongo.results import DeleteResult, UpdateResult

from spark_queue.errors import OptionError
from spark_queue.messages.columns import filled
from spark_queue.stores.mongodb.documents import BY_ID, DUE, FORGET, INDEXES, Document, Filter, dying, held_by, weight
from spark_queue.stores.mongodb.stages import OWN
from spark_queue.stores.mongodb.store import COMMAND_CHUNK, MongoStore, parts_of
from spark_queue.stores.types import Death, Lacking, Which


class HistoryStore(MongoStore):
    """Queues that keep committed messages as history.

    Raises `OptionError` if `ttl` in the URL is not a whole number of seconds.
    """

    kind: ClassVar[str] = "ps-mongo"
    parameters: ClassVar[tuple[str, ...]] = (*MongoStore.parameters, "ttl")
    remembers: ClassVar[bool] = True

    def __init__(self, url: str, *, patience: float = 5.0) -> None:
        super().__init__(url, patience=patience)
        text = self._address.ours.get("ttl", "3600")
        if not text.isdecimal() or not int(text):
            shown = self._address.shown("ttl")
            raise OptionError(f"option 'url': ttl={shown} must be a number of seconds, 1 or more", option="url")
        self._ttl = int(text) * 1000

    def _commit(self, queue: str, tag: str, ids: Sequence[str] | None, history: int, outcome: str) -> int:
        return super()._commit(queue, tag, ids, history or self._ttl, outcome)

    def _move(self, queue: str, to: str, which: Which, death: Death | None) -> int:
        kept = death and replace(death, history=death.history or self._ttl)
        return super()._move(queue, to, which, kept)


def _in_each_queue(index: IndexModel) -> IndexModel:
    """Return the index for a collection that holds several queues."""
    document = dict(index.document)
    keys = document.pop("key")
    alone = "expireAfterSeconds" in document  # the server allows one field only
    return index if alone else IndexModel([("_q", 1), *keys.items()], **document)


class PipelineStore(MongoStore):
    """The queues of one pipeline."""

    kind: ClassVar[str] = "pl-mongo"
    parameters: ClassVar[tuple[str, ...]] = (*MongoStore.parameters, "pipeline")
    one_id: ClassVar[bool] = True
    forwards: ClassVar[bool] = True
    lacks: ClassVar[frozenset[Lacking]] = frozenset({"buckets"})
    indexes: ClassVar[Sequence[IndexModel]] = tuple(map(_in_each_queue, INDEXES))

    def __init__(self, url: str, *, patience: float = 5.0) -> None:
        super().__init__(url, patience=patience)
        self.pipeline = self._address.ours.get("pipeline", "default")
        self._own = f"{OWN}{self.kind}.{self.pipeline}."
        super().check_queue(self.pipeline)

    def check_queue(self, queue: str) -> None:
        super(MongoStore, self).check_queue(queue)  # the queue's name is not that of a collection

    def _place(self, queue: str) -> str:
        return self.pipeline

    def _marks(self, queue: str) -> Document:
        return {"_q": queue}

    def _queue(self, queue: str, *, make: bool = False) -> Collection[Document]:
        # It has only those methods of a collection that this store calls.
        return cast("Collection[Document]", _Part(self._collection(queue, make=make), queue))

    def _move(self, queue: str, to: str, which: Which, death: Death | None) -> int:
        if which.limit == 0:
            return 0
        found = self._queue(queue, make=True)
        now = self._now()
        state, moving = self._moving(found, which, now, dies=death is not None)
        due = {"$cond": [{"$eq": [{"$type": "$mature"}, "date"]}, DUE, DatetimeMS(now)]}
        change: Document = {"_q": {"$literal": to}, "mature": due, "tries": 0}
        if death is not None:
            change["hdrs"] = dying(queue, state.ahead, death, now)
        moved = 0
        for part in parts_of(moving, COMMAND_CHUNK):
            where = {**state.which, "_id": {"$in": part}}
            done = self._attempt(found.update_many, where, [{"$set": change}, {"$unset": list(FORGET)}])
            moved += weight(part) if done.modified_count == len(part) else done.modified_count
        return moved

    def _forward(self, queue: str, to: str, tag: str, batch: pa.RecordBatch) -> int:
        whole = self._collection(queue, make=True)
        payload, headers = batch.column("payload"), batch.column("headers")
        documents = self._documents(to, filled(batch), self._now())
        changes: list[UpdateOne | UpdateMany] = []
        alike: dict[tuple[DatetimeMS, int], list[ObjectId | str]] = {}
        rows = zip(documents, payload.is_valid().to_pylist(), headers.is_valid().to_pylist(), strict=True)
        for document, new_payload, new_headers in rows:
            if not (new_payload or new_headers):
                alike.setdefault((document["mature"], document["tries"]), []).append(document["_id"])
                continue
            change = {"_q": to, "mature": document["mature"], "tries": document["tries"]}
            if new_payload:
                change["payload"] = document["payload"]
            if new_headers:
                change["hdrs"] = document["hdrs"]
            forgotten = FORGET
            if "_sid" in document:
                change["_sid"] = document["_sid"]
            else:
                forgotten = {**FORGET, "_sid": ""}  # that of a damaged record may have any value
            which = {**held_by(tag), "_q": queue, "_id": document["_id"]}
            changes.append(UpdateOne(which, {"$set": change, "$unset": forgotten}, **BY_ID))
        for (mature, tries), keys in alike.items():
            which = {**held_by(tag), "_q": queue, "_id": {"$in": keys}}
            change = {"_q": to, "mature": mature, "tries": tries}
            changes.append(UpdateMany(which, {"$set": change, "$unset": FORGET}, **BY_ID))
        return int(whole.bulk_write(changes, ordered=False).modified_count)

    def _queues(self) -> list[str]:
        return list(self._database()[self.pipeline].distinct("_q"))

    def _drop(self, queue: str) -> None:
        self._queue(queue).delete_many({})


class _Part:
    """One queue of a collection that holds several, with the methods of a collection of its own."""

    def __init__(self, whole: Collection[Document], queue: str) -> None:
        self._whole = whole
        self._mine: Document = {"_q": queue}
        self.name = whole.name

    def find(self, which: Filter, *args: Any, **how: Any) -> Cursor[Document]:
        return self._whole.find({**self._mine, **which}, *args, **how)

    def find_one(self, which: Filter, *args: Any, **how: Any) -> Document | None:
        return self._whole.find_one({**self._mine, **which}, *args, **how)

    def count_documents(self, which: Filter, **how: Any) -> int:
        return self._whole.count_documents({**self._mine, **which}, **how)

    def aggregate(self, steps: Sequence[Document], **how: Any) -> CommandCursor[Document]:
        return self._whole.aggregate([{"$match": self._mine}, *steps], **how)

    def update_many(self, which: Filter, change: Any, **how: Any) -> UpdateResult:
        return self._whole.update_many({**self._mine, **which}, change, **how)

    def delete_many(self, which: Filter, **how: Any) -> DeleteResult:
        return self._whole.delete_many({**self._mine, **which}, **how)

    def index_information(self) -> Any:
        return self._whole.index_information()
