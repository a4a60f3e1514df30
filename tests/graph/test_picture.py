"""Pictures of graphs: what they say, whatever names and selectors have in them."""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest

from spark_queue.errors import UsageError
from spark_queue.graph.exchange import NO_ROUTE, TOO_MANY_HOPS
from spark_queue.graph.loader import load_graph
from spark_queue.graph.model import Changes, Destination, Exchange, Graph, Input, Link, Namespace, Place, Processor
from spark_queue.graph.rendering import LONGEST_SELECTOR, PAGE_WIDTH, dot, svg, to_json, tree
from spark_queue.graph.selector_words import selector_text
from spark_queue.graph.validation import check_graph
from spark_queue.runner.traffic import Traffic
from spark_queue.stores.types import Sizes

SVG = "http://www.w3.org/2000/svg"
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
    return check_graph(Graph({"l": Namespace("sqlite:///l.db"), "air": Namespace("redis://h/0")}, exchanges))


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


def edges(svg):
    """Return the texts of each edge of a drawing, by its title, without spaces."""
    found = {}
    for one in ElementTree.fromstring(svg).iter(f"{{{SVG}}}g"):
        if one.get("class") in ("edge", "node"):
            texts = "".join(text.text or "" for text in one.iter(f"{{{SVG}}}text"))
            found[one.findtext(f"{{{SVG}}}title")] = re.sub(r"\s", "", texts)
    return found


def test_graphviz():
    source = dot(graph(), {Place("in", "l"): Sizes(1_200, 0, 3, None)}).source
    assert '"q l/in" [label=<' in source and "<b>in</b><br/>1,200 ready, 3 reserved>" in source
    assert '"x split" -> "q l/late" [label=<&#160;payload:delay&#160;<br' in source
    assert "&#160;[sets headers]&#160;<br" in source, "a selector is broken into lines"
    assert source.count("penwidth") == 4
    assert ">air/</font>" in source and "fillcolor=" in source


def test_a_drawing_has_every_name_and_selector_whole():
    texts = edges(svg(graph()))
    assert texts["x split->q l/late"] == "payload:delay::int>60[setsheaders]"
    nasty = f"payload:x='{NASTY}'andnot(payload:yisnullorpayload:z)"
    assert texts[f"x split->q l/{NASTY}"] == nasty and len(nasty) > LONGEST_SELECTOR
    assert texts[f"q l/{NASTY}"] == f"l/{NASTY}"


def test_a_drawing_counts_what_went_through_each_step():
    split = Traffic(received=1_234, pushed=Counter({"l/late": 1_000, "air/all": 1_234}), no_route=17, too_many_hops=5)
    texts = edges(svg(graph(), {Place(NO_ROUTE, "l"): Sizes(17, 0, 0, None)}, {"split": split}))
    assert texts["q l/in->x split"] == "1,234"
    assert texts["x split->q l/late"].startswith("1,000payload")
    assert texts["x split->q air/all"] == "1,234"
    assert texts[f"x split->q l/{NO_ROUTE}"] == "17" and texts[f"x split->q l/{TOO_MANY_HOPS}"] == "5"
    assert texts[f"q l/{NO_ROUTE}"] == f"l/{NO_ROUTE}17ready"
    assert texts["q l/late->x back"] == "" and texts["x back->q l/in"] == "", "of the others nothing is known"
    assert NO_ROUTE not in svg(graph(), None, {"split": Traffic(received=1)})


def test_a_drawing_runs_downwards_where_it_is_too_wide_for_a_page_otherwise():
    short = check_graph(Graph({"l": Namespace("sqlite:///q.db")}, {"x": Exchange(Place("a"), [Destination("b")])}))
    chain = {f"exchange_{n}": Exchange(Place(f"queue_{n}"), [Destination(f"queue_{n + 1}")]) for n in range(12)}
    long = check_graph(Graph({"l": Namespace("sqlite:///q.db")}, chain))
    for one, wide in ((short, True), (long, False)):
        width, height = (int(ElementTree.fromstring(svg(one)).get(side)) for side in ("width", "height"))
        assert width <= PAGE_WIDTH and (width > height) is wide


