"""The cases of keuss-server's own suite on exchanges, over HTTP: 8 in two modes, 11 of managing them.

They are written anew from what the suite asserts. A caller knows what keuss-server's clients know.
"""

from __future__ import annotations

import json
import time
from contextlib import contextmanager

import httpx
import pytest
import yaml

from spark_queue.stores.conformance.waiting import wait_until
from tests import registered
from tests.conftest import mongodb_database
from tests.redis_server import Server
from tests.serving import serving

WHO = ("test", "toast")

#: Each has queues that no other test may take from, such as `__no_route__`.
WORLDS = [
    pytest.param(
        (scheme, reserve),
        id=f"{scheme}-{'reserve' if reserve else 'pop'}",
        marks=[pytest.mark.xdist_group(f"exchanges over HTTP, {scheme} {reserve}")]
        + ([] if reserve and registered.embedded(scheme) else [pytest.mark.full]),
    )
    for scheme in registered.schemes()
    for reserve in (False, True)
]

GRAPH = """
max_hops: 7
exchanges:
  e1:
    src: {ns: ns1, queue: ex_test_source}
    dst:
      - {ns: ns1, queue: ex_test_dest, selector: "headers['aaa'] LIKE 'yes-%'"}
      - {ns: ns2, queue: ex_test_dest, selector: "headers['aaa'] LIKE 'yes-already%'"}
  loop_a: {src: ns1/loop_0, dst: [{queue: loop_1, selector: "named_struct('delay', 1)"}]}
  loop_b: {src: ns1/loop_1, dst: [{queue: loop_0, selector: "named_struct('delay', 1)"}]}
  stage_1:
    src: ns1/stage_a
    dst:
      - queue: stage_b1
        set:
          state: {ct: "coalesce(state:ct::int, 0) + 1"}
          headers: {dolkaren: "'asdfghjk'", ct: "concat('from stage_b1 ', coalesce(state:ct::int, 0) + 1)"}
          payload: "named_struct('a', payload:a::string, 'c', 'extra-666')"
      - queue: stage_b2
        set:
          state: {ct: "coalesce(state:ct::int, 0) + 1"}
          headers: {dolkaren: "'asdfghjk'", ct: "concat('from stage_b2 ', coalesce(state:ct::int, 0) + 1)"}
          payload: "named_struct('a', payload:a::string, 'c', 'extra-999')"
  stage_2a: {src: ns1/stage_b1, dst: [stage_c]}
  stage_2b: {src: ns1/stage_b2, dst: [stage_c]}
"""

NAMES = ["e1", "loop_a", "loop_b", "stage_1", "stage_2a", "stage_2b"]

EMPTY = {"size": 0, "totalSize": 0, "schedSize": 0, "resvSize": 0}


@contextmanager
def two_stores(scheme, folder):
    """The URLs of two namespaces in databases of their own."""
    folder.mkdir()
    if scheme == "mongodb":
        with mongodb_database() as one, mongodb_database() as other:
            yield one, other
    elif scheme == "redis":
        server = Server(folder)
        try:
            yield server.url, server.url.replace("/0", "/1")
        finally:
            server.kill()
    else:
        yield f"{scheme}:///{folder}/one.db", f"{scheme}:///{folder}/two.db"


def write_graph(file, urls, text=GRAPH, reserve=True):
    """Write a graph of these namespaces, and return its file."""
    graph = yaml.safe_load(text)
    for one in graph["exchanges"].values():
        one["consumer"] = {"reserve": reserve}
    file.write_text(json.dumps({"namespaces": dict(zip(("ns1", "ns2"), urls, strict=True)), **graph}))
    return file


