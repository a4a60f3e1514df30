"""A world: producers push into queue A, a Spark query moves A to B, consumers drain B, and a killer goes about.

    producers ──> A ──> Spark, exactly once ──> B ──> consumers, and one that competes with them

Each message has a name of its own, in a header. Each program logs which pushes and commits were acknowledged. At the
end, each message whose push was acknowledged must have come out of B exactly once. It is then in the history or in
the dead-letter queue. A message whose push has an unknown outcome comes at most once; see verdict.py.

A world has its own folder, servers, ports and processes, and ends them all.
"""

from __future__ import annotations

import json
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from spark_queue import Buckets, open_store
from spark_queue.stores import STORES
from spark_queue.stores.base import set_layout
from spark_queue.stores.services.ledger import ledger_of
from tests.chaos.cluster import ENV, Cluster
from tests.chaos.failover import PAIRS
from tests.chaos.kinds import KINDS, TWIN
from tests.chaos.processes import command_of, descendants, kill, kill_tree, read_log, send, start
from tests.chaos.programs import last_in
from tests.chaos.servers import Server

#: Seconds: the leases of those who drain B, for how long nothing may happen at all, or a process stand still.
LEASE, PATIENCE, FROZEN = 2.0, 240.0, 90.0

#: What an error says that refuses a checkpoint.
REMEDY = "spark-queue recover URL"

#: What a driver says at its third start after two deaths in one batch, which must be repeated as a whole.
DEATHS = "times while it worked on this batch"

#: Seconds for which a driver goes on that another one has replaced.
PARTING = 20.0

#: Seconds between two rounds that start killed programs again: a thread that waits for a moment looks far more often.
ROUND = 0.05


class Unmoved(Exception):
    """The world does not come on."""


@dataclass
class Result:
    """What a world was like, and what was found wrong with it."""

    stores: str
    seed: int
    kills: Counter = field(default_factory=Counter)  #: by victim
    aims: Counter = field(default_factory=Counter)
    in_flight: int = 0  #: kills of Spark's processes and of servers between a batch's offset and its commit
    missed: int = 0  #: aimed at what had just ended by itself
    checkpoints: Counter = field(default_factory=Counter)  #: how often a query went on, or was refused, and why
    batches: int = 0
    replayed: int = 0  #: batches that came again
    skipped: int = 0  #: of these, those that the ledger knew as written
    drivers: int = 0
    queries: int = 0
    acknowledged: int = 0
    maybe: int = 0
    delivered: int = 0
    dead: int = 0
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)

    def __str__(self):
        def counted(counter):
            return ", ".join(f"{n} {what}" for what, n in counter.most_common())

        lines = [
            f"{self.stores}, seed {self.seed}: {'WRONG' if self.wrong else 'right'}, {self.seconds:.0f} s",
            f"  {self.kills.total()} kills: {counted(self.kills)}; {self.missed} missed",
            f"  aimed: {counted(self.aims)}; {self.in_flight} hit a batch between offsets/ and commits/",
            f"  checkpoints: {counted(self.checkpoints) or 'none damaged'}",
            f"  {self.batches} batches; {self.replayed} came again, of which the ledger knew {self.skipped}",
            f"  {self.queries} starts of the query, in {self.drivers} drivers",
            f"  {self.acknowledged} messages acknowledged, {self.maybe} maybe; {self.delivered} came out, "
            f"{self.dead} of them as dead letters",
        ]
        return "\n".join(lines + [f"  WRONG: {one}" for one in self.wrong])

    def as_json(self):
        return json.dumps(vars(self))


class Program:
    """A program of programs.py, to be started again whenever it has ended: each life has a name and a log.

    `way`: how it is started, as `start` takes it.
    """

    def __init__(self, kind: str, name: str, folder: Path, arguments: Callable[[str], dict[str, Any]], **way: Any):
        self.kind, self.name, self._folder, self._arguments, self._way = kind, name, folder, arguments, way
        self.lives = 0
        self.killed = False  # this life, by us
        self.process: Any = None

    @property
    def life(self):
        return f"{self.name}.{self.lives}"

    def start(self):
        self.lives += 1
        self.killed = False
        log = self._folder / f"{self.life}.log"
        output = self._folder / f"{self.life}.out"
        self.process = start(self.kind, output=output, log=str(log), **self._way, **self._arguments(self.life))

    @property
    def running(self):
        return self.process is not None and self.process.poll() is None

    def kill(self, how=kill):
        self.killed = True
        how(self.process)

    def logs(self):
        """The log of each life, by its name."""
        lives = [f"{self.name}.{life}" for life in range(1, self.lives + 1)]
        return {life: read_log(self._folder / f"{life}.log") for life in lives}

    def last_words(self):
        lines = (self._folder / f"{self.life}.out").read_text(errors="replace").splitlines()
        return "\n".join(lines[-20:])


