"""A Redis that fails over: the address leads to another server, or the Sentinels name another one."""

from __future__ import annotations

import shutil
import threading
from typing import Any

import pytest
import redis

from spark_queue import Queue, open_store
from spark_queue.errors import OptionError, StoreError, StoreUnavailable
from spark_queue.messages.message import pushes
from spark_queue.options.masking import mask
from spark_queue.stores.conformance.limits import with_limits
from spark_queue.stores.conformance.waiting import DEADLINE, wait_until
from spark_queue.stores.redis import connections
from spark_queue.stores.redis.address import RedisAddress
from spark_queue.stores.redis.failures import is_away
from spark_queue.stores.redis.store import RedisStore
from spark_queue.stores.support.patience import retrying_for
from tests.redis_replicas import MovingPair, SentinelPair, client_of

HOUR = 3_600_000

#: Tests look into the stores.
opened: Any = open_store

pytestmark = pytest.mark.skipif(not shutil.which("redis-server"), reason="no redis-server on PATH")


@pytest.fixture
def pair(tmp_path):
    """A master and a replica behind an address that moves."""
    found = MovingPair(tmp_path)
    yield found
    found.kill()


@pytest.fixture(scope="module")
def sentinels(tmp_path_factory):
    """A master and a replica that two Sentinels watch; all of them have passwords."""
    folder = tmp_path_factory.mktemp("sentinels")
    found = SentinelPair(folder, "--requirepass", "sEsame", "--masterauth", "sEsame", password="sEsame")
    yield found
    found.kill()


def is_listening(store: Any):
    return store._listener and store._listener.is_receiving("q")


# --- which errors ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        redis.ReadOnlyError("You can't write against a read only replica. script: 0a1b, on @user_script:12."),
        redis.BusyLoadingError("Redis is loading the dataset in memory"),
        redis.exceptions.MasterDownError("Link with MASTER is down and replica-serve-stale-data is set to 'no'."),
        redis.exceptions.ClusterDownError("The cluster is down"),
        redis.exceptions.TryAgainError("Multiple keys request during rehashing of slot"),
        redis.ResponseError("UNBLOCKED force unblock from blocking operation, instance state changed"),
        redis.ResponseError("NOREPLICAS Not enough good replicas to write. script: 0a1b, on @user_script:12."),
        redis.ResponseError("Command # 1 (HDEL q x) of pipeline caused error: NOREPLICAS Not enough good replicas"),
        redis.ResponseError(
            "ERR Error running script (call to f_0a1b): @user_script:9: @user_script: 9: -READONLY You can't write "
            "against a read only replica."
        ),
        redis.ConnectionError("Connection closed by server."),
        redis.TimeoutError("Timeout reading from socket"),
    ],
    ids=lambda one: f"{type(one).__name__} {str(one)[:20]}",
)
def test_a_server_that_cannot_serve_now_is_away(error):
    assert is_away(error)


@pytest.mark.parametrize(
    "error",
    [
        redis.exceptions.OutOfMemoryError("command not allowed when used memory > 'maxmemory'."),
        redis.ResponseError("OOM command not allowed when used memory > 'maxmemory'. script: 0a1b"),
        redis.ResponseError("MISCONF Redis is configured to save RDB snapshots, but it cannot write to the disk"),
        redis.ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value"),
        redis.ResponseError("Command # 1 (SADD READONLY x) of pipeline caused error: WRONGTYPE Operation"),
        redis.ResponseError("BUSY Redis is busy running a script"),
        redis.AuthenticationError("Authentication required."),
        redis.ConnectionError("No connection available."),
    ],
    ids=lambda one: f"{type(one).__name__} {str(one)[:20]}",
)
def test_a_server_that_refuses_something_is_not_away(error):
    assert not is_away(error)


# --- an address that moves ------------------------------------------------------------------------


def test_a_client_goes_on_when_its_address_leads_to_another_master(pair):
    with opened(pair.url, retry_timeout=60_000) as store:
        assert store.push("q", pushes(list(range(10)))) == 10
        assert store.reserve("q", "c/1", 4) == [4]
        assert store.set_note("n", {"a": 1}, 0)
        for turn in range(2):  # there and back again
            pair.failover()
            assert store.set_note("n", {"a": 2 + turn}, 1 + turn)
            assert store.push("q", pushes([turn])) == 1
            assert store.commit("q", "c/1") == (0 if turn else 4)
            assert store.stage("q", f"s{turn}/0/a", pushes(["x"])) == 1
            assert store.publish([f"s{turn}/0/a"]) == 1
            store.statistics("q")
            store.pause("q")
            store.resume("q")
        assert store.sizes("q").ready == 10
        with client_of(pair.nodes[1]) as old:  # nothing but this client, the replica's own link, and perhaps signals
            wait_until(lambda: len(old.client_list(_type="normal")) == 1, description="that no connection is left")


