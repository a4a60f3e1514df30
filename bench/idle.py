"""Measure the load of an idle query on its server: requests per second.

python bench/idle.py [--only redis]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from common import databases, session, setup

from spark_queue import open_store

#: Seconds of one count, and of the warm-up, in which a query creates connections and indexes.
COUNT_S, WARM_UP_S = 10, 8


def requests(url: str) -> int:
    """Return the number of requests that the server has read since it started."""
    if url.startswith("redis"):
        from redis import Redis

        with Redis.from_url(url) as client:
            stats: Any = client.info("stats")
        return int(stats["total_reads_processed"])
    from pymongo import MongoClient

    with MongoClient[Any](url) as mongo:
        return int(mongo.admin.command("serverStatus")["network"]["numRequests"])


def per_second(url: str) -> float:
    """Count the requests for COUNT_S seconds, and return requests per second."""
    begun, first = time.monotonic(), requests(url)
    time.sleep(COUNT_S)
    return (requests(url) - first - 1) / (time.monotonic() - begun)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("redis", "mongodb"), action="append", help="this store only (repeatable)")
    args = parser.parse_args()
    spark = session()
    print(setup(spark))
    with tempfile.TemporaryDirectory(prefix="spark-queue-bench-") as folder:
        for scheme, url in databases(folder, args.only or ["redis", "mongodb"]).items():
            queue, before = f"bench{uuid.uuid4().hex[:8]}", per_second(url)
            stream = spark.readStream.format("queue").options(url=url, queue=queue).load()
            writer = stream.writeStream.format("noop").option("checkpointLocation", f"{folder}/{scheme}")
            query = writer.start()
            time.sleep(WARM_UP_S)
            during = per_second(url)
            query.stop()
            with open_store(url) as store:
                store.drop(queue)
            print(f"{scheme}: an idle query sends {during - before:.1f} requests per second")
    return 0


if __name__ == "__main__":
    sys.exit(main())
