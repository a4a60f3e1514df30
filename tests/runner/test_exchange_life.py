"""Exchanges start, stop, fail and recover while others run; and graphs that cannot start."""

from __future__ import annotations

import logging
from collections import Counter
from contextlib import contextmanager

import pytest

from spark_queue import GraphError
from spark_queue.graph.exchange import NO_ROUTE, TOO_MANY_HOPS
from spark_queue.graph.model import ConsumerSettings, Exchange, Graph, Namespace, Place
from spark_queue.runner.graph import ExchangeGraph
from spark_queue.runner.traffic import load_traffic
from spark_queue.stores import open_store
from spark_queue.stores.conformance.waiting import wait_until
from tests.chaos.servers import PASSWORD, Server
from tests.runner.test_exchange import World, ansi_mode
from tests.services import ServiceError


class Life(World):
    """Graphs whose exchanges look often for something to do, and give up soon."""

    def graph(self, exchanges, **options):
        quick = {"waitTimeout": "200ms"}
        graph = Graph({ns: Namespace(url, quick) for ns, url in self.urls.items()}, exchanges)
        return ExchangeGraph(graph, str(self.folder / "checkpoints"), **{"initial_backoff": 0.05} | options)

    def arrive(self, name, *payloads):
        """Wait until just these are in a queue."""
        wait_until(lambda: len(self.messages(name)) >= len(payloads))
        assert Counter(self.payloads(name)) == Counter(payloads), name

    def emptied(self, name):
        """Wait until what has arrived is gone from where it came from, too."""
        wait_until(lambda: not self.payloads(name))

    @contextmanager
    def running(self, graph, *names):
        graph.start(self.spark, *names)
        try:
            yield graph
        finally:
            graph.stop()


@pytest.fixture
def life(spark, name, tmp_path):
    return Life(spark, {ns: f"sqlite:///{tmp_path}/{ns}.db" for ns in ("ns1", "ns2")}, name, tmp_path)


def states(graph):
    return {name: one.state for name, one in graph.status().items()}


def at_work(life):
    """Which of the exchanges a and b Spark runs."""
    return {query.name for query in life.spark.streams.active} & {"a", "b"}


# --- one of several -------------------------------------------------------------------------------


def test_one_comes_and_goes_while_the_other_runs(life):
    graph = life.graph({"a": life.exchange("ns1/in_a", life.to("ns1/out_a"))})
    with life.running(graph):
        life.push("ns1/in_a", 1)
        life.arrive("ns1/out_a", 1)
        graph.add("b", life.exchange("ns1/in_b", life.to("ns2/out_b")))
        assert states(graph) == {"a": "running", "b": "stopped"}
        life.push("ns1/in_b", 1)
        graph.start(life.spark)  # a runs already
        life.arrive("ns2/out_b", 1)
        assert states(graph) == {"a": "running", "b": "running"}

        life.emptied("ns1/in_b")
        graph.stop("b")
        assert at_work(life) == {"a"}
        life.push("ns1/in_b", 2)
        life.push("ns1/in_a", 2)
        life.arrive("ns1/out_a", 1, 2)
        assert states(graph) == {"a": "running", "b": "stopped"}
        assert life.payloads("ns1/in_b") == [2]
        assert not graph.await_termination(0)
        graph.start(life.spark, "b")
        life.arrive("ns2/out_b", 1, 2)

        life.emptied("ns1/in_b")
        graph.remove("b")
        assert at_work(life) == {"a"}
        assert states(graph) == {"a": "running"}
        assert list(graph.graph.exchanges) == ["a"]
        life.push("ns1/in_b", 3)
        life.push("ns1/in_a", 3)
        life.arrive("ns1/out_a", 1, 2, 3)
        assert life.payloads("ns1/in_b") == [3]
        assert {one.restarts for one in graph.status().values()} == {0}
    assert at_work(life) == set()
    assert states(graph) == {"a": "stopped"}
    assert graph.await_termination(0)
    assert sorted(one.name for one in (life.folder / "checkpoints").iterdir()) == ["a", "b"]