def test_threads_go_on_after_a_failover_and_nothing_comes_twice(pair):
    with opened(pair.url, retry_timeout=60_000) as store:
        pushed, stop = [0] * 4, threading.Event()

        def push(number):
            while not stop.is_set():
                store.push("q", pushes([number], ids=[f"m{number}-{pushed[number]}"]))
                pushed[number] += 1

        threads = [threading.Thread(target=push, args=(number,)) for number in range(len(pushed))]
        for one in threads:
            one.start()
        try:
            for _ in range(3):
                before = pushed[:]
                wait_until(lambda: all(now > then + 20 for now, then in zip(pushed, before, strict=True)))  # noqa: B023
                pair.failover()
            before = pushed[:]
            wait_until(lambda: all(now > then for now, then in zip(pushed, before, strict=True)))
        finally:
            stop.set()
            for one in threads:
                one.join()
        assert store.sizes("q").ready == sum(pushed)


def test_a_client_without_patience_gets_an_error_and_then_goes_on(pair):
    with opened(pair.url, retry_timeout=0) as store:
        store.push("q", pushes(["a"]))
        store.statistics("q")  # writes the counts, so that no thread does it later
        pair.failover()
        with pytest.raises(StoreUnavailable, match="read only replica"):
            store.push("q", pushes(["b"]))
        assert store.push("q", pushes(["b"])) == 1


@with_limits(poll_interval_ms=100)
def test_who_waits_gets_what_is_pushed_after_a_failover(pair):
    got = []
    with Queue(pair.url, "q") as waiting, Queue(pair.url, "q") as other:
        other.push("first")
        assert waiting.reserve()
        one = threading.Thread(target=lambda: got.extend(waiting.reserve(timeout=DEADLINE)), daemon=True)
        one.start()
        wait_until(lambda: is_listening(waiting.store))
        pair.failover()
        other.push("second")
        one.join(DEADLINE)
        assert [message.payload for message in got] == ["second"]
        assert waiting.commit(*got) == 1


@with_limits(poll_interval_ms=HOUR)
def test_a_listener_follows_the_connections_of_its_store(pair):
    """The old master is a server of its own now, which hears nothing of the new one."""
    with opened(pair.url) as store, opened(pair.url) as other:
        store.push("q", pushes(["a"]))
        version = store._signal_version("q")
        old, new = pair.nodes
        with client_of(old) as before, client_of(new) as after:
            after.replicaof("NO", "ONE")
            pair.move_address(before, after)
            before.replicaof("127.0.0.1", 1)  # no server
            wait_until(lambda: store.push("q", pushes(["b"])), description="a push to the new master")
            wait_until(lambda: after.pubsub_numsub(store.topic("q"))[0][1], description="that it listens there")
        wait_until(lambda: store._signal_version("q") != version)
        version = store._signal_version("q")
        other.push("q", pushes(["c"]))
        wait_until(lambda: store._signal_version("q") != version, description="a signal of the new master")


def test_a_master_without_its_replica_is_waited_for(pair):
    pair.require_replica()
    with opened(pair.url, retry_timeout=60_000) as store, client_of(pair.nodes[1]) as replica:
        store.push("q", pushes(["a"]))
        replica.replicaof("NO", "ONE")
        with client_of(pair.nodes[0]) as master:
            wait_until(lambda: not master.info("replication")["connected_slaves"])
        with retrying_for(200), pytest.raises(StoreUnavailable, match="NOREPLICAS"):
            store.push("q", pushes(["b"]))
        replica.replicaof("127.0.0.1", pair.nodes[0].port)
        assert store.push("q", pushes(["b"])) == 1


# --- Sentinels ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kill", [False, True], ids=["demoted", "killed"])
def test_a_client_goes_on_with_the_master_that_sentinels_name(sentinels, kill):
    with (
        opened(sentinels.url, retry_timeout=60_000) as store,
        Queue(opened(sentinels.url, retry_timeout=60_000), "q") as waiting,
    ):
        store.drop("q")
        assert store.push("q", pushes(["a", "b"])) == 2
        assert len(waiting.reserve(2)) == 2
        got = []
        one = threading.Thread(target=lambda: got.extend(waiting.reserve(timeout=DEADLINE)), daemon=True)
        one.start()
        wait_until(lambda: is_listening(waiting.store))
        sentinels.failover(kill=kill)
        assert store.push("q", pushes(["c"])) == 1
        one.join(DEADLINE)
        assert [message.payload for message in got] == ["c"]
        assert waiting.commit(*got) == 1
        assert store.sizes("q").reserved == 2
        waiting.store.close()


