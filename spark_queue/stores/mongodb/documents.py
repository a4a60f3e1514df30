"""Messages as MongoDB documents: their layout, their states, and how they enter a collection.

The layout is that of keuss' backend `mongo` (with history: `ps-mongo`), so keuss can share a queue:

    _id         ObjectId. The message's id; a hash of it, if it is not 24 lower-case hex digits.
    mature      Date. When the message is due; while it is reserved, when the lease ends.
    payload     JSON as BSON, a string, or binary.
    tries       Int32. Failed attempts. A reserve adds the attempt that it begins.
    hdrs        {} The headers.
    reserved    Date. Since when it is reserved. The field stays after the lease has ended.
    processed   Date. When it was committed: the message is history.
    removed     true, in the history: keuss removed the message, and no consumer had it.

and adds, if needed:

    _sid        The id, if `_id` is its hash.
    _seq        ObjectId. Its place among messages of the same due time: see `places.py`.
    _pushed     Date. When it was pushed. Messages of other programs and older versions have none.
    _tag        The tag that holds it.
    _mature     When it was due, before `mature` became the end of the lease.
    _reserved   The value that we wrote to `reserved`. The tag holds the message only while the two
                are equal. Other programs do not know tags, but set or remove `reserved` when they
                reserve or release a message.
    _until      When the server removes it from the history.
    _consumer   The consumer that processed it.
    _outcome    The outcome, if it is not `commit`: `dead`, or a word of the program.
    _hidden     The part of a stage that is being published, on a server without transactions. Until
                then `processed` hides the message.
    rows        The number of messages of a bucket, whose `_id` is its id, a string. To keuss a
                bucket is one binary message.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from bson import DatetimeMS, Int64, ObjectId, encode
from bson.raw_bson import RawBSONDocument
from bson.regex import Regex
from pymongo import IndexModel, ReplaceOne
from pymongo.client_session import ClientSession
from pymongo.collection import Collection
from pymongo.errors import BulkWriteError

from spark_queue.messages.buckets import MAX_ROWS_DIGITS, is_bucket, rows_of
from spark_queue.messages.columns import build_messages, due_ms, header_dicts, pushed_ms, with_history
from spark_queue.messages.ids import OBJECT_ID
from spark_queue.messages.schema import BUCKET_PREFIX, PayloadKind
from spark_queue.messages.times import MAX_TIME_MS
from spark_queue.stores.base import PAGE_BYTES
from spark_queue.stores.mongodb.bson_json import check_document, header_fields, header_text, need_checks, to_bson
from spark_queue.stores.mongodb.keys import filters_greater, id_of, identity_of, json_text, key_of, sort_key
from spark_queue.stores.support.budget import current_budget, spend
from spark_queue.stores.support.damaged import (
    READ_ERRORS,
    Records,
    Row,
    Unreadable,
    check_types,
    describe_value,
    digest_header,
    first_readable,
    parse_mature,
    parse_pushed,
    parse_tries,
    read_each,
    require,
)
from spark_queue.stores.types import UNSEEN, Condition, DeadLetterInfo, consumer_of

Document = dict[str, Any]
Filter = Mapping[str, Any]

BSON_EPOCH = DatetimeMS(0)

#: The end of a lease that never ends.
NO_END_DATE = DatetimeMS(MAX_TIME_MS)

#: Error code of the server: the id exists already.
DUPLICATE_KEY = 11000

#: `processed` comes first, so a long history does not slow the queue.
READY_INDEX = IndexModel([("processed", 1), ("mature", 1), ("_seq", 1), ("_id", 1)], name="spark_queue_next")
HELD_INDEX = IndexModel(
    [("_tag", 1), ("_mature", 1), ("_seq", 1), ("_id", 1)],
    name="spark_queue_tagged",
    partialFilterExpression={"reserved": {"$exists": True}},
)
EXPIRY_INDEX = IndexModel([("_until", 1)], name="spark_queue_ending", sparse=True, expireAfterSeconds=0)
#: An index of the buckets that covers the count of their messages.
BUCKETS_INDEX = IndexModel(
    [("rows", 1), ("processed", 1), ("mature", 1), ("_tag", 1)],
    name="spark_queue_buckets",
    partialFilterExpression={"rows": {"$exists": True}},
)
INDEXES = (READY_INDEX, HELD_INDEX, EXPIRY_INDEX, BUCKETS_INDEX)
#: The indexes of earlier versions, which had no `_seq`.
OLD_INDEXES = (
    IndexModel([("processed", 1), ("mature", 1), ("_id", 1)], name="spark_queue_ready"),
    IndexModel(
        [("_tag", 1), ("_mature", 1), ("_id", 1)],
        name="spark_queue_held",
        partialFilterExpression={"reserved": {"$exists": True}},
    ),
)
ID_HINT: dict[str, Any] = {"hint": "_id_"}

#: The fields that a page of reserved messages needs.
HELD_FIELDS = {"payload": 1, "tries": 1, "hdrs": 1, "_sid": 1, "_mature": 1, "_seq": 1, "_pushed": 1}

#: The fields that a reservation adds, for `$unset`.
RESERVATION_FIELDS = {"reserved": "", "_tag": "", "_mature": "", "_reserved": ""}

#: Matches the `_id` of buckets: see `is_bucket_key`.
BUCKET_IDS = Regex(f"^{BUCKET_PREFIX}.*{BUCKET_PREFIX}.*{BUCKET_PREFIX}", "s")

COMPARISONS = {"=": "$eq", "<": "$lt", "<=": "$lte", ">": "$gt", ">=": "$gte", "in": "$in"}


class DocumentState(NamedTuple):
    """A state of messages: how to find them, and what their fields mean in it."""

    query: Filter
    due: str | Filter  #: the field, or the expression, of when it was due
    pending_tries: int  #: how many of its tries have not failed yet
    hint_index: IndexModel  #: the index to use
    order: list[tuple[str, int]]

    def query_with(self, conditions: Sequence[Condition]) -> Filter:
        """Return a filter for messages in this state that meet all conditions but those on `id`."""
        return {
            "$and": [
                self.query,
                *(self._condition_query(condition) for condition in conditions if condition.column != "id"),
            ]
        }

    def _condition_query(self, condition: Condition) -> Filter:
        op = COMPARISONS[condition.op]
        values: list[Any] = list(condition.values)
        match condition.column:
            case "mature" | "processed":
                values = [DatetimeMS(one) for one in values]
            case "tries":
                values = [one + self.pending_tries for one in values]
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
    """The place of a record in the order of a field, `_seq` and `_id`, each of any type.

    `id` is the id of `key`: it distinguishes keys that are equal in Python, such as 1 and true.
    """

    value: Any
    seq: Any
    key: Any
    id: str


@dataclass(frozen=True, slots=True)
class DocumentPage:
    """Documents of one batch, and their payloads with their kinds.

    `damaged` has the rows whose payload cannot be read, and why. Their payload is empty here.
    """

    documents: list[Document] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    damaged: dict[int, str] = field(default_factory=dict)


#: Whether the `_id` has the form of a generated one, which grows in each process.
HAS_OBJECT_ID: Document = {"$eq": [{"$type": "$_id"}, "objectId"]}

#: When a reserved or free message was due. Other programs may leave any value in `_mature`.
DUE: Document = {
    "$cond": [
        {"$and": [{"$eq": ["$reserved", "$_reserved"]}, {"$eq": [{"$type": "$_mature"}, "date"]}]},
        "$_mature",
        "$mature",
    ]
}

#: The tries of a message, and whether they are a number. Another value stays, and is reported when
#: it is read.
TRIES: Document = {"$ifNull": ["$tries", 0]}
_TRIES_VALID: Document = {
    "$and": [
        {"$in": [{"$type": TRIES}, ["int", "long", "double"]]},
        {"$gte": [TRIES, -(2**31)]},
        {"$lt": [TRIES, 2**31 - 1]},
    ]
}

#: Matches documents that can become dead letters: their headers and tries can be changed.
SOUND_DOCUMENT: Filter = {
    "hdrs": {"$not": {"$type": ["array", "string", "number", "bool", "date", "binData", "objectId", "timestamp"]}},
    "$expr": _TRIES_VALID,
}

#: Whether a message was reserved ahead by a client of ours.
IS_UNSEEN: Document = {
    "$and": [
        {"$eq": ["$reserved", "$_reserved"]},
        {"$eq": [{"$type": "$_tag"}, "string"]},
        {"$regexMatch": {"input": {"$toString": "$_tag"}, "regex": f"/{UNSEEN}$"}},
    ]
}

#: How a message of the history was processed. One that keuss processed has no `_until`.
OUTCOME: Document = {
    "$switch": {
        "branches": [
            {"case": {"$eq": ["$removed", True]}, "then": "remove"},
            {"case": {"$lte": ["$_until", None]}, "then": "pop"},
        ],
        "default": {"$ifNull": ["$_outcome", "commit"]},
    }
}

#: Matches the tags of messages that were reserved ahead.
UNSEEN_TAGS = Regex(f"/{UNSEEN}$")

RESERVED: Filter = {"processed": None, "reserved": {"$exists": True}}

#: Matches messages that a tag of ours holds: the fence.
FENCED: Filter = {**RESERVED, "$expr": {"$eq": ["$reserved", "$_reserved"]}}

#: `processed` is null in all these messages: it is here so that the order is that of the index.
WAITING_ORDER = [("processed", 1), ("mature", 1), ("_seq", 1), ("_id", 1)]
HELD_ORDER = [("_mature", 1), ("_seq", 1), ("_id", 1)]

FREE = DocumentState({"processed": None, "reserved": {"$exists": False}}, "mature", 0, READY_INDEX, WAITING_ORDER)
HELD_BY_US = DocumentState(FENCED, "_mature", 1, HELD_INDEX, HELD_ORDER)
HELD_BY_OTHERS = DocumentState(
    {**RESERVED, "$expr": {"$ne": ["$reserved", "$_reserved"]}}, "mature", 1, HELD_INDEX, WAITING_ORDER
)


# --- filters and updates --------------------------------------------------------------------------


def add_tries(number: int) -> Document:
    """Return the tries plus a number, as an expression. Tries that are not a number stay."""
    return {"$cond": [_TRIES_VALID, {"$add": [TRIES, number]}, "$tries"]}


def id_filter(condition: Condition) -> Filter:
    """Return a condition on the id as a filter; it matches all buckets, too."""
    if condition.op in ("=", "in"):
        return or_bucket({"_id": {"$in": [key_of(str(one)) for one in condition.values]}})
    id = {"$ifNull": ["$_sid", {"$convert": {"input": "$_id", "to": "string", "onError": ""}}]}
    return or_bucket({"$expr": {COMPARISONS[condition.op]: [id, {"$literal": condition.value}]}})


def filter_after(field: str, place: DocumentPlace) -> Document:
    """Return a filter for records after a place in the order of a field, `_seq` and `_id`."""
    later = ({field: place.value, **one} for one in filters_greater("_seq", place.seq))
    later_keys = ({field: place.value, "_seq": place.seq, **one} for one in filters_greater("_id", place.key))
    return {"$or": [*filters_greater(field, place.value), *later, *later_keys]}


def or_bucket(query: Filter) -> Filter:
    """Return a filter that matches all buckets, too."""
    return {"$or": [query, {"_id": BUCKET_IDS}]}


def due_by(moment: int) -> Document:
    """Return a filter for messages that may be reserved at this time (ms).

    Messages of expired leases are included.
    """
    return {"processed": None, "mature": {"$lte": DatetimeMS(moment)}}


def held_by(tag: str) -> Document:
    """Return a filter for the messages that a tag, and those below it, still hold."""
    return {**FENCED, "_tag": {"$in": [tag, Regex(f"^{re.escape(tag)}/")]}}


def free_state(now: int) -> DocumentState:
    """Return the state of messages that are free, or whose lease has expired."""
    expired = {"mature": {"$lte": DatetimeMS(now)}}
    return FREE._replace(query={"processed": None, "$or": [{"reserved": {"$exists": False}}, expired]})


def history_state(now: int) -> DocumentState:
    """Return the state of messages in the history, also of those that other programs committed."""
    query = {"processed": {"$exists": True, "$ne": NO_END_DATE}, "_until": {"$not": {"$lte": DatetimeMS(now)}}}
    due = {"$ifNull": ["$_mature", {"$min": ["$mature", "$processed"]}]}
    return DocumentState(query, due, 0, READY_INDEX, HELD_ORDER)


def outcome_of(document: Document) -> str:
    """Return the outcome of a message of the history, as OUTCOME does in the server."""
    if document.get("removed") is True:
        return "remove"
    return "pop" if document.get("_until") is None else document.get("_outcome", "commit")


def history_update(now: int, history: int, tag: str | None, outcome: str, changes: Document) -> list[Document]:
    """Return the update that keeps messages as history for `history` ms.

    It also sets the fields `changes`, which are expressions.
    """
    moments = {"processed": now, "mature": now + 100 * history, "_until": now + history}
    fields: Document = {name: to_date(ms) for name, ms in moments.items()}
    if consumer := consumer_of(tag):
        fields["_consumer"] = consumer
    if outcome != "commit":
        fields["_outcome"] = outcome
    literals = {name: {"$literal": value} for name, value in fields.items()}
    return [{"$set": changes | literals}, {"$unset": [name for name in RESERVATION_FIELDS if name != "_mature"]}]


def lease_end(now: int, lease: int | None) -> DatetimeMS:
    """Return when a lease of `lease` ms that begins now ends; `None` never ends."""
    return NO_END_DATE if lease is None else to_date(now + lease)


def to_date(ms: int) -> DatetimeMS:
    """Return a time (ms) as a date, at most the latest that is allowed."""
    return DatetimeMS(min(ms, MAX_TIME_MS))


def claim_update(tag: str, now: DatetimeMS, until: DatetimeMS) -> list[Document]:
    """Return the update that reserves messages under a tag.

    After an expired lease of ours, a message keeps when it was due. If it was only reserved ahead,
    it also keeps the try that was added then.
    """
    tries = {"$cond": [IS_UNSEEN, "$tries", add_tries(1)]}
    fields = {"mature": until, "tries": tries, "reserved": now, "_tag": tag, "_mature": DUE, "_reserved": now}
    return [{"$set": fields}]


def release_update(due: Document | DatetimeMS, *, failed: bool) -> list[Document]:
    """Return the update that frees reserved messages, which are `due` then.

    At a new due time they meet messages that they were not compared with when they were pushed. So
    each gets a place, which is its `_id` if that has the order.
    """
    fields: Document = {"mature": due, "tries": "$tries" if failed else add_tries(-1)}  # the claim has added one
    if due != DUE:
        fields["_seq"] = {"$ifNull": ["$_seq", {"$cond": [HAS_OBJECT_ID, "$_id", "$$REMOVE"]}]}
    return [{"$set": fields}, {"$unset": list(RESERVATION_FIELDS)}]


def commit_update() -> Document:
    """Return the update that ends messages which no history keeps: the server removes them soon.

    For where a removal would be a round trip of its own. The far due time keeps keuss from taking
    them.
    """
    now: Document = {"processed": True, "_until": True}
    return {"$currentDate": now, "$set": {"mature": NO_END_DATE}, "$unset": RESERVATION_FIELDS}


# --- documents ------------------------------------------------------------------------------------


def to_documents(batch: pa.RecordBatch, now: int) -> tuple[list[Document], dict[int, str]]:
    """Return the rows of a PUSHES batch as documents, and the rules that rows break."""
    documents: list[Document] = []
    broken_rules: dict[int, str] = {}
    ids, due = batch.column("id"), due_ms(batch, now)
    pushed = pushed_ms(batch, now)
    moments = {ms: None if ms is None else DatetimeMS(ms) for ms in {*due, *pushed}}  # mostly one for all rows
    columns = zip(
        ids.to_pylist(),
        pc.match_substring_regex(ids, f"^{OBJECT_ID.pattern}$").to_pylist(),
        due,
        batch.column("payload").to_pylist(),
        batch.column("payload_kind").to_pylist(),
        need_checks(batch.column("payload")),
        batch.column("tries").to_pylist(),
        header_dicts(batch),
        pushed,
        strict=True,
    )
    for row, (id, native, mature, payload, kind, needs_check, tries, headers, first_pushed) in enumerate(columns):
        try:
            document = {
                "_id": ObjectId(bytes.fromhex(id)) if native else (key := key_of(id)),
                "mature": moments[mature],
                "payload": to_bson(payload, kind, needs_check),
                "tries": tries,
                "hdrs": headers,
                "_pushed": moments[first_pushed],  # here, since a sixth field would make the dict grow
            }
            if first_pushed is None:
                del document["_pushed"]
            if is_bucket(id):
                document["rows"] = rows_of(id)
            elif not native and id_of(key) != id:
                document["_sid"] = id
            if needs_check or headers:
                check_document(document)
            documents.append(document)
        except ValueError as error:
            broken_rules[row] = str(error)
    return documents, broken_rules


#: Counts the messages of documents, from their `_id` and the documents.
MessageCounter = Callable[[Iterable[Any], Iterable[Document | RawBSONDocument]], int]


def count_messages(keys: Iterable[Any], documents: Iterable[Document | RawBSONDocument] = ()) -> int:
    """Return how many messages the records with these `_id` hold together."""
    return sum(rows_of(one) if isinstance(one, str) else 1 for one in keys)


def count_of(value: object) -> int:
    """Return how many messages a record holds, from its field's value; 1 if that is invalid."""
    return int(value) if isinstance(value, int | float) and 0 <= value < 10**MAX_ROWS_DIGITS else 1


