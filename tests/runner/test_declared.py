"""Exchanges that are declared at run time, in the database of their source."""

from __future__ import annotations

import pytest

from spark_queue import GraphError, StoreError, UsageError, open_store
from spark_queue.graph.model import Destination, Exchange, Graph, Input, Namespace, Place, Processor
from spark_queue.graph.validation import check_graph
from spark_queue.runner.declared import DECLARED_NOTE, DeclaredExchanges, KnownStep, parse_declaration
from spark_queue.runner.runs import RUN_PREFIX, LeftRun, StepRun, StepRuns, load_run
from spark_queue.stores.services.owner import Owner

HALF = {"src": "ns1/in", "dst": [{"queue": "half", "selector": "payload:n::int % 2 = 0"}]}


@pytest.fixture
def stores(url, name, store):
    """Two namespaces with the same database, as in a graph. Names of declared exchanges begin with `name`."""
    with open_store(url) as other:
        yield {"ns1": store, "ns2": other}
        for key in store.notes(f"{RUN_PREFIX}{name}"):
            store.change_note(key, lambda _: None)
        declared = DeclaredExchanges(Graph({}), {"ns1": store})
        for end in ("half", "far", "a", "off", "pair"):
            declared.remove(KnownStep(f"{name}.{end}", "ns1", None))
        declared.load()
        for one in declared.removed:
            if one.name.startswith(name):
                declared.forget(one)


@pytest.fixture
def graph(url, name):
    spaces = {ns: Namespace(url) for ns in ("ns1", "ns2")}
    steps = {
        f"{name}.a": Exchange(Place("a", "ns1"), [Destination("b")]),
        f"{name}.off": Exchange(Place("b", "ns2"), [Destination("c")], disable=True),
    }
    pair = Processor("work:pair", in_={"own": Input("own", "ns1")}, out={"out": Place("out", "ns1")})
    return check_graph(Graph(spaces, steps, processors={f"{name}.pair": pair}))


def known(declared, name):
    """What is declared, without what other tests have declared in the same database."""
    return {one.removeprefix(name): it for one, it in declared.load().items() if one.startswith(name)}


def test_what_is_declared_is_there_for_all_servers_and_after_a_restart(graph, stores, name):
    declared = DeclaredExchanges(graph, stores)
    assert declared.add(f"{name}.half", "ns1", HALF, stopped=False)
    assert not declared.add(f"{name}.half", "ns1", {"src": "ns1/other", "dst": []}, stopped=False), "no second one"
    other = DeclaredExchanges(graph, stores)
    found = known(other, name)
    assert list(found) == [".a", ".off", ".pair", ".half"]
    assert [one.stopped for one in found.values()] == [False, True, False, False]
    assert [one.declared for one in found.values()] == [False, False, False, True]
    half = found[".half"].step
    assert (half.src, half.dst[0].place) == (Place("in", "ns1"), Place("half", "ns1"))
    other.remove(found[".half"])
    assert list(known(declared, name)) == [".a", ".off", ".pair"]
    assert declared.set_stopped(found[".half"], True) is False, "it is gone, and stays so"
    assert list(known(declared, name)) == [".a", ".off", ".pair"]


def test_a_step_of_a_graph_or_of_a_caller_is_stopped_and_started_for_all(graph, stores, name):
    declared = DeclaredExchanges(graph, stores)
    declared.add(f"{name}.half", "ns1", HALF | {"disable": True}, stopped=True)
    for end in (".half", ".a", ".off", ".pair"):
        for stopped in (True, False):
            assert declared.set_stopped(known(declared, name)[end], stopped)
            after = known(DeclaredExchanges(graph, stores), name)[end]
            assert after.stopped is stopped and after.step is not None


