"""`make demo`, of a sample and of all flights, and the commands that it and the README give for what comes next."""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from spark_queue.stores.conformance.waiting import wait_until

ROOT = Path(__file__).parents[2]
SVG = "{http://www.w3.org/2000/svg}"

#: Flights in a sample, the first of the year; and in all.
SAMPLE, ALL = 3_000, 336_776


@pytest.fixture
def checkout(tmp_path):
    """What the demo needs of one: it writes into a folder beside its program."""
    for one in ("jobs", "conf"):
        shutil.copytree(ROOT / one, tmp_path / one, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def run_in(folder, *command):
    env = os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(ROOT)}
    env["COLUMNS"] = "120"
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def demo(folder, flights, *args):
    """Run the demo, and return what it prints."""
    done = run_in(folder, sys.executable, "jobs/demo.py", *args)
    reported = done.stdout
    written = rf"^3\. {flights:,} flights written to the queue departures in .* flights written per second\)$"
    assert re.search(written, reported, re.M)
    assert re.search(r"messages read and [\d,]+ written by 7 exchanges.* messages read per second\)$", reported, re.M)
    assert not re.search(r"\d/s", reported), "each rate says what it measures"
    assert "Every flight is where it belongs, once" in reported
    assert reported.count("ok │") == 12 and "FAILED" not in reported
    assert re.search(rf"all flights, each once +│ +{flights:,} │ +{flights:,} │ +0 │ ok", reported)
    assert re.search(r"airport/__too_many_hops__ +│ +[1-9]", reported), "some flights have no plane"
    a_process_was_killed_and_its_query_runs_again(done)
    the_picture_has_the_counts(folder, flights, reported)
    return reported


def a_process_was_killed_and_its_query_runs_again(done):
    announced, killed, survived = (
        re.search(rf"^   {text}", done.stdout, re.M)
        for text in (
            r"Now one process is killed.*: [\d,]+ of [\d,]+ flights have passed, [\d,]+ are reserved$",
            r"kill -9 \d+  \(the Python process that reserves and commits the messages of exchange by_delay\)$",
            r"The query failed, and runs again from its checkpoint [\d.]+ s after the kill$",
        )
    )
    assert announced and killed and survived
    assert announced.start() < killed.start() < survived.start()
    assert "query by_delay has failed and starts again" in done.stderr, "Spark has lost the process"


def the_picture_has_the_counts(folder, flights, output):
    (path,) = re.findall(r"^Its picture, with the messages that went along each edge: (.*)$", output, re.M)
    drawn = ElementTree.parse(folder / path).getroot()
    texts = {
        str(one.findtext(f"{SVG}title")): re.sub(
            r"\s", "", "".join(text.text or "" for text in one.iter(f"{SVG}text"))
        )
        for one in drawn.iter(f"{SVG}g")
        if one.get("class") in ("node", "edge")
    }
    assert texts["q airport/departures->x by_delay"] == f"{flights:,}", "a batch that came again is counted once"
    found = dict(re.findall(r"^│ (\S+/\S+) +│ +[\d,]+ │ +([\d,]+) │", output, re.M))
    assert len(found) == 10
    for queue, number in found.items():
        assert texts[f"q {queue}"] == f"{queue}{number}ready"
        assert any(text.startswith(number) for edge, text in texts.items() if edge.endswith(f"->q {queue}"))
        assert f"{queue} ({number} ready)" in output, "so has the graph as text"


@pytest.mark.skipif(not shutil.which("make"), reason="no make here")
@pytest.mark.parametrize(("words", "quick"), [([], False), (["QUICK=1"], True), (["QUICK=0"], False)])
def test_quick_is_what_the_demo_gets(words, quick):
    done = subprocess.run(["make", "-n", "demo", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ("jobs/demo.py --quick" in done.stdout) is quick and "jobs/demo.py" in done.stdout


@pytest.mark.parametrize(("words", "flights"), [(["--quick"], "33677"), (["--flights", "5"], "5"), ([], "None")])
def test_quick_is_a_tenth_of_the_flights(words, flights):
    asked = "import demo, sys; demo.demo = lambda watch, flights: print(flights); sys.exit(demo.main())"
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "jobs"), str(ROOT)])}
    done = subprocess.run([sys.executable, "-c", asked, *words], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == flights


def test_progress_is_shown_again_while_nothing_new_comes_and_ends_with_the_result(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(ROOT / "jobs"))
    demo, job = importlib.import_module("demo"), importlib.import_module("_job")
    monkeypatch.setattr(job, "TICK", 0.01)  # a short demo
    monkeypatch.setattr(job, "LINE", 0.0)  # a short demo
    said = []

    def repeated(line):
        said.extend(capsys.readouterr().err.splitlines())
        return sum(line in one for one in said) > 1

    with demo.Watch("demo.py") as watch:
        watch.show("counting")
        wait_until(lambda: repeated("demo.py: counting, 0 s"), 30)
        watch.print_result("3 flights")
        watch.show("comparing")
        capsys.readouterr()
        said.clear()
        wait_until(lambda: repeated("demo.py: comparing, 0 s"), 30)
        assert not repeated("counting")


@pytest.mark.timeout(900)
def test_the_demo_of_a_sample(checkout):
    demo(checkout, SAMPLE, "--flights", str(SAMPLE))


@pytest.mark.full
@pytest.mark.timeout(1_800)
def test_the_demo_of_all_flights_and_what_it_says_is_next(checkout):
    reported = demo(checkout, ALL)
    graph, push, exchange = (shlex.split(line) for line in reported.split("let them flow:\n")[1].strip().splitlines())
    assert "airport/__no_route__ (" in run_in(checkout, *graph).stdout
    assert f"{ALL:,} rows pushed" in run_in(checkout, *push).stderr
    page = (ROOT / "docs" / "exchanges.md").read_text()
    written = re.findall(r"^\$ python (jobs/exchange.py .*)$", page, re.MULTILINE)
    assert " ".join(exchange[1:4]) == written[0], "the docs have the same, with checkpoints of its own"
    facts = json.loads(run_in(checkout, *exchange, "--json").stdout)
    assert facts["exchanges"]["by_delay"]["received"] == ALL
    assert {one["state"] for one in facts["exchanges"].values()} == {"finished"}
