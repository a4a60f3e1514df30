"""The gate that a benchmark's ratios have to pass."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
gate = importlib.import_module("gate")


@pytest.fixture
def results(tmp_path, monkeypatch):
    """Write results of these ratios, and give their file."""
    monkeypatch.setattr(gate, "BASELINE", tmp_path / "baseline.json")

    def write(store="redis", **ratios):
        facts = {"setup": "2 cores", "when": "2026-01-01", "messages": 10, "rounds": 3}
        file = tmp_path / "results.json"
        file.write_text(json.dumps(facts | {"ratios": {store: ratios}, "peers": {}, "rounds of": {}}))
        return str(file)

    return write


def refused(capsys, *words):
    """What the gate says that refuses to do anything."""
    with pytest.raises(SystemExit) as exit:
        gate.main(list(words))
    assert exit.value.code == 2
    return capsys.readouterr().err


def test_what_is_a_fifth_slower_fails_and_is_named(results, capsys):
    assert gate.main([results(push=1.0, drain=0.5), "--write"]) == 0
    assert gate.main([results(push=0.8, drain=0.41)]) == 0
    assert gate.main([results(push=0.79, drain=0.5, new=0.1)]) == 1
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["SLOWER", "redis", "push", "0.79,", "was", "1.00"] in lines
    assert ["ok", "redis", "drain", "0.50,", "was", "0.50"] in lines
    assert not any("new" in line for line in lines), "nothing to compare it with"


def test_a_way_that_is_gone_fails(results, capsys):
    gate.main([results(push=1.0, drain=0.5), "--write"])
    assert gate.main([results(push=1.0)]) == 1
    assert "missing, was   0.50" in capsys.readouterr().out


def test_nothing_in_common_is_no_success(results, capsys):
    gate.main([results(push=1.0), "--write"])
    assert "no way of a store in common" in refused(capsys, results("sqlite", push=1.0))


def test_without_a_baseline_the_gate_says_how_to_make_one(results, capsys):
    assert "--write makes it" in refused(capsys, results(push=1.0))


def test_a_baseline_keeps_ratios_and_what_they_were_measured_on(results, tmp_path):
    gate.main([results(push=1.0), "--write"])
    kept = json.loads((tmp_path / "baseline.json").read_text())
    assert list(kept) == ["setup", "when", "messages", "rounds", "ratios"]


def test_a_baseline_is_written_over_by_word_only_and_never_by_a_run_of_fewer_stores(results, capsys):
    gate.main([results(push=1.0), "--write"])
    assert "is there already" in refused(capsys, results(push=0.1), "--write")
    assert gate.main([results(push=0.1)]) == 1
    assert gate.main([results(push=0.1), "--renew"]) == 0
    assert gate.main([results(push=0.1)]) == 0
    assert "has nothing of redis" in refused(capsys, results("sqlite", push=1.0), "--renew")
