"""Measure how operations slow down with more messages, queues, consumers, bytes and leases.

    # all curves on all three stores, 3 rounds
    python bench/growth.py
    # one curve (repeatable) on one store
    python bench/growth.py --only redis --curve dead
    # no larger size: a quick run
    python bench/growth.py --most 100000
    # also ten million messages, and a hundred million in buckets; update docs/benchmarks.md
    python bench/growth.py --full --json results.json --docs
    # also ten thousand queues in MongoDB, which needs `ulimit -n` 64000
    python bench/growth.py --curve queues --full

Curves:

* backlog: messages that are ready
* buckets: the same, in buckets
* scheduled: scheduled messages, in addition to ready ones
* queues: queues in one database
* consumers: processes on one queue
* bytes: bytes of a message
* dead: reservations whose leases have expired, one tag each

A curve creates a queue for each size once. After a warm-up round it measures all sizes in each
round, in another order. `queues` measures one size after the other, because a server cannot have
few and many queues at the same time. A result is the median of the rounds. In parentheses is the
time relative to the smallest size: the median of the ratios within a round. 1.0 is a flat line.
Ratios can be compared between machines.

Operations:

* reserve one: a reserve of one message, median of twenty
* first reserve: the first reserve after leases have expired
* reserve, fetch, commit, push: of a batch of messages
* sizes: the sizes that a query counts for its progress, to a limit, at most once a second
* reserve a hundred, drain: consumers reserve, fetch and commit a hundred messages at a time

The servers are those of SPARK_QUEUE_MONGODB_URL and SPARK_QUEUE_REDIS_URL, or of `make services`.
"""

from __future__ import annotations

import signal
import statistics
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from charts import MS, draw_all
from common import STORES, arguments, databases, keep, say, setup_of
from curves import CALLS, CURVES
from report import Table, aligned, piped, renew

#: Results of one store: for each round, seconds per call or per message, by size and operation.
Rounds = list[dict[int, dict[str, float]]]


@dataclass(frozen=True)
class Grown:
    """Results of one curve: `rounds` by store."""

    name: str
    rounds: dict[str, Rounds] = field(default_factory=dict)

    @property
    def axis(self) -> str:
        return CURVES[self.name].axis

    def sizes(self, store: str) -> list[int]:
        return sorted(self.rounds[store][0])

    def operations(self, store: str) -> list[str]:
        return list(self.rounds[store][0][self.sizes(store)[0]])

    def median(self, store: str, size: int, operation: str) -> float:
        return statistics.median(one[size][operation] for one in self.rounds[store])

    def ratio(self, store: str, size: int, operation: str) -> float:
        """Return the time relative to the smallest size: the median ratio within a round."""
        first = self.sizes(store)[0]
        return statistics.median(one[size][operation] / one[first][operation] for one in self.rounds[store])

    def table(self, store: str) -> Table:
        operations = self.operations(store)
        made: Table = [(self.axis, *(f"{one}{MS}" if one in CALLS else one for one in operations))]
        for size in self.sizes(store):
            times = [
                f"{shown(one, self.median(store, size, one), '')} ({self.ratio(store, size, one):.1f})"
                for one in operations
            ]
            made.append((f"{size:,}", *times))
        return made

    def as_json(self) -> dict[str, Any]:
        def each(number: Callable[[str, int, str], float], store: str) -> dict[int, dict[str, float]]:
            return {
                size: {one: number(store, size, one) for one in self.operations(store)} for size in self.sizes(store)
            }

        return {
            store: {"medians": each(self.median, store), "ratios": each(self.ratio, store), "rounds": rounds}
            for store, rounds in self.rounds.items()
        }


def shown(operation: str, seconds: float, unit: str = " ms") -> str:
    """Return the time of a call in milliseconds, or the messages per second."""
    return f"{1000 * seconds:,.2f}{unit}" if operation in CALLS else f"{1 / seconds:,.0f}/s"


def as_text(found: Grown) -> str:
    """Return the tables of a curve for a terminal."""
    lines: list[str] = []
    for store in found.rounds:
        (first, *head), *rest = found.table(store)
        lines += ["", *aligned([(f"{store}: {first}", *head), *rest])]
    return "\n".join(lines)


def as_markdown(found: Grown, facts: dict[str, Any]) -> str:
    """Return the tables of a curve for the page."""
    lines = [
        f"Measured on {facts['when']}: {facts['setup']}; medians of {facts['rounds']} rounds.",
        "",
        f"![how operations grow](pictures/growth_{found.name}.svg)",
    ]
    for store in found.rounds:
        (first, *head), *rest = found.table(store)
        lines += ["", *piped([(f"{store}: {first}", *head), *rest])]
    return "\n".join(lines)


def measure(
    name: str, urls: dict[str, str], folder: Path, sizes: dict[str, list[int]], batch: int, rounds: int
) -> Grown:
    """Measure one curve, one store after the other. Its queues are removed in any case."""
    found = Grown(name)
    for store, url in urls.items():
        seen: Rounds = [{} for _ in range(rounds + 1)]
        with closing(CURVES[name](url, folder, batch)) as curve:
            say(f"{name} {store}: creating {', '.join(f'{one:,}' for one in sizes[store])} {curve.axis}")
            curve.prepare(sizes[store])
            for number, size, times in curve.measured(sizes[store], rounds + 1):
                seen[number][size] = times
                line = ", ".join(f"{one} {shown(one, seconds)}" for one, seconds in times.items())
                say(f"{f'round {number}' if number else 'warm-up'} {name} {store:8} {size:>10,}: {line}")
        found.rounds[store] = seen[1:]
    return found


def main() -> int:
    parser = arguments(__doc__ or "", messages=5_000, rounds=3, of="messages of a batch")
    parser.add_argument("--curve", choices=CURVES, action="append", help="this curve only (repeatable)")
    parser.add_argument("--most", type=int, metavar="N", help="no size above this one")
    parser.add_argument("--full", action="store_true", help="also sizes that take long or need server settings")
    parser.add_argument("--docs", action="store_true", help="update docs/benchmarks.md and its charts")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # cleans up, as Ctrl-C does
    facts: dict[str, Any] = {"setup": setup_of(), "when": f"{datetime.now(UTC):%Y-%m-%d}", "rounds": args.rounds}
    say(f"{facts['setup']}; {args.rounds} rounds")
    results: dict[str, Any] = {**facts, "curves": {}}
    with tempfile.TemporaryDirectory(prefix="spark-queue-bench-") as folder:
        urls = databases(folder, args.only or list(STORES))
        for name in args.curve or CURVES:
            sizes = {store: CURVES[name].chosen(store, full=args.full, most=args.most) for store in urls}
            found = measure(name, urls, Path(folder), sizes, args.messages, args.rounds)
            print(as_text(found), flush=True)
            results["curves"][name] = found.as_json()
            keep(args.json, results)  # after each curve, because all of them take long
            if args.docs:
                renew(f"growth {name}", as_markdown(found, facts))
                draw_all()
    return 0


if __name__ == "__main__":
    sys.exit(main())
