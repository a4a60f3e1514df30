"""Helpers of several tests of Redis: what other programs see and write."""

from __future__ import annotations

import itertools
import uuid

import redis

from spark_queue.errors import StoreUnavailable
from spark_queue.messages.message import messages
from spark_queue.stores import open_store
from spark_queue.stores.redis.keys import queue_keys

MINUTE = 60_000

KEUSS_LEASE = 120_000  # ms: keuss adds it to the score of a message that it reserves


def put(raw, queue, id, document, score=1_700_000_000_000):
    """What the push of keuss does."""
    keys = queue_keys(queue)
    raw.hset(keys.hash, id, document)
    raw.zadd(keys.moments, {id: score})


def documents(raw, queue):
    return {id.decode(): text for id, text in raw.hgetall(queue_keys(queue).hash).items()}


def keuss_reserves(raw, queue, id):
    """What the reserve of keuss does, damage to the payload included."""
    keys = queue_keys(queue)
    raw.eval(
        """
        redis.call('ZINCRBY', KEYS[1], ARGV[2], ARGV[1])
        local message = cjson.decode(redis.call('HGET', KEYS[2], ARGV[1]))
        message.reserved = true
        redis.call('HSET', KEYS[2], ARGV[1], cjson.encode(message))
        """,
        2, keys.moments, keys.hash, id, KEUSS_LEASE,
    )  # fmt: skip


def keuss_commits(raw, queue, id):
    """What the commit of keuss does; gives whether it removed the message."""
    keys = queue_keys(queue)
    return raw.eval(
        """
        local message = redis.call('HGET', KEYS[2], ARGV[1])
        if not (message and cjson.decode(message).reserved) then
          return 0
        end
        redis.call('HDEL', KEYS[2], ARGV[1])
        return redis.call('ZREM', KEYS[1], ARGV[1])
        """,
        2, keys.moments, keys.hash, id,
    )  # fmt: skip


def fetched(store, queue, tag):
    return [one for batch in store.fetch(queue, tag) for one in messages(batch)]


def scores(raw, queue):
    """The different moments of the index."""
    return {score for _, score in raw.zrange(queue_keys(queue).moments, 0, -1, withscores=True)}


def consumed(store, queue):
    """Takes and commits all that is ready; gives the payloads."""
    tag, found = f"end/{uuid.uuid4().hex[:8]}", []
    if store.reserve(queue, tag, 10_000):
        found = [one.payload for one in fetched(store, queue, f"{tag}/0")]
        assert store.commit(queue, tag) == len(found)
    return found


def cuts(monkeypatch, redis_url):
    """Stores to call one operation with: each is cut off at one command, or before its answer.

    It goes on until an operation has as few commands as not to be cut any more.
    """
    execute = redis.Redis.execute_command
    for at in itertools.count():
        for sent in (False, True):
            with open_store(redis_url, retry_timeout=0) as store, monkeypatch.context() as patch:
                turns = itertools.count()

                def cut(self, *words, turns=turns, sent=sent, at=at, **options):
                    turn = next(turns)
                    if turn != at:
                        return execute(self, *words, **options)
                    if sent:
                        execute(self, *words, **options)
                    raise redis.ConnectionError("cut")

                def once(operation, *arguments, patch=patch, cut=cut):
                    patch.setattr(redis.Redis, "execute_command", cut)
                    try:
                        return operation(*arguments)
                    except StoreUnavailable:
                        return None
                    finally:
                        patch.undo()

                yield store, once
                if next(turns) <= at:
                    assert at > 3, "nothing was cut"
                    return


def begin_to_renew(store, queue, tag, lease):
    """The first step of a renewal that then is cut short."""
    rows, cursor, _, _ = store._run("renew", queue, tag, lease, "", "", "")
    assert (rows, bool(cursor)) == (3, True)


def chunk(raw, key):
    """What a chunk holds, as push.lua takes it."""
    return raw.eval("return cmsgpack.unpack(redis.call('GET', KEYS[1]))", 1, key)
