"""Graphs: what a file says, every mistake of it with its place, cycles, variables."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from spark_queue import GraphError
from spark_queue.graph import Changes, Consumer, Destination, Exchange, Graph, Namespace, Place
from spark_queue.graph_file import parse
from spark_queue.graph_mistakes import checked, with_step

FILE = """\
namespaces:
  local: sqlite:///queues.db
  air:
    url: mongodb://${USER_OF_AIR:-me}:${PASSWORD}@db/air
    options: {retryTimeout: 5s}
exchanges:
  by_delay:
    src: local/departures
    consumer: {parallel: 2, wsize: 500}
    every: 5s
    options: {maxTries: 3}
    dst:
      - queue: late
        selector: payload:dep_delay::int > 60
        set:
          payload: named_struct('n', 1)
          headers: {class: "'late'", hops: 1, old: null}
          state: {seen: true}
      - air/all
      - {ns: air, queue: "no"}
max_hops: 7
"""


def fill(name):
    known = {"PASSWORD": "secret", "Q": "q"}
    if name in known:
        return known[name]
    raise KeyError("it is not set")


def mistakes(text):
    with pytest.raises(GraphError) as caught:
        parse(text, "conf/x.yaml", fill)
    return caught.value.mistakes


def test_a_file_is_a_graph():
    graph = parse(FILE, "conf/x.yaml", fill)
    changes = Changes("named_struct('n', 1)", {"class": "'late'", "hops": "1", "old": "NULL"}, {"seen": "true"})
    assert graph == Graph(
        {
            "local": Namespace("sqlite:///queues.db"),
            "air": Namespace("mongodb://me:secret@db/air", {"retryTimeout": "5s"}),
        },
        {
            "by_delay": Exchange(
                Place("departures", "local"),
                [
                    Destination("late", "payload:dep_delay::int > 60", changes, "local"),
                    Destination("all", ns="air"),
                    Destination("no", ns="air"),
                ],
                Consumer(2, 500),
                every=5_000,
                options={"maxTries": "3"},
            )
        },
        7,
    )


def test_what_is_made_in_python_says_the_same():
    graph = parse(FILE, "", fill)
    assert checked(graph) == graph
    bare = Graph({"l": Namespace("sqlite:///q.db")}, {"x": Exchange(Place("in"), [Destination("out")])})
    exchange = checked(bare).exchanges["x"]
    assert (str(exchange.src), [str(one) for one in exchange.dst]) == ("l/in", ["l/out"])


def test_json_is_read_too_with_tabs():
    made = {"namespaces": {"l": "sqlite:///q.db"}, "exchanges": {"x": {"src": "in", "dst": ["out", "${Q}"]}}}
    graph = parse(json.dumps(made, indent="\t"), "", fill)
    assert [str(one) for one in graph.queues()] == ["l/in", "l/out", "l/q"]


def test_plain_words_stay_words():
    text = "namespaces: {l: sqlite:///q.db}\nexchanges: {x: {src: no, dst: [on, 2013-01-01, 12:30, 017, 1]}}"
    with pytest.raises(GraphError, match=r"destination 5: it"):
        parse(text, "", fill)
    graph = parse(text.replace(", 1]", "]"), "", fill)
    assert [one.queue for one in graph.queues()] == ["no", "on", "2013-01-01", "12:30", "017"]


def test_anchors_and_merges_are_followed():
    text = """\
