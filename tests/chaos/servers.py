"""Database servers of a test's own, which can be killed and come back with what they have acknowledged."""

from __future__ import annotations

import os
import random
import socket
import subprocess

from spark_queue import open_store
from spark_queue.stores.conformance.waiting import wait_until
from tests.chaos.processes import kill
from tests.services import HOST, mongod_command, mongod_healthy, redis_command

PASSWORD = "sEcret-of-the-server"

#: The range of ports: below those that the system gives to outgoing connections. So no client that tries to reach a
#: dead server takes its port, or connects to itself.
PORTS = range(17_000, 31_000)

#: s after which MongoDB ends the transaction of a client that died in it. Its default of 60 keeps others waiting.
TRANSACTION = 3


class Server:
    """A server with a password. Raises `ServiceError` where its program is missing.

    `aof` is when Redis writes its log to the disk (`always`, `everysec`, `no`), or `none` for no log. `options` are
    added to the URL of MongoDB.
    """

    def __init__(self, kind, folder, *, aof="always", options=""):
        self.kind, self.folder = kind, folder
        self.port = free_port()
        if kind == "redis":
            self.command, self.env = redis_command(self.port, folder)
            self.url = f"redis://:{PASSWORD}@{HOST}:{self.port}/0"
            self.command += ["--requirepass", PASSWORD]
            self.command += ["--appendonly", "no"] if aof == "none" else ["--appendfsync", aof]
        else:
            self.command, self.env = mongod_command(self.port, folder, TRANSACTION)
            self.url = f"mongodb://tester:{PASSWORD}@{HOST}:{self.port}/chaos?replicaSet=rs0&authSource=admin"
            self.url += f"&{options}" if options else ""
        self.start()
        if kind == "mongodb":
            from pymongo import MongoClient

            wait_until(lambda: mongod_healthy(self.port))
            with MongoClient(f"mongodb://{HOST}:{self.port}/?directConnection=true") as client:
                client.admin.command("createUser", "tester", pwd=PASSWORD, roles=["readWriteAnyDatabase"])
        with open_store(self.url, retry_timeout=60_000) as store:
            store.now()

    def start(self):
        self.process = subprocess.Popen(
            self.command,
            env=os.environ | self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def kill(self):
        kill(self.process)


def free_port():
    while True:
        port = random.SystemRandom().choice(PORTS)
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
