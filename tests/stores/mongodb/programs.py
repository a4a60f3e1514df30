"""Helpers of several tests of MongoDB: servers, keuss as another program, publishers that stop at a step."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import uuid
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from bson import ObjectId
from pymongo import MongoClient
from pymongo.client_session import ClientSession
from pymongo.collection import Collection
from pymongo.errors import BulkWriteError, PyMongoError

from spark_queue.messages.ids import new_ids
from spark_queue.messages.message import pushes
from spark_queue.stores.conformance.helpers import messages_of
from spark_queue.stores.conformance.waiting import MINUTE_MS, wait_until
from tests.services import HOST, mongod_command

DUE = datetime(2020, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)


def without_place(document: dict[str, Any]) -> dict[str, Any]:
    """Return a document without its place, which one may have or not: see `places.py`."""
    place = document.pop("_seq", None)
    assert place is None or isinstance(place, ObjectId)
    return document


def client_of(url, **options) -> MongoClient[dict[str, Any]]:
    return MongoClient(url, **options)


class Mongod:
    """A server of the test's own; `arguments` may make it another than the plain standalone one."""

    def __init__(self, folder, *arguments):
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            self.port = probe.getsockname()[1]
        (folder / "data").mkdir()
        self.log = folder / "mongod.log"
        command, self.env = mongod_command(self.port, folder / "data")
        at = command.index("--replSet")
        del command[at : at + 2]
        at = command.index("--oplogSize")
        del command[at : at + 2]
        self.command = [*command, *arguments]
        self.start()

    def url(self, database, user=""):
        return f"mongodb://{user}{HOST}:{self.port}/{database}"

    def start(self):
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, env=os.environ | self.env, stdout=log, stderr=log)
        with client_of(self.url("admin"), serverSelectionTimeoutMS=500, directConnection=True) as client:
            wait_until(lambda: self._answers(client), 120, description="a server that answers")

    def _answers(self, client):
        assert self.process.poll() is None, self.log.read_text()[-2000:]
        try:
            return client.admin.command("ping")
        except PyMongoError:
            return False

    def kill(self):
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()


def keuss_push(collection, payload, **fields):
    collection.create_index("mature")  # keuss does so when it opens a queue
    document = {"_id": ObjectId(), "mature": keuss_now(), "payload": payload, "tries": 0, "hdrs": {}} | fields
    collection.insert_one(document)
    return document["_id"]


def keuss_reserve(collection, seconds=120):
    """What keuss does for `pop` with `reserve`; it sees the document as it was."""
    now = keuss_now()
    change = {"$set": {"mature": now + timedelta(seconds=seconds), "reserved": now}, "$inc": {"tries": 1}}
    return collection.find_one_and_update({"mature": {"$lte": now}}, change, sort=[("mature", 1)])


def keuss_ko(collection, id):
    reserved = {"_id": id, "reserved": {"$exists": True}}
    return collection.update_one(
        reserved, {"$set": {"mature": keuss_now()}, "$unset": {"reserved": ""}}
    ).modified_count


def keuss_ok(collection, id):
    return collection.delete_one({"_id": id, "reserved": {"$exists": True}}).deleted_count


