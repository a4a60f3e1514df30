"""Measure only the peers: rate and cost of pushing and draining no-op jobs.

    python bench/peers                                        all peers, 3 rounds of 20,000 jobs
    python bench/peers --only rq,huey --messages 5000         some peers

Use it to set up a peer; `bench/run.py` compares peers with spark_queue in one run. `PEERS` has the
settings of each peer. All peers run in each round, and the result is the median. The servers are
those of SPARK_QUEUE_MONGODB_URL and SPARK_QUEUE_REDIS_URL, or of `make services`.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
from pathlib import Path

# Do not import from this folder: its modules have the names of the peers that they run.
HERE = Path(__file__).resolve().parent
sys.path[:] = [str(HERE.parent), str(HERE.parents[1]), *(one for one in sys.path if Path(one).resolve() != HERE)]

from peers import JOBS, MIN_JOBS, PEERS, PeerError, Run, jobs, measure, names
from tests.services import service_urls


def summary(rounds: list[Run]) -> str:
    """Return the medians of the rounds of one peer."""
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
    parser.add_argument("--only", type=names, default=list(PEERS), help="these peers only, comma-separated")
    parser.add_argument(
        "--messages", type=int, default=JOBS, help="jobs per round, fewer for slow peers (default %(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each peer (default %(default)s)")
    args = parser.parse_args()
    if args.messages < MIN_JOBS or args.rounds < 1:
        parser.error(f"--messages must be {MIN_JOBS} or more, --rounds 1 or more")

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stops the programs, as Ctrl-C does
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
            print(f"round {number} {name}: {summary([one])}", file=sys.stderr)
    for name, rounds in found.items():
        if name not in failed:
            print(f"{name}, {rounds[0].version}: {summary(rounds)}\n    {PEERS[name].settings}")
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