def test_a_replica_that_a_sentinel_names_is_refused(sentinels, monkeypatch):
    """One that has not heard of a failover names the old master, which is a replica by then."""
    replica = sentinels.nodes[1].port
    monkeypatch.setattr(connections, "find_master", lambda *_: ("127.0.0.1", replica))
    with opened(sentinels.url, retry_timeout=0) as store, pytest.raises(StoreUnavailable, match="is a replica"):
        store.now()


def test_a_sentinel_that_is_away_is_passed_over(sentinels):
    host, _, rest = sentinels.url.partition("@")[2].partition(",")
    login = sentinels.url.partition("@")[0]
    with opened(f"{login}@127.0.0.1:1,{host}/{rest.partition('/')[2]}") as store:
        assert store.now()


def test_a_master_that_no_sentinel_knows_is_an_error_without_the_password(sentinels):
    url = sentinels.url.replace("/chaos/0", "/kaos/0")
    with (
        opened(url, retry_timeout=0) as store,
        pytest.raises(StoreUnavailable, match="no Sentinel names a master 'kaos'") as caught,
    ):
        store.now()
    assert "sEsame" not in str(caught.value)
    assert mask(url) in str(caught.value)


def test_a_wrong_password_is_refused_at_once(sentinels):
    # Sentinels with the password of the URL, as these, refuse it as well: that looks like no master.
    url = sentinels.url.replace("sEsame", "mistaken")
    with opened(url, retry_timeout=0) as store, pytest.raises(StoreError) as caught:
        store.now()
    assert "mistaken" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis+sentinel://a:1,b/m/3", RedisAddress("redis://a:1/3", (("a", 1), ("b", 26379)), "m")),
        ("redis+sentinel://u:p%2F@a/m-1.x", RedisAddress("redis://u:p%2F@a/", (("a", 26379),), "m-1.x")),
        (
            "rediss+sentinel://[::1]:2/m/0?ssl_ca_certs=/ca.pem",
            RedisAddress("rediss://[::1]:2/0?ssl_ca_certs=/ca.pem", (("::1", 2),), "m"),
        ),
        ("redis+sentinel://a/m/0?layout=rfq&ns=x", RedisAddress("redis://a/0", (("a", 26379),), "m")),
    ],
)
def test_an_address_of_sentinels_is_read(url, address):
    assert RedisAddress.parse(url) == address
    with opened(url) as store:
        assert isinstance(store, RedisStore)
        assert store.url == url
    assert "***" in mask(url) or "@" not in url


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("redis+sentinel://", "no server"),
        ("redis+sentinel://:sesame@h1:1,h2:2", "names no master"),
        ("redis+sentinel://:sesame@h1:1,h2:2/0", "names no master"),
        ("redis+sentinel://h1/m!/0", "names no master"),
        ("redis+sentinel://h1,,h2/m/0", "no server"),
        ("redis+sentinel://h1:1:2/m/0", "malformed"),
        ("redis+sentinel://h1/m/zero", "is not a number"),
        ("redis+sentinel://h1/m/0/1", "is not a number"),
        ("redis+sentinel://:sesame@h1/m/0?ssl_ca_certs=x", "unknown parameter 'ssl_ca_certs'"),
        ("redis+sentinel://:ses/ame@h1/m/0", "%2F"),
        ("redis://:sesame@h1:1,h2:2/0", r"for Sentinels, begin with redis\+sentinel://"),
        ("sentinel://:sesame@h1/m/0", r"did you mean 'redis\+sentinel'"),
    ],
)
def test_an_invalid_url_of_sentinels_is_refused(url, what):
    with pytest.raises(OptionError, match=what) as caught:
        opened(url)
    assert "ame@" not in str(caught.value)
    assert caught.value.facts["option"] == "url"


@with_limits(reconnect_pause=0.05)
def test_a_listener_that_lost_its_server_reconnects_soon(sentinels):
    with opened(sentinels.url) as store:
        version = store._signal_version("q")
        before = store._listener._subscription
        store._listener.reconnect()
        wait_until(lambda: store._listener._subscription not in (None, before))
        wait_until(lambda: store._signal_version("q") != version, description="a look after it")
