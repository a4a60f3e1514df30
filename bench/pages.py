"""Measure pages of messages: a later page against the first one.

    python bench/pages.py                                    # 200,000 messages, all stores
    python bench/pages.py --only redis --messages 1000000

A tenth of the messages is reserved, under eight tags. Half of all were pushed as one batch, so they
have the same due time; the others are scheduled, one ms after the other. The queue is read to its
end once, page by page. Then the first page and one near the end are read in turn, each as often.
With conditions, the same is done for messages that meet them. The target is a ratio of at most 1.5.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import pyarrow as pa
from common import STORES, arguments, check, databases, documents, fill, keep, payloads, setup_of

from spark_queue import open_store
from spark_queue.messages.schema import PUSHES
from spark_queue.stores.base import Store
from spark_queue.stores.support.scan import Scan
from spark_queue.stores.types import Condition

#: Messages of a page, and of one push of the scheduled ones.
PAGE, PART = 100, 10_000

#: The most by which a page near the end may be slower than the first.
TARGET = 1.5


def push_all(store: Store, queue: str, number: int) -> None:
    """Push half of the messages at once, and half of them scheduled; reserve a tenth."""
    fill(store, queue, payloads(number // 2))
    delay = PUSHES.get_field_index("delay")
    for first in range(0, number - number // 2, PART):
        batch = documents(payloads(min(PART, number - number // 2 - first)))
        delays = pa.array(range(3_600_000 + first, 3_600_000 + first + batch.num_rows), pa.int64())
        store.push(queue, batch.set_column(delay, PUSHES.field("delay"), delays))
    store.reserve(queue, "bench/1", number // 10, partitions=8, lease=None)


def cursors(store: Store, queue: str, where: Sequence[Condition], number: int) -> list[str | None]:
    """Read all pages; return the cursor of each."""
    found: list[str | None] = [None]
    seen = 0
    while True:
        page = store.scan(Scan(queue, where, PAGE, cursor=found[-1]))
        seen += sum(batch.num_rows for batch in page.batches)
        if page.cursor is None:
            check(seen, number)
            return found
        found.append(page.cursor)


def seconds(store: Store, scan: Scan) -> float:
    """Return how long a page takes."""
    begun = time.perf_counter()
    store.scan(scan)
    return time.perf_counter() - begun


def measure(store: Store, queue: str, number: int, rounds: int) -> dict[str, dict[str, float]]:
    """Return the times of the first page and of one near the end (ms), and their ratio."""
    first_ids = tuple(id for batch in store.peek(queue, limit=2 * PAGE) for id in batch.column("id").to_pylist())
    now = store.now()
    kinds: dict[str, tuple[list[Condition], int]] = {
        "all": ([], number),
        "tries": ([Condition("tries", ">=", 0)], number),
        "mature": ([Condition("mature", ">", now)], number - number // 2),
        "id": ([Condition("id", "in", first_ids)], len(first_ids)),
    }
    found: dict[str, dict[str, float]] = {}
    for name, (where, expected) in kinds.items():
        known = cursors(store, queue, where, expected)
        last = known[max(1, len(known) - 20) if len(known) > 20 else 1]
        times: list[tuple[float, float]] = []
        for _ in range(rounds):
            first = seconds(store, Scan(queue, where, PAGE))
            times.append((first, seconds(store, Scan(queue, where, PAGE, cursor=last))))
        ratio = statistics.median(later / first for first, later in times)
        medians = [1000 * statistics.median(side) for side in zip(*times, strict=True)]
        found[name] = {"first": medians[0], "later": medians[1], "ratio": ratio}
    return found


def main() -> int:
    parser = arguments(__doc__ or "", messages=200_000, rounds=21, of="messages of the queue")
    args = parser.parse_args()
    facts = setup_of()
    print(f"{facts}; pages of {PAGE} of {args.messages:,} messages")
    results: dict[str, Any] = {"setup": facts, "messages": args.messages, "stores": {}}
    slow = []
    with tempfile.TemporaryDirectory(prefix="spark-queue-bench-") as folder:
        for name, url in databases(folder, args.only or list(STORES)).items():
            queue = f"bench{uuid.uuid4().hex[:8]}"
            with open_store(url) as store:
                try:
                    push_all(store, queue, args.messages)
                    found = measure(store, queue, args.messages, args.rounds)
                finally:
                    store.drop(queue)
            results["stores"][name] = found
            for kind, one in found.items():
                first, later = f"{one['first']:8.2f} ms", f"{one['later']:8.2f} ms"
                print(f"{name:8} {kind:7} first {first}   later {later}   {one['ratio']:.2f}")
                slow += [f"{name} {kind}"] if one["ratio"] > TARGET else []
            keep(args.json, results)
    if slow:
        print(f"slower than {TARGET} times the first page: {', '.join(slow)}")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
