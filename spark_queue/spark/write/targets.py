"""Which queue of which database each row of a write goes to, and the rows that name none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from spark_queue.errors import OptionError, did_you_mean
from spark_queue.options.queue_options import QueueOptions
from spark_queue.spark.encode import filter_encoded


class Part(NamedTuple):
    """The rows of a batch for one queue, and its bad rows as far as they are known, with the rules.

    Without a `queue`, all are bad: they name none that can be.
    """

    ns: str
    queue: str | None
    rows: pa.RecordBatch
    faults: Mapping[int, str]


#: Raises `OptionError` if the database of this name has no queue of that name.
CheckQueue = Callable[[str, str], None]


def split_by_queue(
    batch: pa.RecordBatch, rows: pa.RecordBatch, faults: Mapping[int, str], options: QueueOptions, check: CheckQueue
) -> Iterator[Part]:
    """Yield the rows of each queue. `batch`: as Spark passed it. `rows`, `faults`: it, encoded."""
    fixed, urls = options.queue, options.urls
    if fixed is not None and urls is None:
        yield Part("", fixed, rows, faults)
        return
    ns = batch.column("ns").cast(pa.binary()) if urls else pa.scalar(b"")
    queue = pa.scalar(fixed.encode()) if fixed is not None else batch.column("queue").cast(pa.binary())
    targets = pc.binary_join_element_wise(ns, queue, b"\0")
    unique = targets.unique().to_pylist()
    for target in unique:
        part, bad = rows, faults
        if len(unique) > 1:
            mask = targets.is_null() if target is None else pc.equal(targets, target)
            part, bad = filter_encoded(rows, faults, mask)
        yield _part(target, part, bad, options, check)


def _part(
    target: bytes | None, rows: pa.RecordBatch, faults: Mapping[int, str], options: QueueOptions, check: CheckQueue
) -> Part:
    """Return the part of a target: a database and a queue. `None`: one of them is NULL."""
    urls, column = options.urls or {"": ""}, "ns" if options.queue is not None else "queue"
    name = next(iter(urls))  # the database of rows that name none
    if target is None:
        columns = "queue or ns" if options.urls and column == "queue" else column
        hint = ", and the option 'queue' is not set" if column == "queue" else ""
        return Part(name, None, rows, _all_bad(rows, f"its {columns} is NULL{hint}"))
    ns, _, queue = target.partition(b"\0")
    try:
        ns_text, queue_text = ns.decode(), queue.decode()
    except UnicodeDecodeError as error:
        column = "ns" if error.object == ns else "queue"
        rule = f"its {column} is not UTF-8 text; clean it with make_valid_utf8({column})"
        return Part(name, None, rows, _all_bad(rows, rule))
    if ns_text not in urls:
        rule = f"its ns is {ns_text!r}, but option 'urls' has no database {ns_text!r}{did_you_mean(ns_text, urls)}"
        return Part(name, None, rows, _all_bad(rows, rule))
    try:
        check(ns_text, queue_text)
    except OptionError as error:
        return Part(ns_text, None, rows, _all_bad(rows, f"its queue is no queue: {error}"))
    return Part(ns_text, queue_text, rows, faults)


def _all_bad(rows: pa.RecordBatch, rule: str) -> dict[int, str]:
    return dict.fromkeys(range(rows.num_rows), rule)
