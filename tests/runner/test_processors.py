"""Processors between queues: the cases of Cues' own suite, by their names, and failures.

A query costs seconds, so cases share a graph if they can: one graph is drained for all that works,
and one is broken and mended for all that fails.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark.sql import functions as F

from spark_queue import GraphError, Queue, open_store, wrap_error
from spark_queue.graph.model import ConsumerSettings, Graph, Input, Namespace, Place, Processor
from spark_queue.messages.message import messages as messages_of
from spark_queue.runner import ExchangeGraph, isomorphic
from spark_queue.stores.conformance.waiting import wait_until

QUICK = {"waitTimeout": "200ms"}


def runner(folder, processors, urls=None, **facts):
    urls = urls or {"l": f"sqlite:///{folder}/queues.db"}
    graph = Graph({ns: Namespace(url, QUICK) for ns, url in urls.items()}, processors=processors, **facts)
    return ExchangeGraph(graph, str(folder / "checkpoints"), initial_backoff=0.05)


def ins(*queues):
    return {queue: Input(queue, "l") for queue in queues}


def outs(*queues):
    return {queue: Place(queue, "l") for queue in queues}


def payloads_in(graph, queue):
    return [one.payload for one in graph.messages(f"l/{queue}")]


def provenance(message):
    return json.loads(message.headers["x-provenance"])


# --- one graph for all that works -----------------------------------------------------------------


def numbers_in(messages):
    return [one.payload["x"] for one in messages.values()]


def add(process, messages):
    (out,) = process.config["out"]
    return {out: {"x": sum(n + 1 for n in numbers_in(messages))}}


def to_all(process, messages):
    """Broadcast: the same to every output."""
    total = sum(n + 1 for n in numbers_in(messages))
    return {out: {"x": total} for out in process.config["out"]}


def no_odds(process, messages):
    (n,) = numbers_in(messages)
    if n % 2:
        raise ValueError("odd")
    return {"evens": {"x": n}}


def store(process, messages):
    """A sink: it writes to a file, with the hash of the delivery."""
    with open(process.system["log"], "a") as file:
        for queue, one in messages.items():
            file.write(json.dumps([process.id, queue, one.payload, process.delivery_hash]) + "\n")


def store_frame(process, df):
    """The same, a batch at a time."""
    with open(process.system["log"], "a") as file:
        for row in df.collect():
            file.write(
                json.dumps([process.id, "framed", json.loads(row.framed.payload), process.delivery_hash]) + "\n"
            )


def column(process, df):
    x = F.try_variant_get(F.try_parse_json("s_frame.payload"), "$.x", "int")
    return {"framed": F.struct((x * 10).alias("x"))}


def act_directly(process, messages):
    """It reads and writes by itself, and hands on where that comes from."""
    (one,) = messages.values()
    for more in process.tailers["extra"].reserve(10):
        process.tailers["extra"].commit(more)
        process.appenders["written"].push(more.payload, headers={"by": "hand"})
    process.appenders["written"].push({"x": one.payload["x"] + 1}, headers={"from": one.id})
    return {"hand_out": {"x": -one.payload["x"]}}


def alone(process, messages):
    """Without an input, it is called again and again."""
    assert messages == {}
    for one in process.tailers["alone_in"].reserve(10):
        process.appenders["alone_out"].push(one.payload)
        process.tailers["alone_in"].commit(one)


@pytest.fixture(scope="module")
def worked(spark, tmp_path_factory):
    folder = tmp_path_factory.mktemp("worked")
    log = folder / "stored.jsonl"
    rows = {"rows": True}
    processors = {
        "s_sink": Processor(),
        "sink": Processor(store, in_=ins("s_sink"), **rows),
        "s_pipe": Processor(),
        "pipe": Processor(add, in_=ins("s_pipe"), out=outs("piped"), **rows),
        "s_a": Processor(),
        "s_b": Processor(out={"b": Place("s_b", "l")}),
        "join": Processor(add, in_=ins("s_a", "s_b"), out=outs("joined"), consumer=ConsumerSettings(wsize=1), **rows),
        "fork": Processor(to_all, in_=ins("joined", "piped"), out=outs("q1", "q2"), **rows),
        "s_error": Processor(),
        "error": Processor(no_odds, in_=ins("s_error"), out=outs("evens"), errors=Place("errors", "l"), **rows),
        "done_counter": Processor(store, in_=ins("errors"), **rows),
        "s_frame": Processor(),
        "frame": Processor(column, in_=ins("s_frame"), out=outs("framed")),
        "frame_sink": Processor(store_frame, in_=ins("framed")),
        "s_all": Processor(),
        "hears": Processor(store, in_={"all": Input("s_all", "l", "log")}, **rows),
        "hears_too": Processor(store, in_={"all": Input("s_all", "l", "log")}, **rows),
        "s_hand": Processor(),
        "hand": Processor(
            act_directly, in_=ins("s_hand"), out=outs("hand_out"), tailers=outs("extra") , appenders=outs("written")
        ),
        "alone": Processor(alone, tailers=outs("alone_in"), appenders=outs("alone_out")),
    }  # fmt: skip
    graph = runner(folder, processors, system={"log": str(log)})
    for to, values in {
        "s_sink": [1, 2, 3], "s_pipe": [1, 2], "s_a": [1, 3], "s_b": [2, 4, 6],
        "s_error": [1, 2, 3, 4], "s_frame": [1, 2], "s_hand": [5], "s_all": [1, 2, 3],
    }.items():  # fmt: skip
        graph.send(*({"x": n} for n in values), to=to)
    for queue in ("extra", "alone_in"):
        with Queue(graph.graph.namespaces["l"].url, queue) as by_itself:
            by_itself.push({"x": 7})
    ids = {queue: [one.id for one in graph.messages(f"l/{queue}")] for queue in ("s_pipe", "s_a", "s_b", "s_error")}
    graph.drain(spark, *(name for name in graph.status() if name != "alone"))
    graph.start(spark, "alone", available_now=True)
    wait_until(lambda: graph.await_termination(1))
    stored = [json.loads(line) for line in log.read_text().splitlines()]
    return SimpleNamespace(graph=graph, stored=stored, ids=ids, folder=folder)


def stored(worked, name):
    return [payload for who, _, payload, _ in worked.stored if who == name]


def test_graph_system(worked):
    """The functions of a graph get its `system`; without it the sinks could not write."""
    assert {name for name, *_ in worked.stored} == {"sink", "done_counter", "frame_sink", "hears", "hears_too"}


def test_graph_source_sink(worked):
    assert stored(worked, "sink") == [{"x": 1}, {"x": 2}, {"x": 3}]
    hashes = [hash for name, *_, hash in worked.stored if name == "sink"]
    assert len(set(hashes)) == 3 and {len(hash) for hash in hashes} == {64}
    assert worked.graph.messages("l/s_sink") == []
    status = worked.graph.status()["sink"]
    assert (status.state, status.src, status.dst, status.traffic.received) == ("finished", "l/s_sink", [], 3)


def test_graph_pipe_and_join_and_join_fork(worked):
    """graph-pipe, graph-join, graph-join-fork: n-th with n-th, in each output, with provenance."""
    assert payloads_in(worked.graph, "q1") == payloads_in(worked.graph, "q2") == [{"x": 9}, {"x": 14}]
    for queue in ("q1", "q2"):
        first, second = map(provenance, worked.graph.messages(f"l/{queue}"))
        for n, hops in enumerate((first, second)):
            assert sorted(hops) == ["l/joined", "l/piped", "l/s_a", "l/s_b", "l/s_pipe"]
            for source in ("s_pipe", "s_a", "s_b"):
                assert hops[f"l/{source}"]["position"] == worked.ids[source][n]
        assert first["l/s_a"]["time"] <= first["l/joined"]["time"] <= second["l/joined"]["time"]
    assert payloads_in(worked.graph, "s_b") == [{"x": 6}], "there is no other message to join it with"
    status = worked.graph.status()["fork"]
    assert (status.src, status.dst) == ("l/joined + l/piped", ["l/q1", "l/q2"])
    assert (status.traffic.received, status.traffic.pushed) == (2, {"l/q1": 2, "l/q2": 2})


def test_graph_broadcast(worked):
    """Each has its own cursor in the log; deliveries of the same messages have their own hashes."""
    assert stored(worked, "hears") == stored(worked, "hears_too") == [{"x": 1}, {"x": 2}, {"x": 3}]
    hashes = [hash for name, *_, hash in worked.stored if name.startswith("hears")]
    assert len(set(hashes)) == 6


def test_graph_error(worked):
    assert payloads_in(worked.graph, "evens") == [{"x": 2}, {"x": 4}]
    errors = stored(worked, "done_counter")
    assert [one["messages"]["l/s_error"]["payload"] for one in errors] == [{"x": 1}, {"x": 3}]
    assert [one["messages"]["l/s_error"]["id"] for one in errors] == worked.ids["s_error"][::2]
    assert {one["cause"]["cause"] for one in errors} == {"odd"}
    assert errors[0]["config"]["errors"] == "l/errors" and errors[0]["type"] == "processor"
    assert worked.graph.status()["error"].traffic.pushed == {"l/evens": 2, "l/errors": 2}


def test_graph_imperative(worked):
    written = worked.graph.messages("l/written")
    assert [(one.payload, sorted(one.headers)) for one in written] == [({"x": 7}, ["by"]), ({"x": 6}, ["from"])]
    assert payloads_in(worked.graph, "hand_out") == [{"x": -5}]
    assert worked.graph.messages("l/extra") == []
    assert payloads_in(worked.graph, "alone_out") == [{"x": 7}]


def test_functions_on_frames(worked):
    assert stored(worked, "frame_sink") == [{"x": 10}, {"x": 20}]
    assert len({hash for name, *_, hash in worked.stored if name == "frame_sink"}) == 1, "of the batch"


def test_what_a_graph_has_and_has_not(worked):
    graph = worked.graph
    with pytest.raises(GraphError, match="there is no source 's_pip'; did you mean 's_pipe'"):
        graph.send(1, to="s_pip")
    with pytest.raises(GraphError, match="name the source by `to`: the graph has s_sink, s_pipe"):
        graph.send(1)
    with pytest.raises(GraphError, match="the graph has no queue 'l/s_pip'; did you mean 'l/s_pipe'"):
        graph.messages("l/s_pip")
    with pytest.raises(GraphError, match="there is a step 'pipe' already: choose another name"):
        graph.add("pipe", Processor())
    assert isomorphic(graph.graph, graph.graph)
    assert graph.topology().nodes["fork"]["kind"] == "fork"


# --- one that runs on -----------------------------------------------------------------------------


def test_graph_alts(spark, tmp_path):
    """A batch reads the first input that has messages, and only this one. It stops and goes on."""
    alts = Processor(add, alts=ins("s1", "s2"), out=outs("out"), rows=True)
    graph = runner(tmp_path, {"s1": Processor(), "s2": Processor(), "alts": alts})
    graph.start(spark)
    done = []
    for to, n in (("s1", 1), ("s2", 2), ("s2", 3), ("s1", 4)):
        graph.send({"x": n}, to=to)
        done.append({"x": n + 1})
        wait_until(lambda: payloads_in(graph, "out") == done)
    assert [list(provenance(one)) for one in graph.messages("l/out")] == [["l/s1"], ["l/s2"], ["l/s2"], ["l/s1"]]
    assert graph.status()["alts"].src == "l/s1 | l/s2"
    graph.stop()
    assert graph.status()["alts"].state == "stopped"
    graph.send({"x": 5}, to="s2")
    graph.start(spark)
    wait_until(lambda: payloads_in(graph, "out") == [*done, {"x": 6}])
    graph.stop()


# --- one graph for all that fails -----------------------------------------------------------------


def breaks(process, messages):
    """Fails on what it should fail on, as long as it should; all attempts are written down."""
    n = [one.payload["n"] for one in messages.values()]
    with open(process.system["attempts"], "a") as file:
        file.write(json.dumps([process.id, n, process.delivery_hash]) + "\n")
    if process.opts["fails"] in n and Path(process.system["broken"]).exists():
        with wrap_error({"n": n}):
            raise RuntimeError(f"planted at {n}")
    return {out: {"n": sum(n)} for out in process.config["out"]}


def unwritable(process, messages):
    """What it gives cannot be written, as long as it should not."""
    n = [one.payload["n"] for one in messages.values()]
    broken = Path(process.system["broken"]).exists()
    return {name: {"n": float("nan") if broken else n[0]} for name in process.config["out"]}


def run_steps(graph, spark):
    """Run the steps, a few at a time, until they are done or fail as planted.

    On a busy machine, they may fail to connect back: they are then started again.
    """
    names = list(graph.status())
    for some in (names[0::3], names[1::3], names[2::3]):
        for _ in range(4):
            graph.start(spark, *some, available_now=True, restarts=0).await_termination(200)
            some = [one for one in some if "connect back" in (graph.status()[one].error or "")]
            if not some:
                break


@pytest.fixture(scope="module")
def broken(spark, tmp_path_factory):
    """A graph that has failed in every way it can: its state then, and since it works again."""
    folder = tmp_path_factory.mktemp("broken")
    flag, attempts = folder / "broken", folder / "attempts.jsonl"
    flag.touch()

    def processors(mended=False):
        alts = ins("alts2", "alts1") if not mended else ins("alts1", "alts2")
        most, least = ("exactly-once", "exactly-once") if mended else ("at-most-once", "at-least-once")
        one, two = {"opts": {"fails": 1}}, {"opts": {"fails": 2}}
        batch, rows = {"rows": True}, {"rows": True, "consumer": ConsumerSettings(wsize=1)}
        return {
            "interrupt": Processor(breaks, in_=ins("interrupt_in"), out=outs("interrupted"), **two, **batch),
            "interrupt_alts": Processor(breaks, alts=alts, out=outs("alts_out"), **one, **rows),
            "interrupt_fork": Processor(breaks, in_=ins("fork_in"), out=outs("fork1", "fork2"), **two, **rows),
            "handled": Processor(
                breaks, in_=ins("handled_in"), out=outs("handled"), errors=Place("e1", "l"), **one, **batch
            ),
            "write_handled": Processor(
                unwritable, in_=ins("unwritten_in"), out=outs("unwritten"), errors=Place("e2", "l"), **batch
            ),
            "no_write": Processor(unwritable, in_=ins("no_write_in"), out=outs("no_write"), **rows),
            "most": Processor(breaks, in_=ins("most_in"), out=outs("most_out"), delivery=most, **one, **rows),
            "least": Processor(breaks, in_=ins("least_in"), out=outs("least_out"), delivery=least, **one, **rows),
            "done": Processor(breaks, in_=ins("done_in"), out=outs("done_out"), opts={"fails": 0}, **batch),
        }

    system = {"broken": str(flag), "attempts": str(attempts)}
    graph = runner(folder, processors(), system=system)
    url = graph.graph.namespaces["l"].url
    ready = ["interrupt_in", "fork_in", "handled_in", "unwritten_in", "no_write_in", "most_in", "least_in", "done_in"]
    with open_store(url) as store:
        for name in ready:
            with Queue(store, name) as queue:
                queue.push_many([{"n": 1}, {"n": 2}])
        with Queue(store, "alts2") as queue:
            queue.push({"n": 1})
    run_steps(graph, spark)
    names = ["interrupted", "alts_out", "fork1", "fork2", "handled", "unwritten", "no_write", "most_out", "least_out",
             "done_out", "e1", "e2"]  # fmt: skip

    def look():
        with open_store(url) as store:
            return {
                name: [one.payload for batch in store.peek(name, limit=9) for one in messages_of(batch)]
                for name in names
            }

    then, status = look(), graph.status()
    assert status["done"].state == "finished", status["done"].error
    flag.unlink()
    with Queue(url, "alts1") as queue:
        queue.push({"n": 2})
    forget_the_last_commit(folder / "checkpoints" / "done")
    again = runner(folder, processors(mended=True), system=system)
    run_steps(again, spark)
    assert {name: one.error for name, one in again.status().items() if one.error} == {}
    tried = [json.loads(line) for line in attempts.read_text().splitlines()]
    return SimpleNamespace(then=then, now=look(), status=status, attempts=tried, url=url)


def forget_the_last_commit(checkpoint):
    """Undo the last commit, as if the query had died between its outputs and Spark's commit."""
    commits = checkpoint / "commits"
    last = max((one for one in commits.iterdir() if one.name.isdigit()), key=lambda one: int(one.name))
    last.unlink()
    (commits / f".{last.name}.crc").unlink(missing_ok=True)


