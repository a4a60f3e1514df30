"""A replica set of three nodes: its primary steps down, and is killed, and everything comes out once."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections import Counter
from contextlib import closing, suppress

import pytest
from pymongo import MongoClient, WriteConcern
from pymongo.errors import AutoReconnect, BulkWriteError, ConfigurationError, OperationFailure, WriteConcernError

from spark_queue import Queue, open_store
from spark_queue.errors import StoreUnavailable
from spark_queue.stores.conformance.waiting import wait_until
from tests.redis_server import free_port
from tests.services import HOST, REPLICA_SET, ServiceError, mongod_command

pytestmark = pytest.mark.timeout(400)

#: How many messages go through.
MESSAGES = 150

#: ms that the driver waits for a primary, before the store has to: shorter than an election.
SELECTION = 300


class Node:
    def __init__(self, folder):
        folder.mkdir()
        self.port = free_port()
        command, self.env = mongod_command(self.port, folder)
        self.command = command
        self.command[command.index("--wiredTigerCacheSizeGB") + 1] = "0.25"
        self.start()

    def start(self):
        self.process = subprocess.Popen(
            self.command, env=os.environ | self.env, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT
        )

    def kill(self):
        self.process.kill()
        self.process.wait()


class Nodes:
    """Three nodes with quick elections."""

    def __init__(self, folder):
        self.nodes = [Node(folder / str(number)) for number in range(3)]
        hosts = [f"{HOST}:{one.port}" for one in self.nodes]
        self.url = f"mongodb://{','.join(hosts)}/db?replicaSet={REPLICA_SET}&serverSelectionTimeoutMS={SELECTION}"
        config = {
            "_id": REPLICA_SET,
            "members": [{"_id": number, "host": host} for number, host in enumerate(hosts)],
            "settings": {"electionTimeoutMillis": 1_000, "heartbeatIntervalMillis": 500},
        }
        try:
            for one in self.nodes:
                with MongoClient(HOST, one.port, directConnection=True) as client:
                    client.admin.command("ping")  # the driver waits until it is up
            with MongoClient(HOST, self.nodes[0].port, directConnection=True) as client:
                client.admin.command("replSetInitiate", config)
            wait_until(self.is_whole, description="three nodes")
        except BaseException:  # nothing may return into the tests
            self.close()
            raise

    def is_whole(self):
        """Whether there is a primary, and the two others follow it."""
        with MongoClient(self.url) as client:
            try:
                found = Counter(one["stateStr"] for one in client.admin.command("replSetGetStatus")["members"])
            except (AutoReconnect, OperationFailure):
                return False
            return found == {"PRIMARY": 1, "SECONDARY": 2}

    def primary(self):
        with MongoClient(self.url) as client:
            wait_until(lambda: client.primary, description="a primary")
            port = client.primary[1]
        return next(one for one in self.nodes if one.port == port)

    def others(self):
        primary = self.primary()
        return [one for one in self.nodes if one is not primary]

    def step_down(self):
        with MongoClient(HOST, self.primary().port, directConnection=True) as client:
            client.admin.command("replSetStepDown", 5, secondaryCatchUpPeriodSecs=4)

    def close(self):
        for one in self.nodes:
            one.kill()


@pytest.fixture
def nodes(tmp_path):
    try:
        found = Nodes(tmp_path)
    except ServiceError as error:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(str(error))
    with closing(found):
        yield found


@pytest.mark.parametrize(
    "turns",
    [
        pytest.param(["kill"], id="once"),
        pytest.param(["step down", "kill"] * 2, id="often", marks=pytest.mark.full),
    ],
)
def test_everything_comes_out_once_though_primaries_step_down_and_are_killed(nodes, turns):
    out, acknowledged = Counter(), []

    def produce():
        with Queue(open_store(nodes.url, retry_timeout=60_000), "q") as queue, closing(queue.store):
            for number in range(MESSAGES):
                go_on.acquire()
                queue.push(number, id=f"m{number}")
                acknowledged.append(number)

    def consume():
        with Queue(open_store(nodes.url, retry_timeout=60_000), "q", lease=None) as queue, closing(queue.store):
            while out.total() < MESSAGES and not ended.is_set():
                for message in queue.reserve(timeout=1):
                    out[message.payload] += 1
                    queue.commit(message)  # returns 0 if the answer was lost, and it was repeated

    ended, go_on = threading.Event(), threading.Semaphore(0)
    workers = [threading.Thread(target=one, daemon=True) for one in (produce, consume)]
    for one in workers:
        one.start()
    try:
        for turn in turns:
            go_on.release(MESSAGES // (2 * len(turns)))
            wait_until(lambda: out.total() > 3)
            go_on.release(MESSAGES // (3 * len(turns)))  # some are on their way when the primary goes
            if turn == "kill":
                struck = nodes.primary()
                struck.kill()
                before = len(acknowledged)
                go_on.release(2)
                wait_until(lambda: len(acknowledged) > before, description="a push to a new primary")  # noqa: B023
                struck.start()
            else:
                nodes.step_down()
            wait_until(nodes.is_whole, description="three nodes")
        go_on.release(MESSAGES)
        wait_until(lambda: out.total() >= MESSAGES, description="all messages")
    finally:
        ended.set()
        for one in workers:
            one.join(60)
    assert len(acknowledged) == MESSAGES
    assert out == Counter(range(MESSAGES))
    with open_store(nodes.url) as store:
        assert store.sizes("q").total == 0


@pytest.mark.full
def test_a_primary_that_begins_to_step_down_is_a_server_that_is_away(nodes):
    """It says that it is neither primary nor secondary, and the driver that it has no sessions."""
    primary, others = nodes.primary(), nodes.others()
    with closing(MongoClient(HOST, primary.port, directConnection=True)) as client:
        with open_store(nodes.url) as store, Queue(store, "q") as queue:
            queue.push("one")
        for one in others:
            one.process.send_signal(signal.SIGSTOP)
        try:
            client.db.get_collection("x", write_concern=WriteConcern(1)).insert_one({})  # that no other node gets

            def step_down():
                with suppress(AutoReconnect, OperationFailure):
                    client.admin.command("replSetStepDown", 20, secondaryCatchUpPeriodSecs=10)

            stepping = threading.Thread(target=step_down)
            stepping.start()

            def is_neither():
                hello = client.admin.command("hello")
                return not hello["isWritablePrimary"] and not hello["secondary"]

            wait_until(is_neither, description="the step down")
            url = f"mongodb://{HOST}:{primary.port}/db?directConnection=true"
            with (
                open_store(url, retry_timeout=0) as store,
                Queue(store, "q") as queue,
                pytest.raises(StoreUnavailable, match="Sessions are not supported"),
            ):
                queue.reserve()
        finally:
            for one in others:
                one.process.send_signal(signal.SIGCONT)
            stepping.join()
    wait_until(nodes.is_whole, description="three nodes")
    with open_store(nodes.url, retry_timeout=60_000) as store, Queue(store, "q") as queue:
        assert [one.payload for one in queue.reserve(timeout=60)] == ["one"]


@pytest.mark.parametrize("code", [11602, 11600, 91, 189, 10107, 6, 7, 89, 262, 9001])
def test_a_write_that_a_change_of_the_primary_interrupts_is_repeated(mongodb_url, code):
    """The write has begun, and waits for the majority: the driver reports an error of the write concern."""
    details = {"code": code, "errmsg": "operation was interrupted"}
    bulk = {"writeErrors": [], "writeConcernErrors": [details]}
    errors = [
        WriteConcernError("operation was interrupted", code, details),
        BulkWriteError(bulk),
        ConfigurationError("Sessions are not supported by this MongoDB deployment"),
    ]
    with open_store(mongodb_url) as store:
        calls: list[Exception] = []

        def act():
            if len(calls) < len(errors):
                calls.append(errors[len(calls)])
                raise calls[-1]
            return "done"

        assert store._attempt(act) == "done"
        assert store.retries == len(errors)
