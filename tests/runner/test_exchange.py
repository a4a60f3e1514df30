"""Exchanges: the cases of keuss-server's own suite, by their names, and what Spark adds to them."""

from __future__ import annotations

import json
import subprocess
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from spark_queue import GraphError, Queue
from spark_queue.graph.model import Changes, ConsumerSettings, Destination, Exchange, Graph, Namespace, Place
from spark_queue.graph.sql_functions import sql_mistake
from spark_queue.runner.graph import ExchangeGraph
from spark_queue.runner.traffic import load_traffic
from spark_queue.stores.conformance.waiting import wait_until
from tests.pages import rows


@contextmanager
def ansi_mode(spark, ansi):
    """Spark with ANSI mode on (`true`) or off, for a while."""
    before = spark.conf.get("spark.sql.ansi.enabled")
    spark.conf.set("spark.sql.ansi.enabled", ansi)
    try:
        yield
    finally:
        spark.conf.set("spark.sql.ansi.enabled", before)


class World:
    """Two namespaces, and queues in them whose names are this test's own."""

    def __init__(self, spark, urls, prefix, folder):
        self.spark, self.urls, self.prefix, self.folder = spark, urls, prefix, folder

    def graph(self, exchanges, **options):
        """Exchanges, with `ns/queue` of this world."""
        graph = Graph({ns: Namespace(url) for ns, url in self.urls.items()}, exchanges, **options)
        return ExchangeGraph(graph, str(self.folder / "checkpoints"), initial_backoff=0.05)

    def place(self, name):
        ns, _, queue = name.partition("/")
        return Place(f"{self.prefix}.{queue}", ns)

    def to(self, name, selector=None, **changes):
        place = self.place(name)
        return Destination(place.queue, selector, Changes(**changes), place.ns)

    def exchange(self, src, *dst, **facts):
        return Exchange(self.place(src), list(dst), **facts)

    def push(self, name, *payloads, **facts):
        with self.queue(name) as queue:
            for payload in payloads:
                queue.push(payload, **facts)

    def queue(self, name):
        if name.partition("/")[2].startswith("__"):
            ns, _, queue = name.partition("/")
            return Queue(self.urls[ns], queue)
        place = self.place(name)
        return Queue(self.urls[place.ns], place.queue)

    def messages(self, name):
        with self.queue(name) as queue:
            return sorted(queue.peek(limit=100_000), key=lambda one: json.dumps(one.payload))

    def payloads(self, name):
        return [one.payload for one in self.messages(name)]

    def headers(self, name):
        return [dict(one.headers) for one in self.messages(name)]


@pytest.fixture
def world(spark, name, tmp_path):
    """In SQLite: its files are this test's own, `__no_route__` and `__too_many_hops__` too."""
    urls = {ns: f"sqlite:///{tmp_path}/{ns}.db" for ns in ("ns1", "ns2")}
    return World(spark, urls, name, tmp_path)


# --- keuss-server's own cases ---------------------------------------------------------------------

MODES = pytest.mark.parametrize(
    "reserve", [pytest.param(False, marks=pytest.mark.full), True], ids=["pop", "reserve"]
)


@MODES
def test_flows_to_all_dests_correctly(world, reserve):
    exchange = world.exchange(
        "ns1/in", *(world.to(one) for one in ("ns1/a", "ns1/b", "ns2/c")), consumer=ConsumerSettings(reserve=reserve)
    )
    world.push("ns1/in", {"a": 1, "b": "see it move"}, headers={"aaa": "yes", "bbb": "qwerty"})
    graph = world.graph({"x": exchange})
    graph.drain(world.spark)
    for name in ("ns1/a", "ns1/b", "ns2/c"):
        assert world.payloads(name) == [{"a": 1, "b": "see it move"}]
        assert world.headers(name) == [{"aaa": "yes", "bbb": "qwerty", "x-hop-count": "1"}]
    assert world.payloads("ns1/in") == []
    assert world.payloads("ns1/__no_route__") == []