def tried(broken, name):
    """The attempts of a processor: the numbers it had, with the hash of the delivery."""
    return [(tuple(n), hash) for who, n, hash in broken.attempts if who == name]


@pytest.mark.full
def test_exactly_once_processor_unhandled_interrupt(broken):
    """Nothing of a batch that fails after its first output is visible; later all of it is, once."""
    assert broken.then["interrupted"] == []
    assert "planted at [2]" in broken.status["interrupt"].error and broken.status["interrupt"].state == "stopped"
    assert broken.now["interrupted"] == [{"n": 1}, {"n": 2}]
    attempts = tried(broken, "interrupt")
    assert Counter(n for n, _ in attempts)[2,] >= 2
    assert len(set(attempts)) == 2, "the hash of a delivery is the same at every attempt"


@pytest.mark.full
def test_exactly_once_processor_unhandled_interrupt_alts(broken):
    """What was chosen stays chosen, also where the other input comes first now."""
    assert broken.then["alts_out"] == []
    assert broken.now["alts_out"] == [{"n": 1}, {"n": 2}]
    assert len({hash for n, hash in tried(broken, "interrupt_alts") if n == (1,)}) == 1


@pytest.mark.full
def test_exactly_once_join_fork_unhandled_interrupt(broken):
    assert (broken.then["fork1"], broken.then["fork2"]) == ([{"n": 1}], [{"n": 1}])
    assert (broken.now["fork1"], broken.now["fork2"]) == ([{"n": 1}, {"n": 2}], [{"n": 1}, {"n": 2}])