class Keuss:
    """A client of a server that runs exchanges."""

    def __init__(self, url, reserve=True):
        self.http = httpx.Client(base_url=url, auth=WHO, timeout=120)
        self.reserve = reserve

    def put(self, queue, body, **headers):
        answer = self.http.put(f"/q/{queue}", json=body, headers={f"x-ks-hdr-{k}": v for k, v in headers.items()})
        assert answer.status_code == 200 and answer.json()["id"]

    def get(self, queue):
        answer = self.http.get(f"/q/{queue}", params={"to": 100_000})
        assert answer.status_code == 200, answer.text
        return answer.json(), dict(answer.headers)

    def sizes(self, queue):
        status = self.http.get(f"/q/{queue}/status").json()
        return {key: status[key] for key in EMPTY}

    def becomes_empty(self, *queues):
        """Wait until all are: the next trigger settles what a query has reserved."""
        for queue in queues:
            wait_until(lambda queue=queue: self.sizes(queue) == EMPTY, 30, description=f"{queue} empty")

    def x(self, method, path="", **how):
        return self.http.request(method, f"/x{path}", **how)

    def create(self, name, declaration, method="PUT"):
        return self.x(method, f"/{name}", json=declaration)

    def state(self, name):
        return self.x("GET", f"/{name}").json()


@pytest.fixture(scope="module", params=WORLDS)
def keuss(request, tmp_path_factory):
    scheme, reserve = request.param
    folder = tmp_path_factory.mktemp("exchanges")
    with two_stores(scheme, folder / "stores") as urls:
        graph = write_graph(folder / "graph.json", urls, reserve=reserve)
        args = ("--graph", graph, "--run", "--checkpoint-root", folder / "checkpoints")
        with serving(folder, *args, env={"SPARK_QUEUE_REST_USER": ":".join(WHO)}) as started:
            client = Keuss(started.url, reserve)
            with client.http:
                yield client


# --- lists and status -----------------------------------------------------------------------------


def test_returns_proper_list_as_array(keuss):
    assert [one["id"] for one in keuss.x("GET", "?array=1").json()["data"]] == NAMES


def test_returns_proper_list_as_list(keuss):
    assert list(keuss.x("GET").json()) == NAMES


def test_returns_proper_status(keuss):
    status = keuss.state("stage_2b")
    assert status["src"] == {"q": "stage_b2", "ns": "ns1"}
    assert [one["dst"] for one in status["dst"]] == [{"q": "stage_c", "ns": "ns1"}]
    assert [(one["q"], one["ns"]) for one in status["dst"]] == [("stage_c", "ns1")], "as before its version 3"
    assert status["opts"] == ({"reserve": True} if keuss.reserve else {})
    assert status["cid"] and status["wsize"] == 1000 and status["stopped"] is False
    assert (status["pending_acks"], status["pending_tids"]) == ({}, {})


# --- routing --------------------------------------------------------------------------------------


def check_copy(copy, value, **more):
    body, headers = copy
    assert body == {"a": "144", "b": 144}
    wanted = {"tries": "0", "hdr-aaa": value, "hdr-extra-hdr": "qwertyuiop"} | more
    assert {key: headers[f"x-ks-{key}"] for key in wanted} == wanted
    assert headers["content-type"] == "application/json; charset=utf-8"
    assert headers["x-ks-mature"] and headers["x-ks-id"]


def put_sample(keuss, queue, value):
    keuss.put(queue, {"a": "144", "b": 144}, **{"aaa": value, "extra-hdr": "qwertyuiop"})


FIRST = ("ns1/ex_test_source", "ns1/ex_test_dest", "ns2/ex_test_dest")


def test_propagates_to_all_dests(keuss):
    put_sample(keuss, "ns1/ex_test_source", "yes-already-one")
    for queue in ("ns1/ex_test_dest", "ns2/ex_test_dest"):
        check_copy(keuss.get(queue), "yes-already-one", **{"hdr-x-hop-count": "1"})
    keuss.becomes_empty(*FIRST, "ns1/__no_route__")


