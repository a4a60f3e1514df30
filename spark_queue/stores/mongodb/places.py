"""The place of a message among those of the same due time: its field `_seq`, then its `_id`.

Most messages need no `_seq`: the ids that a process generates grow, so `_id` has the order of the
pushes. The others get one: a further generated id, which is greater than all earlier ones of the
process. The server sorts a missing `_seq` before any other, and so before all later pushes.

A process gives a batch no `_seq` only if its `_id` puts it after each batch that it has pushed so
far. That needs to be known for messages of the same due time only. So the state is that of the
process, not of a store or a thread, and is two moments and an id.

A bucket takes as many places as it has messages, and `_seq` is the last of them. So if it is split,
its parts fit into its place.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import accumulate

import pyarrow as pa
import pyarrow.compute as pc
from bson import ObjectId

from spark_queue.fork_locks import add_lock
from spark_queue.messages.buckets import count_rows, rows_of
from spark_queue.messages.ids import OBJECT_ID, new_ids
from spark_queue.stores.mongodb.documents import Document


class Places:
    """The places that one process has given away.

    Safe to share among threads, and across a fork.
    """

    _lock: threading.Lock

    def __init__(self) -> None:
        add_lock(self, "_lock")
        self._last_id = ""  # the greatest id that a batch without `_seq` had
        self._without_until = self._with_until = -1  # the last due times (ms) of such batches, and of others

    def add_to(self, documents: Sequence[Document], ids: pa.Array) -> None:
        """Give the next places to documents that are pushed together, with these ids."""
        if not documents:
            return
        moments = {int(one["mature"]) for one in documents}
        grow = _are_generated(ids)
        with self._lock:  # a batch that comes later gets later places
            first, last = min(moments), max(moments)
            follows = first > self._without_until or (grow and ids[0].as_py() > self._last_id)
            if grow and follows and first > self._with_until:
                self._last_id = max(self._last_id, ids[-1].as_py())
                self._without_until = max(self._without_until, last)
                return
            self._with_until = max(self._with_until, last)
            places = new_ids(count_rows(ids))
        last_place = -1
        for document, id in zip(documents, ids.to_pylist(), strict=True):
            last_place += rows_of(id)
            document["_seq"] = ObjectId(places[last_place])


def _are_generated(ids: pa.Array) -> bool:
    """Return whether ids have the form of an ObjectId, and each is greater than the one before."""
    grow = pc.all(pc.less(ids.slice(0, len(ids) - 1), ids.slice(1))).as_py() is not False
    return grow and bool(pc.all(pc.match_substring_regex(ids, f"^{OBJECT_ID.pattern}$")).as_py())


#: The places of this process.
PLACES = Places()


def inherit_places(documents: Sequence[Document], ids: Sequence[str], old: Sequence[Document]) -> None:
    """Give the places of old documents to those that replace them. They hold the same messages."""
    places = [one.get("_seq") for one in old]
    if not all(isinstance(one, ObjectId) for one in places):
        return  # they are sorted by their `_id`
    rows = [rows_of(id) for id in ids]
    first = int.from_bytes(max(one.binary for one in places if one)) - sum(rows)
    for document, end in zip(documents, accumulate(rows), strict=True):
        document["_seq"] = ObjectId((first + end).to_bytes(12))
