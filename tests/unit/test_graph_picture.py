"""Pictures of graphs: what they say, whatever names and selectors have in them."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from spark_queue.graph import Changes, Destination, Exchange, Graph, Input, Link, Namespace, Place, Processor
from spark_queue.graph_file import graph_in
from spark_queue.graph_mistakes import checked
from spark_queue.graph_picture import LONG, dot, facts, mermaid, selector_text, tree
from spark_queue.store.facts import Sizes

ROOT = Path(__file__).parents[2]
NASTY = 'a"b<c>\\d{e}|f'


def graph():
    exchanges = {
        "split": Exchange(
            Place("in", "l"),
            [
                Destination("late", "payload:delay::int > 60", Changes(headers={"class": "'late'"})),
                Destination("all", ns="air"),
                Destination(NASTY, selector=f"payload:x = '{NASTY}' and not (payload:y is null or payload:z)"),
            ],
        ),
        "back": Exchange(Place("late", "l"), [Destination("in"), Destination("end", ns="air")]),
    }
    return checked(Graph({"l": Namespace("sqlite:///l.db"), "air": Namespace("redis://h/0")}, exchanges))


def test_a_tree_of_text():
    sizes = {Place("in", "l"): Sizes(1_200, 0, 3, None), Place("all", "air"): Sizes(0, 0, 0, None)}
    assert ["  " * depth + text for depth, text in tree(graph(), sizes)] == [
        "l/in (1,200 ready, 3 reserved)",
        "  split",
        "    → l/late if payload:delay::int > 60 [sets headers] ↻ cycle",
        "    → air/all (empty)",
        f"    → l/{NASTY} if payload:x = '{NASTY}' and not (pa…",
        "l/late",
        "  back",
        "    → l/in (1,200 ready, 3 reserved) ↻ cycle",
        "    → air/end",
    ]


def test_mermaid():
    text = mermaid(graph(), {Place("in", "l"): Sizes(1_200, 0, 3, None)})
    lines = [line.strip() for line in text.splitlines()]
    assert lines[:3] == ["flowchart LR", 'subgraph n0["l"]', 'q0["in<br/>1,200 ready, 3 reserved"]']
    assert 'x0 -->|"payload:delay::int > 60 [sets headers]"| q1' in lines
    assert "x0 --> q2" in lines
    assert lines[-1] == "linkStyle 0,1,4,5 stroke:#c2410c,stroke-width:3px"
    for line in lines:
        assert all('"' not in quoted for quoted in re.findall(r'\["(.*?)"\]', line))
    assert "a#quot;b#lt;c>" in text


def test_graphviz():
    source = dot(graph(), {Place("in", "l"): Sizes(1_200, 0, 3, None)}).source
    assert '"q l/in" [label="in\n1,200 ready, 3 reserved"' in source
    assert '"x split" -> "q l/late" [label="payload:delay::int > 60 [sets headers]" color="#c2410c"' in source
    assert source.count("penwidth") == 4
    assert "label=air" in source


@pytest.mark.parametrize(
    ("selector", "text"),
    [(None, ""), ("a\n  and b", "a and b"), (selector_text, "selector_text"), (lambda env: env, "<lambda>")],
)
def test_selectors_are_shown_as_people_wrote_them(selector, text):
    assert selector_text(selector) == text


def test_the_picture_in_the_readme_is_that_of_the_demo():
    demo = graph_in(ROOT / "conf" / "flights.yaml")
    found = ElementTree.parse(ROOT / "docs" / "pictures" / "flights.svg").getroot()
    titles = {one.text or "" for one in found.iter("{http://www.w3.org/2000/svg}title")}
    texts = {one.text or "" for one in found.iter("{http://www.w3.org/2000/svg}text")}
    assert {title for title in titles if title.startswith("q ") and "->" not in title} == {
        f"q {place}" for place in demo.queues()
    }
    for name, exchange in demo.exchanges.items():
        assert f"q {exchange.src}->x {name}" in titles
        for to in exchange.dst:
            assert f"x {name}->q {to}" in titles
            assert to.selector is None or len(to.selector) > LONG or any(to.selector in text for text in texts)


def test_links_are_drawn_beside_exchanges():
    links = {"sort": Link(Place("b"), [Place("c"), Place("d")], to="'c'"), "store": Link(Place("c"))}
    graph = checked(
        Graph({"air": Namespace("sqlite:///q.db")}, {"x": Exchange(Place("a"), [Destination("b")])}, links=links)
    )
    source = dot(graph).source
    assert '"x sort" [label=sort' in source and "hexagon" in source
    assert (
        '"q air/b" -> "x sort"' in source and '"x sort" -> "q air/d"' in source and '"q air/c" -> "x store"' in source
    )
    drawn = mermaid(graph)
    assert 'x1{{"sort"}}' in drawn and "x1 --> q2" in drawn and "x1 --> q3" in drawn
    assert [text for _, text in tree(graph)] == [
        "air/a", "x", "→ air/b", "air/b", "sort (link)", "→ air/c", "→ air/d", "air/c", "store (link)",
    ]  # fmt: skip
    assert facts(graph)["links"] == [
        {
            "name": "sort",
            "src": "air/b",
            "dst": [{"queue": "air/c", "cycle": False}, {"queue": "air/d", "cycle": False}],
        },
        {"name": "store", "src": "air/c", "dst": []},
    ]


def test_processors_are_drawn_by_their_kinds():
    def at(*names, kind=Place):
        return {name: kind(name) for name in names}

    processors = {
        "s1": Processor(),
        "add": Processor(
            "m:f", in_={"a": Input("s1"), "b": Input("s2")}, out=at("sum", "late"), rows=True, errors=Place("errors")
        ),
        "pick": Processor("m:f", alts=at("sum", "other", kind=Input)),
        "hand": Processor("m:f", tailers=at("found"), appenders=at("s2")),
    }
    graph = checked(Graph({"l": Namespace("sqlite:///q.db")}, processors=processors))
    assert ["  " * depth + text for depth, text in tree(graph)] == [
        "s1 (source)",
        "  → l/s1",
        "l/s1",
        "  add (fork), with l/s2",
        "    → l/sum",
        "    → l/late",
        "    → l/errors errors",
        "l/sum",
        "  pick (sink), or from l/other",
        "l/found",
        "  hand (imperative)",
        "    → l/s2",
        "l/other",
    ]
    drawn = mermaid(graph)
    for line in ('x0[["add<br/>fork"]]', 'q0 -->|"a"| x0', 'x0 -.->|"errors"|', '-->|"2. other"| x1', '>"s1"]'):
        assert line in drawn, line
    source = dot(graph).source
    assert "shape=component" in source and "shape=cds" in source and "style=dashed" in source
    told = {one["name"]: one for one in facts(graph)["processors"]}
    assert (told["add"]["kind"], told["add"]["in"]) == ("fork", {"a": "l/s1", "b": "l/s2"})
