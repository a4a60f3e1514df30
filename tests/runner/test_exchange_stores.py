"""Exchanges between different stores: exactly once, unchanged payloads, many in one session."""

from __future__ import annotations

import random
from collections import Counter
from urllib.parse import urlsplit, urlunsplit

import pytest

from spark_queue import open_store
from spark_queue.graph.exchange import NO_ROUTE, TOO_MANY_HOPS
from spark_queue.graph.model import ConsumerSettings, Graph, Namespace
from spark_queue.messages.message import messages, pushes
from spark_queue.runner import ExchangeGraph
from spark_queue.runner.traffic import load_traffic, reset_traffic
from spark_queue.stores.conformance.waiting import wait_until
from tests import registered
from tests.runner.test_exchange import World

#: Every store, and all pairs of them: what one store alone shows is in test_exchange.py.
pytestmark = pytest.mark.full

STORES = registered.schemes()
MARK = "test"  #: the header that marks a test's own messages in a shared queue


class Stores(World):
    """One namespace for each store. In shared queues, only messages with our mark are seen."""

    def graph(self, exchanges, **options):
        graph = Graph({ns: Namespace(url) for ns, url in self.urls.items()}, exchanges)
        return ExchangeGraph(graph, str(self.folder / "checkpoints"), initial_backoff=0.5, max_backoff=2, **options)

    def send(self, name, payloads, headers=None, tries=0):
        """Messages with our mark."""
        headers = [{MARK: self.prefix} | one for one in headers or [{}] * len(payloads)]
        with self.queue(name) as queue:
            queue.store.push(queue.name, pushes(payloads, headers=headers, tries=tries))

    def messages(self, name):
        with self.queue(name) as queue:
            return [one for one in queue.peek(limit=1_000_000) if one.headers.get(MARK) == self.prefix]

    def numbers(self, name):
        return Counter(one.payload["n"] for one in self.messages(name))

    def clean(self, url):
        """Remove what is ours, and nothing else."""
        with open_store(url) as store:
            for queue in (NO_ROUTE, TOO_MANY_HOPS):
                ours = [
                    one.id
                    for batch in store.peek(queue)
                    for one in messages(batch)
                    if one.headers.get(MARK) == self.prefix
                ]
                if ours:
                    store.move(queue, f"{self.prefix}.gone", ids=ours)
            for queue in {*store.queues(), *store.all_statistics()}:
                if queue.startswith(self.prefix):
                    store.drop(queue)
        for name in load_traffic(url):
            if name.startswith(self.prefix):
                reset_traffic(url, name)


@pytest.fixture
def stores(spark, url_of, name, tmp_path):
    """In Redis a database that no other test uses, but perhaps another run of this one."""
    urls = {scheme: url_of(scheme) for scheme in STORES}
    parts = urlsplit(urls["redis"])
    urls["redis"] = urlunsplit(parts._replace(path=f"/{random.randint(1, 15)}"))
    made = Stores(spark, urls, name, tmp_path)
    yield made
    made.clean(urls["redis"])


# --- between two stores ---------------------------------------------------------------------------


PAIRS = registered.pairs()


