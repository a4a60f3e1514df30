"""Keys, addresses and servers of Redis."""

from __future__ import annotations

import threading
import uuid
from urllib.parse import urlsplit

import pytest
import redis
from redis.crc import key_slot

from spark_queue.errors import AccessDenied, OptionError, StoreError, StoreUnavailable
from spark_queue.messages.message import messages, pushes
from spark_queue.options.masking import mask
from spark_queue.stores import open_store
from spark_queue.stores.conformance.waiting import end_lease, wait_until
from spark_queue.stores.redis.keys import Chunk, note_key, queue_keys
from spark_queue.stores.redis.store import RedisStore
from spark_queue.stores.support.patience import retrying_for
from spark_queue.stores.types import Condition, DeadLetterInfo, Note
from tests.stores.redis.programs import MINUTE, fetched

# --- keys -----------------------------------------------------------------------------------------


def test_scripts_touch_only_the_keys_they_declare(store, raw, queue, sink):
    other, undeclared, touched = f"{queue}.other", set(), set()
    with raw.monitor() as monitor:
        store.push(queue, pushes([1, 2, 3, 4], headers={"h": "v"}))
        store.reserve(queue, "c/1", 3, lease=MINUTE)
        end_lease(store, queue, "c/1")
        ids = [one.id for one in (store.reserve(queue, "d/1", 3) and fetched(store, queue, "d/1/0"))]
        store.renew(queue, "d/1", MINUTE)
        store.transfer(queue, "d/1", "d/2/0", ids[:1], lease=MINUTE)
        store.transfer(queue, "d/2", "d/1/0", lease=MINUTE)
        for number in range(2):
            store.stage(queue, f"{sink}/{number}/a", pushes([number]))
        store.publish([f"{sink}/0/a"])
        store.unstage(sink)
        store.set_note(queue, {}, 0)
        store.set_note(queue, None, 1)
        store.reservations(queue)
        store.commit(queue, "d/1", ids[:1], history=MINUTE)
        store.rollback(queue, "d/1", ids[1:2])
        store.move(queue, other, tag="d/1", dead_letter=DeadLetterInfo("why"))
        store.sizes(queue)
        list(store.peek(queue, limit=3))
        list(store.peek(queue, view="history"))
        store.move(queue, other, limit=1)
        store.purge(queue)
        store.drop(queue)
        store.queues()
        raw.echo(f"end of {queue}")
        declared = []
        for event in monitor.listen():
            command = event["command"]
            if command == f"ECHO end of {queue}":
                break
            words = command.split(" ")
            if words[0] == "EVALSHA" and queue in command:
                declared = words[3 : 3 + int(words[2])]
            elif event["client_type"] == "lua" and queue in command:
                touched.add(words[1])
                undeclared |= {words[1]} - set(declared)
    assert not undeclared
    chunks = {key for key in touched if key.startswith(f"spark_queue:{queue}:staged:{sink}/")}
    assert len(chunks) == 2
    assert touched - chunks == {*queue_keys(queue), *queue_keys(other)[:2], note_key(queue)}


def test_a_hash_tag_keeps_the_keys_of_queues_in_one_slot():
    chunk = Chunk("sink/7/a", "part.000000", "{flights}")
    keys = [*queue_keys("{flights}"), *queue_keys("{flights}.dead"), *queue_keys("late.{flights}"), chunk.key]
    assert len(set(keys)) == 22
    assert len({key_slot(key.encode()) for key in keys}) == 1


def test_an_emptied_queue_leaves_no_key(store, raw, queue):
    store.push(queue, pushes(list(range(10))))
    for seq in range(2):
        store.reserve(queue, f"c/{seq}", 5)
        store.rollback(queue, f"c/{seq}", failed=False)
    store.reserve(queue, "c/9", 10, partitions=4)
    store.commit(queue, "c/9")
    assert not raw.exists(*queue_keys(queue))


def test_the_history_is_forgotten_by_the_server_itself(store, raw, queue):
    store.push(queue, pushes(["a", "b"]))
    store.reserve(queue, "c/1", 2)
    first, second = (one.id for one in fetched(store, queue, "c/1/0"))
    store.commit(queue, "c/1", [first], history=2 * MINUTE)
    store.commit(queue, "c/1", [second], history=MINUTE)
    for key in queue_keys(queue)[4:6]:
        assert MINUTE < raw.pttl(key) <= 2 * MINUTE


def test_a_history_of_an_earlier_version_is_read(store, raw, queue):
    store.push(queue, pushes(["a", "b"], ids=["a", "b"]))
    store.reserve(queue, "c/1", 2)
    store.commit(queue, "c/1", history=MINUTE)
    key = queue_keys(queue)[4]
    new = raw.hget(key, "a")
    old = new.replace(b',"consumer":"c","outcome":"commit"', b"")
    assert len(old) < len(new)
    raw.hset(key, "a", old)
    (batch,) = store.peek(queue, view="history", limit=5)
    reported = zip(*(batch.column(name).to_pylist() for name in ("id", "consumer", "outcome")), strict=True)
    assert list(reported) == [("a", None, "commit"), ("b", "c", "commit")]
    assert [one.payload for one in messages(batch)] == ["a", "b"]


