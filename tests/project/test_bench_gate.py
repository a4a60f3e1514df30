"""The gate that a benchmark's ratios have to pass, and that of a commit beside its parent."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
gate, against, commits = map(importlib.import_module, ("gate", "against", "commits"))


@pytest.fixture
def results(tmp_path, monkeypatch):
    """Write results of these ratios, and give their file."""
    monkeypatch.setattr(gate, "BASELINE", tmp_path / "baseline.json")  # the file of the benchmark

    def write(store="redis", **ratios):
        facts = {"setup": "2 cores", "when": "2026-01-01", "messages": 10, "rounds": 3}
        file = tmp_path / "results.json"
        file.write_text(json.dumps(facts | {"ratios": {store: ratios}, "peers": {}, "rounds of": {}}))
        return str(file)

    return write


def refusal_of_gate(capsys, *words):
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
    assert "no way of a store in common" in refusal_of_gate(capsys, results("sqlite", push=1.0))


def test_without_a_baseline_the_gate_says_how_to_make_one(results, capsys):
    assert "create it from these results with --write" in refusal_of_gate(capsys, results(push=1.0))


def test_a_baseline_keeps_ratios_and_what_they_were_measured_on(results, tmp_path):
    gate.main([results(push=1.0), "--write"])
    kept = json.loads((tmp_path / "baseline.json").read_text())
    assert list(kept) == ["setup", "when", "messages", "rounds", "ratios"]


def test_a_baseline_is_replaced_with_renew_only_and_never_by_a_run_of_fewer_stores(results, capsys):
    gate.main([results(push=1.0), "--write"])
    assert "exists; replace it with --renew" in refusal_of_gate(capsys, results(push=0.1), "--write")
    assert gate.main([results(push=0.1)]) == 1
    assert gate.main([results(push=0.1), "--renew"]) == 0
    assert gate.main([results(push=0.1)]) == 0
    assert "has no results of redis" in refusal_of_gate(capsys, results("sqlite", push=1.0), "--renew")


# --- a commit beside its parent -------------------------------------------------------------------------------------


def judged(new, parent=(100.0, 90.0, 120.0), **others):
    """What does not pass, where a way has these rates in three rounds, and others theirs."""
    rates = {"push": new, **others}
    return against.slower(against.compared({"redis": dict.fromkeys(rates, parent)}, {"redis": rates}))


def test_the_ratio_is_the_median_of_the_rounds():
    assert judged([1.0, 90.0, 120.0]) == [], "one round was slow"
    assert judged([50.0, 45.0, 60.0], parent=(50.0, 90.0, 60.0)) == [], "the machine was slow"
    assert judged([100.0, 80.1, 106.8], drain=[110.0] * 3) == ["redis: push: the ratio 0.890 is below 0.90"]


def test_many_ways_that_are_a_little_slower_fail_together():
    same = (100.0, 100.0, 100.0)
    assert judged([96.0] * 3, same, drain=[96.0] * 3) == ["redis: the geometric mean 0.960 is below 0.97"]
    assert judged([96.0] * 3, same, drain=[99.0] * 3) == []


def test_a_way_that_one_side_lacks_is_not_compared():
    assert against.compared({"redis": {"push": [1.0], "old": [1.0]}}, {"redis": {"push": [2.0], "new": [1.0]}}) == [
        against.Compared("redis", "push", [1.0], [2.0])
    ]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--against", "no-such-commit", "--only", "sqlite"], "there is no commit 'no-such-commit'"),
        (["--against", "HEAD", "--messages", "4500"], "--messages must be a multiple of 4,000"),
        (["--against", "HEAD", "--rounds", "0"], "--rounds must be 1 or more"),
        (["--against", "HEAD", "flood"], "no way has 'flood' in its name; there are: client, push;"),
        (["--quick", "results.json"], "--quick needs --against"),
        ([], "pass the results of one run, or --against COMMIT"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_runs(words, says, capsys):
    assert says in refusal_of_gate(capsys, *words)


#: Each push takes five times as long, on a machine of any speed: other work may slow either side.
PAUSE = """
push = SqliteStore._push

def slow_push(*args):
    began = time.perf_counter()
    pushed = push(*args)
    time.sleep(4 * (time.perf_counter() - began))
    return pushed

SqliteStore._push = slow_push
"""


@pytest.mark.full
def test_a_commit_that_is_slower_is_found(monkeypatch, tmp_path, capfd):
    """The same code on both sides, but for a pause in each push of the new one."""
    copied = commits.this_checkout

    def slower(folder):
        made = copied(folder)
        with (made.code / "spark_queue" / "stores" / "sqlite" / "store.py").open("a") as module:
            module.write(PAUSE)
        return made

    monkeypatch.setattr(commits, "this_checkout", slower)
    file = tmp_path / "results.json"
    code = gate.main(["--against", "HEAD", "--only", "sqlite", "--quick", "--json", str(file), "client, push"])
    found = json.loads(file.read_text())
    assert found["stores"]["sqlite"]["ways"]["client, push"]["ratio"] < 0.9, capfd.readouterr().out
    assert code == 1
    assert "SLOWER" in capfd.readouterr().out