namespaces: {l: sqlite:///q.db}
exchanges:
  a: &a {src: in, dst: &to [{queue: out, selector: "true"}]}
  b:
    <<: *a
    src: other
  c: {src: third, dst: *to, wsise: 1}
"""
    assert mistakes(text) == [
        "line 7, exchange 'c', wsise: unknown key; known are src, dst, consumer, delivery, every, options"
    ]
    graph = parse(text.replace(", wsise: 1", ""), "", fill)
    assert [(one.src.queue, one.dst[0].queue) for one in graph.exchanges.values()] == [
        ("in", "out"),
        ("other", "out"),
        ("third", "out"),
    ]


def test_all_mistakes_are_told_at_once():
    text = """\
namespaces:
  local: {ulr: x}
  "a b": sqlite:///q.db
  air: mongodb://${NOBODY}:${PASSWORD}@db/air
exchanges:
  one: {src: lokal/x, dst: []}
  two:
    src: {queue: y}
    dst: [{queue: "", selektor: 3}, {queue: z, set: {header: {}}, selector: []}, ail/b]
    consumer: {wsize: many, parallel: 0}
    delivery: exactly-onc
  3: x
max_hops: 0
hops: 1
"""
    assert mistakes(text) == [
        "line 2, namespace 'local': 'url' is missing",
        "line 2, namespace 'local', ulr: unknown key; did you mean 'url'?",
        "line 3, namespace 'a b': it must be 1 to 100 letters, digits and _ . : @ -",
        "line 4, namespace 'air': ${NOBODY}: it is not set",
        "line 6, exchange 'one', src: unknown namespace 'lokal'; did you mean 'local'?",
        "line 8, exchange 'two', src: it does not tell its namespace; there are 'local', 'a b', 'air'",
        "line 9, exchange 'two', destination 1, queue: it should have at least 1 character",
        "line 9, exchange 'two', destination 1, selektor: unknown key; did you mean 'selector'?",
        "line 9, exchange 'two', destination 2, selector: "
        "it must be SQL text, a Column, or a callable that makes a Column",
        "line 9, exchange 'two', destination 2, set.header: unknown key; did you mean 'headers'?",
        "line 9, exchange 'two', destination 3: unknown namespace 'ail'; did you mean 'air'?",
        "line 10, exchange 'two', consumer.parallel: it should be greater than or equal to 1",
        "line 10, exchange 'two', consumer.wsize: it should be a valid integer, unable to parse string as an integer",
        "line 11, exchange 'two', delivery: it should be 'exactly-once', 'at-least-once' or 'at-most-once'",
        "line 12, exchange '3': it should be a mapping",
        "line 13, max_hops: it should be greater than or equal to 1",
        "line 14, hops: unknown key; did you mean 'max_hops'?",
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: [", "line 1: while parsing a flow node, expected the node content, but found '<stream end>'"),
        ("- x", "it must be a mapping with the keys namespaces, exchanges, max_hops, links"),
        ("", "it must be a mapping with the keys namespaces, exchanges, max_hops, links"),
        ("exchanges: &a {x: *a}", "line 1, exchange 'x': this anchor contains itself"),
        ("namespaces: !!python/none {}", "line 1: could not determine a constructor"),
        ("namespaces: {l: *nobody}", "line 1: found undefined alias 'nobody'"),
    ],
)
def test_what_is_no_yaml_is_told_with_its_line(text, told):
    assert mistakes(text)[0].startswith(told)


def test_keys_that_stand_twice_are_told_with_both_lines():
    text = "namespaces: {l: sqlite:///q}\nexchanges:\n  x: {src: a, dst: []}\n"
    text += "  y: {src: a, dst: []}\n  x: {src: a, dst: [m/b]}"
    assert mistakes(text) == [
        "line 5, exchange 'x': it is there twice; the first is in line 3",
        "line 5, exchange 'x', destination 1: unknown namespace 'm'; there are 'l'",
    ]


@pytest.mark.parametrize("name", [".", "..", "...", "a:b", "a b", "a/b", "x" * 101])
def test_the_name_of_an_exchange_names_a_folder(name):
    text = f"namespaces: {{l: sqlite:///q}}\nexchanges: {{{name!r}: {{src: a, dst: []}}}}"
    (told,) = mistakes(text)
    assert told.startswith(f"line 2, exchange {name!r}: it must be 1 to 100 letters, digits and _ . @ -")


def test_what_has_no_hops_left_is_not_routed_again():
    (told,) = mistakes("namespaces: {l: sqlite:///q}\nexchanges: {x: {src: l/__too_many_hops__, dst: [b]}}")
    assert told.startswith("line 2, exchange 'x', src: what is in __too_many_hops__ has no hops left")


def test_no_reservation_is_at_most_once():
    text = "namespaces: {l: sqlite:///q}\nexchanges: {x: {src: a, dst: [], consumer: {reserve: false}}}"
    assert parse(text, "", fill).exchanges["x"].guarantee == "at-most-once"
    assert mistakes(text.replace("false}}", "false}, delivery: exactly-once}")) == [
        "line 2, exchange 'x', consumer.reserve: delivery=exactly-once needs a reservation: leave this out, or set "
        "delivery=at-most-once"
    ]


def test_a_graph_of_python_is_told_its_mistakes_without_lines():
    graph = Graph(
        {"l": Namespace("sqlite:///q.db"), "m": Namespace("sqlite:///m.db")},
        {"x": Exchange(Place("in"), [Destination("out", ns="n"), Destination("more", selector=[])])},
    )
    with pytest.raises(GraphError) as caught:
        checked(graph)
    assert str(caught.value) == (
        "the graph has 3 mistakes:\n"
        "  exchange 'x', destination 1: unknown namespace 'n'; there are 'l', 'm'\n"
        "  exchange 'x', destination 2, selector: it must be SQL text, a Column, or a callable that makes a Column\n"
        "  exchange 'x', src: it does not tell its namespace; there are 'l', 'm'"
    )


def test_what_an_exchange_tells_itself_is_no_option_of_its_reader():
    (told,) = mistakes(
        "namespaces: {a: {url: 'sqlite:///x.db'}}\n"
        "exchanges:\n  x:\n    src: in\n    dst: [out]\n    options: {maxTries: 3, NumPartitions: 4}\n"
    )
    assert told == "line 6, exchange 'x', options.NumPartitions: not here: this is told by consumer.parallel"


def test_a_graph_that_changes_keeps_its_lines():
    graph = parse(FILE, "conf/x.yaml", fill)
    wider = with_step(graph, "more", Exchange(Place("in", "air"), []))
    assert (list(wider.exchanges), wider.origin) == (["by_delay", "more"], graph.origin)
    with pytest.raises(GraphError, match="unknown namespace 'aire'; did you mean 'air'"):
        with_step(graph, "more", Exchange(Place("in", "aire"), []))


def test_passwords_are_not_shown():
    graph = parse(FILE, "", fill)
    assert "secret" not in repr(graph)
    assert graph.namespaces["air"].url == "mongodb://me:secret@db/air"


def test_selectors_are_not_filled_in():
    text = """\
namespaces: {l: sqlite:///q.db}
exchanges:
  x: {src: "${Q}", dst: [{queue: "$${Q}", selector: "'${Q}' rlike 'a${2}'", set: {headers: {a: "'${Q}'"}}}]}
"""
    exchange = parse(text, "", fill).exchanges["x"]
    (to,) = exchange.dst
    assert (exchange.src.queue, to.queue) == ("q", "${Q}")
    assert (to.selector, to.set.headers) == ("'${Q}' rlike 'a${2}'", {"a": "'${Q}'"})


def wired(*edges):
    exchanges = {f"x{n}": Exchange(Place(src), [Destination(to) for to in dst]) for n, (src, dst) in enumerate(edges)}
    return checked(Graph({"l": Namespace("sqlite:///q.db")}, exchanges))


@pytest.mark.parametrize(
    ("edges", "cycles"),
    [
        ([("a", "bc"), ("b", "c")], []),
        ([("a", "a")], [["x0"]]),
        ([("a", "b"), ("b", "cd"), ("c", "a"), ("d", "e")], [["x0", "x1", "x2"]]),
        ([("a", "b"), ("b", "a"), ("c", "d"), ("d", "c"), ("b", "c")], [["x0", "x1"], ["x2", "x3"]]),
    ],
)
def test_cycles_are_found(edges, cycles):
    assert [sorted(one) for one in wired(*edges).cycles()] == cycles


def test_the_same_queue_in_two_namespaces_is_two_queues():
    graph = wired(("a", "b"), ("b", "a"))
    two = replace(graph, namespaces=graph.namespaces | {"m": Namespace("sqlite:///m.db")})
    there = replace(two.exchanges["x1"], dst=[Destination("a", ns="m")])
    assert replace(two, exchanges=two.exchanges | {"x1": there}).cycles() == []


def test_the_example_in_the_module_holds():
    from spark_queue import graph

    text = re.search(r"(    namespaces:.*?)\n\n", graph.__doc__, re.S)[1]
    assert list(parse(text, "", lambda name: name).exchanges) == ["by_delay"]
