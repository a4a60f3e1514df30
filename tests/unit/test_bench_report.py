"""The tables and the page that a benchmark's results become."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
report = importlib.import_module("report")
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


def test_a_peer_is_told_with_its_ratio_its_jobs_and_its_settings(found):
    assert found.times("redis", "rq") == {LAYOUT: 25.0, "buckets": 200.0}
    text = report.as_text(found)
    (line,) = (one for one in text.splitlines() if one.startswith("rq "))
    assert line.split()[1] == "5,000" and line.endswith("200.0 times as fast")
    assert "rq, rq 2.0: fast (docs: rq.example)" in text


def test_a_peer_that_failed_is_told_and_not_measured(found):
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
