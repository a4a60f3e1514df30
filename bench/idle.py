"""What an idle query costs its server: requests per second of a query that finds nothing.

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

#: Seconds of one count, and those before it: the first rounds of a query make connections and indexes.
COUNTED, BEFORE = 10, 8


def requests(url: str) -> int:
    """Requests that the server has read since it started."""
    if url.startswith("redis"):
        from redis import Redis

        with Redis.from_url(url) as client:
            stats: Any = client.info("stats")
        return int(stats["total_reads_processed"])
    from pymongo import MongoClient

    with MongoClient[Any](url) as mongo:
        return int(mongo.admin.command("serverStatus")["network"]["numRequests"])


def per_second(url: str) -> float:
    """Requests per second meanwhile."""
    begun, first = time.monotonic(), requests(url)
    time.sleep(COUNTED)
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
            time.sleep(BEFORE)
            during = per_second(url)
            query.stop()
            with open_store(url) as store:
                store.drop(queue)
            print(f"{scheme}: an idle query makes {during - before:.1f} requests a second")
    return 0


if __name__ == "__main__":
    sys.exit(main())
