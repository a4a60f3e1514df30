"""The layouts of keuss and rfq, beside the real ones: how fast queues drain, and how soon who waits has a message.

    python bench/layouts.py                              all layouts, 3 rounds of 20,000 messages of each peer
    python bench/layouts.py --layout redis-oq --docs     one of them (repeatable); --docs renews docs/benchmarks.md

Both sides work on the same server, in turns, in another order each round; what is told is the median of the ratios
within a round. Spark drains a queue that has been filled in that layout, in two partitions, at least once, into a
sink that does nothing. keuss drains by loops of reserve and ok in one process, 1, 2, 4 and 8 of them, of which the
best counts; rfq by two processes, each a loop of consume and done. For the wake-up one process waits and another
pushes, at random moments.
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
from latency import BEFORE, CLIENT, TO_CLIENT, pauses, to_client
from report import Table, aligned, piped, renew
from ways import BESIDE, Through, Ways

from spark_queue import open_store
from spark_queue.options.url import StoreUrl
from tests.services import service_urls

LOOPS = (1, 2, 4, 8)

#: Spark works on so many messages in a micro-batch, and on so many more of them where they are fast.
TRIGGER = 50_000


@dataclass(frozen=True)
class Layout:
    """A layout, whose programs drain it, and how many times as fast Spark is to be."""

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

#: What drained, or waited.
OURS = "Spark"


@dataclass
class Found:
    """Messages per second of each round by who drained, and milliseconds of messages by who waited."""

    rates: list[dict[str, float]] = field(default_factory=list)
    waits: dict[str, list[float]] = field(default_factory=dict)

    def best(self) -> str:
        """Which of the peers is the fastest."""
        names = [one for one in self.rates[0] if one != OURS]
        return max(names, key=lambda one: statistics.median(rates[one] for rates in self.rates))

    def times(self) -> float:
        """How many times as fast Spark is as that one."""
        best = self.best()
        return statistics.median(one[OURS] / one[best] for one in self.rates)


def by_spark(ways: Ways, layout: Layout, n: int) -> float:
    """Messages per second."""
    queue = f"bench{uuid.uuid4().hex[:8]}"
    with open_store(ways.url) as store:
        try:
            fill(store, queue, payloads(n + BESIDE * layout.trigger))
            return ways.drained(queue, Through(2), n, layout.trigger).rate
        finally:
            store.drop(queue)


def by_peer(name: str, n: int) -> float:
    """Messages per second."""
    return peers.measure(name, service_urls(), peers.jobs(name, n)).drain.rate


# --- who waits ------------------------------------------------------------------------------------------------------


@contextmanager
def node(act: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A program of keuss that is ready."""
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
    """The next line that it prints."""
    assert program.stdout is not None
    found = program.stdout.readline()
    if not found:
        raise SystemExit("a program of keuss has ended; see its errors above")
    return found


def keuss_waits(backend: str, url: str, redis: str, n: int) -> list[float]:
    """Milliseconds of each message."""
    queue = f"bench{uuid.uuid4().hex[:8]}"
    words = (backend, url, redis, queue, str(BEFORE + n))
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
    return found[BEFORE:]


def we_wait(url: str, n: int) -> list[float]:
    """The same, of our client."""
    queue = f"bench{uuid.uuid4().hex[:8]}"
    try:
        return to_client(url, queue, n)[CLIENT]
    finally:
        with open_store(url) as store:
            store.drop(queue)


# --- what was found -------------------------------------------------------------------------------------------------


def tables(found: dict[str, Found]) -> list[Table]:
    """What is told of it."""
    drains: Table = [("layout", "its own programs", "drain", "Spark drains", "times as fast", "wanted")]
    waits: Table = [("ms: median, 99th percentile", "keuss", "our client")]
    for name, one in found.items():
        best = one.best()
        rates = [f"{statistics.median(rates[who] for rates in one.rates):,.0f}/s" for who in (best, OURS)]
        drains.append((name, best, *rates, f"{one.times():.1f}", f"{LAYOUTS[name].wanted:g}"))
        if one.waits:
            waits.append((name, *(told(one.waits[who]) for who in ("keuss", OURS))))
    return [drains, waits] if len(waits) > 1 else [drains]


def told(waits: list[float]) -> str:
    """Median and 99th percentile."""
    return f"{statistics.median(waits):.1f}, {statistics.quantiles(waits, n=100, method='inclusive')[98]:.1f}"


def main() -> int:
    parser = arguments(__doc__ or "", messages=20_000, rounds=3, of="messages of a peer per round")
    parser.add_argument("--layout", choices=LAYOUTS, action="append", help="this layout only (repeatable)")
    parser.add_argument("--waits", type=int, default=100, help="messages that somebody waits for, per round")
    parser.add_argument("--docs", action="store_true", help="renew docs/benchmarks.md")
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
                steps: dict[str, Callable[[], float]] = {OURS: partial(by_spark, ways, layout, 3 * layout.trigger)}
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
                        waits = keuss() if who == "keuss" else we_wait(ours, args.waits)
                        found[name].waits.setdefault(who, []).extend(waits)
                        say(f"round {number} {name}: {who} waits {told(waits)} ms")
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
