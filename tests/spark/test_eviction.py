"""A Redis that evicts messages when its memory is full: a warning; exactly-once is refused."""

from __future__ import annotations

import json
import logging
import uuid
from functools import partial
from types import SimpleNamespace

import pytest
import redis
from pyspark.sql.types import StringType, StructField, StructType

from spark_queue import OptionError, Queue, QueueError, open_store
from spark_queue.admin import doctor
from spark_queue.graph.model import Destination, Exchange, Graph, Namespace, Place
from spark_queue.messages.message import pushes
from spark_queue.options.roles import parse_options
from spark_queue.runner.graph import ExchangeGraph
from spark_queue.spark.read.consumer import Consumer
from spark_queue.spark.read.log_reader import LogReader
from spark_queue.spark.read.multi_input import MultiInputPlanner
from spark_queue.spark.write.data_writers import Push
from spark_queue.spark.write.publish import Publish
from spark_queue.stores.services import eviction
from tests.spark.test_sentences import said

LOSES = (
    "when its memory is full, it throws away messages, also acknowledged ones: maxmemory-policy is allkeys-lru. Set "
    "maxmemory-policy to noeviction"
)
HISTORY = (
    "when its memory is full, it throws away the history before its time: maxmemory-policy is volatile-ttl. Set "
    "maxmemory-policy to noeviction"
)


@pytest.fixture
def evicting(new_server, monkeypatch):
    """Starts a server with this policy. An earlier server of this process may have had its address."""
    monkeypatch.setattr(eviction, "_checked", {})
    monkeypatch.setattr(eviction, "_safe_until", {})
    return lambda policy, limit="100mb": new_server("--maxmemory", limit, "--maxmemory-policy", policy)


@pytest.fixture
def heard(caplog):
    """What was logged about eviction."""
    caplog.set_level(logging.INFO, eviction.log.name)
    return lambda: [(one.levelname, one.getMessage()) for one in caplog.records if one.name == eviction.log.name]


def asked(server):
    """How often INFO was called, this call aside."""
    with redis.Redis.from_url(server.url) as client:
        return client.info("commandstats").get("cmdstat_info", {}).get("calls", 0)


def planned(made, url, **options):
    """Return the first offset of a source."""
    raw = {"url": url, "queue": "q", "waitTimeout": "50ms", "retryTimeout": "5s", **options}
    consumer = made(parse_options({key: value for key, value in raw.items() if value is not None}, "stream"))
    try:
        return consumer.initial
    finally:
        consumer.close()


@pytest.mark.parametrize(
    ("policy", "limit", "expected"),
    [("allkeys-lru", "100mb", LOSES), ("volatile-ttl", "100mb", HISTORY), ("noeviction", "100mb", ""),
     ("allkeys-lru", "0", "")],
)  # fmt: skip
def test_a_process_that_opens_the_store_is_warned_once_and_asks_once(evicting, heard, policy, limit, expected):
    server = evicting(policy, limit)
    for _ in range(2):
        with Queue(server.url, "q") as queue, open_store(server.url) as store:
            queue.push_many([1, 2])
            assert len(queue.reserve(2)) == 2
            assert store.sizes("q").total == 2
            store.drop("q")
    assert heard() == ([("WARNING", f"{server.url}: {expected}")] if expected else [])
    assert asked(server) == 1


def test_a_user_who_may_not_ask_goes_on_and_nothing_is_refused(evicting, heard):
    server = evicting("allkeys-lru")
    with redis.Redis.from_url(server.url) as client:
        client.execute_command("ACL SETUSER app on >word ~* &* +@all -info -config")
    url = server.url.replace("://", "://app:word@")
    with Queue(url, "q") as queue:
        queue.push(1)
    planned(Consumer, url, delivery="exactly-once")
    shown = server.url.replace("://", "://***@")
    (said,) = heard()
    assert said[0] == "INFO" and "may not call INFO, so it is not known" in said[1]
    assert "word" not in said[1] and shown.rpartition("@")[2] in said[1]


SOURCES = {
    "a queue": (Consumer, {}),
    "a log": (LogReader, {"mode": "log"}),
    "several queues": (
        MultiInputPlanner,
        {"queue": None, "inputs": json.dumps({"a": {"queue": "q"}, "b": {"queue": "r"}})},
    ),
}


@pytest.mark.parametrize("what", SOURCES)
def test_a_source_that_is_exactly_once_is_refused_unless_that_is_allowed(evicting, heard, what):
    server, (made, options) = evicting("allkeys-lru"), SOURCES[what]
    with Queue(server.url, "q") as queue:
        queue.push(1)
    for _ in range(2):
        with pytest.raises(OptionError, match=r"policy is allkeys-lru. Set maxmemory-policy to noeviction") as caught:
            planned(made, server.url, delivery="exactly-once", **options)
        assert caught.value.facts == {"option": "delivery"}
    for allowed in ({"delivery": "exactly-once", "allowEviction": "true"}, {"delivery": "at-least-once"}):
        assert planned(made, server.url, **options, **allowed)
    assert [one for one in heard() if one[0] == "WARNING"] == [("WARNING", f"{server.url}: {LOSES}")]