def test_propagates_to_only_one_dest(keuss):
    put_sample(keuss, "ns1/ex_test_source", "yes-one")
    check_copy(keuss.get("ns1/ex_test_dest"), "yes-one", **{"hdr-x-hop-count": "1"})
    keuss.becomes_empty(*FIRST, "ns1/__no_route__")


def test_propagates_to_no_dest_moves_to_no_route(keuss):
    put_sample(keuss, "ns1/ex_test_source", "nope")
    wanted = {"hdr-x-hop-count": "1", "hdr-x-exchange-name": "e1"}
    check_copy(keuss.get("ns1/__no_route__"), "nope", **wanted)
    keuss.becomes_empty(*FIRST, "ns1/__no_route__")


def test_loops_over_exchanges_ends_in_too_many_hops(keuss):
    began = time.monotonic()
    put_sample(keuss, "ns1/loop_0", "nope")
    wanted = {"hdr-x-hop-count": "7", "hdr-x-exchange-name": "loop_b"}
    check_copy(keuss.get("ns1/__too_many_hops__"), "nope", **wanted)
    assert time.monotonic() - began > 6.5, "seven hops, each with a delay of a second"
    keuss.becomes_empty("ns1/loop_0", "ns1/loop_1", "ns1/__too_many_hops__")


def test_does_graphs_keeps_state_and_modifies_mesg(keuss):
    for value in ("144", "288"):
        keuss.put("ns1/stage_a", {"a": value}, **{"extra-hdr": "qwertyuiop"})
    copies = [keuss.get("ns1/stage_c") for _ in range(4)]
    for _, headers in copies:
        wanted = {"extra-hdr": "qwertyuiop", "x-hop-count": "2", "dolkaren": "asdfghjk"}
        assert {key: headers[f"x-ks-hdr-{key}"] for key in wanted} == wanted
    assert sorted((body["a"], body["c"], headers["x-ks-hdr-ct"]) for body, headers in copies) == [
        ("144", "extra-666", "from stage_b1 1"),
        ("144", "extra-999", "from stage_b2 2"),
        ("288", "extra-666", "from stage_b1 1"),
        ("288", "extra-999", "from stage_b2 2"),
    ]
    keuss.becomes_empty("ns1/stage_a", "ns1/stage_b1", "ns1/stage_b2", "ns1/stage_c")


# --- selectors ------------------------------------------------------------------------------------

#: Its cases of destinations: what is given here as the selector, and whether the destination gets the message.
TAKEN = {
    "null selector": (None, True),
    "correct expression": ("headers['abc'] = '66'", False),
    "string selector returns true": ("headers['a'] = '123'", True),
    "string selector returns false": ("headers['a'] = '555'", False),
    "string selector throws": ("raise_error('thrown')", False),
    "selector throws on this message": ("payload::int > 1", False),
    "uses opts from selector": ("named_struct('mature', 333, 'delay', 6, 'tries', 2, 'aaa', 5656)", True),
    "uses delay from selector": ("named_struct('delay', 600)", True),
}

REFUSED = {
    "wrong-type selector": (666, "selector"),
    "a wrong expression": ("a++3", "must use columns of the message, and 'a' is none"),
    "a function": ("msg => msg.hdrs.aaa.match (/^xxxxx/)", "must be Spark SQL, not JavaScript"),
    "what throws": ("throw new Error ('thrown error')", "must be"),
}


def test_destinations_take_what_their_selector_says(keuss, created):
    created.append("by_case")
    dst: list[dict] = [
        {"queue": f"case.{number}"} | ({} if selector is None else {"selector": selector})
        for number, (selector, _) in enumerate(TAKEN.values())
    ]
    dst.append({"queue": "case.null", "selector": None})
    assert keuss.create("by_case", {"src": "ns1/cases", "dst": dst}).status_code == 201
    assert keuss.http.put("/q/ns1/cases", json="abd", headers={"x-ks-hdr-a": "123"}).status_code == 200
    keuss.get("ns1/case.null")
    found = {case: keuss.sizes(f"ns1/case.{number}")["totalSize"] for number, case in enumerate(TAKEN)}
    assert found == {case: int(taken) for case, (_, taken) in TAKEN.items()}
    order = list(TAKEN)
    body, headers = keuss.get(f"ns1/case.{order.index('uses opts from selector')}")
    assert body == "abd" and headers["x-ks-tries"] == "2" and headers["x-ks-hdr-a"] == "123"
    assert headers["x-ks-mature"] == "1970-01-01T00:05:33.000Z"
    assert keuss.sizes(f"ns1/case.{order.index('uses delay from selector')}")["schedSize"] == 1
    keuss.becomes_empty("ns1/cases")


