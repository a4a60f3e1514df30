"""The mark of a queue: it distinguishes queues from other collections of the database.

Each operation on a collection first checks its mark. Without one, the collection belongs to another
program and the operation is refused. A collection is a queue of a layout if it has one of these:

* **A validator** that checks nothing: its only content is a comment (`Form.comment`). The command
  that creates a collection sets it, so no crash leaves a collection of ours without a mark.
* **One of our indexes**, by name and key. Earlier versions marked their queues only so, and so does
  `spark-queue adopt`.
* **The indexes of a queue of keuss**, exactly these and no other, which keuss creates with the
  queue. One of them, `{mature: 1}`, may be in another program, too. So if the collection has
  documents, one of the first must look like a message of keuss. Documents alone are no mark.

A queue of another layout is refused, and so is a view, or a time series.

**The check is cached.** An operation that uses one of our indexes by name (`hint`) needs no newer
answer: the server refuses it if the collection has been replaced by one without that index. For an
insert the answer may be a second old. Operations that remove messages by id alone, or the whole
queue, ask again. That a collection is no queue is never cached, except for lists.

**A push may follow a drop by another client.** Then the server creates the collection again,
without a mark. So each client checks again soon after it has inserted messages. It marks the
collection anew if that holds the message that it inserted last, and nothing but messages.
"""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from pymongo.database import Database
from pymongo.errors import OperationFailure

from spark_queue.errors import NotAQueue, OptionError
from spark_queue.options.masking import mask
from spark_queue.stores.mongodb.documents import Document
from spark_queue.stores.mongodb.forms import COMMENT, Form, same_key
from spark_queue.stores.mongodb.limits import MongoLimits
from spark_queue.stores.mongodb.stages import OWN_PREFIX
from spark_queue.stores.types import ForeignData

#: How old an answer may be (s), for operations with a hint.
HINTED_AGE = 60.0

#: The same for a list that leaves out a collection, and for operations with a hint on a collection
#: that does not exist.
REFUSAL_AGE, ABSENCE_AGE = 10.0, 5.0

#: Seconds for which keuss may lack its index.
INDEX_MISSING = 0.5

#: Most collections in the cache.
MAX_CACHED = 10_000

#: How many documents of a queue of keuss are looked at.
SAMPLED_DOCUMENTS = 20

#: Error codes of the server.
BAD_VALUE, NAMESPACE_NOT_FOUND, INDEX_NOT_FOUND, NAMESPACE_EXISTS, IS_VIEW = 2, 26, 27, 48, 166


class Mark(Enum):
    """What a check found. `BARE`: a queue without some of our indexes."""

    ABSENT = "absent"
    BARE = "bare"
    COMPLETE = "complete"


@dataclass(frozen=True)
class _Refusal:
    """Why a collection is no queue. `adoptable`: whether it can become one."""

    reason: str
    adoptable: bool = True


