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

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from bson import DatetimeMS, Int64, ObjectId
from bson.raw_bson import RawBSONDocument
from bson.regex import Regex
from pymongo import IndexModel, ReplaceOne
from pymongo.client_session import ClientSession
from pymongo.collection import Collection
from pymongo.errors import BulkWriteError

from spark_queue.messages.buckets import DIGITS, is_bucket, rows_of
from spark_queue.messages.columns import build, due_ms, header_dicts, with_history
from spark_queue.messages.ids import OBJECT_ID
from spark_queue.messages.schema import LATEST, MARK
from spark_queue.stores.base import PAGE_BYTES
from spark_queue.stores.mongodb.bson_json import check_document, difficult, from_bson, header_text, to_bson
from spark_queue.stores.mongodb.keys import greater, id_of, in_order, json_text, key_of
from spark_queue.stores.support.damaged import (
    UNREADABLE,
    Records,
    Row,
    best,
    check,
    check_types,
    digest_of,
    mature_of,
    quoted,
    read_each,
    tries_of,
)
from spark_queue.stores.types import Condition, Death, holder

Document = dict[str, Any]
Filter = Mapping[str, Any]

BSON_EPOCH = DatetimeMS(0)

#: When a lease of `None` ends.
NO_END_DATE = DatetimeMS(LATEST)

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

#: The `_id` of buckets: see `is_bucket_key`.
BUCKET_IDS = Regex(f"^{MARK}.*{MARK}.*{MARK}", "s")

COMPARISONS = {"=": "$eq", "<": "$lt", "<=": "$lte", ">": "$gt", ">=": "$gte", "in": "$in"}


class DocumentState(NamedTuple):
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
        op = COMPARISONS[condition.op]
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


class DocumentPlace(NamedTuple):
    """Where a record stands in an order: by a field and `_id`, of whatever types."""

    value: Any
    key: Any


class DocumentPage(NamedTuple):
    """Documents of one batch, and their payloads with their kinds; of one that cannot be read, nothing and why."""

    documents: list[Document]
    payloads: list[bytes]
    kinds: list[str]
    damaged: dict[int, str]

    @classmethod
    def empty(cls) -> DocumentPage:
        """A page to be filled."""
        return cls([], [], [], {})


#: When a message was due, which is held or free. Other programs may leave any `_mature`.
DUE: Document = {
    "$cond": [
        {"$and": [{"$eq": ["$reserved", "$_reserved"]}, {"$eq": [{"$type": "$_mature"}, "date"]}]},
        "$_mature",
        "$mature",
    ]
}

#: The tries of a message, and whether they are a number: what is none stays as it is, and is found when it is read.
TRIES: Document = {"$ifNull": ["$tries", 0]}
_COUNTED: Document = {
    "$and": [
        {"$in": [{"$type": TRIES}, ["int", "long", "double"]]},
        {"$gte": [TRIES, -(2**31)]},
        {"$lt": [TRIES, 2**31 - 1]},
    ]
}

#: What can be changed as a message is changed that dies.
SOUND_DOCUMENT: Filter = {
    "hdrs": {"$not": {"$type": ["array", "string", "number", "bool", "date", "binData", "objectId", "timestamp"]}},
    "$expr": _COUNTED,
}

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

FREE = DocumentState({"processed": None, "reserved": {"$exists": False}}, "mature", 0, READY, WAITING_ORDER)
OURS = DocumentState(FENCED, "_mature", 1, HELD, HELD_ORDER)
THEIRS = DocumentState({**RESERVED, "$expr": {"$ne": ["$reserved", "$_reserved"]}}, "mature", 1, HELD, WAITING_ORDER)


# --- filters and updates --------------------------------------------------------------------------------------------


def more_tries(number: int) -> Document:
    """The tries with a number added."""
    return {"$cond": [_COUNTED, {"$add": [TRIES, number]}, "$tries"]}


def _values(condition: Condition) -> tuple[str | int, ...]:
    return condition.value if isinstance(condition.value, tuple) else (condition.value,)


