"""The tables and the page that a benchmark's results become."""

from __future__ import annotations

import importlib
import sys
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
charts = importlib.import_module("charts")
report = importlib.import_module("report")
rules = importlib.import_module("rules")
ways = importlib.import_module("ways")

(LAYOUT, WHO), (_, BUCKETS) = ways.BESIDE_PEERS.items()


@pytest.fixture
def found():
    """Two rounds on Redis, the second of them in bad weather, with one peer that failed and one that did not."""

    def took(rate):
        return {"rate": rate, "client": 1.0, "server": 2.0, "peak": 2**20}

    rates = {ways.RAW: 1000, WHO: 500, BUCKETS: 4000, ways.CEILING: 2000, ways.LARGE_CEILING: 8000}
    rates |= {"rq": 20, "celery": 1}
    rounds = [
        {f"{who}, {what}": took(rate / slow) for who, rate in rates.items() for what in ("push", "drain")}
        for slow in (1, 10)
    ]
    facts = {"setup": "2 cores", "when": "2026-01-01", "messages": 10, "rounds": 2}
    peer = {"version": "rq 2.0", "settings": "fast (docs: rq.example)", "jobs": 5000}
    return report.Results(facts, {"redis": rounds}, {"redis": {"rq": peer}}, {"celery": "celery stalled\nits log"})


def test_a_peer_is_shown_with_its_ratio_its_jobs_and_its_settings(found):
    assert found.times("redis", "rq") == {LAYOUT: 25.0, "buckets": 200.0}
    text = report.as_text(found)
    (line,) = (one for one in text.splitlines() if one.startswith("rq "))
    assert line.split()[1] == "5,000" and line.split()[-2:] == ["25.0", "200.0"]
    assert "rq: rq 2.0; fast (docs: rq.example)" in text


def test_settings_that_peers_share_stand_once(found):
    peer = found.peers["redis"]["rq"]
    found.peers["mongodb"] = {"mq": {**peer, "version": "mq 1.0"}, "rq-pool": peer}
    *_, rq, mq, celery = report.as_markdown(found).splitlines()
    assert rq == "* rq, rq-pool: rq 2.0; fast (docs: rq.example)"
    assert mq == "* mq: mq 1.0; fast (docs: rq.example)"
    assert celery.startswith("* celery was not measured")


def test_a_peer_that_failed_is_reported_and_not_measured(found):
    assert "celery was not measured: celery stalled" in report.as_text(found)
    assert list(found.as_json()["peers"]["redis"]) == ["rq"]


def test_ratios_are_those_of_our_own_ways_beside_the_bare_driver(found):
    ours = {WHO: 0.5, BUCKETS: 4.0}
    assert found.ratios() == {"redis": {f"{who}, {what}": ours[who] for who in ours for what in ("push", "drain")}}


def test_a_way_that_one_store_lacks_is_in_no_table_of_it(found):
    there = [ways.RAW, WHO, BUCKETS, ways.CEILING, ways.LARGE_CEILING]
    assert found.who("redis") == there
    rows = report.rows(found, "redis", "drain")
    assert [row[0] for row in rows] == ["drain", *there]
    assert [row[3] for row in rows[1:]] == ["0.50", "0.25", "0.50", "1.00", "1.00"], "each beside its own ceiling"


def test_a_drain_has_its_rate_by_default_beside_it_and_a_way_without_batches_has_none(found):
    for one in found.rounds["redis"]:
        one[f"{WHO}, {ways.DEFAULT_DRAIN}"] = one[f"{WHO}, drain"] | {"rate": one[f"{WHO}, drain"]["rate"] * 0.9}
    head, *rows = report.rows(found, "redis", "drain")
    assert head[-2:] == report.DEFAULT_HEAD
    assert {row[0]: row[-2:] for row in rows} == dict.fromkeys(found.who("redis"), ("", "")) | {WHO: ("248", "0.90")}
    assert found.ratios()["redis"][f"{WHO}, {ways.DEFAULT_DRAIN}"] == 0.45
    assert head[-1] not in report.rows(found, "redis", "push")[0]


def test_rules_of_thumb_have_the_numbers_of_the_page(tmp_path):
    page = tmp_path / "page.md"
    rows = {f"Spark, {way}, {delivery}": rate * more for way, rate in (("2 partitions", 10), ("buckets", 50))
            for delivery, more in ((rules.EXACTLY_ONCE, 1), (rules.AT_LEAST_ONCE, 2))}  # fmt: skip
    pushes = [("push", "messages/s"), *((who, f"{rate:,}") for who, rate in rows.items())]
    drains = [("drain", "messages/s", "default options"), ("bare driver", "9,000", ""),
              *((who, "9,000", f"{300 * rate:,}") for who, rate in rows.items())]  # fmt: skip
    sizes = [("size", "whole (messages/s)"), ("auto", "2,000"), ("10000", "400"), ("50000", "2,400")]
    hops = [("store", "checkpoints", "query (s)", "six hops (s)"), ("redis", "default", "0.30", "2.40"),
            ("redis", "conf", "0.20", "1.20")]  # fmt: skip
    measured = ["### redis", "", *report.piped(pushes), "", *report.piped(drains)]
    parts = {"measured": measured, "sizes": ["### redis, 500 messages", "", *report.piped(sizes)]}
    parts["hops"] = report.piped(hops)
    marked = (f"<!-- {name}: begin -->\n{chr(10).join(of)}\n<!-- {name}: end -->" for name, of in parts.items())
    page.write_text("\n".join(marked))
    _, *found = charts.tables(rules.as_markdown(page))[0]
    assert [row[-1] for row in found] == ["5.0", "5.0", "2.0", "2.0", "1.2", "1.5", "2.0"]