def count_expression(field: str) -> Document:
    """Return how many messages a record holds, as an expression; 1 if the field is invalid."""
    number = {"$ifNull": [f"${field}", 1]}
    return {"$cond": [{"$and": [{"$gte": [number, 0]}, {"$lt": [number, 10**MAX_ROWS_DIGITS]}]}, number, 1]}


def insert(
    queue: Collection[Document],
    documents: Sequence[Document],
    replaceable: Filter | None = None,
    count: MessageCounter = count_messages,
) -> int:
    """Insert the documents whose ids are new; return the number of messages.

    They also replace history and hidden messages with the same id; with `replaceable` only those
    that match this filter.
    """
    if not documents:
        return 0
    total = count([one["_id"] for one in documents], documents)
    try:
        queue.insert_many(documents, ordered=False)
        return total
    except BulkWriteError as error:
        if not only_duplicates(error):
            raise
        failed = error.details["writeErrors"]
    existing = [documents[one["index"]] for one in failed]
    inserted = total - count([one["_id"] for one in existing], existing)
    replaceable_query = {"processed": {"$exists": True}, **(replaceable or {})}
    replacements = [ReplaceOne({"_id": one["_id"], **replaceable_query}, one) for one in existing]
    return inserted + queue.bulk_write(replacements, ordered=False).modified_count


