"""What grows with what: operations of the stores beside ever more messages, queues, consumers, bytes and leases.

    python bench/growth.py                                    all curves on all three stores, 3 rounds
    python bench/growth.py --only redis --curve dead          one curve (repeatable) on one store
    python bench/growth.py --most 100000                      no size beyond that: a quick look
    python bench/growth.py --full --json results.json --docs  ten million messages too; keep, and renew the page
    python bench/growth.py --curve queues --full              ten thousand queues in MongoDB: needs `ulimit -n` 64000

Curves: `backlog`, `scheduled` (messages beside ready ones), `queues` (in one database), `consumers` (processes on one
queue), `bytes` (of a message), `dead` (reservations whose leases have ended, one tag each). A curve makes a queue of
its own for each size, once, then measures all of them in turns, in another order each round, after a round that does
not count; `queues` come one size after the other, for a server cannot have few and many of them at the same time.
What is told is the median of the rounds, and beside it how many times as long it took as at the smallest size: the
median of the ratios within a round. 1.0 is a flat line; a ratio holds from one machine to another.

*reserve one* is the median of twenty reserves of one message, *first reserve* the first one after leases have ended,
*reserve*, *fetch*, *commit* and *push* are of a batch of messages, *sizes* is what Spark asks after each batch.
Consumers reserve, fetch and commit a hundred messages at a time. The servers are those of SPARK_QUEUE_MONGODB_URL and
SPARK_QUEUE_REDIS_URL, or of `make services`.
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

from charts import draw_all
from common import STORES, arguments, databases, keep, say, setup_of
from curves import CALLS, CURVES
from report import Table, aligned, piped, renew

#: Of one store, what each round took: by size and operation, seconds of a call or of a message.
Rounds = list[dict[int, dict[str, float]]]


@dataclass(frozen=True)
class Grown:
    """What was measured of one curve: `rounds` by store."""

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
        """How many times as long it took as at the smallest size: the median of the ratios within a round."""
        first = self.sizes(store)[0]
        return statistics.median(one[size][operation] / one[first][operation] for one in self.rounds[store])

    def table(self, store: str) -> Table:
        operations = self.operations(store)
        made: Table = [(self.axis, *operations)]
        for size in self.sizes(store):
            times = [
                f"{shown(one, self.median(store, size, one))} ({self.ratio(store, size, one):.1f})"
                for one in operations
            ]
            made.append((f"{size:,}", *times))
        return made

    def as_json(self) -> dict[str, Any]:
        def each(told: Callable[[str, int, str], float], store: str) -> dict[int, dict[str, float]]:
            return {
                size: {one: told(store, size, one) for one in self.operations(store)} for size in self.sizes(store)
            }

        return {
            store: {"medians": each(self.median, store), "ratios": each(self.ratio, store), "rounds": rounds}
            for store, rounds in self.rounds.items()
        }


def shown(operation: str, seconds: float) -> str:
    """The time of a call, or how many messages a second that is."""
    return f"{1000 * seconds:,.2f} ms" if operation in CALLS else f"{1 / seconds:,.0f}/s"


def as_text(found: Grown) -> str:
    """The tables of a curve for a terminal."""
    lines: list[str] = []
    for store in found.rounds:
        (first, *head), *rest = found.table(store)
        lines += ["", *aligned([(f"{store}: {first}", *head), *rest])]
    return "\n".join(lines)


def as_markdown(found: Grown, facts: dict[str, Any]) -> str:
    """The part of the page that a curve makes."""
    lines = [
        f"Measured on {facts['when']}: {facts['setup']}; medians of {facts['rounds']} rounds, in parentheses the "
        "time relative to the smallest size.",
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
    """One curve, one store after the other, with the sizes of each; what it makes is removed whatever happens."""
    found = Grown(name)
    for store, url in urls.items():
        seen: Rounds = [{} for _ in range(rounds + 1)]
        with closing(CURVES[name](url, folder, batch)) as curve:
            say(f"{name} {store}: making {', '.join(f'{one:,}' for one in sizes[store])} {curve.axis}")
            curve.prepare(sizes[store])
            for number, size, times in curve.measured(sizes[store], rounds + 1):
                seen[number][size] = times
                told = ", ".join(f"{one} {shown(one, seconds)}" for one, seconds in times.items())
                say(f"{f'round {number}' if number else 'warm-up'} {name} {store:8} {size:>10,}: {told}")
        found.rounds[store] = seen[1:]
    return found


def main() -> int:
    parser = arguments(__doc__ or "", messages=5_000, rounds=3, of="messages of a batch")
    parser.add_argument("--curve", choices=CURVES, action="append", help="this curve only (repeatable)")
    parser.add_argument("--most", type=int, metavar="N", help="no size beyond this one")
    parser.add_argument(
        "--full", action="store_true", help="also the sizes that take long or need a server set up for them"
    )
    parser.add_argument("--docs", action="store_true", help="renew docs/benchmarks.md and its pictures")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # removes what was made, as Ctrl-C does
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
            keep(args.json, results)  # after each curve: all of them take their time
            if args.docs:
                renew(f"growth {name}", as_markdown(found, facts))
                draw_all()
    return 0


if __name__ == "__main__":
    sys.exit(main())
