"""Graphs: what a file says, every mistake of it with its place, cycles, variables."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace

import pytest

from spark_queue import GraphError
from spark_queue.graph.loader import load_graph, parse_graph
from spark_queue.graph.model import Changes, ConsumerSettings, Destination, Exchange, Graph, Namespace, Place
from spark_queue.graph.validation import check_graph, with_step

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


def secret_of(name):
    known = {"PASSWORD": "secret", "Q": "q"}
    if name in known:
        return known[name]
    raise KeyError("it is not set")


def mistakes(text):
    with pytest.raises(GraphError) as caught:
        parse_graph(text, "conf/x.yaml", secret_of)
    return caught.value.mistakes


def test_a_file_is_a_graph():
    graph = parse_graph(FILE, "conf/x.yaml", secret_of)
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
                ConsumerSettings(2, 500),
                every=5_000,
                options={"maxTries": "3"},
            )
        },
        7,
    )


def test_what_is_made_in_python_says_the_same():
    graph = parse_graph(FILE, "", secret_of)
    assert check_graph(graph) == graph
    bare = Graph({"l": Namespace("sqlite:///q.db")}, {"x": Exchange(Place("in"), [Destination("out")])})
    exchange = check_graph(bare).exchanges["x"]
    assert (str(exchange.src), [str(one) for one in exchange.dst]) == ("l/in", ["l/out"])


def test_json_is_read_too_with_tabs():
    made = {"namespaces": {"l": "sqlite:///q.db"}, "exchanges": {"x": {"src": "in", "dst": ["out", "${Q}"]}}}
    graph = parse_graph(json.dumps(made, indent="\t"), "", secret_of)
    assert [str(one) for one in graph.queues()] == ["l/in", "l/out", "l/q"]


def test_plain_words_stay_words():
    text = "namespaces: {l: sqlite:///q.db}\nexchanges: {x: {src: no, dst: [on, 2013-01-01, 12:30, 017, 1]}}"
    with pytest.raises(GraphError, match=r"destination 5: must be a mapping"):
        parse_graph(text, "", secret_of)
    graph = parse_graph(text.replace(", 1]", "]"), "", secret_of)
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
        "line 7, exchange 'c', wsise: unknown key; allowed are src, dst, consumer, delivery, every, options, disable"
    ]
    graph = parse_graph(text.replace(", wsise: 1", ""), "", secret_of)
    assert [(one.src.queue, one.dst[0].queue) for one in graph.exchanges.values()] == [
        ("in", "out"),
        ("other", "out"),
        ("third", "out"),
    ]


def test_all_mistakes_are_reported_at_once():
    text = """\
namespaces:
  local: {ulr: x}
  "a b": sqlite:///q.db
  air: mongodb://${NOBODY}:${PASSWORD}@db/air
exchanges:
  one: {src: lokal/x, dst: []}
  two:
    src: {queue: y}
    dst: [{queue: "", selektor: 3}, {queue: z, set: {header: {}}, selector: []}, ail/b, {queue: a, selector: " "}]
    consumer: {wsize: many, parallel: 0}
    delivery: exactly-onc
  3: x
