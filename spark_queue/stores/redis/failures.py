"""Errors of redis-py: which mean that this server cannot serve now, and our error for each."""

from __future__ import annotations

import re

import redis

from spark_queue.errors import AccessDenied, PoolExhausted, StoreError, StoreUnavailable
from spark_queue.options.masking import mask, scrub

#: A server answers with one of these codes if it cannot serve now, but another one can, or it can
#: itself in a moment: after a failover, a restart, or without enough replicas.
_AWAY = re.compile(
    # The code begins the answer. redis-py puts the number of a command of a pipeline before it, and
    # Redis 6 the place in a script.
    r"(?:^|of pipeline caused error: |^ERR Error running script .*: -)"
    r"(?:READONLY|LOADING|MASTERDOWN|UNBLOCKED|CLUSTERDOWN|TRYAGAIN|NOREPLICAS)\b",
    re.DOTALL,
)

#: redis-py has classes for some of the codes, whose texts lack the code, and for connections.
_AWAY_CLASSES = (
    redis.ConnectionError,
    redis.TimeoutError,
    redis.BusyLoadingError,
    redis.ReadOnlyError,
    redis.exceptions.MasterDownError,
    redis.exceptions.ClusterDownError,
    redis.exceptions.TryAgainError,
    redis.exceptions.RedisClusterException,  # no node of a cluster answers
)

#: Refused logins, which redis-py counts as errors of a connection.
_LOGIN = (redis.AuthenticationError, redis.exceptions.AuthorizationError)


def is_away(error: Exception) -> bool:
    """Return whether the server cannot serve now, so that its connections must be made anew.

    A full server can: its messages can be consumed.
    """
    if isinstance(error, _LOGIN) or is_pool_exhausted(error):
        return False
    return isinstance(error, _AWAY_CLASSES) or _AWAY.search(str(error)) is not None


def is_pool_exhausted(error: Exception) -> bool:
    """Return whether all connections of a client are in use."""
    return isinstance(error, redis.ConnectionError) and str(error).startswith("No connection available")


def to_store_error(error: Exception, url: str, pool: str) -> StoreError:
    """Return our error for one of redis-py, with passwords masked.

    `pool`: what an exhausted pool has, and how long it was waited for.
    """
    shown, text = mask(url), scrub(str(error), url)
    if "WRONGTYPE" in text:
        text = "a key with the name of a queue's key has another type: another program uses it. Use another name"
    if is_pool_exhausted(error):
        return PoolExhausted(f"{shown}: {pool}: use fewer threads, or several clients", url=shown)
    if isinstance(error, redis.exceptions.NoPermissionError) or "ACL failure" in text:
        return AccessDenied(f"{shown}: {text}: check what the user's ACL allows", url=shown)
    if isinstance(error, _LOGIN):
        return StoreError(f"{shown}: {text}: check the user and the password of the URL", url=shown)
    if is_away(error) or text.startswith("BUSY"):
        return StoreUnavailable(f"{shown} cannot be reached: {text}", url=shown)
    if isinstance(error, redis.exceptions.OutOfMemoryError):
        text += ": the server's maxmemory is reached; consume messages or raise it"
    if isinstance(error, redis.exceptions.MovedError):
        text = "this node of the cluster does not hold the queue: use the URL of the node that does"
    return StoreError(f"{shown}: {text}", url=shown)
