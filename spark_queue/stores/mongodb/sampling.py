"""Cut the documents of a queue by their `_id`, which never changes: see `stores/spans.py`."""

from __future__ import annotations

from typing import Any

from pymongo.collection import Collection

from spark_queue.stores.mongodb.documents import Document, Filter
from spark_queue.stores.mongodb.keys import sort_key
from spark_queue.stores.spans import INDEX_WALK, OWN_SHARE, Sample


def sample_keys(
    queue: Collection[Document], collection: Collection[Document], query: Filter, size: int, **by: Any
) -> Sample:
    """Return `_id`s of the documents of a queue that match a filter, chosen at random.

    All of them, if there are few. `queue` is the queue as a part of the `collection`. `by`: the
    index for all of its documents, which has their `_id`.
    """
    most = INDEX_WALK * size
    keys = [one["_id"] for one in queue.find(query, {"_id": 1}, limit=most + 1, **by)]
    if len(keys) <= most:
        return Sample(_distinct(keys), len(keys))
    own, some = {"$match": query}, {"$sample": {"size": size}}
    keys = [one["_id"] for one in collection.aggregate([some, own, {"$project": {"_id": 1}}])]
    records = max(most, collection.estimated_document_count() * len(keys) // size)
    if len(keys) < OWN_SHARE * size:  # most documents are of the history, or of other queues: scan the index
        keys = [one["_id"] for one in queue.aggregate([own, {"$project": {"_id": 1}}, some], **by)]
    return Sample(_distinct(keys), records)


def _distinct(keys: list[Any]) -> list[Any]:
    """Return the different keys in the order of the server, without null: no place is `None`."""
    ordered = sorted((key for key in keys if key is not None), key=sort_key)
    return [key for at, key in enumerate(ordered) if not at or sort_key(key) != sort_key(ordered[at - 1])]