def keuss_now():
    now = datetime.now(UTC)
    return now.replace(microsecond=now.microsecond // 1000 * 1000)


def left_of(raw, stage):
    """What lies in our own collection for a stage and those below it."""
    found = [one["_id"] for one in raw["spark_queue.staged"].find({}, {"_id": 1})]
    names = [one if isinstance(one, str) else one["stage"] for one in found]
    return [one for one in names if one == stage or one.startswith(f"{stage}/")]


def drain(store, queue, tag):
    """Takes whatever is ready, for good, and gives the payloads."""
    store.reserve(queue, tag, 1_000)
    got = [one.payload for one in messages_of(store.fetch(queue, f"{tag}/0"))]
    assert store.commit(queue, tag) == len(got)
    return got


CHANGES = ("update_one", "update_many", "delete_one", "delete_many")


class Steps:
    """Watches what a thread asks the server, and may end or pause it before the n-th request."""

    def __init__(self, monkeypatch):
        self.local = threading.local()
        watched: dict[type, list[str]] = {
            Collection: ["find", "find_one_and_update", "insert_many", "bulk_write", *CHANGES],
            ClientSession: ["commit_transaction"],
        }
        for owner, names in watched.items():
            for name in names:
                monkeypatch.setattr(owner, name, self.watched(getattr(owner, name)))

    def watched(self, method):
        def call(this, *arguments, **options):
            if hook := getattr(self.local, "hook", None):
                hook(lambda: self.half(method, this, *arguments, **options))
            return method(this, *arguments, **options)

        return call

    @staticmethod
    def half(method, this, first=None, *rest, **options):
        """As a server does that dies at it."""
        if method.__name__ == "insert_many":
            some = list(first)
            with suppress(BulkWriteError):
                method(this, some[: len(some) // 2], *rest, **options)
        elif method.__name__.endswith("_many") and "$in" in first.get("_id", {}):
            some = first["_id"]["$in"]
            method(this, {**first, "_id": {"$in": some[: len(some) // 2]}}, *rest, **options)

    def dies(self, step, partly, work):
        """Whether the thread came to that step; from there on it does nothing any more."""
        left = [step]

        def hook(do_half):
            left[0] -= 1
            if left[0] == -1 and partly:
                self.local.hook = None
                do_half()
                self.local.hook = hook
            if left[0] < 0:
                raise KeyboardInterrupt

        self.local.hook = hook
        try:
            work()
        except KeyboardInterrupt:
            return True
        finally:
            self.local.hook = None
        return False

    def pauses(self, step, work, dies=None):
        """Return a thread that waits before a step, or has ended. It dies `dies` steps later."""
        return Paused(self.local, step, work, dies)


class Paused:
    def __init__(self, local, step, work, dies):
        self.left, self.dies, self.came, self.errors = step, dies, False, []
        self.there, self.on = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self.run, args=(local, work))
        self.thread.start()
        assert self.there.wait(60)

    def run(self, local, work):
        local.hook = self.hook
        try:
            with suppress(KeyboardInterrupt):
                work()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.errors.append(error)
        local.hook = None
        self.there.set()

    def hook(self, do_half):
        self.left -= 1
        if self.left == -1:
            self.came = True
            self.there.set()
            assert self.on.wait(60)
        if self.dies is not None and self.left <= -1 - self.dies:
            if self.left == -1 - self.dies:
                do_half()
            raise KeyboardInterrupt

    def go_on(self):
        """To its end."""
        self.on.set()
        self.thread.join()
        assert self.errors == []


class Publishing:
    """A difficult stage: an id that the queue holds, one of its history, and several chunks."""

    def __init__(self, store, name, raw, rows=10):
        self.store, self.raw = store, raw
        self.stage, self.queue = f"{name}/{uuid.uuid4().hex}", f"{name}.{uuid.uuid4().hex}"
        ids = new_ids(rows)
        store.push(self.queue, pushes(["held", "done"], ids=ids[1:3]))
        store.reserve(self.queue, "a/1", 1, lease=None)
        store.reserve(self.queue, "a/2", 1)
        assert store.commit(self.queue, "a/2", history=MINUTE_MS) == 1
        store.stage(self.queue, self.stage, pushes(list(range(rows)), ids=ids))
        self.expected = [one for one in range(rows) if one != 1]
        self.taken: list[int] = []

    def publish(self):
        self.store.publish([self.stage])

    def consume(self):
        self.taken += drain(self.store, self.queue, f"c/{uuid.uuid4().hex}")

    def check(self):
        """All came, each once, and nothing is left."""
        self.store.publish([self.stage])
        self.consume()
        assert sorted(self.taken) == self.expected
        assert [one["payload"] for one in self.raw[self.queue].find()] == ["held"]
        assert left_of(self.raw, self.stage) == []
        self.store.drop(self.queue)