def test_names_that_are_taken_and_names_that_are_not_there(life):
    graph = life.graph({"by_delay": life.exchange("ns1/in", life.to("ns1/out"))})
    with pytest.raises(GraphError, match="there is a step 'by_delay' already: choose another name"):
        graph.add("by_delay", life.exchange("ns1/other", life.to("ns1/out")))
    with pytest.raises(GraphError, match="exchange 'new', src: unknown namespace 'ns3'; did you mean 'ns"):
        graph.add("new", Exchange(Place("in", "ns3"), []))
    with pytest.raises(GraphError, match="must be 1 to 100 letters, digits"):
        graph.add("a name", life.exchange("ns1/other"))
    for call in (
        lambda *names: graph.start(life.spark, *names),
        lambda *names: graph.drain(life.spark, *names),
        graph.stop,
        lambda *names: [graph.remove(name) for name in names],
    ):
        with pytest.raises(GraphError, match="there is no step 'by_dely'; did you mean 'by_delay'"):
            call("by_dely")
    with pytest.raises(GraphError, match="there is no step 'zzz'; there are by_delay"):
        graph.stop("by_delay", "zzz")
    assert graph.graph.exchanges["by_delay"].src == life.place("ns1/in")
    assert states(graph) == {"by_delay": "stopped"}


@pytest.mark.full
def test_what_was_stopped_goes_on_where_it_was_and_its_counts_add_up(life):
    exchange = life.exchange("ns1/in", life.to("ns2/out", "payload > 0"), consumer=ConsumerSettings(wsize=30))
    graph, to = life.graph({"x": exchange}), str(life.place("ns2/out"))

    def work(graph, numbers, seen):
        """Until all is counted: a batch that a stop cuts short may be missing there."""
        life.push("ns1/in", *numbers)
        with life.running(graph):
            wait_until(lambda: graph.status()["x"].traffic.received == len(numbers))
            life.emptied("ns1/in")
        life.arrive("ns2/out", *(n for n in seen if n))
        return graph.status()["x"].traffic

    first = work(graph, range(100), range(100))
    second = work(graph, range(100, 150), range(150))
    other = life.graph({"x": exchange})  # another process, later
    third = work(other, range(150, 160), range(160))
    assert [one.received for one in (first, second, third)] == [100, 50, 10], "since the start"
    assert load_traffic(life.urls["ns1"]) == {"x": first + second + third}
    assert (first + second + third).pushed == {to: 159}
    assert life.payloads("ns1/" + NO_ROUTE) == [0]
    assert life.payloads("ns1/in") == []
    assert first.batches >= 4


def test_what_had_no_route_is_drained_by_an_exchange_that_takes_it(life):
    graph = life.graph(
        {"last": Exchange(Place(NO_ROUTE, "ns1"), [life.to("ns1/saved")]), "x": life.exchange("ns1/in")},
    )
    life.push("ns1/in", 1, 2)
    graph.drain(life.spark)
    assert life.payloads("ns1/saved") == [1, 2]


def test_a_drain_starts_only_what_finds_something(life):
    wires = {"a": ("in", "a"), "b": ("a", "b"), "c": ("b", "c"), "idle": ("nothing", "d"), "late": ("later", "e")}
    graph = life.graph(
        {name: life.exchange(f"ns1/{src}", life.to(f"ns1/{dst}")) for name, (src, dst) in wires.items()}
    )
    life.push("ns1/in", 1)
    life.push("ns1/later", 1, delay=3600)
    graph.drain(life.spark)
    assert life.payloads("ns1/c") == [1]
    assert set(states(graph).values()) == {"finished"}
    assert {one.name for one in (life.folder / "checkpoints").iterdir()} == {"a", "b", "c"}
    assert life.payloads("ns1/later") == [1]


def test_a_drain_takes_up_what_was_held_when_its_exchange_was_stopped(life):
    graph = life.graph({"x": life.exchange("ns1/in", life.to("ns1/out"), every=600_000)})
    life.push("ns1/in", *range(5))
    with life.running(graph):
        life.arrive("ns1/out", *range(5))
    with life.queue("ns1/in") as queue:
        assert (queue.sizes().ready, queue.sizes().reserved) == (0, 5)
    graph.drain(life.spark)
    assert life.payloads("ns1/in") == []
    assert life.payloads("ns1/out") == [*range(5)]


