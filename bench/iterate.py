"""Measure how fast a client iterates over a queue and commits messages one by one.

python bench/iterate.py                        this checkout
python bench/iterate.py --against HEAD~20      another commit as well, in the same rounds
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from commits import commit_of
from common import ROOT, STORES, arguments, databases, keep, say, setup_of, turns

#: What a process of its own does: iterate, and print messages per second.
PROGRAM = """
import sys, time
from spark_queue import Queue
url, name, n = sys.argv[1], sys.argv[2], int(sys.argv[3])
with Queue(url, name) as queue:
    queue.push_many([{"n": number} for number in range(n)])
    begun, done = time.perf_counter(), 0
    for message in queue.messages(timeout=0):
        done += queue.commit(message)
    print(done / (time.perf_counter() - begun))
    queue.store.drop(name)
assert done == n, done
"""

#: The names of the sides.
BEFORE, NOW = "before", "now"


def rate(code: Path, url: str, n: int) -> float:
    """Return the messages per second of the package in a folder."""
    command = [sys.executable, "-c", PROGRAM, url, f"bench{uuid.uuid4().hex[:8]}", str(n)]
    environment = os.environ | {"PYTHONPATH": str(code)}
    done = subprocess.run(command, env=environment, cwd=code, stdout=subprocess.PIPE, text=True, check=True)
    return float(done.stdout)


def main() -> int:
    parser = arguments(__doc__, messages=3_000, rounds=5)
    parser.add_argument("--against", metavar="COMMIT", help="another commit to measure in the same rounds")
    args = parser.parse_args()
    print(setup_of())
    with tempfile.TemporaryDirectory(prefix="spark-queue-bench-") as folder:
        sides = {NOW: ROOT}
        if args.against:
            other = commit_of(args.against, Path(folder))
            sides = {BEFORE: other.code, **sides}
            say(f"{BEFORE}: {other.title}")
        results: dict[str, Any] = {}
        for scheme, url in databases(folder, args.only or list(STORES)).items():
            rates: dict[str, list[float]] = {side: [] for side in sides}
            for number in range(args.rounds):
                for side in turns(list(sides), number):
                    rates[side].append(rate(sides[side], url, args.messages))
            shown = ", ".join(f"{side} {statistics.median(found):,.0f}" for side, found in rates.items())
            ratios = [now / before for now, before in zip(rates[NOW], rates.get(BEFORE, ()), strict=False)]
            ratio = f"; {statistics.median(ratios):.2f} times as fast" if ratios else ""
            print(f"{scheme}: messages per second: {shown}{ratio}")
            results[scheme] = rates
    keep(args.json, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