def insert_new(
    queue: Collection[Document],
    ids: Sequence[ObjectId],
    documents: Sequence[Document | RawBSONDocument],
    session: ClientSession,
    count: MessageCounter = count_messages,
) -> int:
    """Insert the documents whose ids are new, in a transaction; return the number of messages.

    They also replace history and hidden messages with the same id. A duplicate key would end the
    transaction, so ids are looked up first.
    """
    existing_ids: set[str] = set()
    if _may_exist(queue, ids, session):
        query = {"_id": {"$in": list(ids)}}
        queue.delete_many({**query, "processed": {"$exists": True}}, session=session, **ID_HINT)
        found = queue.find(query, {"_id": 1}, session=session, **ID_HINT)
        existing_ids = {identity_of(one["_id"]) for one in found}
    new: dict[str, tuple[Any, Document | RawBSONDocument]] = {}  # by text: an `_id` may be a document
    for id, document in zip(ids, documents, strict=True):
        if (text := identity_of(id)) not in existing_ids:
            new.setdefault(text, (id, document))
    keys, new_documents = [key for key, _ in new.values()], [one for _, one in new.values()]
    if new:
        queue.insert_many(new_documents, ordered=False, session=session)
    return count(keys, new_documents)


def _may_exist(queue: Collection[Document], ids: Sequence[Any], session: ClientSession) -> bool:
    """Return whether the queue may have one of these ids: whether it has any in their range.

    The ids of new messages are adjacent, so mostly one query shows that all of them are new.
    """
    if not ids or not all(isinstance(one, ObjectId) for one in ids):
        return True
    in_range = {"_id": {"$gte": min(ids), "$lte": max(ids)}}
    return queue.find_one(in_range, {"_id": 1}, session=session, **ID_HINT) is not None


