"""Each promise of docs/reliability.md has its tests, in the tiers that CONTRIBUTING.md names, and planted bugs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.planted import BUGS
from tests.pages import rows

ROOT = Path(__file__).parents[2]

#: Collects all tests, and prints the tier of each, with its name less its parameters.
COLLECT = """
import sys
import pytest

class Tiers:
    def pytest_collection_finish(self, session):
        for item in session.items:
            tier = "test-all" if item.get_closest_marker("full") else "test"
            print("TIER", tier, item.nodeid.partition("[")[0])

sys.exit(pytest.main(["--collect-only", "-qq", "-p", "no:cacheprovider"], plugins=[Tiers()]))
"""


PROMISES = rows(ROOT / "CONTRIBUTING.md", "| promise |")


def named(cell: str) -> list[str]:
    """Return the tests, or bugs, that a cell names."""
    return re.findall(r"`([^`]+)`", cell)


@pytest.fixture(scope="module")
def tiers() -> dict[str, set[str]]:
    """The tiers in which each test has cases, by its name below tests/."""
    command = [sys.executable, "-c", COLLECT]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250, check=True)
    found: dict[str, set[str]] = {}
    for _, tier, name in (line.split(" ", 2) for line in done.stdout.splitlines() if line.startswith("TIER ")):
        found.setdefault(name.removeprefix("tests/"), set()).add(tier)
    return found


def test_the_table_has_every_promise():
    page = (ROOT / "docs" / "reliability.md").read_text()
    bullets = page.split("names the tests of\neach:\n\n* ", 1)[1].split("\n\n", 1)[0]
    promised = [" ".join(one.split()) for one in bullets.split("\n* ")]
    assert [row[0] for row in PROMISES] == promised


@pytest.mark.parametrize(("promise", "test", "test_all", "bugs"), PROMISES)
def test_a_promise_has_its_tests_in_each_tier_and_a_bug_that_they_catch(promise, test, test_all, bugs, tiers):
    assert named(test) and named(bugs), promise
    assert {one: tiers.get(one) for one in named(test) if "test" not in tiers.get(one, ())} == {}
    assert {one: tiers.get(one) for one in named(test_all) if "test-all" not in tiers.get(one, ())} == {}
    caught_by = {BUGS[one].test.removeprefix("tests/") for one in named(bugs)}
    assert caught_by <= {*named(test)}


def test_every_planted_bug_belongs_to_a_promise():
    assert {one for row in PROMISES for one in named(row[3])} == BUGS.keys()
