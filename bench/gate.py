"""Is anything slower than it was? Compares the ratios of a run with those in bench/baseline.json.

    python bench/run.py --json results.json && python bench/gate.py results.json
    python bench/gate.py results.json --write        these are the first ratios to be compared with
    python bench/gate.py results.json --renew        these replace those in the file

A ratio is the rate of one of our ways beside that of the bare driver in the same round, never a time: it holds from
one machine to another, if they have as many cores. Peers are not compared: that another program has become faster is
no fault of ours. A run of one store is compared with what was measured on that store.

Exit code 1: some ratio is below 0.8 of what it was, or a way that the store had is missing; 2: there is nothing to
compare, or a file that must not be written over.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

BASELINE = Path(__file__).with_name("baseline.json")

#: The least part of a ratio that must be left.
LEAST = 0.8

Ratios = Mapping[str, Mapping[str, float]]


def compared(now: Ratios, before: Ratios) -> Iterator[tuple[str, str, float | None, float]]:
    """Store, way, its ratio now (none where it is missing) and before, of all that the stores of this run had."""
    for store, ways in before.items():
        if store in now:
            for way, was in ways.items():
                yield store, way, now[store].get(way), was


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="what bench/run.py --json wrote")
    writes = parser.add_mutually_exclusive_group()
    writes.add_argument("--write", action="store_true", help="write bench/baseline.json, where there is none yet")
    writes.add_argument("--renew", action="store_true", help="write it in the place of the one that is there")
    args = parser.parse_args(words)
    found = json.loads(args.results.read_text())
    before = json.loads(BASELINE.read_text()) if BASELINE.exists() else None
    if args.write or args.renew:
        if before and args.write:
            parser.error(f"{BASELINE} is there already: --renew writes another in its place")
        if before and (lost := before["ratios"].keys() - found["ratios"].keys()):
            parser.error(f"{args.results} has nothing of {', '.join(sorted(lost))}, which {BASELINE} has")
        kept = {key: found[key] for key in ("setup", "when", "messages", "rounds", "ratios")}
        BASELINE.write_text(json.dumps(kept, indent=2) + "\n")
        return 0
    if before is None:
        parser.error(f"there is no {BASELINE} yet: --write makes it of these results")
    slower = count = 0
    for store, way, ratio, was in compared(found["ratios"], before["ratios"]):
        worse = ratio is None or ratio < LEAST * was
        count, slower = count + 1, slower + worse
        now = "missing" if ratio is None else f"{ratio:.2f}"
        print(f"{'SLOWER' if worse else 'ok':6}  {store:8} {way:45} {now:>7}, was {was:6.2f}")
    if not count:
        parser.error(f"{args.results} and {BASELINE} have no way of a store in common")
    print(f"{slower} slower than {LEAST} of what they were on {before['when']} ({before['setup']})")
    return int(slower > 0)


if __name__ == "__main__":
    sys.exit(main())
