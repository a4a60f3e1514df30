"""Queues on the bare drivers: the reference for all other rates.

Each loop keeps one record per message, as the layouts do, and works as a careful user of the driver
would: batches of 10,000, one index, the durability of the store. It checks nothing, survives no
failure and does not use Spark.
"""

from __future__ import annotations

import sqlite3
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

BATCH = 10_000


class Raw(Protocol):
    """A queue on the bare driver."""

    def push(self, payloads: Sequence[bytes]) -> None:
        """Insert all payloads in batches."""

    def claim(self) -> int:
        """Claim and read a batch, and return the number of messages."""

    def commit(self) -> None:
        """Remove the claimed messages."""

    def close(self) -> None:
        """Remove the queue."""


def drain(raw: Raw) -> int:
    """Claim, read and remove until nothing is left. Return the number of messages."""
    done = 0
    while claimed := raw.claim():
        done += claimed
        raw.commit()
    return done


def raw_of(scheme: str, url: str, folder: Path) -> Raw:
    """Return a new queue of this store. The file of SQLite is in the folder."""
    if scheme == "sqlite":
        return RawSqlite(folder)
    return RawMongo(url) if scheme == "mongodb" else RawRedis(url)


def batches(payloads: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Yield the payloads in slices of BATCH."""
    for first in range(0, len(payloads), BATCH):
        yield payloads[first : first + BATCH]


class RawSqlite:
    """A table with a unique id per message, as the other two have, and an index on maturity."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / f"raw-{uuid.uuid4().hex[:8]}.db"
        self.tag = ""
        self.db = sqlite3.connect(self.path, isolation_level=None)
        self.db.executescript(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA cache_size = -65536;"
            " PRAGMA secure_delete = FAST;"
            "CREATE TABLE message (row INTEGER PRIMARY KEY, id TEXT UNIQUE, mature INTEGER, tries INTEGER, "
            "payload BLOB, tag TEXT);"
            "CREATE INDEX ready ON message (mature) WHERE tag IS NULL;"
            "CREATE INDEX held ON message (tag) WHERE tag IS NOT NULL;"
        )

    def push(self, payloads: Sequence[bytes]) -> None:
        now, number = int(time.time() * 1000), 0
        for part in batches(payloads):
            rows = [(f"{number + i:024x}", now, 0, one) for i, one in enumerate(part)]
            number += len(rows)
            self.db.execute("BEGIN IMMEDIATE")
            self.db.executemany("INSERT INTO message (id, mature, tries, payload) VALUES (?, ?, ?, ?)", rows)
            self.db.execute("COMMIT")

    def claim(self) -> int:
        self.tag = uuid.uuid4().hex
        claimed = self.db.execute(
            "UPDATE message SET tag = ? WHERE row IN "
            "(SELECT row FROM message WHERE tag IS NULL AND mature <= ? ORDER BY mature LIMIT ?)",
            (self.tag, int(time.time() * 1000), BATCH),
        ).rowcount
        if not claimed:
            return 0
        return len(self.db.execute("SELECT id, payload FROM message WHERE tag = ?", (self.tag,)).fetchall())

    def commit(self) -> None:
        self.db.execute("DELETE FROM message WHERE tag = ?", (self.tag,))

    def close(self) -> None:
        self.db.close()
        for file in self.path.parent.glob(f"{self.path.name}*"):
            file.unlink()


class RawMongo:
    """A collection with an index on maturity and one on the tag; `w=majority, j=true`."""

    def __init__(self, url: str) -> None:
        from pymongo import MongoClient, WriteConcern

        self.client: Any = MongoClient(url)
        self.tag = ""
        concern = WriteConcern(w="majority", j=True)
        self.queue = self.client.get_default_database().get_collection(
            f"raw{uuid.uuid4().hex[:8]}", write_concern=concern
        )
        self.queue.create_index("mature")
        self.queue.create_index("tag", sparse=True)

    def push(self, payloads: Sequence[bytes]) -> None:
        import orjson
        from bson.datetime_ms import DatetimeMS

        now = DatetimeMS(int(time.time() * 1000))
        for part in batches(payloads):
            self.queue.insert_many(
                [{"mature": now, "payload": orjson.loads(one), "tries": 0, "hdrs": {}} for one in part], ordered=False
            )

    def claim(self) -> int:
        from bson.datetime_ms import DatetimeMS

        self.tag, now = uuid.uuid4().hex, int(time.time() * 1000)
        ready = {"mature": {"$lte": DatetimeMS(now)}}
        ids = [one["_id"] for one in self.queue.find(ready, {"_id": 1}).sort("mature").limit(BATCH)]
        if not ids:
            return 0
        later = {"mature": DatetimeMS(now + 120_000), "tag": self.tag}
        self.queue.update_many({"_id": {"$in": ids}, **ready}, {"$set": later, "$inc": {"tries": 1}})
        return len(list(self.queue.find({"tag": self.tag})))

    def commit(self) -> None:
        self.queue.delete_many({"tag": self.tag})

    def close(self) -> None:
        self.queue.drop()
        self.client.close()


class RawRedis:
    """A sorted set by maturity and a hash of payloads, changed by Lua scripts."""

    PUSH = """
        local scores = {}
        for i = 2, #ARGV, 2 do
            scores[i - 1], scores[i] = ARGV[1], ARGV[i]
        end
        redis.call('HSET', KEYS[2], unpack(ARGV, 2))
        redis.call('ZADD', KEYS[1], unpack(scores))"""
    CLAIM = """
        local ids = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, ARGV[3])
        local payloads, at = {}, 0
        for first = 1, #ids, 2000 do
            local last, scores = math.min(first + 1999, #ids), {}
            for i = first, last do
                scores[2 * (i - first) + 1], scores[2 * (i - first) + 2] = ARGV[2], ids[i]
            end
            redis.call('ZADD', KEYS[1], unpack(scores))
            for i, payload in ipairs(redis.call('HMGET', KEYS[2], unpack(ids, first, last))) do
                payloads[at + i] = payload
            end
            at = last
        end
        return {ids, payloads}"""
    COMMIT = """
        redis.call('ZREM', KEYS[1], unpack(ARGV))
        redis.call('HDEL', KEYS[2], unpack(ARGV))"""

    def __init__(self, url: str) -> None:
        from redis import Redis

        self.client: Any = Redis.from_url(url)
        name = f"raw:{uuid.uuid4().hex[:8]}"
        self.keys = [f"{name}:index", f"{name}:hash"]
        self.ids: list[bytes] = []
        self._push, self._claim, self._commit = (
            self.client.register_script(one) for one in (self.PUSH, self.CLAIM, self.COMMIT)
        )

    def push(self, payloads: Sequence[bytes]) -> None:
        now, number = int(time.time() * 1000), 0
        for part in batches(payloads):
            # Lua unpacks at most about 8,000 values.
            for chunk in (part[i : i + 2_500] for i in range(0, len(part), 2_500)):
                arguments: list[Any] = [now]
                for one in chunk:
                    number += 1
                    arguments += (f"{number:024x}", one)
                self._push(keys=self.keys, args=arguments)

    def claim(self) -> int:
        now = int(time.time() * 1000)
        self.ids, payloads = self._claim(keys=self.keys, args=[now, now + 120_000, BATCH])
        return len(payloads)

    def commit(self) -> None:
        for chunk in (self.ids[i : i + 5_000] for i in range(0, len(self.ids), 5_000)):
            self._commit(keys=self.keys, args=chunk)

    def close(self) -> None:
        self.client.delete(*self.keys)
        self.client.close()