@pytest.mark.parametrize("case", REFUSED)
def test_a_selector_that_cannot_work_is_refused_and_nothing_is_created(keuss, case):
    """keuss-server ignores such a destination, or takes every message: see the tables in docs/exchanges.md."""
    selector, wanted = REFUSED[case]
    answer = keuss.create("wrong", {"src": "ns1/cases", "dst": [{"queue": "x", "selector": selector}]})
    assert answer.status_code == 400, answer.text
    assert "exchange 'wrong', destination 1, selector: " in answer.json()["detail"]
    assert wanted in answer.json()["detail"]
    assert keuss.x("GET", "/wrong").status_code == 404


@pytest.mark.parametrize(
    "selector",
    [
        """(MAP 1 USING 'sh -c "touch {mark}; echo 1"' AS o) = '1'""",
        "exists(array(1), begin -> struct(begin call).call = reflect('java.nio.file.Files', 'createFile', '{mark}'))",
        "exists(array(1), begin -> struct(begin call).call = (select count(*) from text.`/etc/hosts`))",
        "size(flatten(transform(sequence(1,2000), x -> array_repeat(repeat(payload,100000),100000)))) > 0",
        "(" * 3000 + "true" + ")" * 3000,
        "true" + " " * 70_000,
        "payload rlike '(a|b)*c'",
    ],
)
def test_a_selector_runs_no_programs_and_takes_no_memory(keuss, tmp_path, selector):
    mark = tmp_path / "mark"
    declaration = {"src": "ns1/cases", "dst": [{"queue": "x", "selector": selector.replace("{mark}", str(mark))}]}
    answer = keuss.create("attack", declaration)
    assert answer.status_code == 400 and "selector: must " in answer.json()["detail"], answer.text
    assert keuss.x("GET", "/attack").status_code == 404 and not mark.exists()


# --- managing exchanges ---------------------------------------------------------------------------

FIELDS = ("src", "dst", "opts", "cid", "pending_acks", "pending_tids", "wsize")
NEW = {"src": {"ns": "ns1", "queue": "q000"}, "dst": [{"ns": "ns2", "queue": "q001"}]}


@pytest.fixture
def created(keuss):
    """Names of exchanges that the test creates, which are deleted at its end."""
    names = []
    yield names
    for name in names:
        assert keuss.x("DELETE", f"/{name}").status_code in (201, 404)


def check_new(status):
    assert status["src"] == {"q": "q000", "ns": "ns1"}
    assert [(one["q"], one["ns"]) for one in status["dst"]] == [("q001", "ns2")]
    assert status["cid"] and status["wsize"] == 1000
    assert (status["pending_acks"], status["pending_tids"]) == ({}, {})


def test_lists_exchanges_as_tree_allright(keuss):
    found = keuss.x("GET").json()
    assert list(found) == NAMES and all(field in one for one in found.values() for field in FIELDS)


def test_lists_exchanges_as_array_allright(keuss):
    found = keuss.x("GET", "?array=1").json()["data"]
    assert [one["id"] for one in found] == NAMES
    assert all(field in one for one in found for field in FIELDS)


def test_gets_exchange_allright(keuss):
    status = keuss.state("stage_2a")
    assert status["src"] == {"q": "stage_b1", "ns": "ns1"}
    assert [(one["q"], one["ns"]) for one in status["dst"]] == [("stage_c", "ns1")]
    assert status["cid"] and status["wsize"] == 1000