def only_duplicates(error: BulkWriteError) -> bool:
    """Return whether duplicate ids are the only errors."""
    codes = {one["code"] for one in error.details["writeErrors"]}
    return codes == {DUPLICATE_KEY} and not error.details["writeConcernErrors"]


def moved_document(
    document: Document, queue: str, pending_tries: int, death: DeadLetterInfo | None, now: int
) -> Document:
    """Return the document as it enters another queue."""
    moved = {name: value for name, value in document.items() if name not in RESERVATION_FIELDS}
    if death is not None:
        headers = death.headers(queue, int(document.get("tries") or 0) - pending_tries, now)
        moved["hdrs"] = {**(header_fields(document.get("hdrs")) or {}), **headers}
    due = due_of(document)
    return moved | {"mature": due if isinstance(due, DatetimeMS) else DatetimeMS(now), "tries": 0}


def dead_letter_headers(queue: str, pending_tries: int, death: DeadLetterInfo, now: int) -> Document:
    """Return the headers of a message that becomes a dead letter, as an expression in an update."""
    headers: Document = {name: {"$literal": value} for name, value in death.headers(queue, 0, now).items()}
    tries = {"$subtract": [TRIES, pending_tries - death.failed]}
    headers["x-dl-tries"] = {"$toString": {"$toInt": tries}}
    return {"$mergeObjects": ["$hdrs", headers]}