def test_the_rules_of_thumb_of_the_page_are_those_of_its_tables():
    assert report.part("rules") == rules.as_markdown(), "type: python bench/rules.py"


def test_only_the_part_of_its_name_is_renewed(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "a\n<!-- one: begin -->\nold\n<!-- one: end -->\nb\n<!-- two: begin -->\nkept\n<!-- two: end -->\n"
    )
    report.renew("one", "new", page)
    assert page.read_text().split("\n")[:6] == [
        "a",
        "<!-- one: begin -->",
        "new",
        "<!-- one: end -->",
        "b",
        "<!-- two: begin -->",
    ]
    assert "kept" in page.read_text()
    with pytest.raises(SystemExit, match="three"):
        report.renew("three", "new", page)


# --- charts: drawn from the page -----------------------------------------------------------------------------------


def drawn():
    """Return all charts of the page, by name."""
    for store, (push, drain, *peers) in charts.stores().items():
        yield f"bench_{store}", charts.draw_bars(charts.panels(store, push, drain))
        for one in peers:
            note = charts.conditions(store, one)
            yield f"bench_{store}_peers", charts.draw_bars([charts.beside_peers(store, drain, one)], note)
    for name, of in charts.curves():
        yield f"growth_{name}", charts.draw_curves(of)


def test_what_is_drawn_are_the_numbers_of_the_page(found, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"<!-- measured: begin -->\n{report.as_markdown(found)}\n<!-- measured: end -->\n")
    ((store, (push, drain, peers)),) = charts.stores(page).items()
    assert store == "redis"
    assert charts.rates(push, "messages/s")[WHO] == round(found.median("redis", f"{WHO}, push", "rate"))
    bars = charts.beside_peers(store, drain, peers)
    ours = {"spark_queue, buckets", f"spark_queue, {LAYOUT}"}
    assert bars.rates == {
        "spark_queue, buckets": 2200, "bare Redis driver": 550, f"spark_queue, {LAYOUT}": 275, "rq": 11,
    }  # fmt: skip
    assert list(bars.rates.values()) == sorted(bars.rates.values(), reverse=True)
    assert bars.ours == ours
    reported = charts.conditions(store, peers, page)
    for fact in ("2 cores", "5,000 jobs", "250,000 messages", "batches find their size"):
        assert fact in reported


def test_a_curve_is_what_stands_in_brackets():
    head = ("redis: messages", "push", "sizes (ms)")
    rows = [("10", "9/s (1.0)", "0.1 (1.0)"), ("1,000", "3/s (3.1)", "2.00 (20.5)")]
    assert charts.ratios([head, *rows]) == {"push": [1.0, 3.1], "sizes": [1.0, 20.5]}


@pytest.mark.parametrize(
    ("number", "text"),
    [(97, "97"), (442.4, "442"), (9_456, "9,456"), (95_554, "96k"), (999_700, "1M"), (1_898_730, "1.9M")],
)
def test_a_number_is_short(number, text):
    assert charts.short(number) == text


def test_no_words_of_a_chart_collide_and_bars_have_their_numbers():
    for name, figure in drawn():
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        pen, whole = canvas.get_renderer(), figure.bbox

        def apart(words, name=name, pen=pen):
            boxes = [one.get_window_extent(pen) for one in words]
            assert not any(one.overlaps(other) for one, other in pairwise(boxes)), name

        for ax in figure.axes:
            assert ax.get_xscale() == "linear", name
            for axis, (low, high) in ((ax.xaxis, ax.get_xlim()), (ax.yaxis, ax.get_ylim())):
                seen = [one for one in axis.get_major_ticks() if low <= one.get_loc() <= high]
                assert len(seen) > 1 and not any(one.label1.get_text() for one in axis.get_minor_ticks()), name
                apart(one.label1 for one in seen if one.label1.get_visible())
            for word in (*ax.texts, ax.title, ax._left_title, ax.xaxis.label):
                box = word.get_window_extent(pen)
                assert not word.get_text() or (whole.x0 <= box.x0 and box.x1 <= whole.x1), (name, word.get_text())
            assert len(ax.texts) == len(ax.patches), f"{name}: each bar has its number"
        titles = [ax._left_title for ax in figure.axes if ax._left_title.get_text()]
        assert figure.get_suptitle() or titles, f"{name} has a title"
        apart(titles)
        charts.drawing().close(figure)


def test_the_pictures_have_the_numbers_of_the_page(tmp_path):
    charts.draw_all(folder=tmp_path)
    purl = "{http://purl.org/dc/elements/1.1/}"
    made = sorted(one.name for one in tmp_path.glob("*.svg"))
    assert made == sorted(one.name for kind in ("bench_*", "growth_*") for one in report.PICTURES.glob(kind))
    for name in made:
        new, old = (ElementTree.parse(folder / name).getroot() for folder in (tmp_path, report.PICTURES))
        for fact in ("title", "description"):
            facts = [one.findtext(f".//{purl}{fact}") for one in (new, old)]
            assert facts[0] and facts[0] == facts[1], f"{name} is old; type: python bench/charts.py"
