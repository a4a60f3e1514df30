"""Split buckets for operations on some of their messages, and compact small ones.

An operation on some messages of a bucket takes two steps. First the bucket is replaced by several
with the same messages in the same state. Then some of these are treated as a whole. The first step
changes nothing that a client can see, so a crash between the two does no harm. It succeeds only if
the bucket has not changed since it was read: of two clients that split it at the same time, the
second reads again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate, groupby

import pyarrow as pa
import pyarrow.compute as pc

from spark_queue.errors import MessageError
from spark_queue.messages.buckets import Buckets, Record, build_bucket, is_bucket, rows_of
from spark_queue.messages.columns import columns_by_name, milliseconds
from spark_queue.messages.schema import WRITTEN
from spark_queue.stores.support.damaged import EMPTY_PAGE, Records, join_records, open_buckets, slice_records
from spark_queue.stores.support.record_store import RecordStore

#: Into how many parts a bucket is split at most. If messages are reserved one by one, each is
#: rewritten as often as the logarithm of the bucket's size to this base.
BUCKET_PARTS = 64

#: Larger records are not merged, and a bucket with as many bytes takes no more of them.
MAX_MERGED_BYTES = 1 << 20


def split_bucket(store: RecordStore, queue: str, id: str, limit: int) -> bool:
    """Split a bucket that is not reserved into parts of `limit` messages.

    There are at most BUCKET_PARTS parts, so they may be larger. Does nothing if the bucket is gone,
    or if it has at most `limit` messages: other clients may have changed it. Return whether it can
    be split; a damaged one cannot.
    """
    for record, found in _buckets(store, queue, None, id):
        rows = found.batch
        if found.damaged or rows.num_rows <= limit:
            return not found.damaged
        size = max(limit, -(-rows.num_rows // BUCKET_PARTS))
        parts = [rows.slice(start, size) for start in range(0, rows.num_rows, size)]
        _replace(store, queue, None, [record], parts)
    return True


def isolate(
    store: RecordStore,
    queue: str,
    tag: str | None,
    ids: Sequence[str] | None = None,
    *,
    in_place: bool,
    limit: int | None = None,
    min_tries: int = 0,
) -> list[str]:
    """Put the selected messages of buckets into buckets of their own, and return the ids of these.

    It selects messages of the tag and those below it (`None`: not reserved), with at least
    `min_tries` tries, and of `ids` if given; the first `limit` in the order of their buckets.
    `in_place`: each message keeps its place, which those that are removed need not.
    """
    wanted = None if ids is None else pa.array(ids, pa.string())
    retried: set[str] = set()
    while True:
        found: list[str] = []
        created: set[str] = set()  # the new buckets may come again in this scan
        left = limit
        for holder, record, rows in _readable_buckets(store, queue, tag):
            if rows.column("tries")[0].as_py() < min_tries or left == 0 or record.id in created:
                continue
            selected = pa.repeat(pa.scalar(True), rows.num_rows)
            if wanted is not None:
                selected = pc.is_in(rows.column("id"), wanted)
            if left is not None:
                selected = pc.and_(selected, pc.less_equal(pc.cumulative_sum(selected.cast(pa.int64())), left))
            number = pc.sum(selected.cast(pa.int64())).as_py()
            if not number:
                continue
            parts = _parts(rows, selected, in_place)
            new_ids: list[str] | None = [record.id]
            if len(parts) > 1:
                new_ids = _replace(store, queue, holder, [record], [part for part, _ in parts])
            if new_ids is not None:
                created.update(new_ids)
                found += [id for id, (_, is_selected) in zip(new_ids, parts, strict=True) if is_selected]
                left = None if left is None else left - number
            elif record.id not in retried:
                retried.add(record.id)
                break  # perhaps another client has split it: read again
        else:
            return found


def _parts(rows: pa.RecordBatch, selected: pa.Array, in_place: bool) -> list[tuple[pa.RecordBatch, bool]]:
    """Return the rows of a bucket in parts, and whether each part is selected.

    With `in_place` they are in the order of the rows, unless that needs more than BUCKET_PARTS.
    """
    runs = [(is_selected, len(list(group))) for is_selected, group in groupby(selected.to_pylist())]
    if len(runs) > BUCKET_PARTS or (len(runs) > 1 and not in_place):
        return [(rows.filter(selected), True), (rows.filter(pc.invert(selected)), False)]
    ends = accumulate(length for _, length in runs)
    return [(rows.slice(end - length, length), flag) for (flag, length), end in zip(runs, ends, strict=True)]


def unpack(store: RecordStore, queue: str, tag: str) -> None:
    """Replace the buckets of one tag by their messages, which are held as before.

    So each of them can then be settled or handed out in one step. A bucket stays if it is damaged,
    or if one of its messages cannot be a record: the queue may hold its id already.
    """
    if "buckets" in store.unsupported:
        return
    for record, found in list(_buckets(store, queue, tag)):
        if not found.damaged:
            singles = pa.RecordBatch.from_pydict(
                columns_by_name(found.batch) | {"delay": pa.nulls(found.batch.num_rows, pa.int64())}, schema=WRITTEN
            )
            with suppress(MessageError):
                store._attempt(store._replace_records, queue, tag, [record], singles)


def compact(store: RecordStore, queue: str, layout: Buckets) -> int:
    """Merge ready messages and small buckets into larger buckets.

    Return by how many the number of records has decreased. Clients may reserve meanwhile, and get
    each message once: reserved records are skipped. Messages and their due times do not change;
    they then come in the order of their buckets. Raises `OptionError` if the layout has no buckets.
    """
    store.check_buckets()
    fewer = 0
    step = store.limits.compaction_step
    for group in _mergeable(store._read_pages(lambda after: store._scan_free(queue, after, step)), layout):
        found = list(open_buckets(group))
        if any(one.damaged for one in found):
            continue  # its messages are unknown
        (rows,) = pa.Table.from_batches([one.batch for one in found]).combine_chunks().to_batches()
        ids, moments = group.batch.column("id").to_pylist(), milliseconds(group.batch.column("mature")).to_pylist()
        if _replace(store, queue, None, list(map(Record, ids, moments)), [rows], layout) is not None:
            fewer += len(ids) - 1
    return fewer


def _mergeable(pages: Iterable[Records], layout: Buckets) -> Iterator[Records]:
    """Yield adjacent records that have equally many tries and fit into one bucket."""
    rest = EMPTY_PAGE  # the next page may continue it
    for page in pages:
        joined = join_records(rest, page)
        *groups, rest = (slice_records(joined, *one) for one in _ranges(joined.batch, layout))
        yield from (one for one in groups if one.batch.num_rows > 1)
    if rest.batch.num_rows > 1:
        yield rest


def _ranges(records: pa.RecordBatch, layout: Buckets) -> Iterator[tuple[int, int]]:
    """Yield the ranges of records for a bucket each; a large record is a range of its own."""
    weights = [rows_of(id) for id in records.column("id").to_pylist()]
    tries, sizes = records.column("tries").to_pylist(), pc.binary_length(records.column("payload")).to_pylist()
    start = rows = size = 0
    for at in range(len(weights)):
        fits = max(size, sizes[at]) < MAX_MERGED_BYTES and rows + weights[at] <= layout.size
        if at > start and not (fits and tries[at] == tries[start]):
            yield start, at
            start, rows, size = at, 0, 0
        rows, size = rows + weights[at], size + sizes[at]
    yield start, len(weights)


def _readable_buckets(
    store: RecordStore, queue: str, tag: str | None
) -> Iterator[tuple[str | None, Record, pa.RecordBatch]]:
    for holder in [None] if tag is None else [one.tag for one in store.reservations(queue, tag)]:
        for record, found in _buckets(store, queue, holder):
            if not found.damaged:
                yield holder, record, found.batch


def _buckets(
    store: RecordStore, queue: str, tag: str | None, id: str | None = None
) -> Iterator[tuple[Record, Records]]:
    """Yield buckets with their messages: those of one tag, or all of the queue, or this one."""
    pages = store._buckets(queue, id) if tag is None else store._records(queue, tag)
    for page in pages:
        moments = milliseconds(page.batch.column("mature")).to_pylist()
        for row, one in enumerate(page.batch.column("id").to_pylist()):
            if is_bucket(one):
                (found,) = open_buckets(slice_records(page, row, row + 1))
                yield Record(one, moments[row]), found


def _replace(
    store: RecordStore,
    queue: str,
    tag: str | None,
    records: Sequence[Record],
    parts: Sequence[pa.RecordBatch],
    layout: Buckets | None = None,
) -> list[str] | None:
    """Replace records by a bucket for each part; return their ids, `None` if records changed."""
    buckets = [build_bucket(part, layout or Buckets()) for part in parts]
    (made,) = pa.Table.from_batches(buckets).combine_chunks().to_batches()
    done = store._attempt(store._replace_records, queue, tag, records, made)
    return made.column("id").to_pylist() if done else None