def test_each_message_arrives_once_though_its_exchange_is_stopped_after_a_batch(stores, name):
    pairs = {f"{name}.{src}-{dst}": (f"{src}/to_{dst}", f"{dst}/from_{src}") for src, dst in PAIRS}
    graph = stores.graph(
        {
            pair: stores.exchange(
                src,
                stores.to(f"{dst}.even", "payload:n::int % 2 = 0"),
                stores.to(f"{dst}.high", "payload:n::int >= 150"),
                consumer=ConsumerSettings(wsize=80),
                every=600_000,
            )
            for pair, (src, dst) in pairs.items()
        }
    )
    numbers = set(range(200))
    lost = {n for n in numbers if n % 10 in (0, 1)}
    for src, _ in pairs.values():
        stores.send(src, [{"n": n} for n in numbers], [{"x-hop-count": "17" if n in lost else "16"} for n in numbers])
    graph.start(stores.spark)
    try:
        wait_until(lambda: all(stores.messages(f"{dst}.even") for _, dst in pairs.values()), 120)
    finally:
        graph.stop()
    for src, _ in pairs.values():
        assert len(stores.messages(src)) == 200, "what was routed is held until the next batch"
    graph.drain(stores.spark)

    routed = numbers - lost
    even, high = {n for n in routed if n % 2 == 0}, {n for n in routed if n >= 150}
    for pair, (src, dst) in pairs.items():
        ns = src.partition("/")[0]
        assert stores.messages(src) == []
        assert stores.numbers(f"{dst}.even") == Counter(even), pair
        assert stores.numbers(f"{dst}.high") == Counter(high), pair
        for queue, wanted in ((NO_ROUTE, routed - even - high), (TOO_MANY_HOPS, lost)):
            left = [one for one in stores.messages(f"{ns}/{queue}") if one.headers["x-exchange-name"] == pair]
            assert Counter(one.payload["n"] for one in left) == Counter(wanted), pair
            assert {one.headers["x-hop-count"] for one in left} == {"17"}
    for ns in STORES:
        from_here = [pair for pair, (src, _) in pairs.items() if src.startswith(ns)]
        assert len(stores.messages(f"{ns}/{TOO_MANY_HOPS}")) == len(lost) * len(from_here)


# --- what goes through ----------------------------------------------------------------------------

PAYLOADS = [
    {"flight": 1545, "delay": -1.5, "gate": None, "on time": True, "legs": [{"to": "MIA"}, []], "ü€𝄞": "日本\u0000"},
    {"least": -(2**63), "most": 2**63 - 1, "beyond 32 bits": 2**53 + 1},
    {"$set": {"a.b": 1}, "": "empty"},
    [1, "two", None, {"three": 3}],
    [],
    {},
    5,
    -0.25,
    2**63 - 1,
    True,
    False,
    "text",
    "ü€𝄞 \n\t\"'\\ \u0000",
    "",
    "5",
    "null",
    '{"n": 1}',
    {"text": "x" * 2**20},
]
HEADERS = {"plain": "1", "ü €": "日本", "a.b": "", "$set": '"\\\n', "x-dl-tries": "3"}


def all_to_all(stores):
    """From each store, by an exchange of its own, to each: as it is, and with its tries."""
    tries = "named_struct('tries', tries)"
    return {
        f"{stores.prefix}.{src}": stores.exchange(
            f"{src}/in",
            *(stores.to(f"{dst}/from_{src}") for dst in STORES),
            *(stores.to(f"{dst}/from_{src}.again", tries) for dst in STORES),
        )
        for src in STORES
    }


def known(message):
    """A payload with the types of all its parts."""
    return type(message.payload).__name__, repr(message.payload)


def test_payloads_and_headers_arrive_as_they_were_and_tries_where_that_is_wanted(stores):
    for src in STORES:
        stores.send(f"{src}/in", PAYLOADS, [HEADERS] * len(PAYLOADS), tries=2)
    sent = {src: sorted(map(known, stores.messages(f"{src}/in"))) for src in STORES}
    assert len({str(one) for one in sent.values()}) == 1, "every store gives what it got"
    stores.graph(all_to_all(stores)).drain(stores.spark)
    for src in STORES:
        for dst in STORES:
            for queue, tries in ((f"{dst}/from_{src}", 0), (f"{dst}/from_{src}.again", 2)):
                got = stores.messages(queue)
                assert sorted(map(known, got)) == sent[src], queue
                assert {one.tries for one in got} == {tries}
                headers = HEADERS | {MARK: stores.prefix, "x-hop-count": "1"}
                assert [one.headers for one in got] == [headers] * len(PAYLOADS), queue