class World:
    """See the head of this module.

    `source` and `target` are names of stores, `kind` is one of KINDS. `buckets`: how many messages share a record, 0
    for none. `sink` are options of the query's sink, `aof` and `options` those of a `Server`.
    """

    def __init__(
        self,
        source: str,
        target: str,
        seed: int,
        folder: Path,
        *,
        say: Callable[[str], None] = print,
        kind: str = "",
        buckets: int = 0,
        sink: dict[str, str] | None = None,
        **servers: str,
    ):
        self.folder, self._say, self._sink, self._settings = folder, say, sink or {}, servers
        self.kind = KINDS[kind]
        self._rng = random.Random(f"world {seed}")
        stores = source if source == target else f"{source}-{target}"
        self.result = Result(f"{stores}{kind and f' {kind}'}{' in buckets' if buckets else ''}", seed)
        self.checkpoint = folder / "checkpoint" / "move"
        self.servers: list[Any] = []  # each can be killed; those of a pair can fail over
        self.programs: list[Program] = []
        self._frozen: list[tuple[list[int], Callable[[], bool], float, Callable[[], None]]] = []
        self._leaving: list[tuple[Any, float]] = []
        self._beside = False  # whether the driver has run beside what is left of another one
        self._refusal = False  # whether the driver may end since its checkpoint is refused
        self._begun = time.monotonic()
        self.strays: dict[int, str] = {}  #: processes that may survive the driver which has started them
        self.cluster: Cluster | None = None
        try:
            self.url_a = self.url_b = self._database(source, "a")
            if source != target or self.kind.scattered:
                self.url_b = self._database(target, "b")
            self.store_a, self.store_b = (open_store(one, retry_timeout=60_000) for one in (self.url_a, self.url_b))
            for store, queue in ((self.store_a, "a"), (self.store_a, "a.tens"), (self.store_b, "b")):
                if buckets:
                    set_layout(store, queue, Buckets(buckets))
            if self.kind.cluster:
                self.cluster = Cluster(folder / "cluster")
            self._populate()
        except BaseException:  # nothing may return into the tests
            self.close()
            raise

    def _database(self, scheme, name):
        if not STORES[scheme].server:
            return f"{scheme}:///{self.folder}/{name}.db"
        data = self.folder / name
        data.mkdir()
        if self.kind.pair:
            self.servers.append(PAIRS[self.kind.pair](data, self._settings.get("aof", "always")))
            return self.servers[-1].url
        self.servers.append(Server(STORES[scheme].server, data, **self._settings))
        return self.servers[-1].url

    @property
    def nodes(self):
        """The workers of the cluster, if there is one."""
        return self.cluster.nodes if self.cluster else []

    @property
    def inputs(self):
        """The queues that the query reads, with their databases."""
        return [(self.store_a, "a"), *([(self.store_b, TWIN)] if self.kind.twins else [])]

    def dead_letters(self):
        """How many dead letters the queues that the query reads have."""
        return {queue: store.sizes(f"{queue}.dead").total for store, queue in self.inputs}

    @property
    def outputs(self):
        """The databases that have a queue B, into which the query writes."""
        return [self.store_b, *([self.store_a] if self.kind.scattered else [])]

    @property
    def sinks(self):
        """The URLs of all databases into which the query, or its graph, writes."""
        both = self.kind.graph or self.kind.scattered
        return list(dict.fromkeys([self.url_b, self.url_a] if both else [self.url_b]))

    def _populate(self):
        a, b = self.url_a, self.url_b

        def program(kind, name, arguments, **way):
            self.programs.append(Program(kind, name, self.folder, arguments, **way))
            return self.programs[-1]

        def producing(life):
            more = {"twin": [b, TWIN]} if self.kind.twins else {"behind": [b, "b"]} if self.kind.ahead else {}
            return {"url": a, "queue": "a", "producer": life, "seed": self._rng.random()} | more

        def consuming(life, url=b):
            return {"url": url, "queue": "b", "consumer": life, "lease": LEASE, "seed": self._rng.random()}

        def moving(life):
            way = {"url": a, "queue": "a", "to_url": b, "to": "b", "checkpoint": str(self.checkpoint)}
            master = self._rng.choice(["local[2]", "local[2,3]"])  # with and without a second try of a task
            master = self.cluster.url if self.cluster else master
            # Between the ledgers of two databases lie milliseconds, which an outage would not meet.
            way |= {"master": master, "slow": self.kind.scattered or self._rng.random() < 0.5}
            return way | dict(self.kind.arguments) | ({} if self.kind.graph else {"sink": self._sink})

        submitted = {"launcher": self.cluster.launcher, "env": ENV} if self.cluster else {}
        self.driver = program(self.kind.program, "driver", moving, **submitted)
        forked = "_forked" if self.kind.forks else ""
        # Of twins, the order has to be the same in both queues.
        self.producers = [program(f"produce{forked}", f"p{n}", producing) for n in range(1 if self.kind.twins else 2)]
        consume = "consume_forked" if self.kind.forks else "consume_ahead" if self.kind.ahead else "consume_for_good"
        self.consumers = [program(consume, f"c{n}", consuming) for n in range(2)]
        if self.kind.scattered:
            self.consumers.append(program("consume_for_good", "d0", partial(consuming, url=a)))
        # Who rolls back fails messages, too.
        self.rivals = [] if self.kind.ahead else [program("compete", "r", consuming)]
        self._finished = -1
        self._started_at = self._moved_at = time.monotonic()
        self._tended_at = self._started_at - ROUND
        self.tend()

    # --- life ---------------------------------------------------------------------------------------------------

    def say(self, text):
        self._say(f"[{time.monotonic() - self._begun:6.1f} s] {text}")

    def tend(self):
        """Start again what was killed, wake what was frozen; see that all else lives and batches are finished."""
        now = time.monotonic()
        if now - self._tended_at < ROUND:
            return
        if now - self._tended_at > 10:  # we stood still ourselves: a laptop was closed
            self._started_at = now
        self._tended_at = now
        for one in self.programs:
            if not one.running:
                if one is self.driver and self._died_twice():  # "start the query again"
                    self.result.checkpoints["refused after two deaths in a batch"] += 1
                    one.killed = True
                if one is self.driver and self._refused():
                    if self._refusal:
                        continue
                    if self._beside:  # it began while the other one went on: "start it again"
                        self.result.checkpoints["refused beside another driver"] += 1
                        one.killed = True
                if one.process is not None and not one.killed:
                    code = one.process.returncode
                    self.result.wrong.append(f"{one.life} ended by itself, exit code {code}: {one.last_words()}")
                    raise Unmoved("a program ended")
                one.start()
                if one is self.driver:
                    self._started_at, self._beside = now, False
        self._beside |= self.has_former
        for frozen in self._frozen[:]:
            pids, until, end, then = frozen
            if until() or now > end:
                self._frozen.remove(frozen)
                for pid in pids:
                    send(pid, signal.SIGCONT)
                then()
        for leaving in self._leaving[:]:
            process, end = leaving
            if now > end:
                self._leaving.remove(leaving)
                kill_tree(process)
        finished = self.last("commits")
        if finished > self._finished:
            self._finished, self._moved_at = finished, now
        elif self.driver in self.programs and self._silent_since(self._moved_at):
            raise Unmoved(f"no batch was finished for {PATIENCE:.0f} s: {self._state()}")

    def freeze(self, pids, until, then=lambda: None):
        """Let processes stand still until then; not forever, for they may hold a lock that others need."""
        for pid in pids:
            send(pid, signal.SIGSTOP)
        self._frozen.append((pids, until, time.monotonic() + FROZEN, then))

    @property
    def has_former(self):
        """Whether there is something left of a former driver: it stands still, or goes on."""
        return bool(self._frozen or self._leaving)

    def part_with(self, process):
        """Let a driver that another one has replaced try to go on for a while, then end it."""
        self._leaving.append((process, time.monotonic() + PARTING))

    @contextmanager
    def expecting_a_refusal(self):
        """Within this, the driver may end since its checkpoint is refused."""
        self._refusal = True
        try:
            yield
        finally:
            self._refusal = False

    def refused(self):
        """The last words of a driver that may be refused, and has ended since its checkpoint was; else `None`."""
        return self._refused() if self._refusal else None

    def _refused(self):
        if self.driver.killed or self.driver.process is None or self.driver.running:
            return None
        words = self.driver.last_words()
        return words if REMEDY in words and DEATHS not in words else None

    def _died_twice(self):
        """Whether the driver has ended since it was killed twice in one batch."""
        driver = self.driver
        return driver.process is not None and not (driver.killed or driver.running) and DEATHS in driver.last_words()

    def abandon_checkpoint(self):
        """Put the checkpoint away, so that the query begins a new one."""
        self.result.batches += self.last("commits") + 1
        self.checkpoint.rename(self.folder / f"abandoned-{self.driver.lives}")
        self._finished, self._moved_at = -1, time.monotonic()

    def _silent_since(self, moment):
        """Whether nothing can explain that something did not happen since: a driver takes its time to start."""
        return time.monotonic() - max(moment, self._started_at) > PATIENCE

    def until(self, condition, what, pause=0.01):
        begun = time.monotonic()
        while not (found := condition()):
            self.tend()
            if self._silent_since(begun):
                raise Unmoved(f"{what} did not come within {PATIENCE:.0f} s: {self._state()}")
            time.sleep(pause)
        return found

    def last(self, log):
        """The number of the last batch in a log of Spark's."""
        return last_in(self.checkpoint, log)

    def lately(self):
        """The seconds that the last batch took, from its offset to its commit."""
        begun, ended = (self.checkpoint / log / str(self.last("commits")) for log in ("offsets", "commits"))
        return ended.stat().st_mtime - begun.stat().st_mtime

    @property
    def in_flight(self):
        return self.last("offsets") > self.last("commits")

    @property
    def sink(self):
        """The name of the query in the ledger, as soon as it has one."""
        metadata = self.checkpoint / "metadata"
        text = metadata.read_text() if metadata.exists() else ""
        return json.loads(text)["id"] if text else None

    def decided(self):
        """The last batch in the ledger, or, of a sink that keeps none, the last one that was planned."""
        if self._sink.get("delivery") == "at-least-once":
            return self.last("offsets")
        return max(self.ledgers())

    def ledgers(self):
        """The last batch in the ledger of each database of the sink."""
        found = [ledger_of(store, self.sink) if self.sink else None for store in self.outputs]
        return [-1 if one is None else one.batch for one in found]

    def come_to_rest(self):
        """Let everything drain. The batches that still come sweep what dead ones have left behind."""
        self.say("no more kills: draining")
        calm = self.last("offsets") + 3
        self.until(lambda: self.last("commits") >= calm, "some batches in peace")
        self._dismiss(*self.producers, *self.rivals)
        for store, queue in self.inputs:

            def ended(store=store, queue=queue):
                # The other half of a dead letter stays in its queue forever.
                return store.sizes(queue).total == 0 or any(self.dead_letters().values())

            self.until(ended, f"the end of queue {queue}")
        self.until(lambda: not self.in_flight, "the end of a batch")
        self.until(lambda: self.store_a.sizes("a.tens").total == 0, "the end of queue A.tens")
        for store in self.outputs:
            self.until(lambda store=store: store.sizes("b").total == 0, "the end of queue B")
        self._dismiss(*self.consumers)

    def _dismiss(self, *programs):
        for one in programs:
            self.programs.remove(one)
            if one.running:
                one.kill(kill_tree)

    def close(self):
        """End all that was started."""
        if self.programs and self.driver.running:
            self.strays |= descendants(self.driver.process.pid)
        self._dismiss(*self.programs[:])
        for pid, command in self.strays.items():
            if command_of(pid) == command:
                send(pid, signal.SIGKILL)
        for *_, then in self._frozen:
            then()
        for process, _ in self._leaving:
            kill_tree(process)
        if self.cluster:
            self.cluster.close()
        for store in (getattr(self, "store_a", None), getattr(self, "store_b", None)):
            if store is not None:
                store.close()
        for server in self.servers:
            server.kill()
        self.result.seconds = round(time.monotonic() - self._begun, 1)

    def _state(self):
        held = {name: store.reservations(name) for name, store in (("a", self.store_a), ("b", self.store_b))}
        reported = [one for life in self.driver.logs().values() for one in life]
        return (
            f"A {self.store_a.sizes('a')}, B {self.store_b.sizes('b')}, held {held}, staged {self.store_b.staged()}, "
            f"offsets {self.last('offsets')}, commits {self.last('commits')}, ledger {self.decided()}, the driver "
            f"{reported[-1:]} {self.driver.last_words()}"
        )
