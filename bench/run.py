"""Measure the cost of a message: bare driver, our client, Spark, Spark's ceiling and peers.

    # all three stores, 3 rounds of 150,000 messages
    python bench/run.py
    # one store
    python bench/run.py --only redis --messages 50000
    # one store and two of its peers; --no-peers: none
    python bench/run.py --only redis --peers rq,huey
    # write the results, and update docs/benchmarks.md
    python bench/run.py --json results.json --docs

All ways run in each round, in another order, after a warm-up round. A rate is the median of the
rounds, a ratio the median of the ratios within a round. Machines are noisy and differ, so compare
ratios, not rates.

A message is one record and 100 bytes of JSON. Clients work in batches of 10,000. Spark drains
batches of 50,000 on MongoDB, and 250,000 on SQLite and Redis, which have five times as many
messages. Beside that, it drains by default, in batches that find their size. Its sink does nothing,
and the first batch is not counted, because it starts the workers. Spark's ceiling is a source in
Python that has the same rows at once, and a sink that drops them.

Peers are other work queues on the same servers. Their jobs do nothing, and they are set up as their
documentation advises for many short jobs (see `PEERS` in bench/peers). Their programs start in each
round, so they need no warm-up. `make peers` installs them.

The servers are those of SPARK_QUEUE_MONGODB_URL and SPARK_QUEUE_REDIS_URL, or of `make services`.
"""

from __future__ import annotations

import itertools
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

import peers
from charts import draw_all
from common import STORES, arguments, databases, keep, say, session, setup, turns
from measured import Measured
from report import Results, as_markdown, as_text, renew
from rules import renew_rules
from ways import DRAIN, PUSH, Way, Ways

from tests.services import service_urls


class Step(NamedTuple):
    """One step of a round: one of our ways, or a peer, which pushes and drains."""

    name: str
    measure: Callable[[], dict[str, Measured]]


def of_ours(ways: Ways, way: Way, messages: int) -> dict[str, Measured]:
    return {str(way): ways.measure(way, messages)}


def of_peer(found: Results, store: str, name: str) -> dict[str, Measured]:
    """Measure a peer, and keep its version. If it fails, report it and exclude it."""
    try:
        run = peers.measure(name, service_urls(), found.peers[store][name]["jobs"])
    except peers.PeerError as exc:
        say(exc)
        found.failed[name] = str(exc)
        del found.peers[store][name]
        return {}
    found.peers[store][name]["version"] = run.version
    return {f"{name}, {PUSH}": run.push, f"{name}, {DRAIN}": run.drain}


def chosen(names: Sequence[str] | None, stores: Sequence[str]) -> dict[str, list[str]]:
    """Return the peers of each store, of `names` or of all. Exit if one of them is not ready."""
    found: dict[str, list[str]] = {store: [] for store in stores}
    for name in peers.PEERS if names is None else names:
        server = peers.PEERS[name].server
        if server in found:
            found[server].append(name)
        elif names is not None:
            raise SystemExit(f"{name} is a peer on {server}, which --only excludes")
    try:
        for name in itertools.chain(*found.values()):
            peers.ready(name, service_urls())
    except peers.PeerError as exc:
        raise SystemExit(f"{exc}; or use --no-peers, or --peers with other names") from None
    return found


def main() -> int:
    parser = arguments(__doc__ or "", messages=150_000, rounds=3)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--peers", type=peers.names, metavar="NAMES", help="these peers only, comma-separated")
    which.add_argument("--no-peers", dest="peers", action="store_const", const=[], help="no peers")
    parser.add_argument(
        "--jobs",
        type=int,
        default=peers.JOBS,
        help="jobs of a peer per round, fewer for slow peers (default %(default)s)",
    )
    parser.add_argument("--docs", action="store_true", help="update docs/benchmarks.md and its charts")
    args = parser.parse_args()
    if args.jobs < peers.MIN_JOBS:
        parser.error(f"--jobs must be {peers.MIN_JOBS} or more")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stops peers, as Ctrl-C does
    wanted = args.only or list(STORES)
    beside = chosen(args.peers, wanted)
    spark = session()
    facts: dict[str, Any] = {
        "setup": setup(spark), "when": f"{datetime.now(UTC):%Y-%m-%d}", "messages": args.messages,
        "rounds": args.rounds,
    }  # fmt: skip
    say(f"{facts['setup']}; {args.messages:,} messages, {args.rounds} rounds")
    settings = {
        store: {name: {"jobs": peers.jobs(name, args.jobs), "settings": peers.PEERS[name].settings} for name in names}
        for store, names in beside.items()
    }
    found = Results(facts, {one: [] for one in wanted}, settings)
    with tempfile.TemporaryDirectory(prefix="spark-queue-bench-") as folder:
        stores = {one: Ways(spark, one, url, Path(folder)) for one, url in databases(folder, wanted).items()}
        for number in range(args.rounds + 1):
            for store, ways in stores.items():
                messages = args.messages if number else args.messages // 5  # enough to warm up
                steps = [Step(str(one), partial(of_ours, ways, one, messages)) for one in ways.names()]
                if number:
                    steps += [Step(name, partial(of_peer, found, store, name)) for name in found.peers[store]]
                seen: dict[str, Measured] = {}
                for step in turns(steps, number):
                    head = f"round {number}" if number else "warm-up"
                    for way, measured in step.measure().items():
                        seen[way] = measured
                        say(f"{head} {store:8} {way:45} {measured.rate:12,.0f}/s")
                if number:
                    found.rounds[store].append({way: asdict(one) for way, one in seen.items()})
    spark.stop()
    print(as_text(found))
    keep(args.json, found.as_json())
    if args.docs:
        renew("measured", as_markdown(found))
        renew_rules()
        draw_all()
    return 1 if found.failed else 0


if __name__ == "__main__":
    sys.exit(main())
