"""Fail if something is slower: compare this checkout with a commit, or a run with baseline.json.

    # measure that commit and this checkout in turn, 3 rounds
    python bench/gate.py --against HEAD~1
    # one store, and only ways with one of these words in their names
    python bench/gate.py --against HEAD~1 --only redis exactly-once drain
    # a test of the gate itself
    python bench/gate.py --against HEAD~1 --quick

Copies of both are measured on this machine by the benchmarks of this checkout. No other program
should run. For each store they measure our client, Spark with its deliveries and layouts, and moves
from queue to queue. In each round both sides start new processes, and run each way one right after
the other. The ratio of a way is the median of the rounds. On 2 cores, 3 rounds of all stores take
about 25 minutes, with --quick 4. Exit codes:

* 1: the geometric mean of the ratios of a store is below 0.97, or a ratio is below 0.90
* 2: the call is wrong
* 3: the measurement failed

    # compare a run with the baseline
    python bench/run.py --json results.json && python bench/gate.py results.json
    # save these ratios as the first baseline
    python bench/gate.py results.json --write
    # replace the baseline by these ratios
    python bench/gate.py results.json --renew

A ratio is the rate of one of our ways relative to the bare driver in the same round. Unlike a time,
it can be compared between machines with the same number of cores. Peers are not compared, because
they change independently. A run of one store is compared with the baseline of that store.
Exit codes:

* 1: a ratio is below 0.8 of the baseline, or a way of the store is missing
* 2: there is nothing to compare, or the baseline would be overwritten
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import against
import commits
import pyspark
import side
from common import STORES, databases, keep, say, setup_of
from report import aligned

BASELINE = Path(__file__).with_name("baseline.json")

#: Minimum ratio relative to the baseline.
LEAST = 0.8

#: With --against: rounds and messages, messages with --quick, and maximum load of an idle machine.
ROUNDS, MESSAGES, QUICK = 3, 40_000, side.STEP
IDLE = 0.5

Ratios = Mapping[str, Mapping[str, float]]


def compared(now: Ratios, before: Ratios) -> Iterator[tuple[str, str, float | None, float]]:
    """Yield store, way, ratio now (None if missing) and before, for the stores of this run."""
    for store, ways in before.items():
        if store in now:
            for way, was in ways.items():
                yield store, way, now[store].get(way), was


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="the file of bench/run.py --json; with --against: words in names")
    writes = parser.add_mutually_exclusive_group()
    writes.add_argument("--write", action="store_true", help="create bench/baseline.json")
    writes.add_argument("--renew", action="store_true", help="replace bench/baseline.json")
    writes.add_argument("--against", metavar="COMMIT", help="compare this checkout with this commit")
    of = parser.add_argument_group("with --against")
    of.add_argument("--only", choices=STORES, action="append", help="this store only (repeatable)")
    of.add_argument("--rounds", type=int, help=f"rounds (default {ROUNDS})")
    of.add_argument(
        "--messages", type=int, help=f"messages per way and round, times its scale (default {MESSAGES:,})"
    )
    of.add_argument(
        "--quick", action="store_const", const=True, help=f"1 round of {QUICK:,} messages, too few for a comparison"
    )
    of.add_argument("--json", type=Path, metavar="FILE", help="write the results to this file")
    args = parser.parse_intermixed_args(words)
    if args.against is not None:
        return against_commit(parser, args)
    if unused := [one for one in ("only", "rounds", "messages", "quick", "json") if getattr(args, one) is not None]:
        parser.error(f"--{unused[0]} needs --against")
    if len(args.words) != 1:
        parser.error("pass the results of one run, or --against COMMIT")
    return against_baseline(parser, Path(args.words[0]), args)


def against_baseline(parser: argparse.ArgumentParser, results: Path, args: argparse.Namespace) -> int:
    """Compare the results of a run with bench/baseline.json, or write that file."""
    found = json.loads(results.read_text())
    before = json.loads(BASELINE.read_text()) if BASELINE.exists() else None
    if args.write or args.renew:
        if before and args.write:
            parser.error(f"{BASELINE} exists; replace it with --renew")
        if before and (missing := before["ratios"].keys() - found["ratios"].keys()):
            parser.error(f"{results} has no results of {', '.join(sorted(missing))}, unlike {BASELINE}")
        kept = {key: found[key] for key in ("setup", "when", "messages", "rounds", "ratios")}
        BASELINE.write_text(json.dumps(kept, indent=2) + "\n")
        return 0
    if before is None:
        parser.error(f"there is no {BASELINE}; create it from these results with --write")
    slower = count = 0
    for store, way, ratio, was in compared(found["ratios"], before["ratios"]):
        worse = ratio is None or ratio < LEAST * was
        count, slower = count + 1, slower + worse
        now = "missing" if ratio is None else f"{ratio:.2f}"
        print(f"{'SLOWER' if worse else 'ok':6}  {store:8} {way:45} {now:>7}, was {was:6.2f}")
    if not count:
        parser.error(f"{results} and {BASELINE} have no way of a store in common")
    print(f"{slower} below {LEAST} of the baseline of {before['when']} ({before['setup']})")
    return int(slower > 0)


def against_commit(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    """Measure another commit and this checkout in turn, and compare them."""
    ways = [one for one in side.names() if not args.words or any(word in one for word in args.words)]
    if unknown := [word for word in args.words if not any(word in one for one in side.names())]:
        parser.error(f"no way has {unknown[0]!r} in its name; there are: {'; '.join(side.names())}")
    rounds = args.rounds if args.rounds is not None else 1 if args.quick else ROUNDS
    messages = args.messages if args.messages is not None else QUICK if args.quick else MESSAGES
    if rounds < 1:
        parser.error("--rounds must be 1 or more")
    if messages < side.STEP or messages % side.STEP:
        parser.error(f"--messages must be a multiple of {side.STEP:,}, for batches of whole buckets")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends both sides, as Ctrl-C does
    with tempfile.TemporaryDirectory(prefix="spark-queue-gate-") as name:
        folder = Path(name)
        try:
            urls = databases(name, args.only or list(STORES))
            parent = commits.commit_of(args.against, folder / commits.PARENT)
            new = commits.this_checkout(folder / commits.NEW)
        except (commits.SideError, SystemExit) as exc:
            parser.error(str(exc))
        load = os.getloadavg()[0]
        if load > IDLE:
            say(f"this machine is busy (load average {load:.1f}), so the ratios will be less exact")
        plan = commits.Plan(urls, ways, messages, rounds)
        began = time.monotonic()
        try:
            found = commits.measure(parent, new, plan, folder)
        except commits.SideError as exc:
            say(exc)
            return 3
    facts = {
        "parent": parent.title, "new": new.title, "setup": setup_of(f"Spark {pyspark.__version__}"),
        "when": f"{datetime.now(UTC):%Y-%m-%d}", "messages": messages, "load": load,
        "minutes": round((time.monotonic() - began) / 60, 1), "imported": found[0].imported,
    }  # fmt: skip
    return report(against.compared(*(commits.rates(found, one) for one in commits.SIDES)), facts, args.json)


def report(found: Sequence[against.Compared], facts: Mapping[str, Any], file: Path | None) -> int:
    """Print the comparison, write it to the file, and return the exit code."""
    print(f"parent: {facts['parent']}\nnew:    {facts['new']}")
    print(f"{facts['setup']}; {facts['messages']:,} messages times the scale; {facts['minutes']} minutes")
    for store in against.means(found):
        print("", *aligned(against.rows([one for one in found if one.store == store])), sep="\n")
    worse = against.slower(found)
    print("", *worse, f"{len(worse)} too slow" if worse else "none too slow", sep="\n")
    keep(file, {**facts, **against.as_json(found)})
    return int(bool(worse))


if __name__ == "__main__":
    sys.exit(main())