@pytest.mark.full
def test_exactly_once_processor_handled_error(broken):
    assert (broken.then["handled"], broken.now["handled"]) == ([{"n": 2}], [{"n": 2}])
    assert broken.status["handled"].state == "finished"
    (error,) = broken.now["e1"]
    assert (error["type"], error["n"], error["cause"]["cause"]) == ("error", [1], "planted at [1]")


@pytest.mark.full
def test_exactly_once_write_handled_error(broken):
    assert (broken.then["unwritten"], broken.now["unwritten"]) == ([], [])
    assert [one["messages"]["l/unwritten"]["payload"] for one in broken.now["e2"]] == [{"n": "nan"}] * 2


@pytest.mark.full
def test_exactly_once_attempt_no_write_unhandled(broken):
    assert broken.then["no_write"] == []
    assert "payload.n: nan has no form in JSON" in broken.status["no_write"].error
    assert broken.now["no_write"] == [{"n": 1}, {"n": 2}]


@pytest.mark.full
def test_exactly_once_attempt_and_write_then_interrupt(broken):
    """A batch that is repeated after its outputs were visible is not written again."""
    assert broken.then["done_out"] == broken.now["done_out"] == [{"n": 1}, {"n": 2}]
    assert len(set(tried(broken, "done"))) == 2


