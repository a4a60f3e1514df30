"""Count the messages of many queues with one request.

Each count is a pipeline, and `$unionWith` joins them. A hint would apply to the first one only, so
the server chooses the indexes. Each pipeline asks for the order of the index that is right for it:
with another one, the server would have to sort, and it avoids that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from bson import DatetimeMS, MinKey
from pymongo.database import Database

from spark_queue.messages.times import MAX_TIME_MS
from spark_queue.stores.base import chunked
from spark_queue.stores.mongodb.documents import (
    NO_END_DATE,
    RESERVED,
    WAITING_ORDER,
    Document,
    Filter,
    count_expression,
    due_by,
)
from spark_queue.stores.types import ZERO_SIZES, Sizes

#: A number that no queue reaches. Without a limit, the server leaves out the sort.
NO_LIMIT = 2**53

#: Up to how many queues have all their pipelines in one request. Of more queues, most are small.
#: Each has one pipeline first, up to JOINED_PIPELINES in a request: a server takes 1,000 stages.
FEW_PLACES, JOINED_PIPELINES = 50, 900

#: How many records that pipeline reads. More are counted in indexes, which takes seven.
SMALL_QUEUE = 100

#: The prefix of the numbers that buckets add.
_MORE = "more "

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


class Aside(NamedTuple):
    """Documents that the first request returns, too: those of a collection with these `_id`."""

    collection: str
    keys: Sequence[str]


class SizeCounter:
    """Counts the messages of queues by state, at `now` (ms): see `Store.sizes`.

    `rows_field` holds the number of a bucket's messages.
    """

    def __init__(self, database: Database[Document], now: int, limit: int | None, rows_field: str) -> None:
        self._database, self._now, self._limit, self._rows_field = database, now, limit, rows_field
        self._later: Document = {"processed": None, "mature": {"$gt": DatetimeMS(now)}}
        #: How many records are counted. Reserved messages are among those that are due later.
        self._limits = {"ready": limit, "reserved": limit, "later": None if limit is None else 2 * limit}
        self._messages: Document = {"$floor": count_expression(rows_field)}
        self.found_aside: list[Document] = []  #: the documents of `aside`

    def count(
        self, places: Mapping[str, QueuePlace], hint: str | None = None, aside: Aside | None = None
    ) -> dict[str, Sizes]:
        """Return the sizes of queues by name. A collection that does not exist is empty.

        `hint`: an index of the first one. The server refuses the request if there is none.
        """
        large = {queue: place for queue, place in places.items() if place.exists}
        found: dict[str, Sizes] = {}
        if len(large) > FEW_PLACES:
            existing, large = large, {}
            for part in _parts(existing, JOINED_PIPELINES):
                numbers = self._query(part, {"small": self._small_steps()}, hint, aside)
                hint = aside = None
                for queue, place in part.items():
                    small: Numbers = numbers[queue].get("small", {})
                    if small.get("records", 0) > SMALL_QUEUE:
                        large[queue] = place
                    else:
                        found[queue] = self._to_sizes(small)
        for part in _parts(large, FEW_PLACES):
            numbers = self._query(part, self._steps(), hint, aside)
            hint = aside = None
            found |= {queue: self._to_sizes(numbers[queue]) for queue in part}
        if aside is not None and aside.keys:  # there is no queue
            self.found_aside = list(self._database[aside.collection].find({"_id": {"$in": list(aside.keys)}}))
        return {queue: found.get(queue, ZERO_SIZES) for queue in places}

    def _query(
        self,
        places: Mapping[str, QueuePlace],
        steps: Mapping[str, list[Document]],
        hint: str | None,
        aside: Aside | None,
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
        if aside is not None and aside.keys:
            by_key = [{"$match": {"_id": {"$in": list(aside.keys)}}}]
            whole.append({"$unionWith": {"coll": aside.collection, "pipeline": by_key}})
        if places:
            first = next(iter(places.values())).collection
            by: dict[str, Any] = {} if hint is None else {"hint": hint}
            for one in self._database[first].aggregate(whole, allowDiskUse=True, **by):
                if "queue" in one:
                    found[queues[one["queue"]]][one["name"]] = one["value"]
                else:
                    self.found_aside.append(one)
        return found

    def _small_steps(self) -> list[Document]:
        """Return the pipeline that counts the messages of a queue that has few."""
        now, is_date = DatetimeMS(self._now), {"$eq": [{"$type": "$mature"}, "date"]}
        later: Document = {"$and": [is_date, {"$gt": ["$mature", now]}]}
        conditions: dict[str, Document] = {
            "ready": {"$and": [is_date, {"$lte": ["$mature", now]}]},
            "reserved": {"$and": [later, {"$ne": [{"$type": "$reserved"}, "missing"]}]},
            "later": later,
        }
        counts = {name: {"$sum": {"$cond": [one, self._messages, 0]}} for name, one in conditions.items()}
        first = {"$min": {"$cond": [is_date, "$mature", None]}}
        named = {name: f"${name}" for name in ("records", "first", *counts)}
        return [
            {"$match": {"processed": None}},
            {"$sort": dict(WAITING_ORDER)},
            {"$limit": SMALL_QUEUE + 1},
            {"$group": {"_id": None, "records": {"$sum": 1}, "first": first, **counts}},
            {"$project": {"value": named}},
        ]

    def _steps(self) -> dict[str, list[Document]]:
        """Return the pipelines that count the messages of any queue."""
        due, later = due_by(self._now), self._later
        number: Document = {"$sum": 1}
        found: dict[str, list[Document]] = {
            "ready": self._sum_steps("ready", due, WAITING_ORDER, number),
            "reserved": self._sum_steps("reserved", {**RESERVED, **later, **_ANY_TAG}, [("_tag", 1)], number),
            "later": self._sum_steps("later", later, WAITING_ORDER, number),
            "first": [
                {"$match": due_by(MAX_TIME_MS)},
                {"$sort": dict(WAITING_ORDER)},
                {"$limit": 1},
                {"$project": {"value": "$mature"}},
            ],
        }
        # How many more messages than records there are: buckets hold many.
        more: Document = {"$sum": {"$subtract": [self._messages, 1]}}
        are_buckets: Filter = {self._rows_field: {"$exists": True}}
        queries = {"ready": due, "reserved": {**later, "_tag": {"$exists": True}}, "later": later}
        order = [(self._rows_field, 1)]
        for name, query in queries.items():
            found[_MORE + name] = self._sum_steps(name, {**query, **are_buckets}, order, more)
        return found

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

    def _to_sizes(self, numbers: Numbers) -> Sizes:
        ready, reserved, later = (int(numbers.get(name, 0) + numbers.get(_MORE + name, 0)) for name in self._limits)
        # The counts are not one snapshot, so the difference may be negative.
        scheduled = max(0, later - reserved)
        capped: set[str] = set()
        if self._limit is not None and "records" not in numbers:  # else all were counted
            if ready >= self._limit:
                capped.add("ready")
            if reserved >= self._limit:
                # It is unknown how many of the others are reserved, too.
                capped |= {"reserved", "scheduled"} if scheduled else {"reserved"}
                scheduled = 0
            elif scheduled >= self._limit:
                capped.add("scheduled")
        first = numbers.get("first")
        wait = None if first is None else int(first) - self._now
        age = max(0, -wait) if ready and wait is not None else None
        return Sizes(ready, scheduled, reserved, age, frozenset(capped), None if first == NO_END_DATE else wait)


def _parts(places: Mapping[str, QueuePlace], size: int) -> Iterator[dict[str, QueuePlace]]:
    """Yield the places, `size` at a time."""
    for some in chunked(list(places), size):
        yield {queue: places[queue] for queue in some}
