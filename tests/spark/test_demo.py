"""`make demo`, of a sample and of all flights, and the commands that it and the README give for what comes next."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: Flights in a sample, the first of the year; and in all.
SAMPLE, ALL = 3_000, 336_776


@pytest.fixture
def checkout(tmp_path):
    """What the demo needs of one: it writes into a folder beside its program."""
    for one in ("jobs", "conf"):
        shutil.copytree(ROOT / one, tmp_path / one, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def run(folder, *command):
    env = os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(ROOT)}
    env["COLUMNS"] = "120"
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def demo(folder, flights, *args):
    """Run the demo, and return what it says."""
    told = run(folder, sys.executable, "jobs/demo.py", *args).stdout
    assert f"{flights:,} rows pushed to departures" in told
    assert "Every flight is where it belongs, once" in told
    assert told.count("ok │") == 11 and "FAILED" not in told
    assert re.search(r"airport/__too_many_hops__ +│ +[1-9]", told), "some flights have no plane"
    return told


@pytest.mark.timeout(900)
def test_the_demo_of_a_sample(checkout):
    demo(checkout, SAMPLE, "--flights", str(SAMPLE))


@pytest.mark.full
@pytest.mark.timeout(1_800)
def test_the_demo_of_all_flights_and_what_it_says_is_next(checkout):
    told = demo(checkout, ALL)
    graph, push, exchange = (shlex.split(line) for line in told.split("let them flow:\n")[1].strip().splitlines())
    assert "airport/__no_route__ (" in run(checkout, *graph).stdout
    assert f"{ALL:,} rows pushed" in run(checkout, *push).stderr
    written = re.findall(r"^\$ python (jobs/exchange.py .*)$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert [" ".join(exchange[1:4])] == written, "the README has the same, with checkpoints of its own"
    facts = json.loads(run(checkout, *exchange, "--json").stdout)
    assert facts["exchanges"]["by_delay"]["received"] == ALL
    assert {one["state"] for one in facts["exchanges"].values()} == {"finished"}
