"""Signals of Redis: one connection that subscribes to the channel of each awaited queue.

It does not subscribe to a pattern of all queues. The server would send the signals of all queues to
every process that waits. Also, an ACL for a pattern (`&keuss:signal:*`) refuses any other pattern.
"""

from __future__ import annotations

import selectors
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import redis

from spark_queue.errors import StoreError
from spark_queue.stores.services.listener import LISTENER_HEARTBEAT, Signal, Subscription

#: Most signals that one call of `next` returns.
MOST_SIGNALS = 1_000


class RedisSubscription(Subscription):
    """A pubsub connection, and a socket that wakes the thread. The thread waits for both."""

    def __init__(self, pubsub: Any, prefix: str, told: Callable[[Exception], StoreError]) -> None:
        """Watch channels named `prefix` + queue. `to_store_error` translates errors of redis-py."""
        self._pubsub, self._prefix, self._told = pubsub, prefix, told
        self._asked: deque[str] = deque()  # subscriptions that the server has not answered yet
        self._connected = self._more = False
        self._selector = selectors.DefaultSelector()
        self._woken, self._waker = socket.socketpair()
        for one in (self._woken, self._waker):
            one.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)

    def follow(self, queue: str) -> None:
        self._asked.append(queue)
        self._pubsub.subscribe(self._prefix + queue)
        if not self._connected:
            # redis-py has no method that waits for its socket and for another one. Two threads must
            # not share the connection: with TLS, one may not write while the other reads.
            self._selector.register(self._pubsub.connection._sock, selectors.EVENT_READ)
            self._connected = True

    def unfollow(self, queue: str) -> None:
        self._pubsub.unsubscribe(self._prefix + queue)

    def next(self, timeout: float) -> list[Signal]:
        heard: list[Signal] = []
        if not self._more:  # else redis-py has read signals from the socket that are still to be parsed
            ready = {key.fileobj for key, _ in self._selector.select(timeout)}
            if self._woken in ready:
                self._drain()
            self._more = bool(ready - {self._woken})
        while self._more and len(heard) < MOST_SIGNALS:
            if (one := self._read()) is not None:
                heard.append(one)
            self._more = self._pubsub.connection.can_read(timeout=0)
        return heard

    def _drain(self) -> None:
        with suppress(BlockingIOError):
            while self._woken.recv(4096):
                pass

    def _read(self) -> Signal | None:
        try:
            one = self._pubsub.get_message(timeout=LISTENER_HEARTBEAT)
        except redis.ResponseError as error:  # the server answers in the order of the requests
            if not self._asked:
                raise
            return Signal(self._asked.popleft(), refused=self._told(error))
        if one is None or one["type"] not in ("message", "subscribe"):
            return None
        queue = one["channel"].decode().removeprefix(self._prefix)
        if one["type"] == "subscribe":
            self._asked.popleft()
            return Signal(queue)
        return Signal(queue, one["data"].decode(errors="replace"))

    def wake(self) -> None:
        with suppress(BlockingIOError):  # the thread is awake already
            self._waker.send(b"\0")

    def close(self) -> None:
        """Close the sockets and the selector. The store closes its connection."""
        self._selector.close()
        self._woken.close()
        self._waker.close()
