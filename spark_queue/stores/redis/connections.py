"""The connections of a store to the server that serves it now.

After a failover, the address leads to another server, and the old one may still answer: it refuses
writes, or knows no new messages. So if a server cannot serve (see `failures.py`), all connections
of a client are dropped. The next operation looks up the address again, or asks the Sentinels.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.connection import SSLConnection, parse_url
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, Sentinel

from spark_queue.fork_locks import add_lock
from spark_queue.stores.redis.address import RedisAddress
from spark_queue.stores.redis.limits import RedisLimits

#: Seconds until a connection attempt, and until an answer, times out.
CONNECT_TIMEOUT, ANSWER_TIMEOUT = 3.0, 30.0

#: redis-py does not type these.
_parse_url: Any = parse_url
_Sentinel: Any = Sentinel


def pool_text(limits: RedisLimits) -> str:
    """Return the sentence of an exhausted pool."""
    size, timeout = limits.pool_size, limits.pool_timeout
    return f"all {size} connections of this client are in use, and none became free in {timeout:g} s"


class ServerConnections:
    """The connections of one store. Safe to share among threads, and across a fork."""

    def __init__(self, address: RedisAddress, limits: RedisLimits) -> None:
        """Connect to nothing yet."""
        self._address = address
        self._pool_limits = {"max_connections": limits.pool_size, "timeout": limits.pool_timeout}
        self._lock: threading.Lock
        add_lock(self, "_lock")
        self._client: redis.Redis | None = None
        self._cluster: redis.RedisCluster | redis.Redis | None = None
        self._pid = 0

    def client(self) -> redis.Redis:
        """Return the client of this process.

        Raises redis-py's `ConnectionError` if no Sentinel names a master that is up.
        """
        with self._lock:
            if self._client is not None and self._pid == os.getpid():
                return self._client
        # Not under the lock: all threads ask at the same time, also if the Sentinels are away.
        pool = redis.BlockingConnectionPool(**self._settings(), **self._pool_limits)  # type: ignore[no-untyped-call]
        with self._lock:
            if self._client is None or self._pid != os.getpid():
                self._client, self._cluster, self._pid = redis.Redis.from_pool(pool), None, os.getpid()
            return self._client

    def cluster(self, client: redis.Redis) -> redis.RedisCluster | redis.Redis:
        """Return a client for keys that any node of a cluster may have."""
        if (found := self._cluster) is None:
            answer: Any = client.execute_command("HELLO")  # type: ignore[no-untyped-call]
            found = client
            if b"cluster" in answer:
                found = redis.RedisCluster.from_url(self._address.url, **_options())
            self._cluster = found
        return found

    def drop(self, client: redis.Redis) -> None:
        """Drop the connections of a client whose server cannot serve now.

        Those that other threads use end with the operation of that thread.
        """
        with self._lock:
            if self._client is not client:
                return  # another thread did
            cluster, self._client, self._cluster = self._cluster, None, None
        if cluster is not None and cluster is not client:
            cluster.close()

    def end_operation(self, client: redis.Redis) -> None:
        """Close what a client that was dropped meanwhile, by any thread, has open and unused."""
        if self._client is not client:
            client.connection_pool.disconnect(inuse_connections=False)

    @contextmanager
    def listen(self) -> Iterator[tuple[Any, Callable[[], bool]]]:
        """Yield a connection for signals, and a function that returns whether it is still valid.

        It is not once the other connections were dropped: they may go to another server now. Raises
        `ConnectionError` as `client` does.
        """
        client = self.client()
        with (
            redis.Redis.from_pool(redis.ConnectionPool(**self._settings())) as own,
            own.pubsub() as heard,
        ):
            yield heard, lambda: self._client is client

    def close(self) -> None:
        """Close all connections. The next operation opens new ones."""
        with self._lock:
            if self._client is not None and self._pid == os.getpid():
                self._client.close()
                if self._cluster is not None:
                    self._cluster.close()
            self._client = self._cluster = None

    def _settings(self) -> dict[str, Any]:
        """Return the settings of a connection to the server that serves now.

        Raises `ConnectionError` as `client` does.
        """
        settings: dict[str, Any] = {**_parse_url(self._address.url), **_options()}
        if self._address.master:
            settings["host"], settings["port"] = find_master(self._address, settings)
            settings["redis_connect_func"] = _connect_to_master
        return settings


def find_master(address: RedisAddress, settings: dict[str, Any]) -> tuple[str, int]:
    """Ask the Sentinels of an address for host and port of the master.

    They get the user and the password of the URL only if they ask for a password. Raises
    `redis.ConnectionError` if none names a master that is up.
    """
    common = {name: value for name, value in settings.items() if name.startswith("ssl_")}
    common |= {**_options(), "socket_timeout": CONNECT_TIMEOUT}
    common["ssl"] = settings.get("connection_class") is SSLConnection
    login = {name: settings[name] for name in ("username", "password") if name in settings}
    for credentials in ({}, login):
        asked: Any = _Sentinel(address.sentinels, sentinel_kwargs=common | credentials)
        try:
            host, port = asked.discover_master(address.master)
            return (host.decode() if isinstance(host, bytes) else str(host)), int(port)
        except MasterNotFoundError as error:
            if "Authentication" not in str(error) or not login:
                break
        finally:
            for one in asked.sentinels:
                one.close()
    raise redis.ConnectionError(
        f"no Sentinel names a master {address.master!r} that is up: check the name, and that one can be reached"
    )


def _connect_to_master(connection: Any) -> None:
    """Greet a server, and check that it is a master: Sentinels may name the old one for a while.

    Raises `redis.ReadOnlyError` if it is a replica.
    """
    connection.on_connect()
    connection.send_command("ROLE")
    try:
        (role, *_) = connection.read_response()
    except redis.exceptions.NoPermissionError:  # writes show it, too
        return
    if role != b"master":
        raise redis.ReadOnlyError("the server that the Sentinels name is a replica: a failover is under way")


def _options() -> dict[str, Any]:
    return {
        "protocol": 2,
        "retry": Retry(NoBackoff(), 0),  # the store retries by itself
        "socket_connect_timeout": CONNECT_TIMEOUT,
        "socket_timeout": ANSWER_TIMEOUT,
    }
