"""The scores of messages that are pushed together: the index sorts those of one score by their id.

A score is the due time in ms, and parts of a ms. Ids that we generate grow, so they need no parts.
Any other message whose id does not put it after the one before it is a part later. A bucket of such
messages takes parts of its own, one for each of them, so that they fit in if it is split.

The script of a push adds the same number of parts to all, if the queue has later messages of that
due time. 1,024 such messages of one ms make the last of them due a ms late.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from spark_queue.messages.buckets import is_bucket, rows_of
from spark_queue.messages.ids import OBJECT_ID
from spark_queue.messages.schema import BUCKET_PREFIX
from spark_queue.stores.redis.keys import PARTS


def scores_of(ids: pa.Array, dues: Sequence[int]) -> Sequence[float]:
    """Return the scores of messages with these ids that are due then (ms)."""
    grow = pc.less(ids.slice(0, len(ids) - 1), ids.slice(1))
    if len(ids) and is_bucket(ids[0].as_py()):  # so are all
        steps = _bucket_steps(ids.to_pylist())
    elif pc.all(grow).as_py() is False:
        steps = pc.invert(grow).cast(pa.int8()).to_pylist()
    else:
        return dues  # almost always
    if not any(steps):
        return dues
    scores: list[float] = []
    last_due, parts = -1, 0
    for due, step in zip(dues, [0, *steps], strict=True):
        parts = parts + step if due == last_due else 0
        scores.append(due + parts / PARTS if parts else due)
        last_due = due
    return scores


def _bucket_steps(ids: Sequence[str]) -> list[int]:
    """Return by how many parts each bucket but the first is later than the one before it."""
    return [
        rows_of(last) if _is_unordered_bucket(last) else int(_is_unordered_bucket(id) or last.encode() >= id.encode())
        for last, id in itertools.pairwise(ids)
    ]


def _is_unordered_bucket(id: str) -> bool:
    """Return whether a record is a bucket of messages whose ids do not have their order."""
    return is_bucket(id) and not OBJECT_ID.fullmatch(id[1:].partition(BUCKET_PREFIX)[0])


def score_text(score: float) -> bytes:
    """Return a score as Redis reads it."""
    return b"%d" % score if score == int(score) else repr(score).encode()
