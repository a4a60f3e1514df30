"""What a message costs: the bare driver, our client, Spark and Spark's own ceiling, side by side in one run.

    python bench/run.py                                     all three stores, 3 rounds of 100,000 messages
    python bench/run.py --only redis --messages 50000       one store
    python bench/run.py --json results.json --docs          keep the results, and renew docs/benchmarks.md

Everything is done in turns, in another order each round, after a round that does not count; what is told is the
median of the rounds, and of ratios the median of those within a round. Machines are noisy and differ: a ratio holds
where a rate does not. One record per message, 100 bytes of JSON. Clients work in batches of 10,000; through Spark,
messages are drained in batches of 50,000 into a sink that does nothing, and the first batch is not counted: it pays
for the start of the workers. Spark's ceiling is a source in Python that has the same rows at once, and a sink that
drops them. The servers are those of SPARK_QUEUE_MONGODB_URL and SPARK_QUEUE_REDIS_URL, or of `make services`.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from common import STORES, arguments, databases, keep, say, session, setup
from report import Results, as_markdown, as_text, renew
from ways import Way, Ways, turns


def main() -> int:
    parser = arguments(__doc__ or "", messages=100_000, rounds=3)
    parser.add_argument("--docs", action="store_true", help="renew docs/benchmarks.md and its pictures")
    args = parser.parse_args()
    wanted = args.only or list(STORES)
    spark = session()
    facts: dict[str, Any] = {
        "setup": setup(spark), "when": f"{datetime.now(UTC):%Y-%m-%d}", "messages": args.messages,
        "rounds": args.rounds,
    }  # fmt: skip
    say(f"{facts['setup']}; {args.messages:,} messages, {args.rounds} rounds")
    found: Results = Results(facts, {one: [] for one in wanted})
    with tempfile.TemporaryDirectory(prefix="spark-queue-bench-") as folder:
        stores = {one: Ways(spark, one, url, Path(folder)) for one, url in databases(folder, wanted).items()}
        for number in range(args.rounds + 1):
            for scheme, ways in stores.items():
                seen: dict[Way, Any] = {}
                for way in turns(ways.names(), number):
                    seen[way] = ways.measure(way, args.messages)
                    head = f"round {number}" if number else "warm-up"
                    say(f"{head} {scheme:8} {way!s:45} {seen[way].rate:12,.0f}/s")
                if number:
                    found.rounds[scheme].append({str(way): asdict(one) for way, one in seen.items()})
    spark.stop()
    print(as_text(found))
    keep(args.json, found.as_json())
    if args.docs:
        renew(found, as_markdown(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