def id_condition(condition: Condition) -> Filter:
    """A condition on the id as a filter."""
    if condition.op in ("=", "in"):
        return or_bucket({"_id": {"$in": [key_of(str(one)) for one in _values(condition)]}})
    id = {"$ifNull": ["$_sid", {"$convert": {"input": "$_id", "to": "string", "onError": ""}}]}
    return or_bucket({"$expr": {COMPARISONS[condition.op]: [id, {"$literal": condition.value}]}})


def after_record(field: str, place: DocumentPlace) -> Document:
    """What comes after a place in the order of a field and `_id`."""
    moment, key = place
    return {"$or": [*greater(field, moment), *({field: moment, **one} for one in greater("_id", key))]}


def or_bucket(which: Filter) -> Filter:
    """What meets the filter, and all buckets."""
    return {"$or": [which, {"_id": BUCKET_IDS}]}


def due_by(moment: int) -> Document:
    """What may be reserved at that moment; expired leases included."""
    return {"processed": None, "mature": {"$lte": DatetimeMS(moment)}}


def held_by(tag: str) -> Document:
    """What a tag, and those below it, still hold."""
    return {**FENCED, "_tag": {"$in": [tag, Regex(f"^{re.escape(tag)}/")]}}


def loose(now: int) -> DocumentState:
    """What nobody holds under a lease that lasts."""
    ended = {"mature": {"$lte": DatetimeMS(now)}}
    return DocumentState(
        {"processed": None, "$or": [{"reserved": {"$exists": False}}, ended]}, "mature", 0, READY, WAITING_ORDER
    )


def history_of(now: int) -> DocumentState:
    """Committed messages, also those that other programs committed."""
    which = {"processed": {"$exists": True, "$ne": NO_END_DATE}, "_until": {"$not": {"$lte": DatetimeMS(now)}}}
    due = {"$ifNull": ["$_mature", {"$min": ["$mature", "$processed"]}]}
    return DocumentState(which, due, 0, READY, HELD_ORDER)


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
    return NO_END_DATE if lease is None else moment_of(now + lease)


def moment_of(ms: int) -> DatetimeMS:
    """The moment as a document holds it."""
    return DatetimeMS(min(ms, LATEST))


def claiming(tag: str, now: DatetimeMS, until: DatetimeMS) -> list[Document]:
    """The update that puts messages under a tag; those of a lease of ours that has ended keep when they were due."""
    fields = {"mature": until, "tries": more_tries(1), "reserved": now, "_tag": tag, "_mature": DUE, "_reserved": now}
    return [{"$set": fields}]


# --- documents ------------------------------------------------------------------------------------------------------


def to_documents(batch: pa.RecordBatch, now: int) -> tuple[list[Document], dict[int, str]]:
    """The rows of a PUSHES batch as documents, and the rules that rows break."""
    documents: list[Document] = []
    wrong: dict[int, str] = {}
    ids, due = batch.column("id"), due_ms(batch, now)
    moments = {ms: DatetimeMS(ms) for ms in set(due)}  # mostly there is one for all
    columns = zip(
        ids.to_pylist(),
        pc.match_substring_regex(ids, f"^{OBJECT_ID.pattern}$").to_pylist(),
        due,
        batch.column("payload").to_pylist(),
        batch.column("payload_kind").to_pylist(),
        difficult(batch.column("payload")),
        batch.column("tries").to_pylist(),
        header_dicts(batch),
        strict=True,
    )
    for row, (id, native, mature, payload, kind, hard, tries, headers) in enumerate(columns):
        try:
            document = {
                "_id": ObjectId(bytes.fromhex(id)) if native else (key := key_of(id)),
                "mature": moments[mature],
                "payload": to_bson(payload, kind, hard),
                "tries": tries,
                "hdrs": headers,
            }
            if is_bucket(id):
                document["rows"] = rows_of(id)
            elif not native and id_of(key) != id:
                document["_sid"] = id
            if hard or headers:
                check_document(document)
            documents.append(document)
        except ValueError as error:
            wrong[row] = str(error)
    return documents, wrong


