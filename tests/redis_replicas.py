"""A Redis master and its replica, which change their roles: behind an address that moves, or watched by Sentinels.

What is acknowledged is on the replica before a role changes, for the writes of clients are paused until then. So
nothing may be lost, though Redis replicates asynchronously.
"""

from __future__ import annotations

import shutil
import subprocess
from contextlib import suppress

import redis

from spark_queue.stores.conformance.waiting import wait_until
from tests.redis_server import Server, free_port

HOST, MASTER = "127.0.0.1", "chaos"

#: ms of silence after which a Sentinel calls a server down, and for which writes are paused at most.
DOWN_AFTER, PAUSE = 2_500, 60_000

#: How often (ms) a Sentinel looks at its servers.
LOOK_EVERY = 500


def client_of(node):
    return redis.Redis.from_url(node.url, protocol=2)


def pause_writes(master, replica):
    """Let the master acknowledge nothing more, and the replica get all that it has acknowledged."""
    wait_until(lambda: is_replicated(master), description="a replica that follows")
    master.execute_command("CLIENT", "PAUSE", PAUSE, "WRITE")
    offset = master.info("replication")["master_repl_offset"]
    wait_until(lambda: replica.info("replication")["slave_repl_offset"] >= offset, description="a replica with all")


def is_replicated(master):
    facts = master.info("replication")
    return facts["role"] == "master" and facts.get("slave0", {}).get("state") == "online"


def is_replica(node):
    try:
        return node.info("replication")["role"] == "slave"
    except redis.ConnectionError:  # a Sentinel ends its connections
        return False


class Pair:
    """A master and a replica. `nodes` has the master first.

    With `min-replicas-to-write` a master without its replica refuses writes, for which clients have to wait as well.
    """

    def __init__(self, folder, *options):
        self.nodes = []
        for name in ("one", "two"):
            (folder / name).mkdir(parents=True)
            self.nodes.append(Server(folder / name, *options, "--repl-diskless-sync-delay", "0"))
        master, replica = self.nodes
        with client_of(replica) as client:
            client.replicaof(HOST, master.port)
        with client_of(master) as client:
            wait_until(lambda: is_replicated(client), description="a replica that follows")

    def require_replica(self):
        """Let a master without a replica refuse writes."""
        for one in self.nodes:
            one.options = (*one.options, "--min-replicas-to-write", "1")
            with client_of(one) as client:
                client.config_set("min-replicas-to-write", 1)

    def kill(self):
        for one in self.nodes:
            if one.process.poll() is None:
                one.kill()


class MovingPair(Pair):
    """One address, that of the master: after a failover the replica has it, as with a DNS name.

    Connections to the old master stay: it is a replica now, and answers.
    """

    def __init__(self, folder, *options):
        super().__init__(folder, *options)
        self.url = self.nodes[0].url

    def failover(self):
        old, new = self.nodes
        with client_of(old) as before, client_of(new) as after:
            pause_writes(before, after)
            after.replicaof("NO", "ONE")
            self.move_address(before, after)
            before.replicaof(HOST, new.port)
            before.execute_command("CLIENT", "UNPAUSE")
        self.nodes.reverse()

    def move_address(self, before, after):
        """Give the address to another server; connections stay as they are."""
        old, new = self.nodes
        address, spare = old.port, free_port()
        before.config_set("port", spare)
        after.config_set("port", address)
        old.port, new.port = spare, address


