"""Compare the layouts of keuss and rfq with keuss and rfq themselves: drain rate and latency.

    # all layouts, 3 rounds of 20,000 messages per peer
    python bench/layouts.py
    # one layout (repeatable); --docs updates docs/benchmarks.md
    python bench/layouts.py --layout redis-oq --docs

Both sides use the same server in turns, in another order each round. The result is the median of
the ratios within a round.

* Spark drains a queue in that layout: two partitions, at-least-once, a sink that does nothing.
* keuss drains by 1, 2, 4 and 8 loops of reserve and ok in one process; the best number counts.
* rfq drains by two processes, each a loop of consume and done.

For latency, one process waits and another pushes at random moments.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import peers
from common import arguments, databases, fill, keep, payloads, say, session, setup, turns
from latency import CLIENT, TO_CLIENT, WARM_UP, pauses, to_client
from report import Table, aligned, piped, renew
from ways import BESIDE, Through, Ways

from spark_queue import open_store
from spark_queue.options.url import StoreUrl
from tests.services import service_urls

LOOPS = (1, 2, 4, 8)

#: Messages of a micro-batch. Fast layouts have a multiple of it.
TRIGGER = 50_000


@dataclass(frozen=True)
class Layout:
    """A layout, the peers that drain it, and the target: the rate of Spark relative to theirs."""

    store: str
    peers: tuple[str, ...]
    wanted: float
    trigger: int = TRIGGER
    wakes: bool = True


LAYOUTS = {
    "mongo": Layout("mongodb", tuple(f"keuss-mongo-{n}" for n in LOOPS), 30),
    "bucket-mongo-safe": Layout("mongodb", tuple(f"keuss-bucket-mongo-safe-{n}" for n in LOOPS), 3, 4 * TRIGGER),
    "redis-oq": Layout("redis", tuple(f"keuss-redis-oq-{n}" for n in LOOPS), 8, 4 * TRIGGER),
    "rfq": Layout("redis", ("rfq",), 10, wakes=False),
}

#: The name of our side in the results, with batches of a fixed size and with default options.
OURS, DEFAULT = "Spark", "Spark, default options"


@dataclass
class Found:
    """Messages per second in each round, and milliseconds of messages, both by side."""

    rates: list[dict[str, float]] = field(default_factory=list)
    waits: dict[str, list[float]] = field(default_factory=dict)

    def best(self) -> str:
        """Return the fastest of the peers."""
        names = [one for one in self.rates[0] if one not in (OURS, DEFAULT)]
        return max(names, key=lambda one: statistics.median(rates[one] for rates in self.rates))

    def times(self, ours: str, other: str) -> float:
        """Return the rate of one side relative to another."""
        return statistics.median(one[ours] / one[other] for one in self.rates)


def by_spark(ways: Ways, layout: Layout, n: int, *, fixed: bool) -> float:
    """Return the messages per second that Spark drains, in batches of a fixed size or not."""
    queue = f"bench{uuid.uuid4().hex[:8]}"
    with open_store(ways.url) as store:
        try:
            fill(store, queue, payloads(n + BESIDE * layout.trigger))
            return ways.drained(queue, Through(2), n, layout.trigger, fixed=fixed).rate
        finally:
            store.drop(queue)


def by_peer(name: str, n: int) -> float:
    """Return the messages per second that a peer drains."""
    return peers.measure(name, service_urls(), peers.jobs(name, n)).drain.rate


# --- latency --------------------------------------------------------------------------------------


@contextmanager
def node(act: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Start a program of keuss, and yield it when it is ready."""
    command = ["node", str(Path(__file__).parent / "peers" / "keuss_wake.js"), act, *words]
    environment = os.environ | {"NODE_PATH": str(peers.KEUSS)}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True) as program:
        try:
            line(program)
            yield program
        finally:
            program.kill()


def line(program: subprocess.Popen[str]) -> str:
    """Return the next line that the program prints."""
    assert program.stdout is not None
    found = program.stdout.readline()
    if not found:
        raise SystemExit("a program of keuss ended; see its errors above")
    return found


def keuss_waits(backend: str, url: str, redis: str, n: int) -> list[float]:
    """Return the milliseconds of each message until a waiting keuss has it."""
    queue = f"bench{uuid.uuid4().hex[:8]}"
    words = (backend, url, redis, queue, str(WARM_UP + n))
    with ExitStack() as stack:
        waiter, pusher = (stack.enter_context(node(act, *words)) for act in ("wait", "push"))
        assert pusher.stdin is not None
        found = []
        for pause in pauses(n, TO_CLIENT):
            time.sleep(pause)
            pusher.stdin.write("\n")
            pusher.stdin.flush()
            found.append(float(line(waiter)))
        with open_store(StoreUrl.parse(url).with_layout(backend)) as store:
            store.drop(queue)
    return found[WARM_UP:]