def test_without_graphviz_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setitem(sys.modules, "pygraphviz", None)
    with pytest.raises(UsageError, match=r"apt-get install graphviz.*pip install pygraphviz"):
        svg(graph())


@pytest.mark.parametrize(
    ("selector", "text"),
    [(None, ""), ("a\n  and b", "a and b"), (selector_text, "selector_text"), (lambda env: env, "<lambda>")],
)
def test_selectors_are_shown_as_people_wrote_them(selector, text):
    assert selector_text(selector) == text


@pytest.mark.parametrize(
    ("printed", "text"),
    [
        ("=(headers['class'], 'late')", "headers['class'] = 'late'"),
        ("in(headers['carrier'], 'AA', 'M,Q')", "headers['carrier'] IN ('AA', 'M,Q')"),
        (
            "or(and(>(a, 3), !(=(b, 'it\\'s, (x'))), isNull(c))",
            "((a > 3) AND (NOT (b = 'it\\'s, (x'))) OR (c IS NULL)",
        ),
        ("<=(CAST(a.b AS INT), 60)", "CAST(a.b AS INT) <= 60"),
        ("<(negative(a), 2.5)", "(-a) < 2.5"),
        ("isNotNull(p['x'][0])", "p['x'][0] IS NOT NULL"),
        ("startswith(lower(a), 'u')", "startswith(lower(a), 'u')"),
        ("f()", "f()"),
        ("we'ird", "we'ird"),
        ("=(we'ird, (c)", "=(we'ird, (c)"),
        ("f(a) = f(b)", "f(a) = f(b)"),
    ],
)
def test_operators_of_a_column_stand_between_their_operands(printed, text):
    class Column:
        def __str__(self):
            return f"Column<'{printed}'>"

    assert selector_text(Column()) == text


@pytest.mark.parametrize("name", ["flights", "demo"])
def test_a_picture_of_the_readme_is_that_of_the_demo(name):
    demo = load_graph(ROOT / "conf" / "flights.yaml")
    texts = edges((ROOT / "docs" / "pictures" / f"{name}.svg").read_text())
    lost = set() if name == "flights" else {f"q {place}" for place in demo.unrouted_queues()}
    assert {one for one in texts if one.startswith("q ") and "->" not in one} == lost | {
        f"q {place}" for place in demo.queues()
    }
    for step, exchange in demo.exchanges.items():
        counted = r"[\d,]+" if name == "demo" else ""
        assert re.fullmatch(counted, texts[f"q {exchange.src}->x {step}"])
        for to in exchange.dst:
            selector = re.sub(r"\s", "", to.selector or "")
            assert re.match(counted + re.escape(selector), texts[f"x {step}->q {to}"])
    assert name == "flights" or texts["q airport/departures->x by_delay"] == "336,776"


def test_links_are_drawn_beside_exchanges():
    links = {"sort": Link(Place("b"), [Place("c"), Place("d")], to="'c'"), "store": Link(Place("c"))}
    graph = check_graph(
        Graph({"air": Namespace("sqlite:///q.db")}, {"x": Exchange(Place("a"), [Destination("b")])}, links=links)
    )
    source = dot(graph).source
    assert '"x sort" [label=sort' in source and "hexagon" in source
    assert (
        '"q air/b" -> "x sort"' in source and '"x sort" -> "q air/d"' in source and '"q air/c" -> "x store"' in source
    )
    assert [text for _, text in tree(graph)] == [
        "air/a", "x", "→ air/b", "air/b", "sort (link)", "→ air/c", "→ air/d", "air/c", "store (link)",
    ]  # fmt: skip
    assert to_json(graph)["links"] == [
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
    graph = check_graph(Graph({"l": Namespace("sqlite:///q.db")}, processors=processors))
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
    source = dot(graph).source
    assert "shape=component" in source and "shape=cds" in source and "style=dashed" in source
    reported = {one["name"]: one for one in to_json(graph)["processors"]}
    assert (reported["add"]["kind"], reported["add"]["in"]) == ("fork", {"a": "l/s1", "b": "l/s2"})
