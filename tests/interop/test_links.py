"""keuss' own cases of pipelines: each run by the real keuss and by a link of ours, which do the same."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest

from spark_queue import GraphError, open_store
from spark_queue.graph.link_function import DROP, Forward
from spark_queue.graph.model import Destination, Exchange, Graph, Link, Namespace, Place, Retry
from spark_queue.messages.message import messages
from spark_queue.runner import ExchangeGraph
from spark_queue.stores.conformance.waiting import wait_until
from tests.interop.conftest import sharing
from tests.tiers import param

pytestmark = pytest.mark.interop


class KeussLinks:
    """Links that keuss runs."""

    def __init__(self, shared):
        self.shared = shared

    def run(self, case, work):
        kind = {0: "Sink", 1: "DirectLink"}.get(len(case.dst), "ChoiceLink")
        self.keuss = self.shared.keuss()
        self.keuss.link(
            kind, [f"{self.shared.name}.{one}" for one in case.dst], work, retry_base_t=0.1, retry_factor_t=0.1
        )

    def failed(self):
        return bool(self.keuss.link_errors())

    def stop(self):
        return self.keuss.unlink()


class OurLinks:
    """Links that Spark runs."""

    def __init__(self, shared, spark, folder):
        self.shared, self.spark, self.folder = shared, spark, folder

    def run(self, case, work):
        link = Link(
            Place(self.shared.name, "air"),
            [Place(f"{self.shared.name}.{one}", "air") for one in case.dst],
            retry=Retry(0.1, 0.1),
            **(work if isinstance(work, dict) else {"process": work}),
        )
        graph = Graph({"air": Namespace(self.shared.url, {"waitTimeout": "200ms"})}, links={"link": link})
        self.graph = ExchangeGraph(graph, str(self.folder), initial_backoff=0.05)
        self.graph.start(self.spark)

    def failed(self):
        return any(one.tries for one in self.shared.ours().peek())

    def stop(self):
        self.graph.stop()


@dataclass
class Case:
    """What is pushed, where it may go, what does that, and what lies where at the end (payload, headers, tries)."""

    pushed: list
    dst: list[str]
    keuss: str
    ours: object
    found: dict[str, list]
    headers: dict[str, str] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)


def expected_messages(*payloads, tries=0, headers=None):
    return [(payload, headers or {}, tries) for payload in payloads]


A, B, C = {"a": 0, "b": "x"}, {"a": 1, "b": "y"}, {"a": 2, "b": "z"}

CASES = {
    "passes elements as they are": Case(
        [A, B, C], ["next"], "(elem, done) => done()", lambda message: None, {"next": expected_messages(A, B, C)}
    ),
    "passes them by a declaration alone": Case(
        [A, B], ["next"], "(elem, done) => done()", {}, {"next": expected_messages(A, B)}
    ),
    "replaces the payload": Case(
        [A, B],
        ["next"],
        "(elem, done) => done(null, {payload: {c: elem.payload.a + 10}})",
        lambda message: Forward({"c": message.payload["a"] + 10}),
        {"next": expected_messages({"c": 10}, {"c": 11})},
    ),
    "replaces the payload by an expression": Case(
        [A, B],
        ["next"],
        "(elem, done) => done(null, {payload: {c: elem.payload.a + 10}})",
        {"set": {"payload": "named_struct('c', payload:a::int + 10)"}},
        {"next": expected_messages({"c": 10}, {"c": 11})},
    ),
    "updates the payload": Case(
        [A, B],
        ["next"],
        "(elem, done) => done(null, {update: {$set: {processed: true}, $inc: {a: 5}}})",
        lambda message: Forward({**message.payload, "processed": True, "a": message.payload["a"] + 5}),
        {"next": expected_messages(A | {"processed": True, "a": 5}, B | {"processed": True, "a": 6})},
    ),
    "adds headers": Case(
        [A],
        ["next"],
        "(elem, done) => done(null, {opts: {hdrs: {two: '2'}}})",
        lambda message: Forward(headers={"two": "2"}),
        {"next": expected_messages(A, headers={"one": "1", "two": "2"})},
        headers={"one": "1"},
    ),
    "adds headers by an expression": Case(
        [A],
        ["next"],
        "(elem, done) => done(null, {opts: {hdrs: {two: '2'}}})",
        {"set": {"headers": {"two": "'2'"}}},
        {"next": expected_messages(A, headers={"one": "1", "two": "2"})},
        headers={"one": "1"},
    ),
    "tells tries": Case(
        [A],
        ["next"],
        "(elem, done) => done(null, {opts: {tries: 4}})",
        lambda message: Forward(tries=4),
        {"next": expected_messages(A, tries=4)},
    ),
    "retries until it succeeds, and begins to count anew": Case(
        [A],
        ["next"],
        "(elem, done) => elem.tries < 3 ? done({e: 'cucu'}) : done(null, {payload: {tried: elem.tries}})",
        "retried",
        {"next": expected_messages({"tried": 3})},
    ),
    "retries what throws": Case(
        [A],
        ["next"],
        "(elem, done) => { if (elem.tries < 2) throw new Error('x'); done(null, {payload: {tried: elem.tries}}) }",
        "thrown",
        {"next": expected_messages({"tried": 2})},
    ),
    "drops by false": Case(
        [A, B, C],
        ["next"],
        "(elem, done) => done(null, elem.payload.a === 1 ? false : undefined)",
        lambda message: DROP if message.payload["a"] == 1 else None,
        {"next": expected_messages(A, C)},
    ),
    "drops by res.drop": Case(
        [A, B, C],
        ["next"],
        "(elem, done) => done(null, {drop: elem.payload.a === 1})",
        {"drop": "payload:a::int = 1"},
        {"next": expected_messages(A, C)},
    ),
    "drops by err.drop": Case(
        [A, B],
        ["next"],
        "(elem, done) => done(elem.payload.a === 1 ? {drop: true} : null)",
        lambda message: DROP if message.payload["a"] == 1 else None,
        {"next": expected_messages(A)},
    ),
    "chooses by number": Case(
        [A, B, C],
        ["one", "two", "three"],
        "(elem, done) => done(null, {dst: elem.payload.a})",
        lambda message: Forward(to=message.payload["a"]),
        {"one": expected_messages(A), "two": expected_messages(B), "three": expected_messages(C)},
    ),
    "chooses by number by an expression": Case(
        [A, B, C],
        ["one", "two", "three"],
        "(elem, done) => done(null, {dst: elem.payload.a})",
        {"to": "payload:a::int"},
        {"one": expected_messages(A), "two": expected_messages(B), "three": expected_messages(C)},
    ),
    "chooses by name": Case(
        [A, B],
        ["one", "two"],
        "(elem, done) => done(null, {dst: elem.payload.a ? elem.hdrs.p + '.two' : elem.hdrs.p + '.one'})",
        lambda message: Forward(to=f"{message.headers['p']}.{'two' if message.payload['a'] else 'one'}"),
        {"one": expected_messages(A), "two": expected_messages(B)},
        headers={"p": "PREFIX"},
    ),
    "tells a number that is none": Case(
        [A],
        ["one", "two"],
        "(elem, done) => done(null, {dst: 666})",
        lambda message: Forward(to=666),
        {"one": [], "two": [], "": [A]},
        errors=["next-queue"],
    ),
    "tells a name that is none": Case(
        [A],
        ["one", "two"],
        "(elem, done) => done(null, {dst: 'not-there'})",
        lambda message: Forward(to="not-there"),
        {"one": [], "two": [], "": [A]},
        errors=["next-queue"],
    ),
    "ends in a sink": Case([A, B, C], [], "(elem, done) => done()", lambda message: None, {"": []}),
    "ends in a sink after retries": Case(
        [A], [], "(elem, done) => done(elem.tries < 3 ? {e: 'cucu'} : null)", "sunk", {"": []}
    ),
}


def functions():
    """Those that keep count; nested, so that Spark carries them to its workers."""

    def retried(message):
        if message.tries < 3:
            raise RuntimeError("cucu")
        return Forward({"tried": message.tries})

    def thrown(message):
        if message.tries < 2:
            raise ValueError("x")
        return Forward({"tried": message.tries})

    def sunk(message):
        if message.tries < 3:
            raise RuntimeError("cucu")

    return {"retried": retried, "thrown": thrown, "sunk": sunk}


@pytest.fixture(params=[param("keuss", fast=False), param("ours", fast=True)])
def side(request):
    return request.param


@pytest.fixture
def shared(url_of):
    with sharing("pl-mongo", url_of) as found:
        yield found


def contents(shared, queue):
    """Payload, headers and tries of the messages in a queue that are not reserved."""
    with open_store(shared.url) as store:
        found = [one for batch in store.peek(queue) for one in messages(batch)]
        return found, store.sizes(queue)


def key(one):
    return repr(one)


@pytest.mark.parametrize("name", [param(name, fast=name == "adds headers by an expression") for name in CASES])
def test_a_link(name, side, shared, spark, tmp_path):
    case = CASES[name]
    links = KeussLinks(shared) if side == "keuss" else OurLinks(shared, spark, tmp_path)
    headers = {key: value.replace("PREFIX", shared.name) for key, value in case.headers.items()}
    shared.ours().push_many(case.pushed, headers=headers)
    work = functions().get(case.ours, case.ours) if isinstance(case.ours, str) else case.ours
    links.run(case, case.keuss if side == "keuss" else work)
    wanted = sum(len(found) for queue, found in case.found.items() if queue)

    def arrived():
        there = sum(len(contents(shared, f"{shared.name}.{one}")[0]) for one in case.dst)
        left = contents(shared, shared.name)[1].total
        if case.errors:
            return left == len(case.found[""]) and links.failed()
        return there == wanted and left == 0

    wait_until(arrived, 240)  # a query may take a minute to begin
    errors = links.stop()
    if side == "keuss":
        assert errors == case.errors
    for queue in case.dst:
        found = contents(shared, f"{shared.name}.{queue}")[0]
        reported = [(one.payload, {k: v for k, v in one.headers.items() if k != "p"}, one.tries) for one in found]
        assert sorted(reported, key=key) == sorted(case.found[queue], key=key)
    assert [one.payload for one in contents(shared, shared.name)[0]] == case.found.get("", [])


@pytest.mark.full
def test_a_message_keeps_its_id_and_is_nowhere_twice(shared, spark, tmp_path):
    n, nexts = 300, ["clean", "late", "early"]
    ids = shared.ours().push_many([{"n": i} for i in range(n)])
    place = {one: Place(f"{shared.name}.{one}", "air") for one in nexts}
    graph = Graph(
        {"air": Namespace(shared.url, {"waitTimeout": "200ms"})},
        links={
            "clean": Link(Place(shared.name, "air"), [place["clean"]], drop="payload:n::int % 10 = 0"),
            "sort": Link(place["clean"], [place["late"], place["early"]], to="payload:n::int % 2"),
        },
    )
    ExchangeGraph(graph, str(tmp_path)).drain(spark)
    found = {one: contents(shared, place[one].queue)[0] for one in nexts}
    assert [len(found[one]) for one in nexts] == [0, 120, 150]
    assert {one.payload["n"] % 2 for one in found["late"]} == {0}
    kept = Counter(one.id for one in [*found["late"], *found["early"]])
    assert kept == Counter(id for i, id in enumerate(ids) if i % 10)
    assert shared.ours().sizes().total == 0


@pytest.mark.full
def test_an_exchange_with_one_destination_in_the_same_collection_moves(shared, spark, tmp_path):
    ids = shared.ours().push_many([{"n": i} for i in range(20)], headers={"h": "1"})
    to = Place(f"{shared.name}.next", "air")
    exchange = Exchange(
        Place(shared.name, "air"),
        [Destination(to.queue, "CASE WHEN payload:n::int >= 5 THEN named_struct('tries', 2) END", ns="air")],
    )
    running = ExchangeGraph(Graph({"air": Namespace(shared.url)}, {"x": exchange}), str(tmp_path))
    running.drain(spark)
    found = contents(shared, to.queue)[0]
    assert {one.id for one in found} == set(ids[5:]), "they are the same messages"
    assert {(str(one.headers), one.tries) for one in found} == {("{'h': '1', 'x-hop-count': '1'}", 2)}
    lost = [one for one in contents(shared, "__no_route__")[0] if one.id in ids]
    assert {one.id for one in lost} == set(ids[:5])
    assert {one.headers["x-exchange-name"] for one in lost} == {"x"}
    (status,) = running.status().values()
    assert (status.traffic.received, status.traffic.no_route) == (20, 5)
    with open_store(shared.url) as store:
        store.reserve("__no_route__", "test/1", 10**6)
        store.commit("__no_route__", "test/1", ids[:5])
        store.rollback("__no_route__", "test/1", failed=False)


@pytest.mark.full
@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"to": "1"}, "the link has fewer than two"),
        ({"dst": [Place("b", "air"), Place("c", "air")]}, "it chooses among several destinations"),
        ({"process": len, "drop": "true"}, "give either this or `process`"),
        ({"process": "no.such:module"}, "No module named 'no'"),
        ({"dst": [], "set": {"payload": "1"}}, "the link has no destination"),
        ({"dst": [Place("a", "air")]}, "this is the source of the link"),
        ({"dst": [Place("b", "other")]}, "within one namespace"),
        ({"drop": "1"}, "must be BOOLEAN"),
        ({"drop": "payload:a::int +"}, "drop"),
        ({"set": {"delay": "'x'"}}, "its field 'delay'"),
        ({"src": Place("a", "other")}, "layout=pl-mongo"),
    ],
)
def test_a_link_that_cannot_work_is_refused(facts, expected, shared, spark, tmp_path):
    spaces = {"air": Namespace(shared.url), "other": Namespace(f"sqlite:///{tmp_path}/q.db")}
    given = {"src": Place("a", "air"), "dst": [Place("b")], **facts}
    with pytest.raises(GraphError, match=expected):
        ExchangeGraph(Graph(spaces, links={"link": Link(**given)}), str(tmp_path)).start(spark)