def client_waits(url: str, n: int) -> list[float]:
    """Return the milliseconds of each message until our waiting client has it."""
    queue = f"bench{uuid.uuid4().hex[:8]}"
    try:
        return to_client(url, queue, n)[CLIENT]
    finally:
        with open_store(url) as store:
            store.drop(queue)


# --- results --------------------------------------------------------------------------------------


def tables(found: dict[str, Found]) -> list[Table]:
    """Return the tables of rates and, if measured, of latency."""
    tuned_head = ("Spark drains", "times as fast", "wanted")
    drains: Table = [("layout", "its own programs", "drain", *tuned_head, "default options", "default, of tuned")]
    waits: Table = [("ms: median, 99th percentile", "keuss", "our client")]
    for name, one in found.items():
        best = one.best()
        theirs, tuned, default = (
            f"{statistics.median(rates[who] for rates in one.rates):,.0f}/s" for who in (best, OURS, DEFAULT)
        )
        times, of_tuned = f"{one.times(OURS, best):.1f}", f"{one.times(DEFAULT, OURS):.2f}"
        drains.append((name, best, theirs, tuned, times, f"{LAYOUTS[name].wanted:g}", default, of_tuned))
        if one.waits:
            waits.append((name, *(median_and_p99(one.waits[who]) for who in ("keuss", OURS))))
    return [drains, waits] if len(waits) > 1 else [drains]


def median_and_p99(waits: list[float]) -> str:
    """Return the median and the 99th percentile as text."""
    return f"{statistics.median(waits):.1f}, {statistics.quantiles(waits, n=100, method='inclusive')[98]:.1f}"


def main() -> int:
    parser = arguments(__doc__ or "", messages=20_000, rounds=3, of="messages of a peer per round")
    parser.add_argument("--layout", choices=LAYOUTS, action="append", help="this layout only (repeatable)")
    parser.add_argument("--waits", type=int, default=100, help="messages per round for latency (default %(default)s)")
    parser.add_argument("--docs", action="store_true", help="update docs/benchmarks.md")
    args = parser.parse_args()
    for backend in ("mongo", "redis-oq", "bucket-mongo-safe"):
        peers.PEERS.update({f"keuss-{backend}-{n}": peers.keuss(backend, "reserve", n) for n in LOOPS})
    chosen = {name: LAYOUTS[name] for name in args.layout or LAYOUTS}
    chosen = {name: one for name, one in chosen.items() if not args.only or one.store in args.only}
    try:
        for layout in chosen.values():
            for peer in layout.peers:
                peers.ready(peer, service_urls())
    except peers.PeerError as error:
        raise SystemExit(str(error)) from None
    spark = session()
    found = {name: Found() for name in chosen}
    with tempfile.TemporaryDirectory(prefix="spark-queue-bench-") as folder:
        urls = databases(folder, ["redis", "mongodb"])
        for number in range(args.rounds + 1):
            for name, layout in chosen.items():
                url = urls[layout.store]
                ours = StoreUrl.parse(url).with_layout(name)
                ways = Ways(spark, layout.store, ours, Path(folder))
                steps: dict[str, Callable[[], float]] = {
                    who: partial(by_spark, ways, layout, 3 * layout.trigger, fixed=who == OURS)
                    for who in (OURS, DEFAULT)
                }
                if number:
                    steps |= {peer: partial(by_peer, peer, args.messages) for peer in layout.peers}
                rates = {who: steps[who]() for who in turns(list(steps), number)}
                say(f"round {number} {name}: " + ", ".join(f"{who} {rate:,.0f}/s" for who, rate in rates.items()))
                if not number:
                    continue
                found[name].rates.append(rates)
                if layout.wakes:
                    for who in turns(["keuss", OURS], number):
                        keuss = partial(keuss_waits, name, url, urls["redis"], args.waits)
                        waits = keuss() if who == "keuss" else client_waits(ours, args.waits)
                        found[name].waits.setdefault(who, []).extend(waits)
                        say(f"round {number} {name}: {who} waits {median_and_p99(waits)} ms")
    facts = f"{setup(spark)}; {args.rounds} rounds"
    spark.stop()
    print(facts, *(text for table in tables(found) for text in ["", *aligned(table)]), sep="\n")
    keep(args.json, {"setup": facts, "layouts": {name: vars(one) for name, one in found.items()}})
    if args.docs:
        when = f"Measured on {datetime.now(UTC):%Y-%m-%d}: {facts}."
        renew("layouts", "\n".join([when, *(text for table in tables(found) for text in ["", *piped(table)])]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