@pytest.mark.full
def test_at_most_once_unhandled_interrupt(broken):
    """A batch that was interrupted is dropped, even if the processor is now exactly once."""
    assert (broken.then["most_out"], broken.now["most_out"]) == ([], [{"n": 2}])
    with Queue(broken.url, "most_in") as queue:
        assert queue.sizes().total == 0


@pytest.mark.full
def test_at_least_once_unhandled_interrupt(broken):
    """It is repeated; and a processor may become exactly once, with the checkpoint that it has."""
    assert (broken.then["least_out"], broken.now["least_out"]) == ([], [{"n": 1}, {"n": 2}])


# --- several stores -------------------------------------------------------------------------------


def test_stress(spark, mongodb_url, redis_url, sqlite_url, name, tmp_path):
    """Cues' stress-test and issue-1: a join-fork over three stores waits for both of its inputs."""
    urls = {"m": mongodb_url, "r": redis_url, "l": sqlite_url}
    at = {one: Place(f"{name}.{one}", ns) for one, ns in {"s1": "m", "s2": "r", "q1": "l", "q2": "r"}.items()}
    inputs = {one: Input(place.queue, place.ns) for one, place in at.items() if one.startswith("s")}
    fork = Processor(
        lambda process, got: {out: [one.payload for one in got.values()] for out in process.config["out"]},
        in_=inputs, out={one: at[one] for one in ("q1", "q2")}, rows=True, consumer=ConsumerSettings(wsize=300),
    )  # fmt: skip
    sources = {one: Processor(out={one: at[one]}) for one in inputs}
    graph = runner(tmp_path, {**sources, "fork": fork}, urls, provenance=False)
    graph.start(spark)
    for first in range(0, 1_000, 250):
        graph.send(*range(first, first + 250), to="s1")
        time.sleep(0.05)
        graph.send(*range(first, first + 250), to="s2")
    pairs = [[n, n] for n in range(1_000)]
    wait_until(lambda: len(graph.messages(str(at["q2"]))) == 1_000, 60)
    for one in ("q1", "q2"):
        assert [message.payload for message in graph.messages(str(at[one]))] == pairs
    wait_until(lambda: not graph.messages(str(at["s1"])))
    graph.stop()
    for place in at.values():
        with open_store(urls[place.ns]) as store:
            store.drop(place.queue)