#: How many messages documents hold together, which are given with their `_id`.
Weigh = Callable[[Iterable[Any], Iterable[Document | RawBSONDocument]], int]


def weight(keys: Iterable[Any], documents: Iterable[Document | RawBSONDocument] = ()) -> int:
    """How many messages the records with these `_id` hold together."""
    return sum(rows_of(one) if isinstance(one, str) else 1 for one in keys)


def count_of(value: object) -> int:
    """How many messages a record holds, from the field that says so; 1 if it is no such number."""
    return int(value) if isinstance(value, int | float) and 0 <= value < 10**DIGITS else 1


def counted(field: str) -> Document:
    """The same, as an expression."""
    number = {"$ifNull": [f"${field}", 1]}
    return {"$cond": [{"$and": [{"$gte": [number, 0]}, {"$lt": [number, 10**DIGITS]}]}, number, 1]}


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
    there: set[str] = set()
    if _any_between(queue, ids, session):
        which = {"_id": {"$in": list(ids)}}
        queue.delete_many({**which, "processed": {"$exists": True}}, session=session, **BY_ID)
        there = {id_of(one["_id"]) for one in queue.find(which, {"_id": 1}, session=session, **BY_ID)}
    new: dict[str, tuple[Any, Document | RawBSONDocument]] = {}  # by text: an `_id` may be a document
    for id, document in zip(ids, documents, strict=True):
        if (text := id_of(id)) not in there:
            new.setdefault(text, (id, document))
    keys, entering = [key for key, _ in new.values()], [one for _, one in new.values()]
    if new:
        queue.insert_many(entering, ordered=False, session=session)
    return weigh(keys, entering)


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
    due = due_of(document)
    return moved | {"mature": due if isinstance(due, DatetimeMS) else DatetimeMS(now), "tries": 0}


def dying(queue: str, ahead: int, death: Death, now: int) -> Document:
    """The same headers, as an expression in an update."""
    headers: Document = {name: {"$literal": value} for name, value in death.headers(queue, 0, now).items()}
    tries = {"$subtract": [{"$ifNull": ["$tries", 0]}, ahead - death.failed]}
    headers["x-dl-tries"] = {"$toString": {"$toInt": tries}}
    return {"$mergeObjects": ["$hdrs", headers]}


def due_of(document: Document) -> Any:
    """When the message was due: before `mature` became the end of our lease or of a history.

    keuss does not keep that: what it has processed was due by then. Other programs may leave a value of any type.
    """
    reserved = document.get("reserved")
    ours = "processed" in document or (reserved is not None and reserved == document.get("_reserved"))
    due = document.get("mature", BSON_EPOCH)
    if ours and "_mature" in document:
        due = document["_mature"]
    elif "processed" in document:
        due = min(due, document["processed"], key=in_order)
    return due


def _ahead(document: Document) -> int:
    """How many of its `tries` have not failed yet."""
    return int("reserved" in document and "processed" not in document)


def pages(documents: Iterable[Document], most: int) -> Iterator[DocumentPage]:
    """Documents in pages of at most `most`, each ending early at PAGE_BYTES of payload."""
    page, size = DocumentPage.empty(), 0
    for document in documents:
        try:
            payload, kind = from_bson(document.get("payload"))
        except UNREADABLE as error:
            page.damaged[len(page.documents)] = f"its payload cannot be read ({error})"
            payload, kind = b"", "binary"
        page.documents.append(document)
        page.payloads.append(payload)
        page.kinds.append(kind)
        size += len(payload)
        if len(page.documents) >= most or size >= PAGE_BYTES:
            yield page
            page, size = DocumentPage.empty(), 0
    if page.documents:
        yield page


