"""keuss' layout `bucket-mongo-safe`: many messages in one document.

The URL selects it with `?layout=bucket-mongo-safe`. A document has

    _id         ObjectId. The id of a keuss message is `<_id>:<its index in b>`.
    b           [ ] An entry for each message: {__p: payload, __h: headers, __i: its id}.
                It is null once the message is done. `__i` is ours: messages of keuss have none,
                and older ones are the bare payload. Also ours is `__t`, a date: when the message
                was pushed, if the messages were pushed at different moments.
    n           Int32. How many messages are left.
    mature, tries, reserved     as in `mongo`, for all its messages. So are the fields that we add,
                such as `_pushed`.

To the rest of this package a document is a bucket (`messages/buckets.py`). It is reserved as a
whole, and split if an operation is for some of its messages. A message that is pushed alone is a
bucket of one. keuss keeps a bucket in memory while it works on it, and now and then writes which
messages are done. It also does so after its lease has ended: then these messages disappear from a
bucket that we hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Any, ClassVar

import pyarrow as pa
from bson import ObjectId
from bson.raw_bson import RawBSONDocument
from pymongo import IndexModel
from pymongo.collection import Collection

from spark_queue.messages.arrow_bytes import to_bytes
from spark_queue.messages.buckets import BUCKET_SCHEMA, CONVERTED_SUFFIX, Buckets, Layout, is_bucket, unpack_bucket
from spark_queue.messages.columns import due_ms, header_dicts, headers_array, pushed_column, pushed_ms
from spark_queue.messages.ids import OBJECT_ID
from spark_queue.messages.schema import BUCKET_PREFIX, MESSAGES, PayloadKind
from spark_queue.stores.mongodb.bson_json import (
    all_from_bson,
    check_document,
    header_fields,
    header_text,
    need_checks,
    to_bson,
)
from spark_queue.stores.mongodb.documents import (
    BUCKETS_INDEX,
    INDEXES,
    OLD_INDEXES,
    Document,
    DocumentPage,
    Filter,
    count_of,
    moved_document,
    pages,
    pushed_of,
    to_date,
)
from spark_queue.stores.mongodb.forms import Form, bucket_form
from spark_queue.stores.mongodb.keys import id_of, key_of
from spark_queue.stores.mongodb.oversize import fit_bucket
from spark_queue.stores.mongodb.store import MongoStore
from spark_queue.stores.spans import WHOLE, Span
from spark_queue.stores.support.damaged import READ_ERRORS, Records, Unreadable, describe_value, require
from spark_queue.stores.types import Condition, DeadLetterInfo, View

#: An index of all documents that covers the count of their messages.
COUNT_INDEX = IndexModel(
    [("n", 1), ("processed", 1), ("mature", 1), ("_tag", 1)], name=BUCKETS_INDEX.document["name"]
)


class BucketStore(MongoStore):
    """Queues of buckets that keuss shares."""

    layout_name: ClassVar[str] = "bucket-mongo-safe"
    form: ClassVar[Form] = bucket_form(
        tuple(COUNT_INDEX if one is BUCKETS_INDEX else one for one in INDEXES), OLD_INDEXES
    )
    layout: Layout = Buckets(1024)  # keuss' own size

    _rows_field: ClassVar[str] = "n"
    _content_field: ClassVar[str] = "b"
    _id_fields: ClassVar[Document] = {"_id": 1, "n": 1}
    _held_fields: ClassVar[Document] = {"b": 1, "n": 1, "tries": 1, "_mature": 1, "_seq": 1, "_pushed": 1}
    _bucket_ids: ClassVar[Filter] = {"$exists": True}

    @staticmethod
    def _key_of(id: str) -> Any:
        """Return the `_id` of a record. It differs from the ids of all messages."""
        if id.endswith(CONVERTED_SUFFIX):
            return key_of(id[1:].rsplit(BUCKET_PREFIX, 2)[0])
        digest = sha256(id.encode()).hexdigest()
        first = id[1:25] if is_bucket(id) else id
        if not OBJECT_ID.fullmatch(first):
            return ObjectId(digest[:24])
        # The time and counter of the first message keep records in the order of their pushes. The
        # digest distinguishes records that begin with the same message.
        return ObjectId(first[:8] + first[18:] + digest[:10])

    @staticmethod
    def _id_of(document: Document) -> str:
        id, messages = id_of(document["_id"]), count_of(document.get("n", 0))
        return f"{BUCKET_PREFIX}{id}{BUCKET_PREFIX}{messages}{CONVERTED_SUFFIX}"

    @staticmethod
    def _count_messages(keys: Iterable[ObjectId | str], documents: Iterable[Document | RawBSONDocument] = ()) -> int:
        return sum(count_of(one.get("n", 0)) for one in documents)

    @staticmethod
    def _to_documents(batch: pa.RecordBatch, now: int) -> tuple[list[Document], dict[int, str]]:
        documents: list[Document] = []
        broken_rules: dict[int, str] = {}
        due, tries, pushed = due_ms(batch, now), batch.column("tries").to_pylist(), pushed_ms(batch, now)
        for row, id in enumerate(batch.column("id").to_pylist()):
            one = batch.slice(row, 1)
            packed = one.column("payload")[0]
            rows = unpack_bucket(id, packed.as_buffer()) if is_bucket(id) else one.select(BUCKET_SCHEMA.names)
            try:
                entries = _to_entries(rows)
                document = {
                    "_id": BucketStore._key_of(id),
                    "b": entries,
                    "n": len(entries),
                    "mature": to_date(due[row]),
                }
                if tries[row]:
                    document["tries"] = tries[row]
                if (moment := pushed[row]) is not None:
                    document["_pushed"] = to_date(moment)
                check_document(document)
                documents.append(document)
            except ValueError as error:
                broken_rules[row] = str(error)
        return documents, broken_rules

    @staticmethod
    def _pages(documents: Iterable[Document], limit: int) -> Iterator[DocumentPage]:
        return pages((one | {"_sid": BucketStore._id_of(one)} for one in documents), limit, _read_bucket)

    @staticmethod
    def _moved_documents(
        document: Document, queue: str, pending_tries: int, death: DeadLetterInfo | None, now: int
    ) -> list[Document]:
        moved = moved_document(document, queue, pending_tries, death, now)
        headers = moved.pop("hdrs", {})
        moved.pop("_sid", None)
        if headers and isinstance(moved.get("b"), list):
            moved["b"] = [
                one and {**_normalize_entry(one), "__h": {**(_normalize_entry(one).get("__h") or {}), **headers}}
                for one in moved["b"]
            ]
        return [moved] if death is None else list(fit_bucket(moved))

    def _has_buckets(self, queue: Collection[Document]) -> bool:
        return True

    def _peek(
        self, queue: str, where: Sequence[Condition], limit: int | None, view: View, rows: int, span: Span = WHOLE
    ) -> Iterator[Records]:
        return super()._peek(queue, (), limit, view, rows, span)  # `Store.peek` filters opened buckets


def _to_entries(rows: pa.RecordBatch) -> list[Document]:
    """Return messages as entries of `b`. Raises `ValueError` with the rule that one breaks."""
    columns = zip(
        rows.column("id").to_pylist(),
        rows.column("payload").to_pylist(),
        rows.column("payload_kind").to_pylist(),
        need_checks(rows.column("payload")),
        header_dicts(rows),
        strict=True,
    )
    entries: list[Document] = [
        {"__p": to_bson(payload, kind, needs_check), "__h": headers, "__i": id}
        for id, payload, kind, needs_check, headers in columns
    ]
    if "pushed" in rows.schema.names:  # else the document says it
        for entry, moment in zip(entries, pushed_ms(rows, None), strict=True):
            entry |= {} if moment is None else {"__t": to_date(moment)}
    return entries


def _normalize_entry(value: Any) -> Document:
    """Return an entry in its current form. A value of another form is a bare payload."""
    if isinstance(value, dict) and "__p" in value:
        headers, id = header_fields(value.get("__h")), value.get("__i")
        if (not headers or isinstance(headers, dict)) and (id is None or isinstance(id, str)):
            return {**value, "__h": headers}
    return {"__p": value, "__h": {}}


def _read_bucket(document: Document) -> tuple[bytes, PayloadKind]:
    """Return the content of a bucket, and its kind. Raises `Unreadable` if it is damaged."""
    try:
        return to_bytes(_messages_of(document)), "binary"
    except READ_ERRORS as error:
        raise Unreadable(f"the bucket is damaged: {error}") from error


def _messages_of(document: Document) -> pa.RecordBatch:
    """Return the messages of a document."""
    values = document.get("b") or []
    require(isinstance(values, list), f"its b is {describe_value(values)}, not an array")
    entries = [(place, _normalize_entry(value)) for place, value in enumerate(values) if value is not None]
    first = id_of(document["_id"])
    ids = [entry.get("__i") or f"{first}:{place}" for place, entry in entries]
    payloads, kinds = all_from_bson(entry["__p"] for _, entry in entries)
    hdrs = [entry.get("__h") for _, entry in entries]
    headers = headers_array([header_text(one) for one in hdrs] if any(hdrs) else hdrs)
    columns = [pa.array(ids, pa.string()), pa.array(payloads, pa.binary()), pa.array(kinds, pa.string())]
    batch = pa.RecordBatch.from_arrays([*columns, headers], schema=BUCKET_SCHEMA)
    moments = [pushed_of(entry, "__t") for _, entry in entries]
    if not any(moments):
        return batch  # all of them were pushed with the document
    return batch.append_column(MESSAGES.field("pushed"), pushed_column(moments, len(moments)))
