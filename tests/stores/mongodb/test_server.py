"""Names, addresses and servers of MongoDB: those that refuse, are away, or die."""

from __future__ import annotations

import itertools
import re
import socket
import threading
import uuid
from contextlib import suppress

import pytest

from spark_queue.errors import OptionError, StoreError, StoreUnavailable
from spark_queue.messages.message import pushes
from spark_queue.stores import open_store
from spark_queue.stores.conformance.helpers import ids_of, messages_of
from spark_queue.stores.conformance.limits import with_limits
from spark_queue.stores.conformance.waiting import wait_until
from spark_queue.stores.mongodb.store import MongoStore
from spark_queue.stores.types import Note, Sizes
from tests.services import HOST
from tests.stores.mongodb.programs import Mongod, client_of

# --- names and addresses --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a$b", "system.users", ".a", "a.", "a..b"])
def test_a_name_that_mongodb_forbids_is_refused(store, name):
    for attempt in (lambda: store.push(name, pushes(["a"])), lambda: store.sizes(name), lambda: store.drop(name)):
        with pytest.raises(OptionError, match="cannot name a queue"):
            attempt()


@pytest.mark.parametrize("name", ["a b", "ü", "a.b", "a-b_c", "x" * 200])
def test_other_names_are_taken(store, name):
    name = f"{name[:180]}{uuid.uuid4().hex[:20]}"
    assert store.push(name, pushes(["a"])) == 1
    assert name in store.queues()
    store.drop(name)


def test_views_and_collections_of_the_system_are_no_queues(store, queue, collection):
    store.push(queue, pushes(["a"]))
    view = f"v{queue}"
    collection.database.command("create", view, viewOn=queue, pipeline=[])
    assert not [one for one in store.queues() if one == view or one.startswith("system.")]
    collection.database.drop_collection(view)


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("mongodb://h", "no database"),
        ("mongodb://h/", "no database"),
        ("mongodb://user:sesame@h/?authSource=admin", "no database"),
        ("mongodb+srv://user:sesame@cluster.example.org", "no database"),
        ("mongodb://user:ses/ame@h/db", "no MongoDB URL.*%2F"),
        ("mongodb://user:ses@ame@h/db", "no MongoDB URL.*%40"),
        ("mongodb://user:sesame@h:port/db", "no MongoDB URL"),
        ("mongodb://h/d b", "no MongoDB URL"),
        ("mongodb://h/db?replicaset=a&retrywrite=true", "retrywrite.*[rR]etry[wW]rites"),
    ],
)
def test_an_invalid_url_is_refused_without_its_password(url, hint):
    with pytest.raises(OptionError, match=hint) as caught:
        open_store(url)
    assert not re.search("ses|ame@", str(caught.value))
    assert "url" in str(caught.value)


def test_a_url_with_all_its_options_is_taken():
    for url in (
        "mongodb://u:p%40ss@a:1,b:2/db?replicaSet=r&authSource=admin&w=1&tls=true",
        "mongodb+srv://u:p@cluster.example.org/db?srvMaxHosts=3&retryWrites=true&srvServiceName=x",
    ):
        assert MongoStore.resolve(url) == url


def test_the_url_has_the_last_word_on_durability_and_patience(mongodb_url):
    mark = "&" if "?" in mongodb_url else "?"
    with (
        MongoStore(mongodb_url) as plain,
        MongoStore(f"{mongodb_url}{mark}w=1&serverSelectionTimeoutMS=700") as given,
    ):
        assert plain._database().client.write_concern.document == {"w": "majority", "j": True}
        assert given._database().client.write_concern.document == {"w": 1, "j": True}
        assert given._database().client.options.server_selection_timeout == 0.7


# --- a server that refuses, is away, or dies ------------------------------------------------------


