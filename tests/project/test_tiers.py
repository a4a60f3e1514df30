"""A store that is registered joins the tests by itself, in every tier."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: A plugin of pytest that registers SQLite under a second name, before any test is collected.
SECOND = """
from spark_queue.stores import STORES, Registration
from spark_queue.stores.sqlite.store import SqliteStore


class Second(SqliteStore):
    @classmethod
    def resolve(cls, url):
        return super().resolve(url.replace("second:", "sqlite:"))


STORES["second"] = Registration("second_store:Second")
"""

PARAMETER = re.compile(r"(?<=[\[-])sqlite(?=[\]\- ])")


@pytest.fixture
def with_a_second_store(tmp_path):
    """Run pytest with that plugin, and return its lines."""
    (tmp_path / "second_store.py").write_text(SECOND)
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}

    def run(*arguments):
        command = [sys.executable, "-m", "pytest", "-p", "second_store", "-p", "no:cacheprovider", "-q", *arguments]
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=250, check=False)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout.splitlines()

    return run


@pytest.mark.parametrize("tier", [["-m", "not full"], []], ids=["test", "test-all"])
def test_a_registered_store_has_the_cases_of_every_other_one(with_a_second_store, tier):
    found = {line for line in with_a_second_store("--collect-only", *tier) if "::" in line}
    of_sqlite = {one for one in found if PARAMETER.search(one)}
    folders = {Path(one.partition("::")[0]).parts[1] for one in of_sqlite}
    assert {"stores", "spark", "rest", *([] if tier else ["chaos"])} <= folders
    assert {PARAMETER.sub("second", one) for one in of_sqlite} <= found


def test_the_cases_of_a_registered_store_pass(with_a_second_store):
    some = "second and (comes_back_as_it_was or a_lost_lease or a_large_batch)"
    lines = with_a_second_store("tests/stores/test_conformance.py", "-m", "not full", "-k", some)
    assert int(re.search(r"(\d+) passed", lines[-1])[1]) >= 3, lines[-1]
