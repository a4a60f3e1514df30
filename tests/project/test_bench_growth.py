"""The curves of the benchmark, as far as it takes no servers."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"
sys.path.insert(0, str(BENCH))
curves = importlib.import_module("curves")
growth = importlib.import_module("growth")
report = importlib.import_module("report")


def sqlite_urls(tmp_path):
    return {"sqlite": f"sqlite:///{tmp_path}/queues.db"}


@pytest.fixture
def small(monkeypatch):
    """So few messages that a round ends at once."""
    monkeypatch.setattr(curves, "READY", 100)  # a small benchmark
    monkeypatch.setattr(curves, "SINGLE_RESERVES", 2)  # a small benchmark


@pytest.mark.parametrize("name", [one for one in curves.CURVES if one != "consumers"])
def test_a_measurement_leaves_each_queue_as_it_was_and_a_curve_leaves_nothing(small, tmp_path, name):
    made = curves.CURVES[name](sqlite_urls(tmp_path)["sqlite"], tmp_path, 40)
    sizes = [1 if name == "queues" else 50, 120]
    made.prepare(sizes)
    before = {size: point.store.sizes(point.queue) for size, point in made.points.items()}
    measured = [(number, size) for number, size, _ in made.measured(sizes, 2)]
    assert sorted(measured) == [(number, size) for number in range(2) for size in sizes]
    assert {size: point.store.sizes(point.queue) for size, point in made.points.items()} == before
    made.close()
    assert list(tmp_path.iterdir()) == []


def test_consumers_in_processes_of_their_own_drain_everything(tmp_path):
    found = growth.measure("consumers", sqlite_urls(tmp_path), tmp_path, {"sqlite": [1, 2]}, 100, 1)
    assert set(found.operations("sqlite")) == {"reserve a hundred", "drain"}
    assert list(tmp_path.iterdir()) == []


def test_many_queues_are_there_while_they_are_measured(small, tmp_path, monkeypatch):
    made = curves.Queues(sqlite_urls(tmp_path)["sqlite"], tmp_path, 40)
    made.prepare([1, 5])
    seen = []
    monkeypatch.setattr(made, "measure", lambda point, size: seen.append(len(point.store.queues())) or {})
    list(made.measured([1, 5], 2))
    assert seen == [1, 1, 5, 5]
    made.close()


def test_messages_have_the_bytes_that_they_are_to_have():
    made = curves.Bytes("sqlite:///x.db", Path(), 1_000)
    for size in (100, 10_000):
        texts = made._texts(size)
        assert {len(one) for one in texts} == {size}
        assert len(set(texts)) == len(texts) and json.loads(texts[0])
    assert len(made._texts(1_000_000)) == 33 + curves.SINGLE_RESERVES


def test_a_curve_has_the_median_of_the_ratios_within_a_round():
    rounds = [{size: {"push": weather * cost} for size, cost in ((10, 1.0), (1000, 3.0))} for weather in (1, 20, 2)]
    found = growth.Grown("backlog", {"redis": rounds})
    assert found.ratio("redis", 1000, "push") == 3.0
    assert found.ratio("redis", 10, "push") == 1.0
    assert found.table("redis")[-1] == ("1,000", "0/s (3.0)")


def test_a_call_is_shown_in_ms_and_a_message_per_second():
    assert growth.shown("sizes", 0.0123) == "12.30 ms"
    assert growth.shown("push", 0.0001) == "10,000/s"


def test_heavy_sizes_are_measured_on_request_only():
    assert curves.Backlog.chosen("redis")[-1] == 1_000_000
    assert curves.Backlog.chosen("redis", full=True)[-1] == 10_000_000
    assert curves.Backlog.chosen("redis", full=True, most=100_000) == [10_000, 100_000]
    assert curves.Backlog.chosen("redis", most=5) == [10_000], "a curve has a beginning"
    assert curves.Queues.chosen("mongodb") == [1, 100, 1_000], "MongoDB has files open for each"
    assert curves.Queues.chosen("sqlite")[-1] == 10_000


@pytest.mark.parametrize(("files", "most"), [(20_000, 1_000), (64_000, 10_000), (-1, 10_000)])
def test_no_server_is_made_to_open_more_files_than_it_may(monkeypatch, files, most):
    monkeypatch.setattr(curves.resource, "getrlimit", lambda _: (files, files))
    assert curves.Queues.chosen("mongodb", full=True)[-1] == most


def test_the_page_has_a_place_for_each_curve():
    page = report.PAGE.read_text()
    for name in curves.CURVES:
        assert page.count(f"<!-- growth {name}: begin -->") == page.count(f"<!-- growth {name}: end -->") == 1