def test_a_removed_exchange_is_kept_until_it_is_settled_and_another_may_have_its_name(graph, stores, name):
    declared, keys = DeclaredExchanges(graph, stores), []
    assert known(declared, name)[".a"].key == f"{name}.a"
    for declaration in (HALF, {**HALF, "dst": []}):
        assert declared.add(f"{name}.half", "ns1", declaration, stopped=False)
        one = known(declared, name)[".half"]
        keys.append(one.key)
        declared.remove(one)
        declared.remove(one)
    declared.load()
    removed = [one for one in declared.removed if one.name.startswith(name)]
    assert [one.key for one in removed] == keys and len({*keys}) == 2, "each has a checkpoint of its own"
    assert removed[0].step == parse_declaration(graph, f"{name}.half", HALF)
    for one in removed:
        declared.forget(one)
    declared.load()
    assert not [one for one in declared.removed if one.name.startswith(name)]


@pytest.mark.parametrize(
    ("declaration", "mistake"),
    [
        ({"src": "ns1/in"}, "exchange 'x': 'dst' is missing"),
        ({"src": "ns1/in", "dst": ["out"], "selektor": "true"}, "exchange 'x', selektor: unknown key"),
        ({"src": "ns1/in", "dst": [{"queue": "o", "selector": "work:choose"}]}, "may not name a function of Python"),
        ({"src": "ns1/in", "dst": [{"queue": "o", "selector": "env => true"}]}, "must be Spark SQL, not JavaScript"),
        ({"src": "ns1/in", "dst": [{"queue": "o", "selector": "reflect('java.lang.System', 'exit')"}]}, "reflect"),
        ({"src": "ns1/in", "dst": [{"queue": "o", "set": {"payload": "(SELECT 1)"}}]}, "set.payload: must be"),
        ({"src": "ns1/in", "dst": [{"ns": "ns3", "queue": "o"}]}, "unknown namespace 'ns3'; did you mean 'ns"),
        ({"src": "in", "dst": []}, "the namespace is missing: write namespace/queue"),
        ({"src": "ns1/own", "dst": ["out"]}, "exchange 'x' reads the same queue"),
        ([], "must be a mapping"),
        ({"src": "ns1/in", "dst": [], "options": {"url": "redis://x"}}, "this option is not allowed here"),
    ],
)
def test_a_declaration_over_http_has_the_rules_of_a_file_and_may_not_name_python(graph, declaration, mistake):
    with pytest.raises(GraphError) as refused:
        parse_declaration(graph, "x", declaration)
    assert mistake in str(refused.value)


def test_what_this_server_cannot_run_is_named_with_its_mistakes(graph, stores, name):
    """Another server has more namespaces, or the graph file has changed."""
    declared = DeclaredExchanges(graph, stores)
    declared.add(f"{name}.far", "ns1", {"src": "ns1/in", "dst": ["ns3/out"]}, stopped=False)
    far = known(declared, name)[".far"]
    assert far.step is None and "unknown namespace 'ns3'" in far.mistakes
    declared.add(f"{name}.a", "ns1", HALF, stopped=False)
    own = known(declared, name)[".a"]
    assert not own.declared and own.step.src == Place("a", "ns1"), "the file counts"


@pytest.mark.stores(server=False)
def test_a_note_of_a_newer_version_is_refused_and_odd_entries_stop_no_others(graph, stores, name):
    declared = DeclaredExchanges(graph, stores)
    declared.add(f"{name}.half", "ns1", HALF, stopped=False)
    odd = {
        f"{name}.{n}": one for n, one in enumerate([7, {}, {"declaration": 7}, {"declaration": [], "stopped": "?"}])
    }
    stores["ns1"].change_note(DECLARED_NOTE, lambda value: value | {"exchanges": value["exchanges"] | odd})
    found = known(declared, name)
    assert found[".half"].step is not None
    assert {end for end, one in found.items() if one.mistakes} == {".2", ".3"}
    for end in (".2", ".3"):
        declared.remove(found[end])
    assert [*known(declared, name)] == [".a", ".off", ".pair", ".half"] and declared.removed == []
    stores["ns1"].change_note(DECLARED_NOTE, lambda _: {"v": 99})
    for call in (declared.load, lambda: declared.add("x", "ns1", HALF, stopped=False)):
        with pytest.raises(StoreError, match=r"exchanges that callers created .* version 99, .* upgrade spark_queue"):
            call()
    stores["ns1"].change_note(DECLARED_NOTE, lambda _: None)


