"""The kinds of worlds: what moves the messages from A to B, and what is killed there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.chaos import failover

#: All victims, and how many of each are in a pack.
PACK = {
    "worker": 4,  # a process that runs the transformation, or writes to the target
    "sink": 4,  # the one that commits a batch to the target
    "reader": 4,  # the one that reserves and commits in the source
    "server": 3,  # mongod, redis-server: back after at most a second
    "consumer": 2,
    "producer": 1,
    "jvm": 1,  # Spark's driver
    "tree": 1,  # all of that at once
    "zombie": 1,  # the driver, while its reader or sink stands still; that goes on when another driver is at work
    "standstill": 1,  # nothing is killed: the driver stands still as a whole, and goes on beside another one
    "copy": 1,  # the checkpoint: an older copy is restored
    "lost": 1,  # its newest files
    "first": 1,  # the driver, or its reader, while it reserves the first batch of a new checkpoint
    "away": 4,  # a database of the sink, until the batch has failed
    "executor": 4,  # the JVM of an executor, with all below it
    "fork": 4,  # a worker that a producer or a consumer has forked while it had the queue open
    "node": 2,  # a worker of the cluster, and its executor with it: back after at most a second
    "failover": 6,  # the master of a pair of Redis servers: its replica takes its place
}

#: Those of a kind of worlds that need a world of its own.
SPECIAL = ("first", "away", "executor", "fork", "node", "failover")

#: Names of worlds in which exchanges move the messages, or processors: a fork, and a join of its outputs.
EXCHANGE, PROCESSORS = "exchange", "processors"

#: Those in which drivers die before their first offset is in Spark's log.
FIRST, FIRST_LEAST, INPUTS = "first", "first-at-least-once", "inputs"

#: That in which each row goes to one of two databases by chance, and that with a cluster of several processes.
DATABASES, CLUSTER = "databases", "cluster"

#: That in which clients fork, and that in which consumers iterate, with messages that they have reserved ahead.
FORKS, PREFETCH = "forks", "prefetch"

#: The queue whose n-th message belongs to the n-th of A, in a world of several inputs.
TWIN = "a.twin"


@dataclass(frozen=True)
class Kind:
    """What a world is like.

    `program`: of programs.py, it moves the messages; `arguments` are more of it. `victims`: a pack, which is
    shuffled, dealt, and shuffled again; worlds of files have no servers in theirs. `graph`: B has copies of some
    messages, see `route_with_spark`. `twins`: each message has another half in queue TWIN. `scattered`: each message
    goes to queue B of one of two databases. `cluster`: executors run in processes of their own. `forks`: clients
    are workers, forked by a process that has the queue open.
    """

    program: str = "move_with_spark"
    victims: Mapping[str, int] = field(default_factory=lambda: {one: PACK[one] for one in PACK if one not in SPECIAL})
    arguments: Mapping[str, Any] = field(default_factory=dict)
    graph: bool = False
    twins: bool = False
    scattered: bool = False
    cluster: bool = False
    forks: bool = False
    ahead: bool = False  #: whether consumers iterate, and a message has one try
    pair: str = ""  #: how a Redis of this world fails over: see `failover.py`
    repeats: bool = False  #: whether messages may come out twice

    @property
    def kills(self) -> int:
        """How many kills are enough: fewer where each of them is aimed at the same few moments."""
        return 100 if self.ahead or self.victims.keys() & set(SPECIAL) else 300


# With one try, a message whose lease ends before any task has seen it would be a dead letter.
KINDS = {
    "": Kind(),
    EXCHANGE: Kind("route_with_spark", graph=True),
    PROCESSORS: Kind("process_with_spark", graph=True),
    FIRST: Kind(victims={"first": 1}, arguments={"source": {"maxTries": "1"}}),
    FIRST_LEAST: Kind(
        victims={"first": 1}, arguments={"source": {"maxTries": "1", "delivery": "at-least-once"}}, repeats=True
    ),
    # A push that fails may be in one of both queues: no server and no producer is killed.
    INPUTS: Kind(victims={"first": 1}, arguments={"source": {"maxTries": "1"}, "twin": TWIN}, twins=True),
    DATABASES: Kind(
        victims={"away": 4, "sink": 3, "tree": 2, "jvm": 1, "worker": 1, "zombie": 1},
        arguments={"scattered": True},
        scattered=True,
    ),
    **{one: Kind(victims=failover.VICTIMS, pair=one) for one in failover.PAIRS},
    CLUSTER: Kind(victims={"executor": 2, "node": 1, "jvm": 1, "tree": 1}, cluster=True),
    PREFETCH: Kind(victims={"consumer": 8, "producer": 1}, ahead=True),
    FORKS: Kind(victims={"fork": 6, "producer": 1, "consumer": 1, "tree": 1}, forks=True),
}