def test_a_setting_that_is_corrected_counts_at_once(evicting):
    server = evicting("allkeys-lru")
    with pytest.raises(OptionError):
        planned(Consumer, server.url, delivery="exactly-once")
    with redis.Redis.from_url(server.url) as client:
        client.config_set("maxmemory-policy", "noeviction")
    assert planned(Consumer, server.url, delivery="exactly-once")


def test_a_setting_that_gets_worse_is_seen_after_a_while(evicting, monkeypatch):
    server, now = evicting("noeviction"), [1_000.0]
    monkeypatch.setattr(eviction, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with redis.Redis.from_url(server.url) as client, open_store(server.url) as store:
        eviction.check_eviction(store, exactly_once=True, allowed=False)
        client.config_set("maxmemory-policy", "allkeys-random")
        eviction.check_eviction(store, exactly_once=True, allowed=False)
        now[0] += eviction.SAFE_CACHE_SECONDS
        with pytest.raises(OptionError, match="allkeys-random"):
            eviction.check_eviction(store, exactly_once=True, allowed=False)


def test_history_that_goes_early_refuses_nothing(evicting, heard):
    server = evicting("volatile-lru")
    assert planned(Consumer, server.url, delivery="exactly-once")
    assert [one for one in heard() if "the history before its time" in one[1]]


@pytest.mark.parametrize(("policy", "state"), [("allkeys-lru", "bad"), ("volatile-ttl", "worry")])
def test_the_doctor_distinguishes_messages_from_history(evicting, policy, state):
    (found,) = [one for one in doctor.examine(evicting(policy).url) if one.what == "full memory"]
    assert found.state == state and ("history" in found.told) == (state == "worry")


@pytest.mark.parametrize("streaming", [False, True])
def test_a_sink_is_refused_before_it_writes(evicting, heard, streaming):
    server, schema = evicting("allkeys-lru"), StructType([StructField("payload", StringType())])

    def write(**options):
        raw = {"url": server.url, "queue": "q", **options}
        kind = Push if options.get("delivery") == "at-least-once" else partial(Publish, streaming=streaming)
        return kind(parse_options(raw, "push"), schema)

    with pytest.raises(OptionError, match="noeviction, or the option delivery to at-least-once"):
        write()
    with redis.Redis.from_url(server.url) as client:
        assert client.dbsize() == 0
    write(allowEviction="true")
    write(delivery="at-least-once")
    assert heard() == [("WARNING", f"{server.url}: {LOSES}")]


def test_each_database_of_a_sink_is_looked_at(evicting, sqlite_url):
    urls = json.dumps({"one": sqlite_url, "two": evicting("allkeys-lru").url})
    schema = StructType([StructField("payload", StringType()), StructField("ns", StringType())])
    with pytest.raises(OptionError, match="allkeys-lru"):
        Publish(parse_options({"urls": urls, "queue": "q"}, "push"), schema, streaming=True)


@pytest.mark.full
def test_spark_refuses_a_sink_and_a_source_that_are_exactly_once(spark, evicting, tmp_path):
    server = evicting("allkeys-lru")
    rows = spark.range(3).selectExpr("CAST(id AS STRING) AS payload")

    def write(**options):
        rows.write.format("queue").mode("append").options(url=server.url, queue="q", **options).save()

    def stream(origin="q", **options):
        source = spark.readStream.format("queue").options(url=server.url, queue=origin, **options).load()
        sink = source.select("payload").writeStream.format("queue").options(url=server.url, queue="q2")
        sink = sink.options(**options).option("checkpointLocation", str(tmp_path / uuid.uuid4().hex))
        sink.trigger(availableNow=True).start().awaitTermination()

    refused = said(write)
    assert refused.startswith("OptionError: option 'delivery' is exactly-once, but when its memory is full, ")
    assert refused.endswith("or the option delivery to at-least-once. With allowEviction=true messages can be lost")
    with open_store(server.url) as store:
        assert [*store.queues()] == [] and store.notes("") == {}, "nothing was written"
        write(allowEviction="true")
        assert said(stream, delivery="exactly-once") == refused, "the source"
        store.push("other", pushes([1]))
        assert said(stream, origin="other") == refused, "the sink, which is exactly-once by default"
        stream(delivery="exactly-once", allowEviction="true")
        assert (store.sizes("q").ready, store.sizes("q2").total) == (0, 3)  # Spark 4.0 and 4.1 leave the last batch


@pytest.mark.full
def test_the_option_of_an_exchange_holds_for_its_source_and_its_destinations(spark, evicting, tmp_path):
    server = evicting("allkeys-lru")
    with Queue(server.url, "in") as queue:
        queue.push_many([1, 2])

    def drain(folder, **options):
        namespaces = {"one": Namespace(server.url, options)}
        exchanges = {"x": Exchange(Place("in", "one"), [Destination("out", ns="one")])}
        ExchangeGraph(Graph(namespaces, exchanges), str(tmp_path / folder)).drain(spark, restarts=0)

    with pytest.raises(QueueError, match="Set maxmemory-policy to noeviction"):
        drain("refused")
    drain("allowed", allowEviction="true")
    with open_store(server.url) as store:
        assert (store.sizes("in").total, store.sizes("out").total) == (0, 2)
