"""Peers alone, on the same servers: how fast they push and drain no-op jobs, and what it costs.

    python bench/peers                                        all peers, 3 rounds of 20,000 jobs
    python bench/peers --only rq,huey --messages 5000         some

This is for whoever sets up a peer; `bench/run.py` has them beside spark_queue in one run. What each one is and how it
is set up: see `PEERS`. Rounds are interleaved, and what is told is the median. The servers are those of
SPARK_QUEUE_MONGODB_URL and SPARK_QUEUE_REDIS_URL, or of `make services`.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
from pathlib import Path

# Our own folder is not where to import from: modules there have the names of the peers that they run.
HERE = Path(__file__).resolve().parent
sys.path[:] = [str(HERE.parent), str(HERE.parents[1]), *(one for one in sys.path if Path(one).resolve() != HERE)]

from peers import JOBS, LEAST, PEERS, PeerError, Run, jobs, measure, names
from tests.services import service_urls


def told(rounds: list[Run]) -> str:
    """The medians of one peer's rounds."""
    words = []
    for what, measured in (("push", [one.push for one in rounds]), ("drain", [one.drain for one in rounds])):
        rate, client, server, peak = (
            statistics.median(getattr(one, fact) for one in measured) for fact in ("rate", "client", "server", "peak")
        )
        words.append(
            f"{what} {rate:,.0f}/s, CPU {client:,.0f} s and of the server {server:,.0f} s per million, "
            f"{peak / 2**20:,.0f} MB"
        )
    return "; ".join(words)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=names, default=list(PEERS), help="these peers only, between commas")
    parser.add_argument(
        "--messages", type=int, default=JOBS, help="jobs per round, fewer of slow peers (default %(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each peer (default %(default)s)")
    args = parser.parse_args()
    if args.messages < LEAST or args.rounds < 1:
        parser.error(f"--messages begins at {LEAST}, --rounds at 1")

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends what was started, as Ctrl-C does
    urls = service_urls()
    found: dict[str, list[Run]] = {}
    failed: set[str] = set()
    for number in range(1, args.rounds + 1):
        for name in args.only:
            if name in failed:
                continue
            try:
                found.setdefault(name, []).append(one := measure(name, urls, jobs(name, args.messages)))
            except PeerError as exc:
                failed.add(name)
                print(exc, file=sys.stderr)
                continue
            print(f"round {number} {name}: {told([one])}", file=sys.stderr)
    for name, rounds in found.items():
        if name not in failed:
            print(f"{name}, {rounds[0].version}: {told(rounds)}\n    {PEERS[name].settings}")
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