def due_of(document: Document) -> Any:
    """Return when the message was due, before `mature` became the end of a lease or of the history.

    keuss does not store that: a message that it processed was due by then. Other programs may leave
    a value of any type.
    """
    reserved = document.get("reserved")
    ours = "processed" in document or (reserved is not None and reserved == document.get("_reserved"))
    due = document.get("mature", BSON_EPOCH)
    if ours and "_mature" in document:
        due = document["_mature"]
    elif "processed" in document:
        due = min(due, document["processed"], key=sort_key)
    return due


def _pending_tries(document: Document) -> int:
    """Return how many of its `tries` have not failed yet."""
    return int("reserved" in document and "processed" not in document)


def spend_documents(documents: Iterable[Document]) -> Iterable[Document]:
    """Return the documents. Each spends the budget of a look, if one applies."""
    if current_budget() is None:
        return documents

    def spending() -> Iterator[Document]:
        for one in documents:
            spend(1, len(encode(one)))
            yield one

    return spending()


def pages(
    documents: Iterable[Document], limit: int, read: Callable[[Document], tuple[bytes, PayloadKind]]
) -> Iterator[DocumentPage]:
    """Yield pages of up to `limit` documents, each ending early at PAGE_BYTES of payload.

    `read` returns the payload of a document, and its kind. It raises one of READ_ERRORS.
    """
    page, size = DocumentPage(), 0
    for document in documents:
        try:
            payload, kind = read(document)
        except READ_ERRORS as error:
            reason = str(error) if isinstance(error, Unreadable) else f"its payload cannot be read ({error})"
            page.damaged[len(page.documents)] = reason
            payload, kind = b"", "binary"
        page.documents.append(document)
        page.payloads.append(payload)
        page.kinds.append(kind)
        size += len(payload)
        if len(page.documents) >= limit or size >= PAGE_BYTES:
            yield page
            page, size = DocumentPage(), 0
    if page.documents:
        yield page


