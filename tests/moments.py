"""Ends of leases and other moments that a test moves in the database, so that no test waits until they come."""

from __future__ import annotations

from datetime import UTC, datetime

from spark_queue.stores.base import Store
from spark_queue.stores.conformance.waiting import end_lease
from spark_queue.stores.mongodb.store import MongoStore
from spark_queue.stores.redis.keys import queue_keys
from spark_queue.stores.redis.store import RedisStore
from spark_queue.stores.sqlite.store import SqliteStore


def end_leases(store: Store, queue: str) -> None:
    """Let all leases of a queue end a second ago."""
    held = store.reservations(queue)
    assert held
    for one in held:
        end_lease(store, queue, one.tag)


def make_due(store: Store, queue: str) -> None:
    """Let all messages that are scheduled in a queue be due a second ago. None of the queue may be held."""
    sizes, now = store.sizes(queue), store.now()
    assert sizes.scheduled and not sizes.reserved, sizes
    then = now - 1_000
    if isinstance(store, SqliteStore):
        with store._transaction() as db:
            which = "queue = (SELECT id FROM queue WHERE name = ?) AND mature > ?"
            db.execute(f"UPDATE message SET mature = ? WHERE {which}", (then, queue, now))
    elif isinstance(store, MongoStore):
        later = {"mature": {"$gt": datetime.fromtimestamp(now / 1000, UTC)}}
        store._queue_view(queue).update_many(later, {"$set": {"mature": datetime.fromtimestamp(then / 1000, UTC)}})
    else:
        assert isinstance(store, RedisStore)
        keys = queue_keys(queue, store.layout_name)
        with store._connection() as client:
            for id in client.zrangebyscore(keys.moments, f"({now}", "+inf"):
                begin, end = client.hget(keys.hash, id).rsplit(b'"mature":', 1)
                client.hset(keys.hash, id, begin + b'"mature":%d' % then + end.lstrip(b"0123456789"))
                client.zadd(keys.moments, {id: then})
    assert not store.sizes(queue).scheduled