def test_a_peek_finds_few_among_many_without_reading_them_all(store, queue, monkeypatch):
    store.push(queue, pushes(list(range(3000)), ids=[f"m{i:05}" for i in range(3000)]))
    store.reserve(queue, "c/1", 1000)
    read, hmget = [], redis.Redis.hmget
    monkeypatch.setattr(redis.Redis, "hmget", lambda *asked: read.append(asked) or hmget(*asked))
    (batch,) = store.peek(queue, limit=2)
    assert batch.column("id").to_pylist() == ["m00000", "m00001"]
    (batch,) = store.peek(
        queue, [Condition("id", "in", ("m02000", "m00500", "stranger")), Condition("tries", "=", 0)]
    )
    assert sorted(batch.column("id").to_pylist()) == ["m00500", "m02000"]
    assert 2 <= sum(len(ids) for _, _, ids in read) <= 20
    assert list(store.peek(queue, view="history", limit=5)) == []


# --- addresses and servers ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("redis://", "no server"),
        ("redis:///0", "no server"),
        ("redis://h:port/0", "malformed"),
        ("redis://h:99999/0", "malformed"),
        ("redis://:sesame@h/flights", "'flights' is not a number"),
        ("redis://h/0/1", "not a number"),
        ("redis://h/0#x", "fragment"),
        ("redis://h/0?socket_timeout=1", "'socket_timeout'"),
        ("rediss://h/0?ssl_ca_cert=x", "did you mean 'ssl_ca_certs'"),
        ("redis://user:ses/ame@h/0", "%2F"),
        ("redis://user:7#sesame@h/0", "%23"),
    ],
)
def test_an_invalid_url_is_refused(url, what):
    with pytest.raises(OptionError, match=what) as caught:
        open_store(url)
    assert "ame@" not in str(caught.value)
    assert caught.value.facts["option"] == "url"


@pytest.mark.parametrize("url", ["redis://h", "redis://h/", "rediss://u:p%2F@[::1]:7000/15?ssl_ca_certs=/ca.pem"])
def test_a_sound_url_stays_as_it_is(url):
    with open_store(url) as store:
        assert store.url == url


def address(redis_url, user, password):
    parts = urlsplit(redis_url)
    return parts._replace(netloc=f"{user}:{password}@{parts.hostname}:{parts.port}").geturl()


@pytest.fixture
def user(raw, queue):
    """A user who may read one queue and write none."""
    name = f"u{uuid.uuid4().hex[:12]}"
    raw.acl_setuser(name, enabled=True, passwords=["+sesame"], keys=[f"*{queue}*"], categories=["+@read", "+@fast"])
    yield name
    raw.acl_deluser(name)


@pytest.mark.parametrize(
    ("password", "error", "remedy"),
    [("mistaken", StoreError, "the password of the URL"), ("sesame", AccessDenied, "ACL")],
)
def test_missing_rights_are_reported_at_once_without_the_password(redis_url, queue, user, password, error, remedy):
    with open_store(address(redis_url, user, password)) as store, pytest.raises(error, match=remedy) as caught:
        store.push(queue, pushes(["a"]))
    assert type(caught.value) is error
    assert store.retries == 0
    assert password not in str(caught.value)
    assert mask(store.url) in str(caught.value)


@pytest.fixture
def server(new_server):
    return new_server()


@pytest.fixture
def cluster(new_server):
    """Two servers that share the slots."""
    nodes = [new_server("--cluster-enabled", "yes") for _ in range(2)]
    clients = [redis.Redis.from_url(node.url) for node in nodes]
    for epoch, (client, slots) in enumerate(zip(clients, (range(8192), range(8192, 16384)), strict=True), 1):
        client.execute_command("CLUSTER ADDSLOTS", *slots)
        client.execute_command("CLUSTER SET-CONFIG-EPOCH", epoch)
    clients[0].execute_command("CLUSTER MEET", "127.0.0.1", nodes[1].port)
    wait_until(
        lambda: {client.cluster("info")["cluster_state"] for client in clients} == {"ok"}, description="a cluster"
    )
    for client in clients:
        client.close()
    return nodes


