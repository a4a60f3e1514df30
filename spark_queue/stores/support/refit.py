"""Split new buckets that a database cannot hold, and find the messages that no bucket can hold."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from spark_queue.messages.buckets import Buckets, are_buckets, build_bucket, is_bucket, open_bucket

#: Into how many parts a bucket is split.
_PARTS = 4


def has_buckets(records: pa.RecordBatch) -> bool:
    """Return whether any record is a bucket."""
    return bool(pc.any(are_buckets(records.column("id"))).as_py())


def split_unfit(
    batch: pa.RecordBatch, records: pa.RecordBatch, unfit: Mapping[int, str]
) -> tuple[pa.RecordBatch, dict[int, str]]:
    """Return the records of a push, with each that is `unfit` in parts.

    Also return the rows of `batch` whose record has no other message, with the rule that it breaks.
    """
    parts: list[pa.RecordBatch] = []
    wrong: dict[int, str] = {}
    for row, id in enumerate(records.column("id").to_pylist()):
        record = records.slice(row, 1)
        if row not in unfit:
            parts.append(record)
            continue
        messages = open_bucket(record) if is_bucket(id) else record
        if messages.num_rows == 1:
            wrong[pc.index(batch.column("id"), messages.column("id")[0]).as_py()] = unfit[row]
            continue
        size = -(-messages.num_rows // _PARTS)
        layout = Buckets(size=size)
        parts += [build_bucket(messages.slice(at, size), layout) for at in range(0, messages.num_rows, size)]
    return pa.Table.from_batches(parts, records.schema).combine_chunks().to_batches()[0] if parts else records, wrong
