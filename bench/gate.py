"""Is anything slower than it was? Compares the ratios of a run with those in bench/baseline.json.

    python bench/run.py --json results.json && python bench/gate.py results.json
    python bench/gate.py results.json --renew        these are the ratios to be compared with from now on

A ratio is a rate beside that of the bare driver in the same round, never a time: it holds from one machine to
another, if they have as many cores. Exit code 1: some ratio is below 0.8 of what it was.
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


def compared(now: Ratios, before: Ratios) -> Iterator[tuple[str, str, float, float]]:
    """Store, way, its ratio now and before, of all that were measured both times."""
    for store, ways in now.items():
        for way, ratio in ways.items():
            if way in before.get(store, {}):
                yield store, way, ratio, before[store][way]


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="what bench/run.py --json wrote")
    parser.add_argument("--renew", action="store_true", help="write bench/baseline.json instead")
    args = parser.parse_args(words)
    found = json.loads(args.results.read_text())
    if args.renew:
        kept = {key: found[key] for key in ("setup", "when", "messages", "rounds", "ratios")}
        BASELINE.write_text(json.dumps(kept, indent=2) + "\n")
        return 0
    before = json.loads(BASELINE.read_text())
    slower = 0
    for store, way, ratio, was in compared(found["ratios"], before["ratios"]):
        worse = ratio < LEAST * was
        slower += worse
        print(f"{'SLOWER' if worse else 'ok':6}  {store:8} {way:45} {ratio:6.2f}, was {was:6.2f}")
    print(f"{slower} slower than {LEAST} of what they were on {before['when']} ({before['setup']})")
    return int(slower > 0)


if __name__ == "__main__":
    sys.exit(main())