@pytest.mark.parametrize("reserve", [False, True], ids=["pop", "reserve"])
def test_flows_to_one_dest_correctly(world, reserve):
    exchange = world.exchange(
        "ns1/in",
        world.to("ns1/a", "headers['aaa'] rlike '^no-'"),
        world.to("ns1/b", "headers['aaa'] rlike '^yes-'"),
        world.to("ns2/c", "headers['zzz'] rlike '^yes-'"),
        consumer=ConsumerSettings(reserve=reserve),
    )
    world.push("ns1/in", {"a": 1}, headers={"aaa": "yes-111"})
    world.graph({"x": exchange}).drain(world.spark)
    assert [world.payloads(one) for one in ("ns1/a", "ns1/b", "ns2/c")] == [[], [{"a": 1}], []]


@MODES
def test_flows_to_none_correctly(world, reserve):
    exchange = world.exchange(
        "ns1/in", world.to("ns1/a", "false"), world.to("ns2/b", "null"), consumer=ConsumerSettings(reserve=reserve)
    )
    world.push("ns1/in", {"a": 1}, headers={"aaa": "1"})
    world.graph({"none": exchange}).drain(world.spark)
    assert world.payloads("ns1/__no_route__") == [{"a": 1}]
    assert world.headers("ns1/__no_route__") == [{"aaa": "1", "x-hop-count": "1", "x-exchange-name": "none"}]


@MODES
def test_too_many_hops_in_a_loop(world, reserve):
    consumer = ConsumerSettings(reserve=reserve)
    graph = world.graph(
        {
            "loop_a": world.exchange("ns1/a", world.to("ns2/b"), consumer=consumer),
            "loop_b": world.exchange("ns2/b", world.to("ns1/a"), consumer=consumer),
        },
        max_hops=7,
    )
    assert [sorted(one) for one in graph.graph.cycles()] == [["loop_a", "loop_b"]]
    world.push("ns1/a", {"a": 1})
    graph.drain(world.spark)
    assert world.payloads("ns2/__too_many_hops__") == [{"a": 1}]
    assert world.headers("ns2/__too_many_hops__") == [{"x-hop-count": "7", "x-exchange-name": "loop_b"}]
    assert world.payloads("ns1/a") == world.payloads("ns2/b") == []


@MODES
def test_exchange_graph_with_state_and_message_mutation(world, reserve):
    consumer = ConsumerSettings(reserve=reserve)
    graph = world.graph(
        {
            "first": world.exchange(
                "ns1/in",
                world.to("ns1/mid", headers={"from": "'first'"}, state={"seen": "payload:a"}),
                world.to("ns2/mid", "state['seen'] = '1'", payload="named_struct('a', payload:a::int + 1)"),
                world.to("ns2/never", "state['seen'] = '2'"),
                consumer=consumer,
            ),
            "second": world.exchange("ns1/mid", world.to("ns1/end"), world.to("ns1/end"), consumer=consumer),
            "third": world.exchange("ns2/mid", world.to("ns1/end"), world.to("ns1/end"), consumer=consumer),
        }
    )
    world.push("ns1/in", {"a": 1})
    graph.drain(world.spark)
    assert world.payloads("ns1/end") == [{"a": 1}, {"a": 1}, {"a": 2}, {"a": 2}]
    assert world.headers("ns1/end") == [{"from": "first", "x-hop-count": "2"}] * 4
    assert world.payloads("ns2/never") == []


def test_status(world):
    graph = world.graph({"x": world.exchange("ns1/in", world.to("ns2/out", "payload:n::int % 2 = 0"))})
    world.push("ns1/in", *({"n": n} for n in range(5)))
    graph.drain(world.spark)
    (status,) = graph.status().values()
    assert (status.name, status.state, status.restarts, status.error) == ("x", "finished", 0, None)
    assert (status.src, status.dst) == (str(world.place("ns1/in")), [str(world.place("ns2/out"))])
    traffic = status.traffic
    to = str(world.place("ns2/out"))
    assert (traffic.received, traffic.pushed, traffic.failed, traffic.no_route) == (5, {to: 3}, {to: 0}, 2)
    assert traffic.milliseconds["triggerExecution"] > 0
    assert load_traffic(world.urls["ns1"]) == {"x": traffic}