def test_an_unknown_host_is_reported():
    url = "mongodb://user:sesame@no-such-host.invalid/db?serverSelectionTimeoutMS=300"
    with (
        open_store(url, retry_timeout=500) as store,
        pytest.raises(StoreUnavailable, match=r"no-such-host\.inv") as caught,
    ):
        store.push("q", pushes(["a"]))
    assert "sesame" not in str(caught.value)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A server that asks for passwords; made there: admin, and `reader` who may only read."""
    server = Mongod(tmp_path_factory.mktemp("guarded"), "--auth")
    with client_of(server.url("admin")) as client:
        client.admin.command("createUser", "boss", pwd="open:sesame", roles=["root"])
    with client_of(server.url("admin", "boss:open%3Asesame@")) as client:
        client.admin.command("createUser", "reader", pwd="look", roles=["readAnyDatabase"])
    yield server
    server.kill()


@pytest.mark.parametrize("user", ["boss:wrong-one@", "nobody:wrong-one@"])
def test_a_wrong_password_is_reported_at_once(guarded, user):
    url = guarded.url("db", user) + "?authSource=admin"
    with (
        open_store(url, retry_timeout=60_000) as store,
        pytest.raises(StoreError, match="check user, password") as caught,
    ):
        store.sizes("q")
    assert not isinstance(caught.value, StoreUnavailable)
    assert store.retries == 0
    assert "wrong-one" not in str(caught.value)
    assert ":***@" in str(caught.value)


def test_a_password_is_needed(guarded):
    with open_store(guarded.url("db")) as store, pytest.raises(StoreError, match="needs the role readWrite"):
        store.push("q", pushes(["a"]))


def test_a_reader_may_look(guarded):
    with open_store(guarded.url("db", "boss:open%3Asesame@") + "?authSource=admin") as store:
        store.push("q", pushes(["a", "b"]))
        store.reserve("q", "c/1", 1)
    with open_store(guarded.url("db", "reader:look@") + "?authSource=admin") as store:
        assert store.queues() == ["q"]
        assert store.sizes("q") == Sizes(1, 0, 1, store.sizes("q").oldest_ready_age)
        assert len(messages_of(store.peek("q"))) == len(messages_of(store.peek("q", limit=5))) == 2
        with pytest.raises(StoreError, match="needs the role readWrite"):
            store.reserve("q", "d/1", 1)


def test_a_killed_server_loses_nothing_that_it_acknowledged(tmp_path):
    server = Mongod(tmp_path)
    acknowledged: list[str] = []
    held: dict[str, list[int]] = {}
    done = threading.Event()

    def produce():
        with open_store(server.url("db"), retry_timeout=60_000) as store:
            while not done.is_set():
                batch = pushes(list(range(50)))
                store.push("q", batch)
                acknowledged.extend(batch.column("id").to_pylist())

    def consume():
        with open_store(server.url("db"), retry_timeout=60_000) as store:
            for sequence in range(1_000_000):
                if done.is_set():
                    break
                if rows := store.reserve("q", f"c/{sequence}", 20, lease=None):
                    held[f"c/{sequence}"] = rows

    workers = [threading.Thread(target=work) for work in (produce, consume)]
    for one in workers:
        one.start()
    try:
        for _ in range(2):
            before = len(acknowledged), len(held)
            wait_until(lambda: len(acknowledged) > before[0] + 500 and len(held) > before[1] + 5)  # noqa: B023
            server.kill()
            server.start()
        after = len(acknowledged)
        wait_until(lambda: len(acknowledged) > after)
    finally:
        done.set()
        for one in workers:
            one.join()
    try:
        with open_store(server.url("db")) as store:
            ids = ids_of(store.peek("q"))
            assert len(ids) == len(set(ids))
            assert set(ids) >= set(acknowledged)
            for tag, rows in held.items():
                assert len(ids_of(store.fetch("q", f"{tag}/0"))) == rows[0] <= 20
    finally:
        server.kill()


@pytest.mark.full
@with_limits(stage_chunk=40)
@pytest.mark.parametrize("arguments", [(), ("--replSet", "own")], ids=["standalone", "transactions"])
def test_what_is_published_while_the_server_is_killed_comes_once(tmp_path, arguments):
    server = Mongod(tmp_path, *arguments)
    if arguments:
        with client_of(server.url("admin"), directConnection=True) as client:
            members = [{"_id": 0, "host": f"{HOST}:{server.port}"}]
            client.admin.command("replSetInitiate", {"_id": "own", "members": members})
    published: list[str] = []
    taken: list[str] = []
    done = threading.Event()

    def produce():
        with open_store(server.url("db"), retry_timeout=60_000) as store:
            for turn in itertools.count():
                if done.is_set():
                    break
                batch = pushes(list(range(100)))
                stage = f"s/{uuid.uuid4().hex}"
                assert store.stage("q", stage, batch) == 100
                assert store.set_note("turns", {"n": turn}, turn)
                assert store.note("turns") == Note({"n": turn}, turn + 1)
                store.publish([stage])
                assert store.staged(stage) == []
                published.extend(batch.column("id").to_pylist())

    def consume():
        with open_store(server.url("db"), retry_timeout=60_000) as store:
            while not done.is_set():
                tag = f"c/{uuid.uuid4().hex}"
                if store.reserve("q", tag, 70, lease=None):
                    taken.extend(ids_of(store.fetch("q", f"{tag}/0")))
                    store.commit("q", tag)

    workers = [threading.Thread(target=work) for work in (produce, consume)]
    for one in workers:
        one.start()
    try:
        for _ in range(4):
            before = len(published), len(taken)
            wait_until(lambda: len(published) > before[0] + 300 and len(taken) > before[1] + 300)  # noqa: B023
            server.kill()
            server.start()
        after = len(published)
        wait_until(lambda: len(published) > after)
    finally:
        done.set()
        for one in workers:
            one.join()
    try:
        with open_store(server.url("db"), retry_timeout=60_000) as store:
            everything = taken + ids_of(store.peek("q"))
            assert len(everything) == len(set(everything))
            assert set(everything) == set(published)
            assert store.staged() == []
    finally:
        server.kill()


class Cutter:
    """A way to a server that can be cut right after a large request went through."""

    def __init__(self, port):
        self.server_port, self.armed = port, False
        self.listener = socket.create_server((HOST, 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                server = socket.create_connection((HOST, self.server_port))
                for way in ((client, server, True), (server, client, False)):
                    threading.Thread(target=self.forward, args=way, daemon=True).start()

    def forward(self, source, target, is_request):
        with suppress(OSError), source, target, source.makefile("rb") as sent:
            while head := sent.read(4):
                length = int.from_bytes(head, "little")
                target.sendall(head + sent.read(length - 4))
                if self.armed and is_request and length > 100_000:
                    self.armed = False
                    for one in (source, target):
                        one.shutdown(socket.SHUT_RDWR)


@with_limits(command_chunk=40_000)  # one long command
def test_a_claim_whose_connection_broke_is_not_still_at_work_when_it_is_answered(standalone):
    queue, way = f"t{uuid.uuid4().hex[:16]}", Cutter(standalone.port)
    with open_store(standalone.url("db")) as store:
        store.push(queue, pushes(list(range(40_000))))
        with open_store(f"mongodb://{HOST}:{way.port}/db?directConnection=true") as cut:
            way.armed = True
            (rows,) = cut.reserve(queue, "c/1", 40_000)
        assert not way.armed
        held = [len(ids_of(store.fetch(queue, "c/1/0"))) for _ in range(3)]
        assert {*held} == {rows}
        store.drop(queue)
    way.listener.close()
