"""Peers on the same servers: how fast they push and drain no-op jobs, and what it costs.

    python bench/peers                                        all peers, 3 rounds of 20,000 jobs
    python bench/peers --only rq,huey --messages 5000 --json  some, results as JSON on stdout

Rounds are interleaved, and what is told is the median. What each peer is and how it is set up: see `PEERS`. The
servers are those of SPARK_QUEUE_MONGODB_URL and SPARK_QUEUE_REDIS_URL, or of `make services`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

# Our own folder is not where to import from: modules there have the names of the peers that they run.
HERE = Path(__file__).resolve().parent
sys.path[:] = [str(HERE.parent), str(HERE.parents[1]), *(one for one in sys.path if Path(one).resolve() != HERE)]

from peers import PEERS, Measured, PeerError, measure
from tests.services import service_urls

LEAST = 100  # jobs; fewer have no first and last to speak of


def summary(rounds: list[Measured], messages: int) -> dict[str, Any]:
    """The medians of one peer's rounds."""
    costs = ("cpu_client_seconds", "cpu_server_seconds", "peak_rss_bytes")
    return {
        "version": rounds[0].version,
        "settings": rounds[0].settings_text,
        "pushed per second": round(statistics.median(messages / one.push_seconds for one in rounds)),
        "drained per second": round(statistics.median(messages / one.drain_seconds for one in rounds)),
    } | {cost: round(statistics.median(asdict(one)[cost] for one in rounds), 3) for cost in costs}


def names(text: str) -> list[str]:
    """Peers, by their names between commas."""
    found = text.split(",")
    if unknown := [one for one in found if one not in PEERS]:
        raise argparse.ArgumentTypeError(f"no peer {unknown[0]!r}; there are {', '.join(PEERS)}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=names, default=list(PEERS), help="these peers only, between commas")
    parser.add_argument("--messages", type=int, default=20_000, help="jobs per round (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each peer (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the results as JSON on stdout")
    args = parser.parse_args()
    if args.messages < LEAST or args.rounds < 1:
        parser.error(f"--messages begins at {LEAST}, --rounds at 1")

    def say(*words: object) -> None:
        print(*words, file=sys.stderr if args.json else sys.stdout, flush=True)

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends what was started, as Ctrl-C does
    setup = f"Python {platform.python_version()}, {os.cpu_count()} cores; {args.messages:,} jobs of 100 bytes"
    say(f"{setup}, {args.rounds} rounds")
    urls = service_urls()
    found: dict[str, list[Measured]] = {}
    failed: dict[str, str] = {}
    for number in range(1, args.rounds + 1):
        for name in args.only:
            if name in failed:
                continue
            try:
                found.setdefault(name, []).append(one := measure(name, urls, args.messages))
            except PeerError as exc:
                failed[name] = str(exc)
                say(exc)
                continue
            say(
                f"round {number} {name}: push {args.messages / one.push_seconds:,.0f}/s, "
                f"drain {args.messages / one.drain_seconds:,.0f}/s; CPU {one.cpu_client_seconds:.1f} s, "
                f"of the server {one.cpu_server_seconds:.1f} s; memory {one.peak_rss_bytes / 2**20:,.0f} MB"
            )
    peers = {name: summary(rounds, args.messages) for name, rounds in found.items() if name not in failed}
    for name, told in peers.items():
        say(f"{name}: push {told['pushed per second']:,}/s, drain {told['drained per second']:,}/s")
        say(f"    {told['version']}: {told['settings']}")
    if args.json:
        print(json.dumps({"setup": setup, "rounds": args.rounds, "peers": peers, "failed": failed}, indent=2))
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