@pytest.mark.parametrize(
    ("selector", "wanted"),
    [
        (None, [{"n": 1}]),
        ("true", [{"n": 1}]),
        (lambda env: None, []),
        (lambda env: env.field("n", "int") >= 0, [{"n": 1}]),
    ],
)
def test_selectors_that_are_absent_pass_and_callables_are_called(world, selector, wanted):
    graph = world.graph({"x": world.exchange("ns1/in", world.to("ns1/out", selector))})
    world.push("ns1/in", {"n": 1})
    graph.drain(world.spark)
    assert world.payloads("ns1/out") == wanted


# --- selectors ------------------------------------------------------------------------------------


@pytest.mark.parametrize("ansi", ["true", "false"])
def test_what_fails_on_a_row_counts_as_false_there_and_is_counted(world, ansi):
    selectors = [
        "raise_error('no') is null",
        "1 / payload:n::int > 0",
        "payload:text::int > 0",
        "payload:n::int >= 0",
    ]
    graph = world.graph(
        {"x": world.exchange("ns1/in", *(world.to(f"ns1/{n}", one) for n, one in enumerate(selectors)))}
    )
    world.push("ns1/in", {"n": 0, "text": "x"}, {"n": 1, "text": "1"})
    with ansi_mode(world.spark, ansi):
        graph.drain(world.spark)
    (status,) = graph.status().values()
    assert list(status.traffic.pushed.values()) == [0, 1, 1, 2]
    assert list(status.traffic.failed.values()) == ([2, 1, 1, 0] if ansi == "true" else [2, 0, 0, 0])
    assert world.payloads("ns1/2") == [{"n": 1, "text": "1"}]


def test_a_struct_has_the_time_and_the_tries(world):
    selector = "named_struct('delay', payload:delay::double, 'tries', payload:tries::int)"
    graph = world.graph({"x": world.exchange("ns1/in", world.to("ns1/out", selector))})
    world.push("ns1/in", {"delay": 1000, "tries": 3}, {"delay": -1, "tries": 0}, {"delay": 0, "tries": -1}, {})
    graph.drain(world.spark)
    (status,) = graph.status().values()
    assert [*status.traffic.pushed.values(), *status.traffic.failed.values()] == [2, 2]
    with world.queue("ns1/out") as queue:
        assert (queue.sizes().ready, queue.sizes().scheduled) == (1, 1)
    assert Counter(one.tries for one in world.messages("ns1/out")) == Counter([3, 0])


def test_a_moment_wins_over_a_delay_and_other_fields_are_ignored(world, caplog):
    selector = "named_struct('mature', payload:at::double, 'delay', 1000, 'tries', 2, 'delai', 1)"
    graph = world.graph(
        {"x": world.exchange("ns1/in", world.to("ns1/out", selector), world.to("ns1/copy", selector))}
    )
    world.push("ns1/in", {"at": 1_000_000_000}, {})
    graph.drain(world.spark)
    assert world.payloads("ns1/out.dead") == []
    (without, with_moment) = sorted(world.messages("ns1/out"), key=lambda one: -one.mature.timestamp())
    assert with_moment.payload == {"at": 1_000_000_000} and with_moment.mature.timestamp() == 1_000_000_000
    assert without.mature.timestamp() > time.time() + 500
    assert [one.tries for one in world.messages("ns1/out")] == [2, 2]
    assert (
        "exchange 'x', destination 1: its selector has the field 'delai', which is ignored; did you mean"
        in caplog.text
    )
    assert "exchange 'x', destination 2: " in caplog.text


def test_changes_may_apply_to_messages_that_are_not_taken(world):
    """As in keuss-server, where a selector that returns false may have changed the message."""
    seen = {"headers": {"seen": "concat(coalesce(headers['seen'], ''), 'x')"}}
    never = world.to("ns1/never", "false", state={"n": "1"}, **seen)
    dst = (replace(never, apply="always"), world.to("ns1/a", "state:n::int = 1", **seen), never, world.to("ns1/b"))
    world.push("ns1/in", {"a": 1}, headers={"x-hop-count": "2"})
    world.graph({"x": world.exchange("ns1/in", *dst)}, max_hops=3).drain(world.spark)
    assert world.payloads("ns1/never") == []
    assert world.headers("ns1/a") == world.headers("ns1/b") == [{"seen": "xx", "x-hop-count": "3"}]


