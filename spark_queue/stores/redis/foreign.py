"""Keys of another program that have the names of a queue's keys.

They have another type. Most commands refuse a key of another type; those that delete or list keys
do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

#: The type of a key by the end of its name, or by its beginning.
_BY_END = {
    "hash": "hash", "history": "hash", "more": "hash", "moments": "zset", "held": "zset", "leases": "zset",
    "processed": "zset", "buckets": "zset", "lost": "string",
}  # fmt: skip
_BY_BEGINNING = {
    "keuss:q:ordered_queue:index:": "zset", "keuss:q:ordered_queue:hash:": "hash", "keuss:q:list:": "list",
    "rfq:": "list",
}  # fmt: skip


def expected_type(key: str) -> str:
    """Return the type that a key of a queue has."""
    for beginning, name in _BY_BEGINNING.items():
        if key.startswith(beginning):
            return name
    return _BY_END[key.rpartition(":")[2]]


def find_foreign(client: Any, keys: Sequence[str]) -> str | None:
    """Return the first of the keys of a queue that has another type; `None` if there is none."""
    with client.pipeline(transaction=False) as pipeline:
        for key in keys:
            pipeline.type(key)
        types = pipeline.execute()
    for key, found in zip(keys, types, strict=True):
        if found.decode() not in ("none", expected_type(key)):
            return key
    return None