class SentinelPair(Pair):
    """Two Sentinels watch a master and its replica."""

    def __init__(self, folder, *options, password=""):
        super().__init__(folder, *options)
        self.sentinels = []
        try:
            for name in ("left", "right"):
                self._start_sentinel(folder / name, password)
            ports = ",".join(f"{HOST}:{port}" for port, _ in self.sentinels)
            self.url = f"redis+sentinel://{self.nodes[0].login}{ports}/{MASTER}/0"
            self._login = password
            wait_until(self._is_ready, description="two Sentinels that know each other")
            with suppress(redis.ResponseError):  # Redis 6 always looks every 10 s
                self._ask("DEBUG", "INFO-PERIOD", LOOK_EVERY)
        except BaseException:  # nothing may return into the tests
            self.kill()
            raise

    def _start_sentinel(self, folder, password):
        folder.mkdir()
        port, file = free_port(), folder / "sentinel.conf"
        master = self.nodes[0]
        lines = [
            f"port {port}", f"bind {HOST}", f"dir {folder}",
            f"sentinel monitor {MASTER} {HOST} {master.port} 2",
            f"sentinel down-after-milliseconds {MASTER} {DOWN_AFTER}",
            f"sentinel failover-timeout {MASTER} 2000",
        ]  # fmt: skip
        if master.login:
            lines.append(f"sentinel auth-pass {MASTER} {master.login[1:-1]}")
        if password:
            lines += [f"requirepass {password}", f"sentinel sentinel-pass {password}"]
        file.write_text("\n".join(lines) + "\n")
        command = [shutil.which("redis-server"), str(file), "--sentinel"]
        self.sentinels.append((port, subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)))

    def _ask(self, *words):
        """The answers of both Sentinels, decoded: the master of each by default."""
        found = []
        for port, _ in self.sentinels:
            with redis.Redis(HOST, port, password=self._login or None, protocol=2, decode_responses=True) as one:
                found.append(one.execute_command("SENTINEL", *words))
        return found

    def _is_ready(self):
        """Whether both Sentinels know each other, and a master with a replica that could take its place."""
        try:
            masters = self._ask("MASTER", MASTER)
            replicas = self._ask("REPLICAS", MASTER)
        except redis.RedisError:
            return False
        masters = [dict(zip(one[::2], one[1::2], strict=True)) for one in masters]
        known = [dict(zip(one[::2], one[1::2], strict=True)) for each in replicas for one in each]
        return (
            all(one["port"] == str(self.nodes[0].port) for one in masters)
            and all(one["flags"] == "master" and one["num-other-sentinels"] == "1" for one in masters)
            and len(known) == len(self.sentinels)
            and all(one["flags"] == "slave" and one["master-link-status"] == "ok" for one in known)
        )

    def failover(self, *, kill=True):
        """Kill the master, or let a Sentinel demote it. Return when the other one serves, and the old one follows."""
        old, new = self.nodes
        wait_until(self._is_ready, description="a replica that may be promoted")
        with client_of(old) as before, client_of(new) as after:
            pause_writes(before, after)
            if kill:
                old.kill()
            else:
                wait_until(self._demotes, description="a Sentinel that finds the replica good")
            self.nodes.reverse()
            named = [HOST, str(new.port)]
            wait_until(
                lambda: self._ask("GET-MASTER-ADDR-BY-NAME", MASTER) == [named] * 2, description="a new master"
            )
            if kill:
                old.options = (*_without_replicaof(old.options), "--replicaof", f"{HOST} {new.port}")
                old.start()
            else:  # before it is a replica, it would acknowledge what is lost; the pause stops the Sentinel's EXEC
                before.replicaof(HOST, new.port)
                wait_until(lambda: is_replica(before), description="the old master as a replica")
                before.execute_command("CLIENT", "UNPAUSE")
            wait_until(lambda: is_replicated(after), description="the old master as a replica")

    def _demotes(self):
        """Whether a Sentinel begins a failover: not if its last look at the replica is too old."""
        port, _ = self.sentinels[0]
        with redis.Redis(HOST, port, password=self._login or None, protocol=2) as one:
            try:
                return one.execute_command("SENTINEL", "FAILOVER", MASTER)
            except redis.ResponseError as error:
                assert "NOGOODSLAVE" in str(error)
                return False

    def kill(self):
        super().kill()
        for _, process in self.sentinels:
            process.kill()
            process.wait()


def _without_replicaof(options):
    words = list(options)
    while "--replicaof" in words:
        place = words.index("--replicaof")
        del words[place : place + 2]
    return words