def test_a_change_that_fails_on_a_message_that_is_not_taken_is_counted(world):
    change = {"headers": {"n": "payload:n::int / 0"}}
    dst = replace(world.to("ns1/a", "payload:n::int > 1", **change), apply="always"), world.to("ns1/b")
    graph = world.graph({"x": world.exchange("ns1/in", *dst)})
    world.push("ns1/in", {"n": 1}, {"n": 2})
    with ansi_mode(world.spark, "true"):
        graph.drain(world.spark)
    (status,) = graph.status().values()
    assert list(status.traffic.pushed.values()) == [0, 2] and list(status.traffic.failed.values()) == [2, 0]
    assert world.headers("ns1/b") == [{"x-hop-count": "1"}] * 2


def test_the_state_holds_json(world):
    first = world.to(
        "ns1/a",
        state={
            "all": "payload:order",
            "made": "named_struct('list', array(1, 2), 'deep', map('k', true))",
            "text": "'a.b'",
            "n": "1.50D",
        },
    )
    checks = [
        "state:all.items[1].sku = 'b'", "state:made.list[1]::int = 2", "state:made.deep.k::boolean",
        "state:text = 'a.b' and state['text'] = 'a.b'", "state:n::double = 1.5", "state:nothing is null",
        "state:text.x is null", "state['made'] = '{\"list\":[1,2],\"deep\":{\"k\":true}}'",
        lambda env: env.state_field("made", "list[0]", "int") == 1,
        lambda env: env.state_field("n", kind="double") == 1.5,
    ]  # fmt: skip
    dst = [first, *(world.to(f"ns1/{number}", check) for number, check in enumerate(checks))]
    world.push("ns1/in", {"order": {"items": [{"sku": "a"}, {"sku": "b"}]}})
    world.graph({"x": world.exchange("ns1/in", *dst)}).drain(world.spark)
    assert [len(world.payloads(f"ns1/{number}")) for number in range(len(checks))] == [1] * len(checks)


def test_a_step_that_is_disabled_starts_by_its_name_only(world):
    graph = world.graph(
        {
            "on": world.exchange("ns1/in", world.to("ns1/mid")),
            "off": world.exchange("ns1/mid", world.to("ns1/end"), disable=True),
        }
    )
    world.push("ns1/in", 1)
    graph.drain(world.spark)
    assert [world.payloads(one) for one in ("ns1/in", "ns1/mid", "ns1/end")] == [[], [1], []]
    graph.start(world.spark, available_now=True).await_termination()
    assert graph.status()["off"].state == "stopped" and world.payloads("ns1/mid") == [1]
    graph.drain(world.spark, "off")
    assert world.payloads("ns1/end") == [1]


def test_the_reservation_is_gone_one_trigger_after_the_copies_can_be_read(world):
    """Without another message: a query that waits for one settles what it has read."""
    graph = world.graph({"x": world.exchange("ns1/in", world.to("ns1/a"), world.to("ns2/b"), every=2_000)})
    graph.start(world.spark)
    try:
        for number in range(3):
            world.push("ns1/in", number)
            wait_until(lambda number=number: world.payloads("ns2/b") == [*range(number + 1)], 60)
            seen = time.monotonic()
            wait_until(lambda: world.payloads("ns1/in") == [], 60)
            batches = graph.status()["x"].traffic.batches
            assert time.monotonic() - seen < 30 and batches <= number + 1, "it took no second batch"
    finally:
        graph.stop()


# --- selectors of keuss-server, as docs/exchanges.md translates them ------------------------------

#: Payload, headers and tries of messages; some have no field that a selector reads.
SAMPLES: list[tuple[dict, dict, int]] = [
    ({}, {}, 0),
    ({"dep_delay": 61, "carrier": "UA", "month": 6, "origin": "JFK"}, {"class": "late", "aaa": "yes-1"}, 3),
    ({"dep_delay": 60, "carrier": "UA", "month": 7, "origin": "EWR"}, {"class": "early", "aaa": "no"}, 2),
    ({"tags": ["urgent", "x"], "email": "a@example.org", "at": 2_000_000_000}, {"aaa": "yes-"}, 1),
    ({"tags": [], "email": "a@example.com", "customer": {"id": 7}}, {"class": "late"}, 0),
    ({"tags": ["x"], "customer": {"id": 8}, "dep_delay": "70"}, {"x": "1"}, 0),
]