max_hops: 0
hops: 1
"""
    assert mistakes(text) == [
        "line 2, namespace 'local': 'url' is missing",
        "line 2, namespace 'local', ulr: unknown key; did you mean 'url'?",
        "line 3, namespace 'a b': must be 1 to 100 letters, digits and _ . : @ -",
        "line 4, namespace 'air': ${NOBODY}: it is not set",
        "line 6, exchange 'one', src: unknown namespace 'lokal'; did you mean 'local'?",
        "line 8, exchange 'two', src: the namespace is missing: write namespace/queue; the graph has 'local', 'a b', "
        "'air'",
        "line 9, exchange 'two', destination 1, queue: must not be empty",
        "line 9, exchange 'two', destination 1, selektor: unknown key; did you mean 'selector'?",
        "line 9, exchange 'two', destination 2, selector: "
        "must be SQL text, a Column, or a callable that returns a Column",
        "line 9, exchange 'two', destination 2, set.header: unknown key; did you mean 'headers'?",
        "line 9, exchange 'two', destination 3: unknown namespace 'ail'; did you mean 'air'?",
        "line 9, exchange 'two', destination 4, selector: must not be empty",
        "line 10, exchange 'two', consumer.parallel: must be 1 or more, not 0",
        "line 10, exchange 'two', consumer.wsize: must be a whole number",
        "line 11, exchange 'two', delivery: must be one of exactly-once, at-least-once, at-most-once; "
        "did you mean 'exactly-once'?",
        "line 12, exchange '3': must be a mapping, such as {key: value}",
        "line 13, max_hops: must be 1 or more, not 0",
        "line 14, hops: unknown key; did you mean 'max_hops'?",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: [", "line 1: the list that begins in line 1 is not closed"),
        ("- x", "the file must be a mapping with the keys namespaces, exchanges, max_hops, links"),
        ("", "the file must be a mapping with the keys namespaces, exchanges, max_hops, links"),
        ("exchanges: &a {x: *a}", "line 1, exchange 'x': this anchor contains itself"),
        ("namespaces: !!python/none {}", "line 1: the tag python/none is not allowed here: leave it out"),
        ("namespaces: {l: *nobody}", "line 1: *nobody refers to an anchor that does not exist"),
    ],
)
def test_invalid_yaml_is_reported_with_its_line(text, expected):
    assert mistakes(text)[0].startswith(expected)


def test_doubled_keys_are_reported_with_both_lines():
    text = "namespaces: {l: sqlite:///q}\nexchanges:\n  x: {src: a, dst: []}\n"
    text += "  y: {src: a, dst: []}\n  x: {src: a, dst: [m/b]}"
    assert mistakes(text) == [
        "line 5, exchange 'x': this key is declared twice, first in line 3",
        "line 5, exchange 'x', destination 1: unknown namespace 'm'; the graph has 'l'",
    ]


@pytest.mark.parametrize("name", [".", "..", "...", "a:b", "a b", "a/b", "x" * 101])
def test_the_name_of_an_exchange_names_a_folder(name):
    text = f"namespaces: {{l: sqlite:///q}}\nexchanges: {{{name!r}: {{src: a, dst: []}}}}"
    (reported,) = mistakes(text)
    assert reported.startswith(f"line 2, exchange {name!r}: must be 1 to 100 letters, digits and _ . @ -")


def test_what_has_no_hops_left_is_not_routed_again():
    (reported,) = mistakes("namespaces: {l: sqlite:///q}\nexchanges: {x: {src: l/__too_many_hops__, dst: [b]}}")
    assert reported.startswith("line 2, exchange 'x', src: messages of __too_many_hops__ have no hops left")


def test_no_reservation_is_at_most_once():
    text = "namespaces: {l: sqlite:///q}\nexchanges: {x: {src: a, dst: [], consumer: {reserve: false}}}"
    assert parse_graph(text, "", secret_of).exchanges["x"].guarantee == "at-most-once"
    assert mistakes(text.replace("false}}", "false}, delivery: exactly-once}")) == [
        "line 2, exchange 'x', consumer.reserve: delivery exactly-once needs reservations: leave this out, or set "
        "delivery: at-most-once"
    ]


def test_mistakes_of_a_graph_in_python_are_reported_without_lines():
    graph = Graph(
        {"l": Namespace("sqlite:///q.db"), "m": Namespace("sqlite:///m.db")},
        {"x": Exchange(Place("in"), [Destination("out", ns="n"), Destination("more", selector=[])])},
    )
    with pytest.raises(GraphError) as caught:
        check_graph(graph)
    assert str(caught.value) == (
        "the graph has 3 mistakes:\n"
        "  exchange 'x', destination 1: unknown namespace 'n'; the graph has 'l', 'm'\n"
        "  exchange 'x', destination 2, selector: must be SQL text, a Column, or a callable that returns a Column\n"
        "  exchange 'x', src: the namespace is missing: write namespace/queue; the graph has 'l', 'm'"
    )


def test_an_exchanges_own_options_are_no_options_of_its_reader():
    (reported,) = mistakes(
        "namespaces: {a: {url: 'sqlite:///x.db'}}\n"
        "exchanges:\n  x:\n    src: in\n    dst: [out]\n    options: {maxTries: 3, NumPartitions: 4}\n"
    )
    assert reported == (
        "line 6, exchange 'x', options.NumPartitions: this option is not allowed here: set `consumer: {parallel: …}` "
        "instead"
    )


def test_a_graph_that_changes_keeps_its_lines():
    graph = parse_graph(FILE, "conf/x.yaml", secret_of)
    wider = with_step(graph, "more", Exchange(Place("in", "air"), []))
    assert (list(wider.exchanges), wider.origin) == (["by_delay", "more"], graph.origin)
    with pytest.raises(GraphError, match="unknown namespace 'aire'; did you mean 'air'"):
        with_step(graph, "more", Exchange(Place("in", "aire"), []))


def test_passwords_are_not_shown():
    graph = parse_graph(FILE, "", secret_of)
    assert "secret" not in repr(graph)
    assert graph.namespaces["air"].url == "mongodb://me:secret@db/air"


def test_selectors_are_not_filled_in():
    text = """\
