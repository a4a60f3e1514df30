"""What `make` and pytest's plugins do with the tests: which run, where, and what a wrong call says."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

IN_TWO_FILES = """
import os
import pytest


@pytest.mark.xdist_group("one")
@pytest.mark.parametrize("number", range(10))
def test_of_a_group(number):
    with open("workers", "a") as file:
        file.write(os.environ["PYTEST_XDIST_WORKER"] + "\\n")


@pytest.mark.parametrize("number", range(10))
def test_of_none(number):
    with open("all", "a") as file:
        file.write(os.environ["PYTEST_XDIST_WORKER"] + "\\n")
"""


def make(*arguments):
    command = ["make", "--no-print-directory", *arguments]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "PYTEST_"))}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120, check=False)


needs_make = pytest.mark.skipif(not shutil.which("make"), reason="no make here")


@needs_make
@pytest.mark.parametrize("shard", ["5/4", "0/4", "x", "1", "4/", "/4", "-1/4", "", "1/4/4", "1.5/4"])
def test_a_wrong_shard_is_refused(shard):
    done = make("shard", f"SHARD={shard}")
    assert done.returncode
    assert f"SHARD must be i/n, with i from 1 to n, not '{shard}'" in done.stderr


@needs_make
def test_a_wrong_shard_is_refused_before_anything_is_installed_or_run():
    done = make("test-all", "SHARD=5/4")
    assert done.returncode
    assert not done.stdout


@needs_make
@pytest.mark.parametrize(("shard", "split"), [("1/4", True), ("4/4", True), ("1/1", False)])
def test_a_shard_is_what_pytest_gets(shard, split):
    assert make("shard", f"SHARD={shard}").returncode == 0
    dry = make("--dry-run", "test-all", f"SHARD={shard}")
    assert dry.returncode == 0, dry.stderr
    [command] = [line for line in dry.stdout.splitlines() if "-m pytest" in line]
    number, of = shard.split("/")
    assert (f"--splits {of} --group {number} " in command) == split
    assert ("--splits" in command) == split


@needs_make
def test_dist_builds_and_checks_and_the_help_says_how_long_it_takes():
    [line] = [line for line in make("help").stdout.splitlines() if line.startswith("make dist ")]
    assert "dist/" in line and "seconds)" in line
    dry = make("--dry-run", "dist")
    assert dry.returncode == 0, dry.stderr
    build, check = (dry.stdout.index(one) for one in ("-m build --outdir dist", "-m twine check --strict dist/"))
    assert build < check


@needs_make
def test_each_target_of_the_help_exists_and_is_no_file():
    listed = [line.split()[1] for line in make("help").stdout.splitlines()]
    assert {"demo", "test", "dist"} <= set(listed)
    phony = {
        word
        for line in (ROOT / "Makefile").read_text().splitlines()
        if line.startswith(".PHONY:")
        for word in line.split()
    }
    assert set(listed) <= phony | {"test", "test-all", "durations"}  # these are in a variable


def test_tests_of_a_group_run_in_one_worker(tmp_path):
    """Where xdist does not know how to group with this pytest, it says nothing."""
    for name in ("test_a.py", "test_b.py"):
        (tmp_path / name).write_text(IN_TWO_FILES)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadgroup", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len((tmp_path / "all").read_text().split()) == 20
    workers = (tmp_path / "workers").read_text().split()
    assert len(workers) == 20
    assert len(set(workers)) == 1