def as_records(
    queue: str, page: DocumentPage, load_document: Callable[[Document], Document] | None = None
) -> Records:
    """Return a page as records: batches of MESSAGES or HISTORY.

    `load_document`: the documents have only the fields HELD_FIELDS; it returns one with all fields.
    """
    held = load_document is not None
    try:
        require(not page.damaged, "a payload cannot be read")
        return Records(_to_batch(queue, page, held))
    except READ_ERRORS:
        rows = range(len(page.documents))
        load = load_document or (lambda document: document)
        return read_each(
            queue,
            rows,
            lambda row: _read_row(page, row, held),
            lambda row: raw_row(_record_id(page.documents[row]), load(page.documents[row])),
        )


def _to_batch(queue: str, page: DocumentPage, held: bool) -> pa.RecordBatch:
    """Return a page as a batch, read by whole columns.

    Raises one of UNREADABLE for a value of a wrong type.
    """
    documents = page.documents
    ids = [one.get("_sid") or (str(key) if type(key := one["_id"]) is ObjectId else id_of(key)) for one in documents]
    headers = [header_text(one.get("hdrs")) for one in documents]
    moments = [one["_mature"] if held else due_of(one) for one in documents]
    check_types(moments, DatetimeMS)
    counts = [one.get("tries") or 0 for one in documents]
    check_types(counts, int, Int64, float)
    tries = [int(count) - (1 if held else _pending_tries(one)) for count, one in zip(counts, documents, strict=True)]
    stored = [one.get("_pushed") for one in documents]
    check_types(stored, DatetimeMS, NoneType)
    pushed = [None if one is None else int(one) for one in stored]
    batch = build_messages(queue, ids, page.payloads, page.kinds, headers, list(map(int, moments)), tries, pushed)
    if "processed" not in documents[0]:
        return batch
    processed = [int(one["processed"]) for one in documents]
    consumers = [one.get("_consumer") for one in documents]
    return with_history(batch, processed, consumers, [outcome_of(one) for one in documents])