def test_fails_to_get_exchange_if_does_not_exist(keuss):
    answer = keuss.x("GET", "/unknown_xchg")
    assert (answer.status_code, answer.json()["detail"]) == (404, "no such exchange [unknown_xchg]")


def test_fails_to_create_if_wrong_schema(keuss):
    answer = keuss.create("stage_new", {"src": {"ns": "ns1", "queue": "zon"}})
    assert answer.status_code == 400
    assert answer.json()["details"] == [{"message": "exchange 'stage_new': 'dst' is missing"}]
    assert keuss.x("GET", "/stage_new").status_code == 404


def test_fails_to_create_if_src_ns_does_not_exist(keuss):
    answer = keuss.create("stage_new", {"src": {"ns": "unknown_ns", "queue": "q000"}, "dst": []})
    assert (answer.status_code, answer.json()["detail"]) == (404, "namespace unknown_ns not defined")


def test_fails_to_create_if_dst_ns_does_not_exist(keuss):
    """keuss-server answers 201, and has no such exchange afterwards: here the call is refused."""
    answer = keuss.create("stage_new", {**NEW, "dst": [{"ns": "unknown_ns", "queue": "q001"}]})
    assert answer.status_code == 400 and "unknown namespace 'unknown_ns'" in answer.json()["detail"]
    assert keuss.x("GET", "/stage_new").status_code == 404


def test_fails_to_create_if_exchange_exists_already(keuss):
    answer = keuss.create("loop_a", NEW)
    assert (answer.status_code, answer.json()["detail"]) == (409, "exchange loop_a already exists")


def test_creates_exchange_allright(keuss, created):
    created.append("stage_new")
    answer = keuss.create("stage_new", NEW)
    assert (answer.status_code, answer.content) == (201, b"")
    check_new(keuss.state("stage_new"))
    keuss.put("ns1/q000", {"n": 1})
    assert keuss.get("ns2/q001")[0] == {"n": 1}
    keuss.becomes_empty("ns1/q000")


def test_fails_to_delete_if_exchange_does_not_exist(keuss):
    answer = keuss.x("DELETE", "/unknown-ns")
    assert (answer.status_code, answer.json()["detail"]) == (404, "exchange unknown-ns does not exist")
    for verb in ("start", "stop"):
        answer = keuss.x("PUT", f"/unknown/{verb}")
        assert (answer.status_code, answer.json()["detail"]) == (404, "exchange unknown does not exist")


def test_deletes_exchange_allright(keuss, created):
    created.append("stage_transient")
    assert keuss.create("stage_transient", NEW, "POST").status_code == 201
    check_new(keuss.state("stage_transient"))
    assert keuss.x("DELETE", "/stage_transient").status_code == 201
    answer = keuss.x("GET", "/stage_transient")
    assert answer.status_code == 404 and answer.json()["detail"].startswith("no such exchange [stage_transient]")


# --- beyond its suite -----------------------------------------------------------------------------


def test_stops_and_starts_an_exchange(keuss):
    assert [keuss.x("POST", "/e1/stop").status_code for _ in "12"] == [201, 201]
    assert keuss.state("e1")["stopped"] is True
    wait_until(lambda: keuss.state("e1")["state"] == "stopped", 60)
    put_sample(keuss, "ns1/ex_test_source", "yes-one")
    assert keuss.sizes("ns1/ex_test_source") == EMPTY | {"size": 1, "totalSize": 1}
    assert [keuss.x("PUT", "/e1/start").status_code for _ in "12"] == [201, 201]
    assert keuss.state("e1")["stopped"] is False
    check_copy(keuss.get("ns1/ex_test_dest"), "yes-one", **{"hdr-x-hop-count": "1"})
    keuss.becomes_empty(*FIRST)


