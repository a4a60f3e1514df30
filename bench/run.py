"""What a message costs: the bare driver, our client, Spark, Spark's own ceiling and peers, side by side in one run.

    python bench/run.py                                     all three stores, 3 rounds of 100,000 messages
    python bench/run.py --only redis --messages 50000       one store
    python bench/run.py --only redis --peers rq,huey        and two of its peers; --no-peers leaves them all out
    python bench/run.py --json results.json --docs          keep the results, and renew docs/benchmarks.md

Everything is done in turns, in another order each round, after a round that does not count; what is told is the
median of the rounds, and of ratios the median of those within a round. Machines are noisy and differ: a ratio holds
where a rate does not. One record per message, 100 bytes of JSON. Clients work in batches of 10,000; through Spark,
messages are drained in batches of 50,000 (MongoDB) or 250,000 (SQLite and Redis, which have five times as many) into
a sink that does nothing, and the first batch is not counted: it pays for the start of the workers. Spark's ceiling is
a source in Python that has the same rows at once, and a sink that drops them. Peers are other work queues on the same
servers, with jobs that do nothing, set up as their own documentation advises for many short jobs (see `PEERS` in
bench/peers); their programs start anew in each round, so they take no part in the one that does not count. The
servers are those of SPARK_QUEUE_MONGODB_URL and SPARK_QUEUE_REDIS_URL, or of `make services`; `make peers` installs
the peers.
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
from ways import Way, Ways

from tests.services import service_urls


class Step(NamedTuple):
    """What takes its turn in a round: one way of ours, or a peer, which pushes and drains in one go."""

    name: str
    measure: Callable[[], dict[str, Measured]]


def of_ours(ways: Ways, way: Way, messages: int) -> dict[str, Measured]:
    return {str(way): ways.measure(way, messages)}


def of_peer(found: Results, store: str, name: str) -> dict[str, Measured]:
    """What a peer took; its version is kept with the results. One that fails is told, and left out from then on."""
    try:
        run = peers.measure(name, service_urls(), found.peers[store][name]["jobs"])
    except peers.PeerError as exc:
        say(exc)
        found.failed[name] = str(exc)
        del found.peers[store][name]
        return {}
    found.peers[store][name]["version"] = run.version
    return {f"{name}, push": run.push, f"{name}, drain": run.drain}


def chosen(names: Sequence[str] | None, stores: Sequence[str]) -> dict[str, list[str]]:
    """The peers of each store, of all that are named, or else of all; each must be ready before the run begins."""
    found: dict[str, list[str]] = {store: [] for store in stores}
    for name in peers.PEERS if names is None else names:
        server = peers.PEERS[name].server
        if server in found:
            found[server].append(name)
        elif names is not None:
            raise SystemExit(f"{name} is a peer on {server}, which --only leaves out")
    try:
        for name in itertools.chain(*found.values()):
            peers.ready(name, service_urls())
    except peers.PeerError as exc:
        raise SystemExit(f"{exc}; or leave peers out: --no-peers, or --peers with the names of some") from None
    return found


def main() -> int:
    parser = arguments(__doc__ or "", messages=150_000, rounds=3)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--peers", type=peers.names, metavar="NAMES", help="these peers only, between commas")
    which.add_argument("--no-peers", dest="peers", action="store_const", const=[], help="no peers")
    parser.add_argument(
        "--jobs",
        type=int,
        default=peers.JOBS,
        help="jobs of a peer per round, fewer of slow ones (default %(default)s)",
    )
    parser.add_argument("--docs", action="store_true", help="renew docs/benchmarks.md and its pictures")
    args = parser.parse_args()
    if args.jobs < peers.LEAST:
        parser.error(f"--jobs begins at {peers.LEAST}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the programs of peers, as Ctrl-C does
    wanted = args.only or list(STORES)
    beside = chosen(args.peers, wanted)
    spark = session()
    facts: dict[str, Any] = {
        "setup": setup(spark), "when": f"{datetime.now(UTC):%Y-%m-%d}", "messages": args.messages,
        "rounds": args.rounds,
    }  # fmt: skip
    say(f"{facts['setup']}; {args.messages:,} messages, {args.rounds} rounds")
    told = {
        store: {name: {"jobs": peers.jobs(name, args.jobs), "settings": peers.PEERS[name].settings} for name in names}
        for store, names in beside.items()
    }
    found = Results(facts, {one: [] for one in wanted}, told)
    with tempfile.TemporaryDirectory(prefix="spark-queue-bench-") as folder:
        stores = {one: Ways(spark, one, url, Path(folder)) for one, url in databases(folder, wanted).items()}
        for number in range(args.rounds + 1):
            for store, ways in stores.items():
                messages = args.messages if number else args.messages // 5  # warm is warm
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
        draw_all()
    return 1 if found.failed else 0


if __name__ == "__main__":
    sys.exit(main())
