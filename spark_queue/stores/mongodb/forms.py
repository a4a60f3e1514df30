"""How the collections of a layout are marked as queues: see `marks.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pymongo import IndexModel

from spark_queue.stores.mongodb.documents import Document

#: The fields of an index without options.
_PLAIN_INDEX = {"v", "key", "name", "ns", "background"}

#: The beginning of the comment in a validator.
COMMENT = "spark_queue: "


def _is_of_type(field: str, *types: str) -> Document:
    return {"$in": [{"$type": f"${field}"}, list(types)]}


_NUMBERS = ("int", "long", "double")
_DUE, _TRIES = _is_of_type("mature", "date"), _is_of_type("tries", *_NUMBERS)


@dataclass(frozen=True)
class Form:
    """How the collections of a layout are marked.

    `old`: indexes that earlier versions created, and that `indexes` replace. `keuss`: the keys of
    the index that keuss creates. `record`: conditions that a document of keuss meets, as
    expressions. `late`: keuss creates the index in the background.
    """

    kind: str  #: what a collection of this layout is
    indexes: Sequence[IndexModel]
    old: Sequence[IndexModel]
    keuss: Mapping[str, int]
    record: Sequence[Document]
    late: bool = False

    @property
    def comment(self) -> str:
        """The comment in the validator."""
        return COMMENT + self.kind

    def is_ours(self, index: Mapping[str, Any]) -> bool:
        """Return whether an index of a collection is one of ours."""
        return _is_among(index, self.indexes) or self.is_old(index)

    def is_old(self, index: Mapping[str, Any]) -> bool:
        """Return whether an index of a collection is one of an earlier version."""
        return _is_among(index, self.old)

    def is_keuss(self, index: Mapping[str, Any]) -> bool:
        """Return whether an index of a collection is one of keuss' or that of `_id`."""
        options = index.keys() - _PLAIN_INDEX
        if same_key(index["key"], {"processed": 1}):  # of `ps-mongo`
            return options == {"expireAfterSeconds"}
        return index["name"] == "_id_" or (not options and same_key(index["key"], self.keuss))


def queue_form(indexes: Sequence[IndexModel], old: Sequence[IndexModel]) -> Form:
    """Return the form of a collection with a document for each message."""
    return Form("queue", indexes, old, {"mature": 1}, [_DUE, _TRIES, _is_of_type("b", "missing")])


def pipeline_form(indexes: Sequence[IndexModel], old: Sequence[IndexModel]) -> Form:
    """Return the form of a collection with several queues."""
    record = [_DUE, _TRIES, _is_of_type("_q", "string")]
    return Form("pipeline", indexes, old, {"_q": 1, "mature": 1}, record, late=True)


def bucket_form(indexes: Sequence[IndexModel], old: Sequence[IndexModel]) -> Form:
    """Return the form of a collection with a document for many messages."""
    record = [_DUE, _is_of_type("b", "array"), _is_of_type("n", *_NUMBERS)]
    return Form("queue of buckets", indexes, old, {"mature": 1}, record)


def _is_among(index: Mapping[str, Any], models: Sequence[IndexModel]) -> bool:
    """Return whether an index of a collection is one of these, by name and key."""
    return any(
        index["name"] == one.document["name"] and same_key(index["key"], one.document["key"]) for one in models
    )


def same_key(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two keys of indexes have the same fields in the same order."""
    return list(one.items()) == list(other.items())
