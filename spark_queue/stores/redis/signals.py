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
from spark_queue.stores.services.listener import Signal, SignalsLost, Subscription

#: Most signals that one call of `next` returns.
MAX_SIGNALS = 1_000

#: How long the rest of a signal may take whose beginning is there (s).
REST_OF_SIGNAL_TIMEOUT = 1.0


class RedisSubscription(Subscription):
    """A pubsub connection, and a socket that wakes the thread. The thread waits for both."""

    def __init__(
        self,
        pubsub: Any,
        prefix: str,
        to_store_error: Callable[[Exception], StoreError],
        is_valid: Callable[[], bool],
    ) -> None:
        """Watch channels named `prefix` + queue. `to_store_error` translates errors of redis-py.

        `is_valid` returns whether the server is still the one to listen to.
        """
        self._pubsub, self._prefix, self._to_store_error = pubsub, prefix, to_store_error
        self._is_valid = is_valid
        self._pending: deque[str] = deque()  # subscriptions that the server has not answered yet
        self._connected = self._has_more = False
        self._selector = selectors.DefaultSelector()
        self._wake_receiver, self._wake_sender = socket.socketpair()
        for one in (self._wake_receiver, self._wake_sender):
            one.setblocking(False)
        self._selector.register(self._wake_receiver, selectors.EVENT_READ)

    def subscribe(self, queue: str) -> None:
        self._pending.append(queue)
        self._pubsub.subscribe(self._prefix + queue)
        if not self._connected:
            # redis-py has no method that waits for its socket and for another one. Two threads must
            # not share the connection: with TLS, one may not write while the other reads.
            self._selector.register(self._pubsub.connection._sock, selectors.EVENT_READ)
            self._connected = True

    def unsubscribe(self, queue: str) -> None:
        self._pubsub.unsubscribe(self._prefix + queue)

    def next(self, timeout: float) -> list[Signal]:
        signals: list[Signal] = []
        if not self._is_valid():
            raise SignalsLost("the server of the signals is no longer that of the queues")
        if not self._has_more:  # else redis-py has read signals from the socket that are still to be parsed
            ready = {key.fileobj for key, _ in self._selector.select(timeout)}
            if self._wake_receiver in ready:
                with suppress(BlockingIOError):
                    while self._wake_receiver.recv(4096):
                        pass
            self._has_more = bool(ready - {self._wake_receiver})
        while self._has_more and len(signals) < MAX_SIGNALS:
            if (signal := self._read()) is not None:
                signals.append(signal)
            self._has_more = self._pubsub.connection.can_read(timeout=0)
        return signals

    def _read(self) -> Signal | None:
        try:
            message = self._pubsub.get_message(timeout=REST_OF_SIGNAL_TIMEOUT)
        except redis.ResponseError as error:  # the server answers in the order of the requests
            if not self._pending:
                raise
            return Signal(self._pending.popleft(), refused=self._to_store_error(error))
        if message is None or message["type"] not in ("message", "subscribe"):
            return None
        queue = message["channel"].decode().removeprefix(self._prefix)
        if message["type"] == "subscribe":
            self._pending.popleft()
            return Signal(queue)
        return Signal(queue, message["data"].decode(errors="replace"))

    def wake(self) -> None:
        with suppress(BlockingIOError):  # the thread is awake already
            self._wake_sender.send(b"\0")

    def close(self) -> None:
        """Close the sockets and the selector. The store closes its connection."""
        self._selector.close()
        self._wake_receiver.close()
        self._wake_sender.close()