def test_bytes_stay_bytes_and_text_stays_text(stores):
    payloads = [b"\x00\xff", b"text", b"", "text", ""]
    for src in STORES:
        stores.send(f"{src}/in", payloads)

    def kept(name):
        with stores.queue(name) as queue:
            rows = [row for batch in queue.store.peek(queue.name) for row in batch.to_pylist()]
        return sorted((row["payload_kind"], row["payload"]) for row in rows)

    sent = {src: kept(f"{src}/in") for src in STORES}
    stores.graph(all_to_all(stores)).drain(stores.spark)
    wrong = {
        f"{src} to {dst}": got for src in STORES for dst in STORES if (got := kept(f"{dst}/from_{src}")) != sent[src]
    }
    assert wrong == {}


def test_what_a_database_cannot_hold_becomes_a_dead_letter_there(stores):
    payloads = [{"n": 1}, {"n": 2**70}, {"n": 2}]
    stores.send("sqlite/in", payloads)
    stores.graph(
        {f"{stores.prefix}.x": stores.exchange("sqlite/in", *(stores.to(f"{ns}/out") for ns in STORES))}
    ).drain(stores.spark)
    assert stores.payloads("mongodb/out") == [{"n": 1}, {"n": 2}]
    assert stores.payloads("sqlite/out") == stores.payloads("redis/out") == [{"n": 1}, {"n": 2**70}, {"n": 2}]
    (dead,) = stores.messages("mongodb/out.dead")
    assert dead.payload == '{"n":1180591620717411303424}'
    assert "64 bits" in dead.headers["x-error"]


# --- many at once ---------------------------------------------------------------------------------

NUMBERS = range(120)

#: Queues that take not all: `a3` is one of four, `b2` one of two, `c5` the only one.
FILTERS = {
    "a3": ("payload:n::int % 2 = 0", lambda n: n % 2 == 0),
    "b2": ("payload:n::int < 50", lambda n: n < 50),
    "c5": ("payload:n::int % 5 > 0", lambda n: n % 5 > 0),
}


def place(queue):
    """Return the place of a queue: mostly in another database than those around its exchange."""
    return f"{STORES[(ord(queue[0]) + int(queue[1:])) % len(STORES)]}/{queue}"


@pytest.mark.full
def test_twenty_exchanges_in_three_databases_route_every_message_once(stores, name):
    wires = {"i0": [f"a{n}" for n in range(4)]}
    wires |= {f"a{n}": [f"b{2 * n}", f"b{2 * n + 1}"] for n in range(4)}
    wires |= {f"b{n}": [f"c{n}"] for n in range(8)} | {f"c{n}": [f"d{n}"] for n in range(7)}
    assert len(wires) == 20
    every = {"i0": set(NUMBERS)}  # what comes into each queue
    for src, dst in wires.items():
        every |= {to: {n for n in every[src] if to not in FILTERS or FILTERS[to][1](n)} for to in dst}
    graph = stores.graph(
        {
            f"{name}.{src}": stores.exchange(
                place(src), *(stores.to(place(to), FILTERS[to][0] if to in FILTERS else None) for to in dst)
            )
            for src, dst in wires.items()
        }
    )
    stores.send(place("i0"), [{"n": n} for n in NUMBERS])
    graph.drain(stores.spark)

    for queue, numbers in every.items():
        left = Counter(numbers if queue not in wires else [])
        assert stores.numbers(place(queue)) == left, queue
    assert stores.numbers(f"{place('b5').split('/')[0]}/{NO_ROUTE}") == Counter(every["b5"] - every["c5"])
    status = {one.name.removeprefix(f"{name}."): one for one in graph.status().values()}
    assert {one.state for one in status.values()} == {"finished"}
    for src, dst in wires.items():
        traffic = status[src].traffic
        assert traffic.received == len(every[src])
        assert traffic.pushed == {str(stores.place(place(to))): len(every[to]) for to in dst}
        assert traffic.no_route == (len(every["b5"] - every["c5"]) if src == "b5" else 0)
        assert traffic.failed.total() == traffic.too_many_hops == 0
    kept = {key: one for url in stores.urls.values() for key, one in load_traffic(url).items()}
    assert {one.name: kept[one.name] for one in status.values()} == {one.name: one.traffic for one in status.values()}