def as_records(queue: str, page: DocumentPage, whole: Callable[[Document], Document] | None = None) -> Records:
    """A page as records, with the messages as MESSAGES or HISTORY.

    `whole`: the documents have just the fields of HELD_FIELDS, and this returns all of one.
    """
    held = whole is not None
    try:
        check(not page.damaged, "a payload cannot be read")
        return Records(_as_batch(queue, page, held))
    except UNREADABLE:
        numbered = range(len(page.documents))
        get = whole or (lambda document: document)
        return read_each(
            queue,
            numbered,
            lambda row: _read(page, row, held),
            lambda row: raw_row(_record_id(page.documents[row]), get(page.documents[row])),
        )


def _as_batch(queue: str, page: DocumentPage, held: bool) -> pa.RecordBatch:
    """The same, whole columns at a time. Raises one of UNREADABLE for a value of a wrong type."""
    documents, payloads, kinds, _ = page
    ids = [one.get("_sid") or (str(key) if type(key := one["_id"]) is ObjectId else id_of(key)) for one in documents]
    headers = [header_text(one.get("hdrs")) for one in documents]
    moments = [one["_mature"] if held else due_of(one) for one in documents]
    check_types(moments, DatetimeMS)
    counts = [one.get("tries") or 0 for one in documents]
    check_types(counts, int, Int64, float)
    tries = [int(count) - (1 if held else _ahead(one)) for count, one in zip(counts, documents, strict=True)]
    batch = build(queue, ids, payloads, kinds, headers, list(map(int, moments)), tries)
    if "processed" not in documents[0]:
        return batch
    processed = [int(one["processed"]) for one in documents]
    consumers = [one.get("_consumer") for one in documents]
    return with_history(batch, processed, consumers, [outcome_of(one) for one in documents])


# --- one by one -----------------------------------------------------------------------------------------------------


def _read(page: DocumentPage, row: int, held: bool) -> Row:
    """Read one document. Raises `Unreadable` with what is wrong with it."""
    document = page.documents[row]
    check(row not in page.damaged, page.damaged.get(row, ""))
    id, hdrs = document.get("_sid") or id_of(document["_id"]), document.get("hdrs")
    check(isinstance(id, str), f"its _sid is {quoted(id)}, not a string")
    check(not hdrs or isinstance(hdrs, Mapping), f"its hdrs is {quoted(hdrs)}, not an object")
    due: Any = document.get("_mature") if held else due_of(document)
    check(isinstance(due, DatetimeMS), f"its mature is {quoted(due)}, not a date")
    tries = 0 if (count := document.get("tries")) is None else tries_of(count)
    tries -= 1 if held else _ahead(document)
    headers, payload, kind = header_text(hdrs), page.payloads[row], page.kinds[row]
    return Row(id, payload, kind, headers, mature_of(int(due)), tries, told_of(document))


def _record_id(document: Document) -> str:
    """The id by which a record is found whose document cannot be read."""
    id, key = document.get("_sid"), document["_id"]
    return id if isinstance(id, str) and (is_bucket(id) or key_of(id) == key) else id_of(key)


def raw_row(id: str, document: Document) -> Row:
    """What stands for a document that cannot be read: as it was before it was reserved."""
    tries = document.get("tries")
    if isinstance(tries, int | float) and not isinstance(tries, bool) and -(2**31) < tries < 2**31:
        tries = type(tries)(tries - _ahead(document))
    due = due_of(document)
    kept = {name: one for name, one in document.items() if name not in (*FORGET, "mature", "tries")}
    raw = kept | ({"mature": due} if "mature" in document else {}) | ({"tries": tries} if "tries" in document else {})
    mature = best(mature_of, int(due)) if isinstance(due, DatetimeMS) else 0
    return Row(
        id, json_text(raw).encode(), "json", digest_of(json_text(kept).encode()), mature,
        max(0, best(tries_of, tries)), told_of(document),
    )  # fmt: skip


def told_of(document: Document) -> tuple[int, str | None, str] | None:
    """What became of a message of the history."""
    if "processed" not in document:
        return None
    processed, consumer, outcome = document["processed"], document.get("_consumer"), outcome_of(document)
    moment = best(mature_of, int(processed)) if isinstance(processed, DatetimeMS) else 0
    return moment, consumer if isinstance(consumer, str) else None, str(outcome)
