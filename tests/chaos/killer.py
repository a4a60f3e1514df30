"""Who is killed in a world, when, and how.

All of it comes from a seed: the order of victims, the moment each kill is aimed at, the delay after that moment. The
moments are what the checkpoint and the databases show, so the same seed gives the same plan, met by other timings.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Collection

from tests.chaos import checkpoints, outages
from tests.chaos.kinds import PACK
from tests.chaos.processes import alive, descendants, kill_tree, send
from tests.chaos.spark_processes import SPARK, spark_processes
from tests.chaos.verdict import count, judge
from tests.chaos.world import Result, Unmoved, World

#: The moments at which Spark's processes and servers are killed, by how often, and ms between that and the kill.
#: `None` stands for anything up to the time that a batch usually takes.
MOMENTS = {
    "reserved": (2, 20),  # the source has reserved a batch that is not in Spark's log yet
    "planned": (5, None),  # its offset is in Spark's log
    "staged": (5, 400),  # some of its output is staged; what decides on it follows within that time
    "decided": (6, 30),  # the ledger names it; perhaps it is not published yet
    "between": (6, 30),  # the ledger of one database names it, and that of another does not
    "finished": (3, 30),  # Spark's log has its end; perhaps the source has not committed it yet
    "any": (1, 2_000),
}

#: Those at which a process has something to do; the others of Spark's, and the servers, have at all of them.
BUSY = {
    "worker": ("planned", "staged"),
    "sink": ("staged", "decided", "between"),
    "reader": ("reserved", "planned", "finished"),
    "executor": ("planned", "staged"),
    "node": ("planned", "staged"),
    "away": ("between",),
}

#: What strikes a driver, its checkpoint or a database, by victim.
STRIKES = checkpoints.STRIKES | outages.STRIKES

#: Those that are killed at any time.
CLIENTS = ("consumer", "producer", "fork")

#: Those at which what stands still, a process or a whole driver, has most to do wrong.
ZOMBIES = {"reader": "reserved", "sink": "staged"}


class Killer:
    """Goes about in a world."""

    def __init__(self, world: World, kills: int, victims: Collection[str] | None):
        self._world, self._kills, self._result = world, kills, world.result
        pack = {one: PACK[one] for one in victims} if victims else world.kind.victims
        self._victims = {one: count for one, count in pack.items() if one != "server" or world.servers}
        self._rng = random.Random(f"killer {world.result.seed}")
        self._pack: list[str] = []

    def go_about(self):
        self._world.until(lambda: self._world.last("commits") >= 2, "the first batches")
        while self._result.kills.total() < self._kills:
            self._deal()

    def _deal(self):
        if not self._pack:
            self._pack = [one for one, count in self._victims.items() for _ in range(count)]
            self._rng.shuffle(self._pack)
        victim = self._pack.pop()
        moment = "any"
        if victim not in CLIENTS:
            moments = [one for one in BUSY.get(victim, MOMENTS) if one != "between" or self._world.kind.scattered]
            (moment,) = self._rng.choices(moments, [MOMENTS[one][0] for one in moments])
        early, which, late = (self._rng.random() for _ in range(3))
        if victim in ("zombie", "standstill"):
            moment = ZOMBIES[_one_of(ZOMBIES, which)]
        world, result = self._world, self._result
        strike = world.until(lambda: self._aim(victim, which, late), f"a {victim} to kill", pause=0.1)
        within = MOMENTS[moment][1]
        delay = early * (min(world.lately(), 2.0) if within is None else within / 1000)
        self._await(moment)
        time.sleep(delay)
        flying, batch = world.in_flight, world.last("offsets")
        if not strike():
            result.missed += 1
            return
        result.kills[victim] += 1
        if victim not in CLIENTS:
            result.aims[moment] += 1
            result.in_flight += flying
        shown = f"{moment} + {delay * 1000:.0f} ms, batch {batch} {'in flight' if flying else 'finished'}"
        world.say(f"{result.kills.total()}/{self._kills} {victim}: {shown}")
        world.tend()

    def _await(self, moment):
        """Wait until the moment comes for a batch that it has not come for yet."""
        world = self._world
        seen = {
            "reserved": self._reserved,
            "planned": lambda: world.last("offsets"),
            "staged": self._staged,
            "decided": world.decided,
            "between": self._between,
            "finished": lambda: world.last("commits"),
        }.get(moment)
        if seen is not None:
            before = seen()
            world.until(lambda: seen() > before, f"a batch {moment}", pause=0.003)

    def _reserved(self):
        held = [one.tag.split("/")[2].partition(".")[0] for one in self._world.store_a.reservations("a")]
        return max((int(seq) - 1 for seq in held), default=self._world.last("commits"))

    def _staged(self):
        sink = self._world.sink
        staged = self._world.store_b.staged(sink) if sink else []
        return max((int(one.stage.split("/")[1]) for one in staged), default=self._world.decided())

    def _between(self):
        ledgers = self._world.ledgers()
        return max(ledgers) if len(set(ledgers)) > 1 else -1

    def _aim(self, victim, which, late):
        """What kills, and gives whether there was still something to kill; `None` if there is nothing just now."""
        world = self._world
        if victim == "zombie":
            return self._aim_at_zombie(_one_of(ZOMBIES, which), late)
        if victim in SPARK:
            return self._aim_at_spark(victim, which)
        if victim == "fork":
            return self._aim_at_fork(which)
        if victim in STRIKES:
            return self._aim_at_driver(victim, which, late)
        some = {"server": world.servers, "producer": world.producers, "consumer": world.consumers + world.rivals}
        some |= {"node": world.nodes, "failover": world.servers}
        one = _one_of(some[victim], which)

        def strike():
            if victim == "failover":
                one.failover()
                return True
            one.kill()
            if victim in ("server", "node"):
                time.sleep(late)
                one.start()
            return True

        return strike

    def _aim_at_fork(self, which):
        running = [one for one in self._world.producers + self._world.consumers if one.running]
        pids = [pid for one in running for pid in descendants(one.process.pid)]
        return (lambda: send(pid, signal.SIGKILL) is None) if pids and alive(pid := _one_of(pids, which)) else None

    def _aim_at_spark(self, victim, which):
        pids, driver = spark_processes(self._world, victim), self._world.driver
        if not pids:
            return None
        pid = _one_of(pids, which)

        def strike():
            if not alive(pid):
                return False
            if victim == "tree":
                send(pid, signal.SIGSTOP)
                driver.kill(kill_tree)
            else:
                driver.killed = victim == "jvm"  # its Python ends by itself then
                send(pid, signal.SIGKILL)
            return True

        return strike

    def _aim_at_driver(self, victim, which, late):
        world = self._world
        if not spark_processes(world, "jvm") or world.last("commits") < 2:  # a new checkpoint has to come on first
            return None
        if victim != "standstill" and world.has_former:  # what it writes beside the damage, Spark itself refuses
            return None

        def strike():
            if not world.driver.running:
                return False
            return STRIKES[victim](world, which, late) is not False

        return strike

    def _aim_at_zombie(self, victim, late):
        world = self._world
        pids, jvms = spark_processes(world, victim), spark_processes(world, "jvm")
        if not pids or not jvms:
            return None

        def strike():
            if not alive(jvms[0]):
                return False
            # It goes on while the next driver works on a batch of its own, or has finished it.
            log, batch = "offsets" if late < 0.7 else "commits", world.last("offsets")
            world.freeze(pids, lambda: world.last(log) > batch)
            world.driver.killed = True
            send(jvms[0], signal.SIGKILL)
            return True

        return strike


def _one_of(some, which):
    """One of them by a number from 0 up to 1."""
    return list(some)[int(which * len(some))]


def live(world: World, kills: int, victims: Collection[str] | None = None) -> Result:
    """Let a world live for a number of kills, come to rest, and be judged. `victims`: else of its kind."""
    try:
        Killer(world, kills, victims).go_about()
        world.come_to_rest()
        judge(world)
    except Unmoved as error:
        world.result.wrong.append(str(error))
    finally:
        world.close()
    count(world)
    return world.result