def test_queues_that_a_graph_writes_exist_before_its_readers_look_for_them(life):
    graph = life.graph(
        {
            "a": life.exchange("ns1/in_a", life.to("ns1/between")),
            "b": life.exchange("ns1/between", life.to("ns2/out_b")),
        }
    )
    graph.drain(life.spark)
    for ns, queue, there in (("ns1", "between", True), ("ns2", "out_b", True), ("ns1", "in_a", False)):
        with open_store(life.urls[ns], create=False) as store:
            assert store.exists(life.place(f"{ns}/{queue}").queue) is there, queue


def test_what_runs_cannot_be_drained_and_others_that_run_do_not_keep_a_drain_waiting(life):
    graph = life.graph(
        {"a": life.exchange("ns1/in_a", life.to("ns1/out_a")), "b": life.exchange("ns1/in_b", life.to("ns1/out_b"))}
    )
    life.push("ns1/in_b", 1)
    with life.running(graph, "a"):
        with pytest.raises(GraphError, match="step 'a' is running: stop it, then drain it"):
            graph.drain(life.spark)
        graph.drain(life.spark, "b")
        assert life.payloads("ns1/out_b") == [1]
        assert graph.status()["a"].state in ("starting", "running")


# --- failures -------------------------------------------------------------------------------------


@pytest.fixture
def server(tmp_path):
    """A Redis server that does not run yet."""
    folder = tmp_path / "data"
    folder.mkdir()
    try:
        own = Server("redis", folder, aof="none")
    except ServiceError as error:
        pytest.skip(str(error))
    own.kill()
    yield own
    own.kill()


def test_exchanges_whose_server_is_down_are_tried_again_and_the_others_go_on(life, server, caplog):
    life.urls["far"] = server.url
    soon = {"retryTimeout": "300ms"}  # for the destinations, too
    graph = life.graph(
        {
            "near": life.exchange("ns1/in", life.to("ns1/out")),
            "from_far": life.exchange("far/in", life.to("ns1/from_far"), options=soon),
            "to_far": life.exchange("ns2/in", life.to("ns2/beside"), life.to("far/out"), options=soon),
        },
        initial_backoff=0.1,
    )
    caplog.set_level(logging.WARNING, "spark_queue")
    life.push("ns2/in", *range(5))

    def waits_again(name):
        one = graph.status()[name]
        assert one.state not in ("stopped", "finished"), one
        return one.state == "waiting" and one.restarts > 1

    with life.running(graph):
        life.push("ns1/in", 1)
        wait_until(lambda: waits_again("to_far"), 120, pause=0.01)
        wait_until(lambda: waits_again("from_far"), 120, pause=0.01)
        life.arrive("ns1/out", 1)
        assert states(graph)["near"] == "running"
        for name in ("from_far", "to_far"):
            error = graph.status()[name].error
            assert f"redis://:***@127.0.0.1:{server.port}/0 cannot be reached" in error
        assert life.payloads("ns2/beside") == []

        server.start()
        life.arrive("far/out", *range(5))
        life.arrive("ns2/beside", *range(5))
        life.push("far/in", 1)
        life.arrive("ns1/from_far", 1)
        wait_until(lambda: set(states(graph).values()) == {"running"})
        life.emptied("ns2/in")
    said = [one.getMessage().partition(" has failed and starts again in ") for one in caplog.records]
    for name in ("from_far", "to_far"):
        pauses = [rest[:5] for query, _, rest in said if query == f"query {name}"]
        assert pauses[:2] == ["0.1 s", "0.2 s"]
    assert PASSWORD not in caplog.text + str(graph.status())


def test_what_would_fail_for_ever_ends_its_exchange_and_no_other(life):
    first = life.graph({"x": life.exchange("ns1/in", life.to("ns1/out"))})
    life.push("ns1/in", 1)
    first.drain(life.spark)
    graph = life.graph(
        {"x": life.exchange("ns1/another", life.to("ns1/out")), "y": life.exchange("ns1/in", life.to("ns1/more"))}
    )
    with life.running(graph):
        wait_until(lambda: graph.status()["x"].state == "stopped")
        life.push("ns1/in", 2)
        life.arrive("ns1/more", 2)
        x, y = graph.status()["x"], graph.status()["y"]
    assert x.error.startswith("the checkpoint is that of a query on queue")
    assert (x.restarts, y.error) == (0, None)


