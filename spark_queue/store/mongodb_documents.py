"""Messages as documents of MongoDB: their layout, the states they are in, and how they enter a collection.

The layout is that of keuss' `mongo` backend (with history, of `ps-mongo`), so that its programs may share a queue:

    _id         ObjectId  the message's id; for an id that is not 24 lower-case hex digits, a hash of it
    mature      Date      from when the message may be reserved; while it is held, when the lease ends
    payload               JSON as BSON, a string, or binary
    tries       Int32     failed attempts, and one more while it is held: it counts when it is reserved
    hdrs        {}        headers
    reserved    Date      since when it is held; still there once the lease has ended
    processed   Date      when it was committed, of a message kept as history
    removed     true      of such a one: keuss removed it, nobody had it

and adds, where needed:

    _sid        the id, where `_id` is its hash
    _tag        who holds it
    _mature     when it was due, before `mature` became the end of the lease
    _reserved   what we wrote to `reserved`. The tag holds the message only while the two are equal: other programs
                know nothing of tags, but set or remove `reserved` whenever they take a message or give it back
    _until      when the server removes it from the history
    _consumer   who had it when it was processed
    _outcome    how that went, where it was not committed: `dead`, or a word of who committed it
    _hidden     who is about to publish it, on a server without transactions; `processed` hides it for so long
    rows        how many messages a bucket holds; its `_id` is its id, a string. To keuss it is one binary message
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from bson import DatetimeMS, ObjectId
from bson.raw_bson import RawBSONDocument
from bson.regex import Regex
from pymongo import IndexModel, ReplaceOne
from pymongo.client_session import ClientSession
from pymongo.collection import Collection
from pymongo.errors import BulkWriteError

from spark_queue import message
from spark_queue.buckets import is_bucket, rows_of
from spark_queue.message import OBJECT_ID
from spark_queue.store.base import PAGE_BYTES
from spark_queue.store.bson_json import check_document, difficult, from_bson, header_text, to_bson
from spark_queue.store.facts import Condition, Death, holder

Document = dict[str, Any]
Filter = Mapping[str, Any]

EPOCH = DatetimeMS(0)

#: When a lease of `None` ends.
NEVER = DatetimeMS(message.LATEST)

#: Error code of the server: the id is there already.
DUPLICATE_KEY = 11000

#: `processed` comes first, so that a long history costs the queue nothing.
READY = IndexModel([("processed", 1), ("mature", 1), ("_id", 1)], name="spark_queue_ready")
HELD = IndexModel(
    [("_tag", 1), ("_mature", 1), ("_id", 1)],
    name="spark_queue_held",
    partialFilterExpression={"reserved": {"$exists": True}},
)
ENDING = IndexModel([("_until", 1)], name="spark_queue_ending", sparse=True, expireAfterSeconds=0)
#: Leads to the buckets, and has all it takes to count their messages.
BUCKETS = IndexModel(
    [("rows", 1), ("processed", 1), ("mature", 1), ("_tag", 1)],
    name="spark_queue_buckets",
    partialFilterExpression={"rows": {"$exists": True}},
)
INDEXES = (READY, HELD, ENDING, BUCKETS)
BY_ID: dict[str, Any] = {"hint": "_id_"}

#: What a page of held messages needs.
HELD_FIELDS = {"payload": 1, "tries": 1, "hdrs": 1, "_sid": 1, "_mature": 1}

#: Takes away what a reservation adds.
FORGET = {"reserved": "", "_tag": "", "_mature": "", "_reserved": ""}

OPERATORS = {"=": "$eq", "<": "$lt", "<=": "$lte", ">": "$gt", ">=": "$gte", "in": "$in"}


class State(NamedTuple):
    """One of the states that a message is in: how it is found, and what its fields mean then."""

    which: Filter
    due: str | Filter  #: the field, or the expression, that tells when it was due
    ahead: int  #: how many tries it counts that have not failed yet
    by: IndexModel  #: the index that leads to it
    order: list[tuple[str, int]]

    def where(self, conditions: Sequence[Condition]) -> Filter:
        """A filter for the messages in this state that meet the conditions on other columns than `id`."""
        return {"$and": [self.which, *(self._one(condition) for condition in conditions if condition.column != "id")]}

    def _one(self, condition: Condition) -> Filter:
        op = OPERATORS[condition.op]
        values: list[Any] = list(_values(condition))
        match condition.column:
            case "mature" | "processed":
                values = [DatetimeMS(one) for one in values]
            case "tries":
                values = [one + self.ahead for one in values]
        value = values if op == "$in" else values[0]
        match condition.column:
            case "mature":
                if not isinstance(self.due, str):
                    return or_bucket({"$expr": {op: [self.due, {"$literal": value}]}})
                return or_bucket({self.due: {op: value}})
            case "outcome":
                return {"$expr": {op: [OUTCOME, {"$literal": value}]}}
            case "consumer":
                return {"_consumer": {op: value}}
        return {condition.column: {op: value}}


class Page(NamedTuple):
    """Documents of one batch, and their payloads with their kinds."""

    documents: list[Document]
    payloads: list[bytes]
    kinds: list[str]


#: When a message was due, which is held or free.
DUE: Document = {"$cond": [{"$eq": ["$reserved", "$_reserved"]}, {"$ifNull": ["$_mature", "$mature"]}, "$mature"]}

#: How a message of the history was processed. What keuss did has no `_until`.
OUTCOME: Document = {
    "$switch": {
        "branches": [
            {"case": {"$eq": ["$removed", True]}, "then": "remove"},
            {"case": {"$lte": ["$_until", None]}, "then": "pop"},
        ],
        "default": {"$ifNull": ["$_outcome", "commit"]},
    }
}

RESERVED: Filter = {"processed": None, "reserved": {"$exists": True}}

#: What a tag of ours holds: the fence.
FENCED: Filter = {**RESERVED, "$expr": {"$eq": ["$reserved", "$_reserved"]}}

#: `processed` is the same in all that wait: it just makes the order that of the index.
WAITING_ORDER = [("processed", 1), ("mature", 1), ("_id", 1)]
HELD_ORDER = [("_mature", 1), ("_id", 1)]

FREE = State({"processed": None, "reserved": {"$exists": False}}, "mature", 0, READY, WAITING_ORDER)
OURS = State(FENCED, "_mature", 1, HELD, HELD_ORDER)
THEIRS = State({**RESERVED, "$expr": {"$ne": ["$reserved", "$_reserved"]}}, "mature", 1, HELD, WAITING_ORDER)


# --- filters and updates --------------------------------------------------------------------------------------------


def key_of(id: str) -> ObjectId | str:
    """The `_id` of the record with this id."""
    if is_bucket(id):
        return id
    return ObjectId(bytes.fromhex(id) if OBJECT_ID.fullmatch(id) else hashlib.sha256(id.encode()).digest()[:12])


def _values(condition: Condition) -> tuple[str | int, ...]:
    return condition.value if isinstance(condition.value, tuple) else (condition.value,)


def id_condition(condition: Condition) -> Filter:
    """A condition on the id as a filter."""
    if condition.op in ("=", "in"):
        return or_bucket({"_id": {"$in": [key_of(str(one)) for one in _values(condition)]}})
    id = {"$ifNull": ["$_sid", {"$toString": "$_id"}]}
    return or_bucket({"$expr": {OPERATORS[condition.op]: [id, {"$literal": condition.value}]}})


def in_order(key: ObjectId | str) -> tuple[bool, ObjectId | str]:
    """What sorts the `_id` of records as the server does."""
    return isinstance(key, ObjectId), key


def beyond(key: ObjectId | str) -> Filter:
    """What comes after this `_id`: a comparison meets only values of the same type."""
    greater: Filter = {"_id": {"$gt": key}}
    return {"$or": [greater, {"_id": {"$type": "objectId"}}]} if isinstance(key, str) else greater


def after_record(field: str, mature: int, key: ObjectId | str) -> Document:
    """What comes after the record of this `_id` in the order of a moment (ms) and `_id`."""
    moment = DatetimeMS(mature)
    return {"$or": [{field: {"$gt": moment}}, {field: moment, **beyond(key)}]}


def or_bucket(which: Filter) -> Filter:
    """What meets the filter, and all buckets."""
    return {"$or": [which, {"_id": {"$type": "string"}}]}


def due_by(moment: int) -> Document:
    """What may be reserved at that moment; expired leases included."""
    return {"processed": None, "mature": {"$lte": DatetimeMS(moment)}}


def held_by(tag: str) -> Document:
    """What a tag, and those below it, still hold."""
    return {**FENCED, "_tag": {"$in": [tag, Regex(f"^{re.escape(tag)}/")]}}


def loose(now: int) -> State:
    """What nobody holds under a lease that lasts."""
    ended = {"mature": {"$lte": DatetimeMS(now)}}
    return State(
        {"processed": None, "$or": [{"reserved": {"$exists": False}}, ended]}, "mature", 0, READY, WAITING_ORDER
    )


def history_of(now: int) -> State:
    """Committed messages, also those that other programs committed."""
    which = {"processed": {"$exists": True, "$ne": NEVER}, "_until": {"$not": {"$lte": DatetimeMS(now)}}}
    due = {"$ifNull": ["$_mature", {"$min": ["$mature", "$processed"]}]}
    return State(which, due, 0, READY, HELD_ORDER)


def outcome_of(document: Document) -> str:
    """The same, as OUTCOME tells it."""
    if document.get("removed") is True:
        return "remove"
    return "pop" if document.get("_until") is None else document.get("_outcome", "commit")


def remembering(now: int, history: int, tag: str | None, outcome: str) -> tuple[Document, list[str]]:
    """What keeps a message as history from now on: the fields to set, and those to remove."""
    moments = {"processed": now, "mature": now + 100 * history, "_until": now + history}
    fields: Document = {name: moment_of(ms) for name, ms in moments.items()}
    if consumer := holder(tag):
        fields["_consumer"] = consumer
    if outcome != "commit":
        fields["_outcome"] = outcome
    return fields, [name for name in FORGET if name != "_mature"]


def lease_end(now: int, lease: int | None) -> DatetimeMS:
    """When a lease that begins now ends."""
    return NEVER if lease is None else moment_of(now + lease)


def moment_of(ms: int) -> DatetimeMS:
    """The moment as a document holds it."""
    return DatetimeMS(min(ms, message.LATEST))


def claiming(tag: str, now: DatetimeMS, until: DatetimeMS) -> list[Document]:
    """The update that puts messages under a tag; those of a lease of ours that has ended keep when they were due."""
    tries = {"$add": [{"$ifNull": ["$tries", 0]}, 1]}
    fields = {"mature": until, "tries": tries, "reserved": now, "_tag": tag, "_mature": DUE, "_reserved": now}
    return [{"$set": fields}]


# --- documents ------------------------------------------------------------------------------------------------------


def to_documents(batch: pa.RecordBatch, now: int) -> tuple[list[Document], dict[int, str]]:
    """The rows of a PUSHES batch as documents, and the rules that rows break."""
    documents: list[Document] = []
    wrong: dict[int, str] = {}
    ids, due = batch.column("id"), message.due(batch, now)
    moments = {ms: DatetimeMS(ms) for ms in set(due)}  # mostly there is one for all
    columns = zip(
        ids.to_pylist(),
        pc.match_substring_regex(ids, f"^{OBJECT_ID.pattern}$").to_pylist(),
        due,
        batch.column("payload").to_pylist(),
        batch.column("payload_kind").to_pylist(),
        difficult(batch.column("payload")),
        batch.column("tries").to_pylist(),
        message.header_dicts(batch),
        strict=True,
    )
    for row, (id, native, mature, payload, kind, hard, tries, headers) in enumerate(columns):
        try:
            document = {
                "_id": ObjectId(bytes.fromhex(id)) if native else key_of(id),
                "mature": moments[mature],
                "payload": to_bson(payload, kind, hard),
                "tries": tries,
                "hdrs": headers,
            }
            if is_bucket(id):
                document["rows"] = rows_of(id)
            elif not native:
                document["_sid"] = id
            if hard or headers:
                check_document(document)
            documents.append(document)
        except ValueError as error:
            wrong[row] = str(error)
    return documents, wrong


#: How many messages documents hold together, which are given with their `_id`.
Weigh = Callable[[Iterable[Any], Iterable[Document | RawBSONDocument]], int]


def weight(keys: Iterable[ObjectId | str], documents: Iterable[Document | RawBSONDocument] = ()) -> int:
    """How many messages the records with these `_id` hold together."""
    return sum(rows_of(one) if isinstance(one, str) else 1 for one in keys)


def insert(
    queue: Collection[Document],
    documents: Sequence[Document],
    instead: Filter | None = None,
    weigh: Weigh = weight,
) -> int:
    """Insert those whose ids are not there yet and give the number of messages.

    A message of the history makes way (that meets `instead`, where given), and so does one that is hidden.
    """
    if not documents:
        return 0
    all_of_them = weigh([one["_id"] for one in documents], documents)
    try:
        queue.insert_many(documents, ordered=False)
        return all_of_them
    except BulkWriteError as error:
        if not only_duplicates(error):
            raise
        failed = error.details["writeErrors"]
    there_already = [documents[one["index"]] for one in failed]
    inserted = all_of_them - weigh([one["_id"] for one in there_already], there_already)
    makes_way = {"processed": {"$exists": True}, **(instead or {})}
    again = [ReplaceOne({"_id": one["_id"], **makes_way}, one) for one in there_already]
    return inserted + queue.bulk_write(again, ordered=False).modified_count


def insert_new(
    queue: Collection[Document],
    ids: Sequence[ObjectId],
    documents: Sequence[Document | RawBSONDocument],
    session: ClientSession,
    weigh: Weigh = weight,
) -> int:
    """The same in a transaction, which an id that is there already would end."""
    there: set[Any] = set()
    if _any_between(queue, ids, session):
        which = {"_id": {"$in": list(ids)}}
        queue.delete_many({**which, "processed": {"$exists": True}}, session=session, **BY_ID)
        there = {one["_id"] for one in queue.find(which, {"_id": 1}, session=session, **BY_ID)}
    new: dict[ObjectId, Document | RawBSONDocument] = {}
    for id, document in zip(ids, documents, strict=True):
        if id not in there:
            new.setdefault(id, document)
    if new:
        queue.insert_many(new.values(), ordered=False, session=session)
    return weigh(new, new.values())


def _any_between(queue: Collection[Document], ids: Sequence[Any], session: ClientSession) -> bool:
    """Whether the queue has an id from the first to the last of these, or may have.

    Those of new messages stand side by side, so that one look says for all of them that they are not there.
    """
    if not ids or not all(isinstance(one, ObjectId) for one in ids):
        return True
    between = {"_id": {"$gte": min(ids), "$lte": max(ids)}}
    return queue.find_one(between, {"_id": 1}, session=session, **BY_ID) is not None


def only_duplicates(error: BulkWriteError) -> bool:
    """Whether some ids were there already, and nothing else went wrong."""
    codes = {one["code"] for one in error.details["writeErrors"]}
    return codes == {DUPLICATE_KEY} and not error.details["writeConcernErrors"]


def moved_to(document: Document, queue: str, ahead: int, death: Death | None, now: int) -> Document:
    """The document as it enters another queue."""
    moved = {name: value for name, value in document.items() if name not in FORGET}
    if death is not None:
        told = death.headers(queue, int(document.get("tries") or 0) - ahead, now)
        moved["hdrs"] = {**(document.get("hdrs") or {}), **told}
    return moved | {"mature": due_of(document), "tries": 0}


def dying(queue: str, ahead: int, death: Death, now: int) -> Document:
    """The same headers, as an expression in an update."""
    headers: Document = {name: {"$literal": value} for name, value in death.headers(queue, 0, now).items()}
    tries = {"$subtract": [{"$ifNull": ["$tries", 0]}, ahead - death.failed]}
    headers["x-dl-tries"] = {"$toString": {"$toInt": tries}}
    return {"$mergeObjects": ["$hdrs", headers]}


def due_of(document: Document) -> DatetimeMS:
    """When the message was due: before `mature` became the end of our lease or of a history.

    keuss does not keep that: what it has processed was due by then.
    """
    reserved = document.get("reserved")
    ours = "processed" in document or (reserved is not None and reserved == document.get("_reserved"))
    due: DatetimeMS = document.get("mature", EPOCH)
    if ours and "_mature" in document:
        due = document["_mature"]
    elif "processed" in document:
        due = min(due, document["processed"])
    return due


def _ahead(document: Document) -> int:
    """How many of its `tries` have not failed yet."""
    return int("reserved" in document and "processed" not in document)


def pages(documents: Iterable[Document], most: int) -> Iterator[Page]:
    """Documents in pages of at most `most`, each ending early at PAGE_BYTES of payload."""
    page, size = Page([], [], []), 0
    for document in documents:
        payload, kind = from_bson(document.get("payload"))
        page.documents.append(document)
        page.payloads.append(payload)
        page.kinds.append(kind)
        size += len(payload)
        if len(page.documents) >= most or size >= PAGE_BYTES:
            yield page
            page, size = Page([], [], []), 0
    if page.documents:
        yield page


def as_batch(queue: str, page: Page, *, held: bool = False) -> pa.RecordBatch:
    """A page as a batch of MESSAGES or of HISTORY. `held`: the documents have just the fields of HELD_FIELDS."""
    documents, payloads, kinds = page
    ids = [one.get("_sid") or str(one["_id"]) for one in documents]
    headers = [header_text(one.get("hdrs")) for one in documents]
    mature = [int(one["_mature"] if held else due_of(one)) for one in documents]
    tries = [int(one.get("tries") or 0) - (1 if held else _ahead(one)) for one in documents]
    batch = message.build(queue, ids, payloads, kinds, headers, mature, tries)
    if "processed" not in documents[0]:
        return batch
    processed = [int(one["processed"]) for one in documents]
    consumers = [one.get("_consumer") for one in documents]
    return message.told(batch, processed, consumers, [outcome_of(one) for one in documents])