def test_status_counts_hops_and_rates_and_metrics_have_the_hops(keuss, created):
    created.append("counted")
    dst = [{"ns": "ns2", "queue": "even", "selector": "payload:n::int % 2 = 0"}]
    assert keuss.create("counted", {"src": "ns1/numbers", "dst": dst}).status_code == 201
    for n in range(3):
        keuss.put("ns1/numbers", {"n": n})
    assert [keuss.get(queue)[0]["n"] for queue in ("ns2/even", "ns2/even", "ns1/__no_route__")] == [0, 2, 1]
    wait_until(lambda: (keuss.state("counted")["stats"] or {}).get("received") == 3, 30)
    status = keuss.state("counted")
    assert status["stats"]["pushed"] == {"ns2/even": 2} and status["stats"]["no_route"] == 1
    assert {outcome: one["messages"] for outcome, one in status["hops"].items()} == {"ok": 2, "no-route": 1}
    assert all(one["ms"] > 0 for one in status["hops"].values())
    assert status["rates"] == {"received": 0.05, "pushed": 0.033}, "per second, within a minute"
    wait_until(lambda: 'keuss_exchange_hops_count{exchange="counted",status="no-route"} 1.0' in metrics(keuss), 30)
    assert 'keuss_exchange_hops_bucket{exchange="counted",le="+Inf",status="ok"} 2.0' in metrics(keuss)
    assert keuss.x("PUT", "/counted/reset").status_code == 201
    assert keuss.state("counted")["stats"] is None


@pytest.mark.parametrize(
    ("name", "declaration", "status", "wanted"),
    [
        ("a b", NEW, 400, "1 to 100 letters, digits"),
        ("wrong", [], 400, "the body must be a JSON object"),
        ("wrong", None, 400, "the body must be a JSON object"),
        ("wrong", {"src": {"ns": ["ns1"], "queue": "q"}, "dst": []}, 400, "src.ns: must be text"),
        ("wrong", {"src": 7, "dst": "all"}, 400, "src: must be a mapping"),
        ("wrong", {"src": {"ns": "redis://:secret@x", "queue": "q"}, "dst": []}, 404, "namespace redis://:***@x"),
        ("wrong", {"src": "ns1/a\0b", "dst": []}, 400, "queue"),
        ("wrong", {**NEW, "dst": ["x" * 100] * 4000}, 413, "the declaration is larger than 262,144 bytes"),
    ],
)
def test_a_wrong_body_is_refused_with_what_is_wrong(keuss, name, declaration, status, wanted):
    answer = keuss.create(name, declaration)
    assert answer.status_code == status and wanted in answer.json()["detail"], answer.text
    assert keuss.x("GET", f"/{name}").status_code == 404


def test_measures_its_selectors(keuss, created):
    created.append("measured")
    cheap = {"queue": "cheap", "selector": "tries = 0"}
    costly = {"queue": "costly", "selector": "length(repeat(left(payload:n::string, 3), 20000)) > 0 AND tries > 5"}
    declaration = {"src": "ns1/to_measure", "dst": [cheap, "all", costly], "disable": True}
    assert keuss.create("measured", declaration).status_code == 201
    assert keuss.state("measured")["stopped"] is True
    empty = keuss.x("PUT", "/measured/measure")
    assert empty.status_code == 409 and "push some to ns1/to_measure" in empty.json()["detail"]
    for n in range(20):
        keuss.put("ns1/to_measure", {"n": n})
    answer = keuss.x("PUT", "/measured/measure")
    assert answer.status_code == 201, answer.text
    first, none, second = answer.json()["microseconds"]
    assert answer.json()["messages"] == 20 and none is None
    assert 0 <= first < second, "the second one makes a text of 20,000 characters"
    assert keuss.state("measured")["evaluation"] == answer.json()
    assert keuss.sizes("ns1/to_measure")["size"] == 20


def metrics(keuss):
    return keuss.http.get("/metrics").text