namespaces: {l: sqlite:///q.db}
exchanges:
  x: {src: "${Q}", dst: [{queue: "$${Q}", selector: "'${Q}' rlike 'a${2}'", set: {headers: {a: "'${Q}'"}}}]}
"""
    exchange = parse_graph(text, "", secret_of).exchanges["x"]
    (to,) = exchange.dst
    assert (exchange.src.queue, to.queue) == ("q", "${Q}")
    assert (to.selector, to.set.headers) == ("'${Q}' rlike 'a${2}'", {"a": "'${Q}'"})


def wired(*edges):
    exchanges = {f"x{n}": Exchange(Place(src), [Destination(to) for to in dst]) for n, (src, dst) in enumerate(edges)}
    return check_graph(Graph({"l": Namespace("sqlite:///q.db")}, exchanges))


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
    from spark_queue.graph import model as graph_model

    text = re.search(r"(    namespaces:.*?)\n\n", graph_model.__doc__, re.S)[1]
    assert list(parse_graph(text, "", lambda name: name).exchanges) == ["by_delay"]


UNREADABLE = {
    "an open list": ("a: [", "line 1: the list that begins in line 1 is not closed"),
    "an open quote": ("a: 'open\nb: 1", "line 2: the quote that begins in line 1 is not closed"),
    "a missing comma": ('{"a": 1 "b": 2}', "line 1: the mapping that begins in line 1 is not closed: '}' or a comma"),
    "a colon too many": ("a: b: c", "line 1: unexpected ':': check the indentation"),
    "a wrong indentation": ("a:\n  b: 1\n c: 2", "line 3: wrong indentation: it must be that of line 1"),
    "a text after a value": ("a: 'it's'", "line 1: unexpected text: check the indentation and the quotes"),
    "a sign": ("a: @x", "line 1: a value cannot begin with @: put quotes around it"),
    "two documents": ("a: 1\n---\nb: 2", "line 2: the file has a second document after '---': keep one"),
    "a tag": ("a: !foo x", "line 1: the tag !foo is not allowed here: leave it out"),
    "a tag that does not fit": ("a: !!int x", "a value does not fit its tag"),
    "an alias": ("a: *no", "line 1: *no refers to an anchor that does not exist: declare it before as &no"),
    "an anchor": ("a: &x 1\nb: &x 2", "line 2: the anchor &x is declared twice: rename one"),
    "a bell": ("a: \x07", "the file has a character that is not text (#x0007): remove it"),
    "a backslash": ('a: "\\q"', "line 1: \\q is no escape in double quotes: write \\\\q, or use single quotes"),
    "a key that is a list": ("a: 1\n[a]: 1", "line 2: a key must be text, not a list or a mapping"),
    "a merge": ("<<: 3", "line 1: << must be a mapping, or a list of mappings"),
    "a list in the line of its key": ("a: - b", "line 1: unexpected '- ': begin the list in a line of its own"),
    "no mapping": ("a", "the file must be a mapping with the keys namespaces"),
}


@pytest.mark.parametrize(("text", "expected"), UNREADABLE.values(), ids=UNREADABLE)
def test_a_file_that_cannot_be_read_is_refused_in_plain_words(text, expected):
    found = mistakes(text)[0]
    assert found.startswith(expected)
    for word in ("while", "scanning", "block end", "token", "stream", "scalar", "yaml.org"):
        assert word not in found


def test_a_file_that_is_not_utf_8_is_refused_with_its_line(tmp_path):
    file = tmp_path / "graph.yaml"
    file.write_bytes("a: 1\nb: é".encode("latin-1"))
    with pytest.raises(GraphError, match="line 2: byte 0xe9 is not UTF-8: save the file as UTF-8"):
        load_graph(file)


def test_values_of_a_wrong_type_are_refused_in_plain_words():
    text = """\
namespaces: {l: {url: [a], options: x}}
exchanges:
  x: {src: 3, dst: q, consumer: {reserve: often, wsize: 0.5}, options: {maxTries: {}}}
links:
  y: {src: a, dst: b, retry: {base: soon, factor: -1}}
provenance: perhaps
"""
    assert mistakes(text) == [
        "line 1, namespace 'l', options: must be a mapping, such as {key: value}",
        "line 1, namespace 'l', url: must be text",
        "line 3, exchange 'x', consumer.reserve: must be true or false",
        "line 3, exchange 'x', consumer.wsize: must be a whole number, not 0.5",
        "line 3, exchange 'x', dst: must be a list, such as [a, b]",
        "line 3, exchange 'x', options.maxTries: must be text",
        "line 3, exchange 'x', src: must be a mapping, such as {key: value}, not 3",
        "line 5, link 'y', retry.base: must be a number",
        "line 5, link 'y', retry.factor: must be 0 or more, not -1",
        "line 6, provenance: must be true or false",
    ]


def _aliases(line, last):
    return "\n".join(["a0: &a0 [x, y]", *(f"a{n}: &a{n} " + line.format(f"*a{n - 1}") for n in range(1, last))])


#: Files that would take all memory, or more calls than Python allows.
TOO_MUCH = {
    "aliases that explode": (_aliases("[{0}, {0}, {0}]", 40), "more than 100,000 values, with those that"),
    "merges that explode": (
        "m0: &m0 {k: v}\n" + "\n".join(f"m{n}: &m{n} {{<<: [*m{n - 1}, *m{n - 1}]}}" for n in range(1, 40)),
        "more than 100,000 values",
    ),
    "a chain of aliases": (_aliases("[{0}]", 200), "nested more than 50 deep, by its aliases"),
    "lists in lists": (f"namespaces: {'[' * 20_000}{']' * 20_000}", "line 1: lists and mappings are nested more"),
    "mappings in mappings": ("\n".join(" " * n + "k:" for n in range(2_000)), "line 50: lists and mappings are"),
    "JSON in JSON": (f'{{"namespaces": {"[" * 20_000}{"]" * 20_000}}}', "line 1: lists and mappings are nested"),
    "a number of 5,000 digits": (f"namespaces: {{}}\nmax_hops: {'9' * 5_000}", "max_hops: must be a whole number"),
    "a number beyond all": ("namespaces: {}\nmax_hops: 1.0e400", "line 2, max_hops: must be a whole number"),
    "half a character": ('namespaces: {a: "\\ud800"}', "line 1, namespace 'a': this text has a character that is"),
    "a NUL": ('namespaces: {a: "\\0"}', "line 1, namespace 'a': this text has a character that is not Unicode"),
}


@pytest.mark.parametrize("name", TOO_MUCH)
def test_a_file_that_is_too_much_is_refused_at_once(name):
    text, mistake = TOO_MUCH[name]
    began = time.monotonic()
    assert mistake in mistakes(text)[0]
    assert time.monotonic() - began < 20


def test_a_duration_has_an_end():
    text = f"namespaces: {{a: 'sqlite:///q.db'}}\nexchanges: {{e: {{src: q, dst: [w], every: {'9' * 15}}}}}"
    assert mistakes(text) == ["line 2, exchange 'e', every: must be 126701150399999 or less, not 999999999999999"]


def test_what_keuss_server_names_otherwise():
    graph = (
        "namespaces: {a: 'sqlite:///q.db'}\nexchanges: {e: {src: q, dst: [w], disable: true}, f: {src: w, dst: []}}\n"
    )
    read = parse_graph(graph + "main: {max_hops: 7}", "g.yaml", {}.__getitem__)
    assert read.max_hops == 7
    assert {name: one.disable for name, one in read.exchanges.items()} == {"e": True, "f": False}
    assert mistakes(graph + "main: {max_hops: 7, hops: 1}\nmax_hops: 6") == [
        "line 3, main.hops: unknown key; allowed is max_hops",
        "line 3, main.max_hops: give either max_hops or main.max_hops",
    ]
    assert mistakes(graph + "main: 7") == ["line 3, main: must be a mapping, such as {max_hops: 17}"]