@pytest.mark.stores(server=False)
def test_what_callers_declare_has_a_limit(graph, stores, name):
    declared = DeclaredExchanges(graph, stores)
    large = {"src": "ns1/in", "dst": ["x" * 180] * 10_000}
    assert declared.add(f"{name}.0", "ns1", large, stopped=False)
    with pytest.raises(UsageError, match=r"more than 4,194,304 bytes: delete some"):
        declared.add(f"{name}.1", "ns1", large, stopped=False) and declared.add(
            f"{name}.2", "ns1", large, stopped=False
        )
    assert f"{name}.2" not in declared.load()


def test_runs_of_a_newer_version_are_refused(stores, name):
    assert stores["ns1"].set_note(f"{RUN_PREFIX}{name}", {"v": 99}, 0)
    with pytest.raises(StoreError, match=r"the run of exchange .* version 99, .* upgrade spark_queue"):
        load_run(stores["ns1"], name)
    with pytest.raises(StoreError, match="upgrade spark_queue"):
        StepRuns(stores).claim("ns1", name, "starting")
    stores["ns1"].change_note(f"{RUN_PREFIX}{name}", lambda _: None)
    StepRuns(stores).give_up("ns1", name, "stopped")
    assert load_run(stores["ns1"], name) is None, "it had none to give up"


def test_a_run_of_the_first_version_is_read_and_written_in_the_second(stores, name):
    old = {"v": 1, "owner": None, "state": "stopped", "error": "it failed", "restarts": 3, "by": "any"}
    assert stores["ns1"].set_note(f"{RUN_PREFIX}{name}", old, 0)
    assert load_run(stores["ns1"], name) == StepRun(None, "stopped", "it failed", 3, alone=False, deaths=0)
    runs = StepRuns(stores)
    assert runs.left("ns1", name) == LeftRun(died=False, alone=False, deaths=0)
    assert runs.claim("ns1", name, "starting", alone=True, deaths=1)
    note = stores["ns1"].note(f"{RUN_PREFIX}{name}")
    assert note is not None and (note.value["v"], note.value["alone"], note.value["deaths"]) == (2, True, 1)


def test_a_run_keeps_its_probation_until_that_ends(stores, name, monkeypatch):
    one, other = StepRuns(stores), StepRuns(stores)
    one.claim("ns1", name, "starting", alone=True, deaths=1)
    one.claim("ns1", name, "running")
    assert other.left("ns1", name) is None, "one has it"
    assert one.left("ns1", name) == LeftRun(died=False, alone=True, deaths=1)
    with monkeypatch.context() as patched:
        patched.setattr(Owner, "is_dead", property(lambda _: True))
        assert other.left("ns1", name) == LeftRun(died=True, alone=True, deaths=1)
    one.give_up("ns1", name, "stopped")
    assert other.left("ns1", name) == LeftRun(died=False, alone=True, deaths=1)
    other.claim("ns1", name, "running", alone=False, deaths=0)
    assert other.left("ns1", name) == LeftRun(died=False, alone=False, deaths=0)


# --- who runs it ----------------------------------------------------------------------------------


def test_one_process_runs_a_step_until_it_gives_up_or_dies(stores, name, monkeypatch):
    one, other = StepRuns(stores), StepRuns(stores)
    assert one.claim("ns1", name, "starting") and one.claim("ns1", name, "running", "it failed once", 1)
    assert not other.claim("ns1", name, "starting"), "one has it"
    run = load_run(stores["ns1"], name)
    assert run is not None
    assert (run.state, run.error, run.restarts) == ("running", "it failed once", 1)
    other.give_up("ns1", name, "stopped")
    assert not other.claim("ns1", name, "starting"), "only its owner may give it up"
    one.give_up("ns1", name, "stopped", "it failed")
    run = load_run(stores["ns1"], name)
    assert run is not None
    assert (run.owner, run.state, run.error) == (None, "stopped", "it failed")
    assert other.claim("ns1", name, "starting")
    assert not one.claim("ns1", name, "starting")
    monkeypatch.setattr(Owner, "is_dead", property(lambda _: True))
    assert one.claim("ns1", name, "starting"), "the process of the other has died"
    one.remove("ns1", name)
    assert load_run(stores["ns1"], name) is None