# --- one by one -----------------------------------------------------------------------------------


def _read_row(page: DocumentPage, row: int, held: bool) -> Row:
    """Read one document. Raises `Unreadable` with the reason if it is damaged."""
    document = page.documents[row]
    require(row not in page.damaged, page.damaged.get(row, ""))
    id, hdrs = document.get("_sid") or id_of(document["_id"]), header_fields(document.get("hdrs"))
    require(isinstance(id, str), f"its _sid is {describe_value(id)}, not a string")
    require(not hdrs or isinstance(hdrs, Mapping), f"its hdrs is {describe_value(hdrs)}, not an object")
    due: Any = document.get("_mature") if held else due_of(document)
    require(isinstance(due, DatetimeMS), f"its mature is {describe_value(due)}, not a date")
    tries = 0 if (count := document.get("tries")) is None else parse_tries(count)
    tries -= 1 if held else _pending_tries(document)
    headers, payload, kind = header_text(hdrs), page.payloads[row], page.kinds[row]
    moment = parse_mature(int(due))
    return Row(id, payload, kind, headers, moment, tries, history_entry(document), pushed_of(document))


def _record_id(document: Document) -> str:
    """Return the id under which the record of a damaged document is found."""
    id, key = document.get("_sid"), document["_id"]
    return id if isinstance(id, str) and (is_bucket(id) or key_of(id) == key) else id_of(key)


def raw_row(id: str, document: Document) -> Row:
    """Return the row for a document that cannot be read. Its payload is the document as JSON.

    The document is as it was before it was reserved.
    """
    tries = document.get("tries")
    if isinstance(tries, int | float) and not isinstance(tries, bool) and -(2**31) < tries < 2**31:
        tries = type(tries)(tries - _pending_tries(document))
    due = due_of(document)
    unchanged = {name: one for name, one in document.items() if name not in (*RESERVATION_FIELDS, "mature", "tries")}
    before = {"mature": due, "tries": tries}
    raw = unchanged | {name: one for name, one in before.items() if name in document}
    mature = first_readable(parse_mature, int(due)) if isinstance(due, DatetimeMS) else 0
    return Row(
        id, json_text(raw).encode(), "json", digest_header(json_text(unchanged).encode()), mature,
        max(0, first_readable(parse_tries, tries)), history_entry(document), pushed_of(document),
    )  # fmt: skip


def pushed_of(document: Document, field: str = "_pushed") -> int | None:
    """Return when a message was pushed (ms); `None` if its field is missing or no valid date."""
    moment = document.get(field)
    return parse_pushed(int(moment)) if isinstance(moment, DatetimeMS) else None


def history_entry(document: Document) -> tuple[int, str | None, str] | None:
    """Return when a message of the history was processed (ms), by which consumer, and the outcome.

    `None` for a message that is not history.
    """
    if "processed" not in document:
        return None
    processed, consumer, outcome = document["processed"], document.get("_consumer"), outcome_of(document)
    moment = first_readable(parse_mature, int(processed)) if isinstance(processed, DatetimeMS) else 0
    return moment, consumer if isinstance(consumer, str) else None, str(outcome)
