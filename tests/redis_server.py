"""A Redis server of a test's own, that it may set up, fill and kill."""

from __future__ import annotations

import itertools
import os
import secrets
import signal
import socket
import subprocess

import redis

from spark_queue.stores.conformance.waiting import wait_until


def free_port() -> int:
    """Return a port that is free, as is the one 10,000 above it, which a node of a cluster takes too.

    Both are below the ports that the system gives to outgoing connections: one of these could take it meanwhile.
    """
    while True:
        port = 12_000 + secrets.randbelow(10_000)
        try:
            for one in (port, port + 10_000):
                with socket.socket() as free:
                    free.bind(("127.0.0.1", one))
        except OSError:
            continue
        return port


class Server:
    """A Redis of the test's own, with a journal that loses nothing."""

    def __init__(self, folder, *options):
        self.options = options
        words = dict(itertools.pairwise(options))
        self.login = f":{words['--requirepass']}@" if "--requirepass" in words else ""
        self.port = free_port()
        self.folder = folder
        self.start()

    @property
    def url(self):
        return f"redis://{self.login}127.0.0.1:{self.port}/0"

    def start(self):
        words = (
            f"redis-server --port {self.port} --bind 127.0.0.1 --appendonly yes --appendfsync always --save".split()
        )
        self.process = subprocess.Popen(
            [*words, "", "--dir", str(self.folder), *self.options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
        )
        with redis.Redis.from_url(self.url, protocol=2) as client:
            wait_until(lambda: self._answers(client), description="a server that answers")

    def _answers(self, client):
        assert self.process.poll() is None, "the server does not start"
        try:
            return client.ping()
        except redis.ConnectionError:
            return False

    def kill(self):
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()
