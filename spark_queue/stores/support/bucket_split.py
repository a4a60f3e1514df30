"""What is done to some of the messages of a bucket: it is taken apart, and small ones are put together.

What is for some messages of a bucket goes two steps: first the bucket is replaced by two that hold the same
messages in the same state, then the one that is meant is treated as a whole. The first step changes nothing that
anybody can see, so a crash between the two does no harm; it succeeds only while the bucket is what it was when it
was read, so of two clients that take one apart at the same time the second reads again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from spark_queue.messages.buckets import Buckets, Record, bucket, is_bucket, rows_of
from spark_queue.messages.columns import milliseconds
from spark_queue.stores.support.damaged import Records, opened, part
from spark_queue.stores.support.needs import RecordStore

#: Into how many parts a bucket is split for a reserve that takes fewer messages than it holds: taken one by one, a
#: message is written again for as often as the logarithm to this base of the size of the bucket.
BUCKET_PARTS = 64

#: Records that a compaction looks at in one step.
COMPACTION_STEP = 2_000


def split(store: RecordStore, queue: str, id: str, most: int) -> bool:
    """Split a bucket that nobody holds into parts of which the first holds at most `most` messages, or few.

    Does nothing where it is not there any more, or fits: others may have taken what was in its way. Return whether it
    can be split; not if it is damaged.
    """
    for record, found in _buckets(store, queue, None, id):
        rows = found.batch
        if found.damaged or rows.num_rows <= most:
            return not found.damaged
        size = max(most, -(-rows.num_rows // BUCKET_PARTS))
        parts = [rows.slice(start, size) for start in range(0, rows.num_rows, size)]
        _replace(store, queue, None, [record], parts)
    return True


def apart(
    store: RecordStore,
    queue: str,
    tag: str | None,
    ids: Sequence[str] | None = None,
    *,
    most: int | None = None,
    min_tries: int = 0,
) -> list[str]:
    """See to it that messages in buckets are in buckets of their own, and give the ids of these.

    Which: those that the tag and those below it hold (`None`: nobody), with so many tries, of `ids` where given; the
    first `most` in order of their buckets.
    """
    wanted = None if ids is None else pa.array(ids, pa.string())
    refused: set[str] = set()
    while True:
        found: list[str] = []
        made: set[str] = set()  # what comes of a bucket may be met after it
        left = most
        for holder, record, rows in _all_buckets(store, queue, tag):
            if rows.column("tries")[0].as_py() < min_tries or left == 0 or record.id in made:
                continue
            meant = pa.repeat(pa.scalar(True), rows.num_rows)
            if wanted is not None:
                meant = pc.is_in(rows.column("id"), wanted)
            if left is not None:
                meant = pc.and_(meant, pc.less_equal(pc.cumulative_sum(meant.cast(pa.int64())), left))
            number = pc.sum(meant.cast(pa.int64())).as_py()
            if not number:
                continue
            own: list[str] | None = [record.id]
            if number < rows.num_rows:
                own = _replace(store, queue, holder, [record], [rows.filter(meant), rows.filter(pc.invert(meant))])
            if own is not None:
                made.update(own)
                found.append(own[0])
                left = None if left is None else left - number
            elif record.id not in refused:
                refused.add(record.id)
                break  # somebody else was faster, perhaps: look again
        else:
            return found


def compact(store: RecordStore, queue: str, how: Buckets) -> int:
    """Put messages that are ready, and lie alone or in small buckets, together; give the records that are fewer now.

    Whoever reserves meanwhile gets each message once: what was taken is left alone. Each message keeps what it is,
    and when it was due; they come in the order of their buckets then. Raises `OptionError` for a layout without.
    """
    store.check_buckets()
    fewer = 0
    for page in store._paged(lambda after: store._spare(queue, after, COMPACTION_STEP)):
        batch = page.batch
        ids, moments = batch.column("id").to_pylist(), milliseconds(batch.column("mature")).to_pylist()
        for start, stop in _runs(batch, how):
            found = list(opened(part(page, start, stop)))
            if any(one.damaged for one in found):
                continue  # nobody can say what is in there
            (rows,) = pa.Table.from_batches([one.batch for one in found]).combine_chunks().to_batches()
            records = [Record(*one) for one in zip(ids[start:stop], moments[start:stop], strict=True)]
            if _replace(store, queue, None, records, [rows], how) is not None:
                fewer += len(records) - 1
    return fewer


def _runs(page: pa.RecordBatch, how: Buckets) -> Iterator[tuple[int, int]]:
    """Records that follow on one another, have failed equally often, and together fill one bucket at most."""
    weights = [rows_of(id) for id in page.column("id").to_pylist()]
    tries, sizes = page.column("tries").to_pylist(), pc.binary_length(page.column("payload")).to_pylist()
    start = rows = size = 0
    for at in range(len(weights) + 1):
        if at < len(weights) and tries[at] == tries[start] and rows + weights[at] <= how.size and size < 1 << 20:
            rows, size = rows + weights[at], size + sizes[at]
            continue
        if at - start > 1:
            yield start, at
        if at < len(weights):
            start, rows, size = at, weights[at], sizes[at]


def _all_buckets(
    store: RecordStore, queue: str, tag: str | None
) -> Iterator[tuple[str | None, Record, pa.RecordBatch]]:
    for holder in [None] if tag is None else [one.tag for one in store.reservations(queue, tag)]:
        for record, found in _buckets(store, queue, holder):
            if not found.damaged:
                yield holder, record, found.batch


def _buckets(
    store: RecordStore, queue: str, tag: str | None, id: str | None = None
) -> Iterator[tuple[Record, Records]]:
    """The buckets that one tag holds, or all of the queue, or this one; each with its messages."""
    pages = store._buckets(queue, id) if tag is None else store._records(queue, tag)
    for page in pages:
        moments = milliseconds(page.batch.column("mature")).to_pylist()
        for row, one in enumerate(page.batch.column("id").to_pylist()):
            if is_bucket(one):
                (found,) = opened(part(page, row, row + 1))
                yield Record(one, moments[row]), found


def _replace(
    store: RecordStore,
    queue: str,
    tag: str | None,
    records: Sequence[Record],
    parts: Sequence[pa.RecordBatch],
    how: Buckets | None = None,
) -> list[str] | None:
    """Replace records by a bucket for each part, and give the ids of these; `None` where somebody was faster."""
    made = pa.Table.from_batches([bucket(part, how or Buckets()) for part in parts]).combine_chunks().to_batches()[0]
    done = store._attempt(store._recast, queue, tag, records, made)
    return made.column("id").to_pylist() if done else None