class Marks:
    """The marks of the collections of one database. Safe to share among threads."""

    def __init__(self, database: Callable[[], Database[Document]], form: Form, url: str, limits: MongoLimits) -> None:
        """Connect to nothing yet."""
        self._database, self._form, self._url, self._limits = database, form, url, limits
        self._cache: dict[str, tuple[Mark, float]] = {}  # when it was read (monotonic s)
        self._known: dict[str, float] = {}  # queues that were listed: when (monotonic s)
        self._expired = -math.inf  # answers until then are not believed
        self._listed: dict[tuple[str, str], tuple[bool, float]] = {}  # name, UUID -> is a queue; believed until
        self._inserted: dict[str, Any] = {}  # name -> the `_id` inserted last since the last check
        self._outdated: dict[str, bool] = {}  # name -> whether to drop indexes of earlier versions, which it has

    # --- the check --------------------------------------------------------------------------------

    def check(self, name: str, queue: str, max_age: float = HINTED_AGE) -> Mark:
        """Return the mark of a collection. Raises `NotAQueue` if it is no queue of this layout.

        `queue`: the name under which the caller knows it. `max_age`: how old the answer may be (s).
        """
        mark, read = self._cache.get(name, _UNKNOWN)
        if mark is Mark.BARE:
            max_age = min(max_age, self._limits.insert_age)
        elif mark is Mark.ABSENT:
            max_age = ABSENCE_AGE if max_age == HINTED_AGE else 0.0
        if time.monotonic() - read < max_age and read > self._expired:
            return mark
        return self.read(name, queue)

    def is_known(self, name: str) -> bool:
        """Return whether a collection was a queue when it was last read or listed.

        That was at most HINTED_AGE seconds ago.
        """
        mark, read = self._cache.get(name, _UNKNOWN)
        if mark is Mark.ABSENT:
            read = self._known.get(name, -math.inf)
        return time.monotonic() - read < HINTED_AGE and read > self._expired

    def read(self, name: str, queue: str) -> Mark:
        """Read the mark of a collection now. Raises `NotAQueue` as `check` does."""
        mark, read = self._cache.get(name, _UNKNOWN)
        known = mark is not Mark.ABSENT or time.monotonic() - read < ABSENCE_AGE
        began = time.monotonic()
        end = began + (INDEX_MISSING if known or self._form.late else 0.0)
        while True:
            began, inserted = time.monotonic(), self._inserted.get(name)
            found = self._examine(name)
            if found is _UNMARKED and name in self._inserted and self._mark_again(name):
                return Mark.COMPLETE
            if found is _UNMARKED and began >= end and known and self._is_as_inserted(name):
                end, known = began + self._limits.mark_missing, False
            if found is not _UNMARKED or began >= end:
                break
            time.sleep(INDEX_MISSING / 5)  # a client that has inserted messages, or keuss, may mark it
        if self._inserted.get(name) is inserted:
            self._inserted.pop(name, None)
        if isinstance(found, _Refusal):
            self._cache.pop(name, None)
            self._known.pop(name, None)
            raise self._refuse(name, queue, found)
        self._put(name, found, began)
        return found

    def _put(self, name: str, mark: Mark, read: float) -> None:
        if len(self._cache) >= MAX_CACHED:
            self._cache.clear()
        self._cache[name] = mark, read

    def expire(self) -> None:
        """Let the next check of each collection read its mark. When each was read stays known."""
        self._expired = time.monotonic()

    def note_drop(self, name: str) -> None:
        """Remember that a collection was dropped: if it is there again, its mark may be late."""
        self._put(name, Mark.ABSENT, time.monotonic())
        self._known.pop(name, None)
        self._inserted.pop(name, None)
        self._outdated.pop(name, None)

    # --- after a push -----------------------------------------------------------------------------

    def note_insert(self, name: str, key: Any) -> None:
        """Remember the `_id` that was inserted last, for `check_inserted`."""
        self._inserted[name] = key

    def check_inserted(self, name: str, queue: str) -> None:
        """Check the mark after inserts, and mark a collection that they have created.

        Raises `NotAQueue` as `check` does.
        """
        if name in self._inserted:
            self.read(name, queue)

    def _mark_again(self, name: str) -> bool:
        """Mark a collection that an insert of this client has created; return whether it is one."""
        if not self._is_as_inserted(name):
            return False
        if self._database()[name].find_one({"_id": {"$eq": self._inserted.get(name)}}, {"_id": 1}) is None:
            return False
        self.create_indexes(name)
        return True

    def _is_as_inserted(self, name: str) -> bool:
        """Return whether a collection has no index, and no document that is no message."""
        collection = self._database()[name]
        if collection.index_information().keys() != {"_id_"}:
            return False
        return collection.find_one({"mature": {"$not": {"$type": "date"}}}, {"_id": 1}) is None

    # --- refusals ---------------------------------------------------------------------------------

    def _refuse(self, name: str, queue: str, refusal: _Refusal) -> NotAQueue:
        remedy = f", or make it a queue: spark-queue adopt URL {shlex.quote(queue)}" if refusal.adoptable else ""
        return NotAQueue(
            f"{mask(self._url)}: the collection {name!r} of the database {self._database().name!r} is no queue: "
            f"{refusal.reason}. It was not changed. Use another name{remedy}",
            option="queue",
            queue=queue,
            collection=name,
        )

    def _examine(self, name: str, info: Mapping[str, Any] | None = None) -> Mark | _Refusal:
        """Return the mark of a collection, or why it has none. `info`: its entry in a list."""
        database = self._database()
        try:
            indexes = database.command("listIndexes", name)["cursor"]["firstBatch"]
        except OperationFailure as error:
            if error.code == NAMESPACE_NOT_FOUND:
                return Mark.ABSENT
            if error.code == IS_VIEW:
                return _Refusal("it is a view", adoptable=False)
            raise
        names = {one.document["name"] for one in self._form.indexes}
        old_names = {one.document["name"] for one in self._form.old}
        if named := [one for one in indexes if one["name"] in names | old_names]:
            if not all(map(self._form.is_ours, named)):
                return _OTHER_LAYOUT
            if any(map(self._form.is_old, named)):
                self._outdated.setdefault(name, True)
            return Mark.COMPLETE if sum(one["name"] in names for one in named) == len(names) else Mark.BARE
        if info is None:
            info = next(iter(database.list_collections(filter={"name": name})), None)
            if info is None:  # it was dropped just now
                return Mark.ABSENT
        if info["type"] != "collection":
            return _Refusal(f"it is a {info['type']}", adoptable=False)
        comment = _comment_of(info)
        if comment.startswith(COMMENT):
            return Mark.BARE if comment == self._form.comment else _OTHER_LAYOUT
        if info["options"].get("capped"):
            return _Refusal("it is capped", adoptable=False)
        return self._examine_keuss(name, indexes)

    def _examine_keuss(self, name: str, indexes: Sequence[Mapping[str, Any]]) -> Mark | _Refusal:
        """Return whether a collection without a mark of ours is a queue of keuss."""
        form = self._form
        if not (all(map(form.is_keuss, indexes)) and any(same_key(one["key"], form.keuss) for one in indexes)):
            return _UNMARKED
        fits = {"$sum": {"$cond": [{"$and": list(form.record)}, 1, 0]}}
        steps: list[Document] = [{"$limit": SAMPLED_DOCUMENTS}, {"$group": {"_id": None, "fits": fits}}]
        found = next(iter(self._database()[name].aggregate(steps)), {"fits": 1})
        if found["fits"]:
            return Mark.BARE
        return _Refusal("it has the index of a queue of keuss, but its documents are no messages of keuss")

    # --- creation ---------------------------------------------------------------------------------

    def complete(self, name: str, queue: str, max_age: float = HINTED_AGE) -> None:
        """Create the collection if it does not exist, with its mark, and its missing indexes.

        Raises `NotAQueue` as `check` does, also if another program creates it meanwhile.
        """
        mark = self.check(name, queue, max_age)
        if mark is Mark.COMPLETE and not self._outdated.get(name):
            return
        if mark is Mark.ABSENT:
            validator = {"$comment": self._form.comment}
            try:
                self._database().create_collection(
                    name, check_exists=False, validator=validator, validationLevel="off"
                )
            except OperationFailure as error:
                if error.code != NAMESPACE_EXISTS:
                    raise
                self.read(name, queue)
        self.create_indexes(name)

    def create_indexes(self, name: str) -> None:
        """Create the missing indexes of a collection, then drop those that they replace.

        No other client waits: the server builds an index beside reads and writes. A client of an
        earlier version creates its own again. So each client drops them once only.
        """
        began = time.monotonic()
        collection = self._database()[name]
        collection.create_indexes(list(self._form.indexes))
        if self._outdated.get(name):
            for index in filter(self._form.is_old, collection.list_indexes()):
                try:
                    collection.drop_index(index["name"])
                except OperationFailure as error:
                    if error.code != INDEX_NOT_FOUND:  # another client was faster
                        raise
            self._outdated[name] = False
        self._put(name, Mark.COMPLETE, began)

    # --- lists ------------------------------------------------------------------------------------

    def list_collections(self, names: Collection[str] | None = None) -> dict[str, bool]:
        """Return which collections exist, and whether each is a queue of this layout.

        Return all of them, views included, or those with these names.
        """
        wanted, now = None if names is None else {"name": {"$in": list(names)}}, time.monotonic()
        found = {one["name"]: self._is_listed(one) for one in self._database().list_collections(filter=wanted)}
        for name, is_queue in found.items():
            if is_queue and name not in self._cache:
                if len(self._known) >= MAX_CACHED:
                    self._known.clear()
                self._known[name] = now
        return found

    def _is_listed(self, info: Mapping[str, Any]) -> bool:
        name, now = str(info["name"]), time.monotonic()
        if info["type"] != "collection" or name.startswith(("system.", OWN_PREFIX)):
            return False
        if _comment_of(info) == self._form.comment:
            return True
        key = name, bytes(info["info"].get("uuid", b"")).hex()
        is_queue, until = self._listed.get(key, (False, -math.inf))
        if now < until:
            return is_queue
        found = self._examine(name, info)
        if found is Mark.ABSENT:
            return False
        is_queue = isinstance(found, Mark)
        if isinstance(found, Mark):
            self._put(name, found, now)
        if len(self._listed) >= MAX_CACHED:
            self._listed.clear()
        self._listed[key] = is_queue, now + (HINTED_AGE if is_queue else REFUSAL_AGE)
        return is_queue

    # --- adoption ---------------------------------------------------------------------------------

    def inspect(self, name: str, queue: str) -> ForeignData:
        """Return what a collection holds, and whether it is a queue.

        Raises `OptionError` if it does not exist, and `NotAQueue` if it cannot become a queue.
        """
        found = self._examine(name)
        if found is Mark.ABSENT:
            raise OptionError(
                f"{mask(self._url)}: there is no collection {name!r} in the database {self._database().name!r}: "
                "nothing needs to be adopted, since a push creates it",
                option="queue",
                queue=queue,
            )
        if isinstance(found, _Refusal) and not found.adoptable:
            raise self._refuse(name, queue, found)
        collection = self._database()[name]
        indexes = {
            str(index): ", ".join(f"{field}: {one}" for field, one in facts["key"])
            for index, facts in collection.index_information().items()
        }
        place = f"{collection.database.name}.{name}"
        return ForeignData(place, collection.estimated_document_count(), indexes, isinstance(found, Mark))


#: What the cache has of an unknown collection.
_UNKNOWN = Mark.ABSENT, -math.inf

_UNMARKED = _Refusal("it lacks the mark of a queue")
_OTHER_LAYOUT = _Refusal("it is a queue of another layout (see ?layout= in the URL)", adoptable=False)


def is_missing_index(error: OperationFailure) -> bool:
    """Return whether an operation failed because the index that it names does not exist."""
    return error.code == BAD_VALUE and "hint" in str(error)


def _comment_of(info: Mapping[str, Any]) -> str:
    """Return the comment that is the whole validator of a collection; empty if there is none."""
    validator = info["options"].get("validator") or {}
    return str(validator["$comment"]) if validator.keys() == {"$comment"} else ""