def test_a_queue_on_one_node_of_a_cluster_has_all_it_needs(cluster):
    for queue in ("{a}", "{b}"):
        node = cluster[key_slot(queue[1:2].encode()) // 8192]
        with open_store(node.url) as store:
            for n in range(5):  # they are spread over the nodes
                assert store.set_note(f"n{n}", {"n": n}, 0)
                assert store.stage(queue, f"s{n}/0/a", pushes([n, n])) == 2
                assert store.stage(queue, f"s{n}/1/a", pushes([n, n])) == 2
            assert list(store.notes("n")) == [f"n{n}" for n in range(5)]
            assert sum(one.rows for one in store.staged()) == 20
            assert store.publish([f"s{n}/0/a" for n in range(5)]) == 10
            assert [store.unstage(f"s{n}") for n in range(5)] == [2] * 5
            assert store.staged() == []
            assert store.reserve(queue, "c/1", 20) == [10]
            assert store.transfer(queue, "c/1", "c/2/0", lease=MINUTE) == 10
            assert store.commit(queue, "c") == 10
            for n in range(5):
                assert store.note(f"n{n}") == Note({"n": n}, 1)
                assert store.set_note(f"n{n}", None, 1)


def test_operations_survive_a_server_that_is_killed_and_comes_back(server):
    with open_store(server.url, retry_timeout=120_000) as store:

        def killed(operation):
            server.kill()
            back = threading.Timer(0.1, server.start)
            back.start()
            try:
                return operation()
            finally:
                back.join()

        batch = pushes(list(range(100)))
        store.push("q", batch)
        assert killed(lambda: store.push("q", batch)) == 0
        assert killed(lambda: store.reserve("q", "c/1", 60)) == [60]
        assert len(fetched(store, "q", "c/1/0")) == 60
        assert killed(lambda: store.commit("q", "c/1")) == 60
        assert store.sizes("q").ready == 40
        assert killed(lambda: store.stage("q", "s/0/a", pushes(["x", "y"]))) == 2
        assert killed(lambda: store.set_note("n", {"a": 1}, 0))
        assert killed(lambda: store.publish(["s/0/a"])) == 2
        assert killed(lambda: store.note("n")) == Note({"a": 1}, 1)
        store.reserve("q", "c/2", 40)
        assert killed(lambda: store.transfer("q", "c/2", "c/3/0", lease=None)) == 40
        assert store.sizes("q").ready == 2
        server.kill()
        with retrying_for(300), pytest.raises(StoreUnavailable, match=str(server.port)):
            store.sizes("q")
        server.start()


def test_a_full_server_refuses_messages_and_lets_them_be_drained(server):
    with open_store(server.url) as store, redis.Redis.from_url(server.url, protocol=2) as raw:
        store.push("q", pushes(["x" * 100] * 1000))
        raw.config_set("maxmemory", 1)
        with pytest.raises(StoreError, match="maxmemory") as caught:
            store.push("q", pushes(["one more"]))
        assert not isinstance(caught.value, StoreUnavailable)
        assert store.reserve("q", "c/1", 500, lease=MINUTE) == [500]
        end_lease(store, "q", "c/1")
        assert store.reserve("q", "d/1", 900, partitions=2) == [450, 450]
        assert store.renew("q", "d/1", MINUTE) == 900
        assert store.rollback("q", "d/1/0") == 450
        assert store.commit("q", "d/1", history=MINUTE) == 450
        assert len([one for batch in store.peek("q", limit=600) for one in messages(batch)]) == 550
        assert store.purge("q") == 550


def test_a_full_server_keeps_what_is_staged(server):
    with RedisStore(server.url) as store, redis.Redis.from_url(server.url, protocol=2) as raw:
        for attempt in "abc":
            store.stage("q", f"s/0/{attempt}", pushes([attempt * 100] * 1000))
        store.push("q", pushes(["held"]))
        store.reserve("q", "c/1", 1)
        raw.config_set("maxmemory", 1)
        with pytest.raises(StoreError, match="maxmemory"):
            store.stage("q", "s/0/d", pushes(["one more"]))
        with pytest.raises(StoreError, match="maxmemory"):
            store.publish(["s/0/a"])
        with pytest.raises(StoreError, match="maxmemory"):  # one that was registered before
            store._run("stage", "q", "id", 1, "{}", extra_keys=[Chunk("s/0/d", "part", "q").key])
        assert [one.rows for one in store.staged("s")] == [1000] * 3
        assert store.unstage("s/0/b") == 1000
        assert store.transfer("q", "c/1", "c/2/0", lease=MINUTE) == 1
        assert store.set_note("n", {"a": 1}, 0)
        assert store.set_note("n", {"a": 2}, 1)
        assert store.set_note("n", None, 2)
        assert store.commit("q", "c/2") == 1
        raw.config_set("maxmemory", 0)
        assert store.publish(["s/0/a", "s/0/b", "s/0/c"]) == 2000


def test_a_closed_store_has_no_connection_left(server):
    with redis.Redis.from_url(server.url, protocol=2) as raw:
        with open_store(server.url) as store:
            store.push("q", pushes([1]))
            threads = [threading.Thread(target=store.sizes, args=("q",)) for _ in range(5)]
            for one in threads:
                one.start()
            for one in threads:
                one.join()
            assert len(raw.client_list()) > 1
        wait_until(lambda: len(raw.client_list()) == 1, description="that no other connection is left")
