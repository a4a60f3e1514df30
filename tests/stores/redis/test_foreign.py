"""Keys of another program that have the names of a queue's keys are not changed, and no queue is listed for them."""

from __future__ import annotations

import uuid
from contextlib import suppress

import pytest
from redis import Redis

from spark_queue import NotAQueue, QueueError, open_store
from spark_queue.messages.message import pushes

KEYS = {
    "redis-oq": "keuss:q:ordered_queue:index:{}",
    "redis-oq hash": "keuss:q:ordered_queue:hash:{}",
    "redis-list": "keuss:q:list:{}",
    "rfq": "rfq:{}:backlog",
}


@pytest.mark.parametrize("form", KEYS)
def test_a_key_of_another_type_is_not_touched(redis_url, form):
    name = f"q{uuid.uuid4().hex[:12]}"
    key = KEYS[form].format(name)
    with Redis.from_url(redis_url) as client, open_store(f"{redis_url}?layout={form.split()[0]}") as store:
        client.set(key, "of an application")
        try:
            with pytest.raises(NotAQueue, match=f"'{key}' belongs to another program"):
                store.drop(name)
            for act in (store.register, store.pause):
                with pytest.raises(NotAQueue):
                    act(name)
            with pytest.raises(QueueError, match="another program uses it"):
                store.push(name, pushes([{"a": "b"}]))
            with suppress(QueueError):
                store.purge(name)
            with suppress(QueueError):
                store.reserve(name, "c/1", 1)
            assert client.get(key) == b"of an application"
            assert name not in store.queues() or form == "redis-oq hash"
        finally:
            client.delete(key)
            store.drop(name)
