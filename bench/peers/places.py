"""Databases of peers: one for each run, on shared servers."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit, urlunsplit


class PeerError(Exception):
    """A peer is not installed, did not start, or did not run each job exactly once."""


class Place(ABC):
    """A database that no other program uses. The `with` block removes the data of the run."""

    url: str

    def __init__(self) -> None:
        self.queue = f"peers{uuid.uuid4().hex[:12]}"

    @abstractmethod
    def left(self) -> int:
        """Return the number of keys or documents of jobs: 0 when all jobs are done."""

    @abstractmethod
    def cpu(self) -> float:
        """Return the CPU seconds of the server since its start, as it reports them."""

    @abstractmethod
    def remove(self) -> None:
        """Remove the data of the run."""

    def __enter__(self) -> Place:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


class RedisPlace(Place):
    """A numbered database that has no keys with the patterns of the run.

    `keys` are patterns of all keys that the run creates, `jobs` of those that exist only while jobs
    do. Some peers have fixed names of keys, so a claim reserves the database for the run. If the
    run is killed, the claim expires after an hour.
    """

    CLAIM, CLAIM_S = "spark_queue:bench:peers", 3600

    def __init__(self, url: str, keys: tuple[str, ...], jobs: tuple[str, ...]) -> None:
        super().__init__()
        self.keys, self.jobs = ([one.format(queue=self.queue) for one in patterns] for patterns in (keys, jobs))
        self.url, self.client = self._claim(url)

    def _claim(self, url: str) -> tuple[str, Any]:
        from redis import ConnectionError, Redis, ResponseError

        for number in range(15, 0, -1):
            address = urlunsplit(urlsplit(url)._replace(path=f"/{number}"))
            client: Any = Redis.from_url(address)
            try:
                if client.set(self.CLAIM, "", nx=True, ex=self.CLAIM_S):
                    if not any(self._found(client, self.keys)):
                        return address, client
                    client.delete(self.CLAIM)
            except ResponseError:  # the server has fewer databases
                pass
            except ConnectionError as exc:
                raise PeerError(f"redis: {exc}") from exc
            client.close()
        raise PeerError("redis: no database from 1 to 15 is free")

    def _found(self, client: Any, patterns: Iterable[str]) -> Iterator[bytes]:
        for pattern in patterns:
            yield from client.scan_iter(pattern, count=1_000)

    def left(self) -> int:
        return sum(1 for _ in self._found(self.client, self.jobs))

    def cpu(self) -> float:
        from meter import redis_cpu

        return redis_cpu(self.client)

    def remove(self) -> None:
        made = list(self._found(self.client, self.keys))
        for first in range(0, len(made), 1_000):
            self.client.unlink(*made[first : first + 1_000])
        self.client.delete(self.CLAIM)
        self.client.close()


class MongoPlace(Place):
    """A database with a random name. A peer may create others with this prefix."""

    def __init__(self, url: str) -> None:
        from pymongo import MongoClient
        from pymongo.errors import PyMongoError

        super().__init__()
        self.url = urlunsplit(urlsplit(url)._replace(path=f"/{self.queue}"))
        self.client: Any = MongoClient(self.url, serverSelectionTimeoutMS=10_000)
        try:
            self.cpu()
        except PyMongoError as exc:
            raise PeerError(f"mongodb: {exc}") from exc

    def left(self) -> int:
        database = self.client[self.queue]
        return sum(database[one].count_documents({}) for one in database.list_collection_names())

    def cpu(self) -> float:
        from meter import mongodb_cpu

        return mongodb_cpu(self.client)

    def remove(self) -> None:
        for one in self.client.list_database_names():
            if one.startswith(self.queue):
                self.client.drop_database(one)
        self.client.close()