@pytest.mark.full
def test_many_that_cannot_start_are_stopped_at_once(life, server):
    life.urls["far"] = server.url
    graph = life.graph({f"x{n}": life.exchange("far/in", life.to("ns1/out")) for n in range(8)})
    graph.start(life.spark)
    assert set(states(graph).values()) == {"starting"}
    wait_until(lambda: len(life.spark.streams.active) > 0)
    graph.stop()
    assert set(states(graph).values()) == {"stopped"}
    assert {one.error for one in graph.status().values()} == {None}
    assert {query.name for query in life.spark.streams.active} & set(states(graph)) == set()


# --- what is wrong --------------------------------------------------------------------------------


def test_without_destinations_all_goes_to_no_route_and_odd_hops_are_counted(life):
    graph = life.graph({"x": life.exchange("ns1/in")})
    counts = [None, "x", "", "-1", "1.0", "3", " 4 ", "0000000000005"]
    for count in counts:
        life.push("ns1/in", {"was": count}, headers={} if count is None else {"x-hop-count": count})
    graph.drain(life.spark)
    hops = {one.payload["was"]: one.headers["x-hop-count"] for one in life.messages("ns1/" + NO_ROUTE)}
    assert hops == dict.fromkeys([None, "x", "", "-1", "1.0"], "1") | {"3": "4", " 4 ": "5", "0000000000005": "6"}
    traffic = graph.status()["x"].traffic
    assert (traffic.received, traffic.no_route, traffic.odd_hops, traffic.pushed) == (8, 8, 4, {})


@pytest.mark.parametrize("ansi", ["true", "false"])
def test_hop_counts_of_any_length_end_a_message(life, ansi):
    graph, counts = life.graph({"x": life.exchange("ns1/in")}), ["17", "9" * 10, "9" * 38, "9" * 39, "9" * 1000]
    for count in counts:
        life.push("ns1/in", count, headers={"x-hop-count": count})
    with ansi_mode(life.spark, ansi):
        graph.drain(life.spark)
    assert {one.payload: one.headers["x-hop-count"] for one in life.messages("ns1/" + TOO_MANY_HOPS)} == {
        count: count for count in counts
    }
    assert graph.status()["x"].traffic.odd_hops == 0


def test_names_that_its_databases_forbid_are_reported_before_anything_starts(life):
    life.urls |= {"mongo": "mongodb://127.0.0.1:1/db", "odd": "redis://h:port/0", "nosql": "nosql://h"}
    graph = life.graph(
        {
            "good": life.exchange("ns1/in", life.to("ns1/out")),
            "bad": Exchange(
                Place("q" * 201, "ns1"), [life.to("ns1/a", headers={"n": "count(1)"}), life.to("mongo/a$b")]
            ),
            "worse": Exchange(Place("in", "ns1"), [life.to("nosql/x")], options={"maxTrys": "3"}),
            "odd": Exchange(Place("in", "odd"), []),
        }
    )
    with pytest.raises(GraphError) as caught:
        graph.start(life.spark)
    reported = [
        ("exchange 'bad', destination 1, set.headers.n: it must be computed from one message alone", "count(1)"),
        ("exchange 'bad', destination 2: ", "cannot name a queue: the name of a MongoDB collection has no $"),
        ("exchange 'bad', src: 'qqq", "cannot name a queue: 1 to 200 bytes"),
        ("exchange 'odd', src: option 'url': 'redis://…' has a malformed host or port", "redis://"),
        ("exchange 'worse', destination 1: option 'url': no store for nosql://", "known are sqlite://"),
        ("exchange 'worse', src: unknown option 'maxTrys'", "did you mean 'maxTries'?"),
    ]
    assert len(caught.value.mistakes) == len(reported)
    for mistake, (begin, part) in zip(caught.value.mistakes, reported, strict=True):
        assert mistake.startswith(begin) and part in mistake
    assert set(states(graph).values()) == {"stopped"}
