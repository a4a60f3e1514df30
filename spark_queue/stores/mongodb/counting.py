"""Count the messages of many queues with one request.

Each count is a pipeline, and `$unionWith` joins them. A hint would apply to the first one only, so
the server chooses the indexes. Each pipeline asks for the order of the index that is right for it:
with another one, the server would have to sort, and it avoids that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bson import DatetimeMS, MinKey
from bson.regex import Regex
from pymongo.database import Database

from spark_queue.messages.times import MAX_TIME_MS
from spark_queue.stores.mongodb.documents import (
    NO_END_DATE,
    RESERVED,
    WAITING_ORDER,
    Document,
    Filter,
    count_expression,
    due_by,
)
from spark_queue.stores.types import Sizes

#: A number that no queue reaches. Without a limit, the server leaves out the sort.
NO_LIMIT = 2**53

#: Matches all records. With it, the server may use the index of reserved messages, which begins
#: with their tags. Those that keuss has reserved have none.
_ANY_TAG: Filter = {"_tag": {"$gte": MinKey()}}

#: The numbers of one queue, by name: what its pipelines have found.
Numbers = dict[str, Any]


class QueuePlace(NamedTuple):
    """The collection of a queue, and the fields that name the queue in it, if it holds several.

    `exists`: whether it may exist. What does not exist costs nothing.
    """

    collection: str
    fields: Filter
    exists: bool = True


class SizeCounter:
    """Counts the messages of queues by state, at `now` (ms): see `Store.sizes`.

    `bucket_ids` matches the `_id` of buckets. `rows_field` holds the number of their messages.
    """

    def __init__(
        self,
        database: Database[Document],
        now: int,
        limit: int | None,
        bucket_ids: Filter | Regex[str],
        rows_field: str,
    ) -> None:
        self._database, self._now, self._limit = database, now, limit
        self._bucket_ids, self._rows_field = bucket_ids, rows_field
        self._later: Document = {"processed": None, "mature": {"$gt": DatetimeMS(now)}}
        #: How many records are counted. Reserved messages are among those that are due later.
        self._limits = {"ready": limit, "reserved": limit, "later": None if limit is None else 2 * limit}

    def count(self, places: Mapping[str, QueuePlace], hint: str | None = None) -> dict[str, Sizes]:
        """Return the sizes of queues by name. A collection that does not exist is empty.

        `hint`: an index of the first one. The server refuses the request if there is none.
        """
        existing = {queue: place for queue, place in places.items() if place.exists}
        records = self._query(existing, self._record_steps(), hint)
        buckets = {queue: place for queue, place in existing.items() if records[queue].get("bucket")}
        extra = self._query(buckets, self._extra_steps())
        return {queue: self._to_sizes(records.get(queue, {}), extra.get(queue, {})) for queue in places}

    def _query(
        self, places: Mapping[str, QueuePlace], steps: Mapping[str, list[Document]], hint: str | None = None
    ) -> dict[str, Numbers]:
        """Return the result of each pipeline in each place, with one request."""
        found: dict[str, Numbers] = {queue: {} for queue in places}
        queues = list(places)
        whole: list[Document] = []
        for number, (collection, fields, _) in enumerate(places.values()):
            for name, (match, *rest) in steps.items():
                query = {"$match": {**fields, **match["$match"]}}
                named = {
                    "$project": {"_id": 0, "queue": {"$literal": number}, "name": {"$literal": name}, "value": 1}
                }
                pipeline = [query, *rest, named]
                whole += [{"$unionWith": {"coll": collection, "pipeline": pipeline}}] if whole else pipeline
        if places:
            first = next(iter(places.values())).collection
            by: dict[str, Any] = {} if hint is None else {"hint": hint}
            for one in self._database[first].aggregate(whole, allowDiskUse=True, **by):
                found[queues[one["queue"]]][one["name"]] = one["value"]
        return found

    def _record_steps(self) -> dict[str, list[Document]]:
        number: Document = {"$sum": 1}
        return {
            "ready": self._sum_steps("ready", due_by(self._now), WAITING_ORDER, number),
            "reserved": self._sum_steps("reserved", {**RESERVED, **self._later, **_ANY_TAG}, [("_tag", 1)], number),
            "later": self._sum_steps("later", self._later, WAITING_ORDER, number),
            "first": [
                {"$match": due_by(MAX_TIME_MS)},
                {"$sort": dict(WAITING_ORDER)},
                {"$limit": 1},
                {"$project": {"value": "$mature"}},
            ],
            "bucket": [{"$match": {"_id": self._bucket_ids}}, {"$limit": 1}, {"$project": {"value": "yes"}}],
        }

    def _extra_steps(self) -> dict[str, list[Document]]:
        """Return the pipelines that count how many more messages than records there are."""
        queries = {
            "ready": due_by(self._now),
            "reserved": {**self._later, "_tag": {"$exists": True}},
            "later": self._later,
        }
        more = {"$sum": {"$subtract": [{"$floor": count_expression(self._rows_field)}, 1]}}
        are_buckets: Filter = {self._rows_field: {"$exists": True}}
        order = [(self._rows_field, 1)]
        return {name: self._sum_steps(name, {**query, **are_buckets}, order, more) for name, query in queries.items()}

    def _sum_steps(
        self, name: str, query: Filter, order: Sequence[tuple[str, int]], number: Document
    ) -> list[Document]:
        """Return a pipeline that sums up a number of the records that match, up to their limit.

        `order`: that of the index to use. With any other index, the server would have to sort.
        """
        limit = self._limits[name]
        some: list[Document] = [{"$sort": dict(order)}, {"$limit": limit or NO_LIMIT}]
        if limit is None and order is WAITING_ORDER:  # no other index fits; without the two, it counts in the index
            some = []
        return [{"$match": query}, *some, {"$group": {"_id": None, "value": number}}]

    def _to_sizes(self, records: Numbers, extra: Numbers) -> Sizes:
        ready, reserved, later = (int(records.get(name, 0) + extra.get(name, 0)) for name in self._limits)
        # The counts are not one snapshot, so the difference may be negative.
        scheduled = max(0, later - reserved)
        capped: set[str] = set()
        if self._limit is not None:
            if ready >= self._limit:
                capped.add("ready")
            if reserved >= self._limit:
                # It is unknown how many of the others are reserved, too.
                capped |= {"reserved", "scheduled"} if scheduled else {"reserved"}
                scheduled = 0
            elif scheduled >= self._limit:
                capped.add("scheduled")
        first = records.get("first")
        wait = None if first is None else int(first) - self._now
        age = max(0, -wait) if ready and wait is not None else None
        return Sizes(ready, scheduled, reserved, age, frozenset(capped), None if first == NO_END_DATE else wait)