def test_translated_selectors_say_what_those_of_keuss_server_say(world):
    translated = rows(Path(__file__).parents[2] / "docs" / "exchanges.md", "| keuss-server | here |")
    js, sql = zip(*((one.strip("`") for one in row) for row in translated), strict=True)
    assert len(sql) >= 10
    program = (
        "const [selectors, samples] = JSON.parse(require('fs').readFileSync(0));"
        "const call = (text, [payload, hdrs, tries]) => {"
        "  const env = { msg: { payload, hdrs, tries }, state: {} };"
        "  try { return eval(text)(env) || false; } catch (e) { return false; } };"
        "console.log(JSON.stringify(selectors.map((one) => samples.map((sample) => call(one, sample)))))"
    )
    sent = json.dumps([js, SAMPLES])
    said = json.loads(
        subprocess.run(["node", "-e", program], input=sent, capture_output=True, text=True, check=True).stdout
    )
    for text in sql:
        assert sql_mistake(text) == ""
    dst = [world.to(f"ns1/{number}", text) for number, text in enumerate(sql)]
    for number, (payload, headers, tries) in enumerate(SAMPLES):
        world.push("ns1/in", payload | {"sample": number}, headers=headers, tries=tries)
    world.graph({"x": world.exchange("ns1/in", *dst)}).drain(world.spark)
    for number, answers in enumerate(said):
        found = {one.payload["sample"]: one for one in world.messages(f"ns1/{number}")}
        assert sorted(found) == [sample for sample, answer in enumerate(answers) if answer], (js[number], sql[number])
        for sample, answer in enumerate(answers):
            if isinstance(answer, dict):
                until = found[sample].mature.timestamp() - time.time()
                assert found[sample].tries == answer.get("tries", 0)
                if "mature" in answer:
                    assert found[sample].mature.timestamp() == answer["mature"]
                elif "delay" in answer:
                    assert answer["delay"] - 60 < until <= answer["delay"]


def test_changes_that_fail_keep_the_message_away(world):
    graph = world.graph(
        {
            "x": world.exchange(
                "ns1/in",
                world.to("ns1/a", payload="payload:word"),  # JSON only if it is a number
                world.to("ns1/b", headers={"n": "payload:word::int", "old": "null"}),  # no word in the number
                world.to("ns1/c"),
            )
        }
    )
    world.push("ns1/in", {"word": "one"}, {"word": "1"}, headers={"old": "x"})
    with ansi_mode(world.spark, "true"):
        graph.drain(world.spark)
    (status,) = graph.status().values()
    assert list(status.traffic.pushed.values()) == [1, 1, 2]
    assert list(status.traffic.failed.values()) == [1, 1, 0]
    assert world.payloads("ns1/a") == world.payloads("ns1/b") == [1]
    assert world.headers("ns1/b") == [{"x-hop-count": "1"}]
    assert world.payloads("ns1/c") == [1, {"word": "one"}]
    assert [one.get("old") for one in world.headers("ns1/c")] == [None, "x"]


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("payload:n >", "Syntax error at or near end of input at position 12"),
        ("nosuch > 1", "`nosuch` cannot be resolved"),
        ("count(1) > 1", "must be computed from one message alone"),
        ("'text'", "it is string, but must be BOOLEAN, or a STRUCT of mature, delay, tries"),
        ("struct('x' as tries)", "its field 'tries' is string, but must be a whole number"),
        ("json:nothing", "module 'json' has no function 'nothing'"),
        ("nomodule:nothing", "No module named 'nomodule'"),
        (lambda env: 3, "returns 3, which is not a Column"),
    ],
)
def test_selectors_that_cannot_work_are_refused_before_anything_starts(world, selector, expected):
    graph = world.graph(
        {
            "good": world.exchange("ns1/in", world.to("ns1/out")),
            "bad": world.exchange("ns1/in", world.to("ns1/out"), world.to("ns1/out", selector)),
        }
    )
    world.push("ns1/in", {"n": 1})
    with pytest.raises(GraphError) as caught:
        graph.start(world.spark)
    (mistake,) = caught.value.mistakes
    assert mistake.startswith("exchange 'bad', destination 2, selector: ")
    assert expected in mistake
    assert [one.state for one in graph.status().values()] == ["stopped", "stopped"]
    assert world.payloads("ns1/in") == [{"n": 1}]
