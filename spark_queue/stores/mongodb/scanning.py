"""Read the steps of a scan: see `support/scan.py`.

Free messages are in the order of the index READY, and those of each tag in that of the index HELD.
A step merges these. It reads them without their payloads, between bounds of the index: these hold
for values of all types, and no document before the place is examined. Then it reads the documents
that meet the conditions.

READY also has the reserved messages, at the end of their lease: a step examines them there, too.
A queue without our indexes is sorted by the server for each step, which examines all of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from bson import DatetimeMS, MaxKey, MinKey, json_util
from bson.errors import BSONError
from pymongo.collection import Collection

from spark_queue.errors import OptionError
from spark_queue.messages.buckets import is_bucket, rows_of
from spark_queue.stores.base import PAGE_BYTES
from spark_queue.stores.mongodb.documents import (
    FENCED,
    HELD_INDEX,
    HELD_ORDER,
    ID_HINT,
    NO_END_DATE,
    READY_INDEX,
    WAITING_ORDER,
    Document,
    DocumentPage,
    DocumentPlace,
    as_records,
    due_of,
    filter_after,
    outcome_of,
)
from spark_queue.stores.mongodb.keys import CANONICAL, filters_greater, id_of, json_text, sort_key
from spark_queue.stores.support.budget import spend
from spark_queue.stores.support.conditions import MAX_NAMED_IDS, DueRange, due_range, meets, named_ids
from spark_queue.stores.support.damaged import EMPTY_PAGE, Records
from spark_queue.stores.support.scan import Scanned, ScanPlace, ScanStep
from spark_queue.stores.types import Condition

#: The fields that are read of each document that is examined, and its size.
LIGHT_FIELDS: Document = {
    "_id": 1, "_seq": 1, "_sid": 1, "mature": 1, "tries": 1, "reserved": 1, "_tag": 1, "_mature": 1, "_reserved": 1,
    "processed": 1, "removed": 1, "_until": 1, "_consumer": 1, "_outcome": 1, "bytes": {"$bsonSize": "$$ROOT"},
}  # fmt: skip

#: With more tags than these, a step sorts all reserved messages, and asks no longer tag by tag.
MAX_TAGS = 256


class _Entry(NamedTuple):
    """A document without its payload, and its place: the values of an index."""

    place: tuple[Any, ...]
    document: Document

    @property
    def order(self) -> tuple[Any, ...]:
        """Its sort key, that of the server."""
        return tuple(map(sort_key, self.place))


class _Stream(NamedTuple):
    """Entries in order, and up to which place they are all; `None`: to the end."""

    found: list[_Entry]
    last: tuple[Any, ...] | None


@dataclass(frozen=True, slots=True)
class QueueIndexes:
    """How to find the documents of a queue.

    `fields`: those that name it, if its collection holds several. `indexed`: whether it has our
    indexes. `pages` reads documents; `record_id` returns the id of one.
    """

    collection: Collection[Document]
    fields: Document
    indexed: bool
    rows_field: str
    record_id: Callable[[Document], str]
    key_of: Callable[[str], Any]
    has_buckets: Callable[[], bool]
    pages: Callable[[Iterable[Document], int], Iterator[DocumentPage]]


def scan_documents(queue: QueueIndexes, step: ScanStep, now: int) -> Scanned:
    """Read one step. `now` is for the history. Raises `OptionError` for an invalid place."""
    after = parse_place(step.after, step.view)
    found, last = (
        _History(queue, now).read(step, after) if step.view == "history" else _Messages(queue).read(step, after)
    )
    spend(len(found))
    matching = [one for one in found if _meets(queue, step.where, one.document)]
    size, some = 0, 0
    while some < len(matching) and size < PAGE_BYTES:
        size += matching[some].document["bytes"]
        some += 1
    end = matching[some - 1].place if some < len(matching) else last
    records, places = _read_documents(queue, step, matching[:some])
    return Scanned(records, places, None if end is None else _json_place(end))


def _read_documents(
    queue: QueueIndexes, step: ScanStep, entries: Sequence[_Entry]
) -> tuple[Records, list[ScanPlace]]:
    """Return those of these documents that still exist, with their places."""
    keys = [one.document["_id"] for one in entries]
    query = {"_id": {"$in": keys}}
    by_id: dict[str, Document] = {}
    for one in queue.collection.find(query, **ID_HINT) if keys else ():
        if (one.get("processed") is None) == (step.view == "messages"):
            by_id[id_of(one["_id"])] = one
    spend(size=sum(one.document["bytes"] for one in entries))
    existing = [one for one in entries if id_of(one.document["_id"]) in by_id]
    documents = [by_id[id_of(one.document["_id"])] for one in existing]
    page = DocumentPage()
    for part in queue.pages(documents, len(documents) or 1):
        page.damaged.update({len(page.documents) + row: why for row, why in part.damaged.items()})
        page.documents.extend(part.documents)
        page.payloads.extend(part.payloads)
        page.kinds.extend(part.kinds)
    records = as_records(step.queue, page) if page.documents else EMPTY_PAGE
    return records, [_json_place(one.place) for one in existing]


def _meets(queue: QueueIndexes, where: Sequence[Condition], document: Document) -> bool:
    """Return whether a record meets the conditions; a bucket, those that are for it."""
    if not where:
        return True
    due, tries, processed = due_of(document), document.get("tries") or 0, document.get("processed")
    if not is_bucket(queue.record_id(document)):
        id = document.get("_sid") or id_of(document["_id"])
        moment = int(due) if isinstance(due, DatetimeMS) else None
        if not (meets(where, "id", id) and meets(where, "mature", moment)):
            return False
    pending = int("reserved" in document and processed is None)
    count = int(tries) - pending if isinstance(tries, int | float) and math.isfinite(tries) else None
    return (
        meets(where, "tries", count)
        and meets(where, "processed", int(processed) if isinstance(processed, DatetimeMS) else None)
        and meets(where, "consumer", document.get("_consumer"))
        and meets(where, "outcome", outcome_of(document))
    )


# --- places ---------------------------------------------------------------------------------------


def _json_place(values: tuple[Any, ...]) -> ScanPlace:
    return [json_text(list(values))]


def parse_place(place: ScanPlace | None, view: str) -> tuple[Any, ...] | None:
    """Return the values of a place. Raises `OptionError` if it is invalid."""
    if place is None:
        return None
    try:
        (text,) = place
        values = json_util.loads(text, json_options=CANONICAL)
        if isinstance(values, list) and len(values) in ((1, 4) if view == "history" else (3,)) and _is_plain(values):
            return tuple(values)
    except (ValueError, TypeError, ArithmeticError, AttributeError, RecursionError, BSONError):
        pass
    raise OptionError("the cursor is not that of this store: begin with the first message", option="cursor")


def _is_plain(value: Any) -> bool:
    """Return whether a value has no name that the server could take for an operator."""
    if isinstance(value, Mapping):
        return all(not name.startswith("$") and _is_plain(one) for name, one in value.items())
    return all(map(_is_plain, value)) if isinstance(value, list) else True


# --- messages -------------------------------------------------------------------------------------


def _is_held(document: Document) -> bool:
    """Return whether a tag of ours holds a message, so that `_mature` is its due time."""
    reserved = document.get("reserved")
    return reserved is not None and reserved == document.get("_reserved") and isinstance(document.get("_tag"), str)


class _Messages:
    """Reads the messages of a queue in the order of (due time, `_seq`, `_id`)."""

    def __init__(self, queue: QueueIndexes) -> None:
        self._queue = queue
        self._fields = LIGHT_FIELDS | {queue.rows_field: 1}

    def read(self, step: ScanStep, after: tuple[Any, ...] | None) -> _Stream:
        """Return the entries that a step examines."""
        bounds, ids = due_range(step.where), named_ids(step.where)
        narrowed = (ids is not None or bounds.last is not None) and not self._queue.has_buckets()
        if not narrowed:  # messages of a bucket may be due before it, and have any id
            bounds, ids = bounds._replace(last=None), None
        if ids is not None and len(ids) <= MAX_NAMED_IDS:
            return _first(self._named(ids, after), step.rows, self._queue)
        if bounds.first is not None:
            start = (DatetimeMS(bounds.first), MinKey(), MinKey())
            after = start if after is None else max(after, start, key=lambda place: tuple(map(sort_key, place)))
        streams = [self._free(after, bounds, step.rows), *self._held(after, bounds, step.rows)]
        return _merge(streams, step.rows, self._queue)

    def _named(self, ids: set[str], after: tuple[Any, ...] | None) -> Iterator[_Entry]:
        keys = [self._queue.key_of(id) for id in ids]
        found = self._queue.collection.find({"_id": {"$in": keys}, "processed": None}, self._fields, **ID_HINT)
        return iter(sorted(_after(after, map(_message_entry, found)), key=lambda one: one.order))

    def _free(self, after: tuple[Any, ...] | None, bounds: DueRange, rows: int) -> _Stream:
        """Return messages that no tag of ours holds."""
        if self._queue.indexed:
            found = self._between(READY_INDEX.document["name"], {"processed": None}, "mature", after, bounds, rows)
            found.sort(WAITING_ORDER)
        else:
            found = self._sorted({"processed": None}, "mature", after, bounds, rows).sort(WAITING_ORDER[1:])
        examined = [_Entry((one.get("mature"), one.get("_seq"), one["_id"]), one) for one in found]
        last = examined[-1].place if len(examined) > rows else None
        return _Stream([one for one in _after(after, examined) if not _is_held(one.document)], last)

    def _held(self, after: tuple[Any, ...] | None, bounds: DueRange, rows: int) -> list[_Stream]:
        """Return the messages that tags of ours hold."""
        tags = self._tags() if self._queue.indexed else None
        if tags is None:
            found = self._sorted(FENCED, "_mature", after, bounds, rows).sort(HELD_ORDER)
            return [_held_stream(found, after, rows)]
        share, streams = -(-rows // max(1, len(tags))), []
        for tag in tags:
            found = self._between(HELD_INDEX.document["name"], {"_tag": tag}, "_mature", after, bounds, share)
            streams.append(_held_stream(found.sort(HELD_ORDER), after, share))
        return streams

    def _tags(self) -> list[str] | None:
        """Return the tags that hold messages, `None` if there are many. Reads an entry of each."""
        tags: list[str] = []
        low: Document = {"_tag": "", **_ends("_mature", MinKey())}
        while len(tags) <= MAX_TAGS:
            high: Document = {"_tag": {}, **_ends("_mature", MinKey())}  # objects follow texts
            bounds = {"min": self._queue.fields | low, "max": self._queue.fields | high}
            found = self._queue.collection.find({}, {"_tag": 1}, hint=HELD_INDEX.document["name"], limit=1, **bounds)
            tag = next((one["_tag"] for one in found), None)
            if tag is None:
                return tags
            tags.append(tag)
            low = {"_tag": tag, **_ends("_mature", MaxKey())}
        return None

    def _between(
        self, hint: str, head: Document, field: str, after: tuple[Any, ...] | None, bounds: DueRange, rows: int
    ) -> Any:
        """Return a cursor of an index from a place on, whose entries begin with `head`."""
        low = dict(zip((field, "_seq", "_id"), after or (MinKey(), MinKey(), MinKey()), strict=True))
        high = _ends(field, MaxKey())
        if bounds.last is not None:
            high = {**_ends(field, MinKey()), field: DatetimeMS(bounds.last + 1)}
        ends = {name: self._queue.fields | head | end for name, end in (("min", low), ("max", high))}
        return self._queue.collection.find({}, self._fields, hint=hint, limit=rows + 1, **ends)

    def _sorted(
        self, query: Mapping[str, Any], field: str, after: tuple[Any, ...] | None, bounds: DueRange, rows: int
    ) -> Any:
        """Return a cursor of the same messages, which the server has to sort."""
        queries: list[Mapping[str, Any]] = [query]
        if after is not None:
            place = DocumentPlace(after[0], after[1], after[2], "")
            queries.append(
                {"$or": [filter_after(field, place), dict(zip((field, "_seq", "_id"), after, strict=True))]}
            )
        if bounds.last is not None:
            queries.append({field: {"$lte": DatetimeMS(bounds.last)}})
        return self._queue.collection.find({"$and": queries}, self._fields, limit=rows + 1)


def _ends(field: str, end: Any) -> Document:
    return {field: end, "_seq": end, "_id": end}


def _held_stream(found: Iterable[Document], after: tuple[Any, ...] | None, rows: int) -> _Stream:
    examined = [_Entry((one.get("_mature"), one.get("_seq"), one["_id"]), one) for one in found]
    last = examined[-1].place if len(examined) > rows else None
    return _Stream([one for one in _after(after, examined) if _is_held(one.document)], last)


def _message_entry(document: Document) -> _Entry:
    due = document.get("_mature") if _is_held(document) else document.get("mature")
    return _Entry((due, document.get("_seq"), document["_id"]), document)


def _after(after: tuple[Any, ...] | None, entries: Iterable[_Entry]) -> Iterator[_Entry]:
    """Yield the entries that come after a place."""
    start = None if after is None else tuple(map(sort_key, after))
    return (one for one in entries if start is None or one.order > start)


def _merge(streams: Sequence[_Stream], rows: int, queue: QueueIndexes) -> _Stream:
    """Return the entries of all streams, in order, as far as each of them is known."""
    known = [stream.last for stream in streams if stream.last is not None]
    last = min(known, key=lambda place: tuple(map(sort_key, place))) if known else None
    found = sorted((one for stream in streams for one in stream.found), key=lambda one: one.order)
    if last is not None:
        end = tuple(map(sort_key, last))
        found = [one for one in found if one.order <= end]
    first = _first(iter(found), rows, queue)
    return first if first.last is not None else _Stream(found, last)


def _first(entries: Iterator[_Entry], rows: int, queue: QueueIndexes) -> _Stream:
    """Return the first entries that hold about `rows` messages."""
    found: list[_Entry] = []
    for one in entries:
        if rows <= 0:
            return _Stream(found, found[-1].place)
        found.append(one)
        rows -= rows_of(queue.record_id(one.document))
    return _Stream(found, None)


# --- the history ----------------------------------------------------------------------------------


class _History:
    """Reads the history in the order in which messages were processed."""

    def __init__(self, queue: QueueIndexes, now: int) -> None:
        self._queue, self._now = queue, now
        self._fields = LIGHT_FIELDS | {queue.rows_field: 1}

    def read(self, step: ScanStep, after: tuple[Any, ...] | None) -> _Stream:
        """Return the entries that a step examines."""
        ids = named_ids(step.where)
        if ids is not None and len(ids) <= MAX_NAMED_IDS and not self._queue.has_buckets():
            keys = [self._queue.key_of(id) for id in ids]
            query = {"_id": {"$in": keys}, "processed": {"$ne": None}}
            named = self._queue.collection.find(query, self._fields, **ID_HINT)
            entries = sorted(_after(after, map(self._entry, named)), key=lambda one: one.order)
            return _first((one for one in entries if self._is_kept(one.document)), step.rows, self._queue)
        if not self._queue.indexed or (after is not None and len(after) == 1):
            examined = self._by_id(after, step.rows)
        else:
            low = after or (math.nan, MinKey(), MinKey(), MinKey())  # numbers are the first after null
            high = (NO_END_DATE, MinKey(), MinKey(), MinKey())
            names = [name for name, _ in WAITING_ORDER]
            ends = {
                name: self._queue.fields | dict(zip(names, end, strict=True))
                for name, end in (("min", low), ("max", high))
            }
            hint, most = READY_INDEX.document["name"], step.rows + 1
            cursor = self._queue.collection.find({}, self._fields, hint=hint, limit=most, **ends)
            examined = list(map(self._entry, cursor.sort(WAITING_ORDER)))
        last = examined[-1].place if len(examined) > step.rows else None
        found = [one for one in _after(after, examined) if self._is_kept(one.document)]
        first = _first(iter(found), step.rows, self._queue)
        return first if first.last is not None else _Stream(found, last)

    def _by_id(self, after: tuple[Any, ...] | None, rows: int) -> list[_Entry]:
        """Return entries in the order of `_id`, for a queue without our indexes."""
        query: Document = {"processed": {"$ne": None}}
        if after is not None:
            query["$or"] = filters_greater("_id", after[-1])
        found = self._queue.collection.find(query, self._fields, limit=rows + 1, **ID_HINT).sort("_id", 1)
        return [_Entry((one["_id"],), one) for one in found]

    @staticmethod
    def _entry(document: Document) -> _Entry:
        return _Entry(
            (document.get("processed"), document.get("mature"), document.get("_seq"), document["_id"]), document
        )

    def _is_kept(self, document: Document) -> bool:
        until = document.get("_until")
        expired = isinstance(until, DatetimeMS) and int(until) <= self._now
        return not expired and document.get("processed") != NO_END_DATE
