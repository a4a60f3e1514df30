"""Redis servers of a world that fail over: a replica is promoted, and clients have to find it.

`failover`: the address moves to the replica, and the old master, a replica now, keeps the connections it has.
`sentinel`: the master is killed, or demoted by a Sentinel; clients ask two Sentinels. The replica has each
acknowledged write before: see `tests/redis_replicas.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tests.redis_replicas import MovingPair, SentinelPair

FAILOVER, SENTINEL = "failover", "sentinel"


def _moving(folder, aof):
    pair = MovingPair(folder, *_log(aof))
    pair.require_replica()
    return pair


class _Watched(SentinelPair):
    """Its master is killed and demoted in turn."""

    def __init__(self, folder, *options):
        super().__init__(folder, *options)
        self._failovers = 0

    def failover(self, **_):
        self._failovers += 1
        super().failover(kill=self._failovers % 2 == 1)


def _log(aof):
    return ("--appendonly", "no") if aof == "none" else ("--appendfsync", aof)


#: How a pair of servers is started, by the kind of world.
PAIRS: Mapping[str, Callable[..., Any]] = {
    FAILOVER: _moving,
    SENTINEL: lambda folder, aof: _Watched(folder, *_log(aof)),
}

#: The victims of these worlds: mostly the pair, and what is in the middle of something meanwhile.
VICTIMS = {"failover": 6, "worker": 1, "sink": 1, "reader": 1, "consumer": 1}
