"""Which tests `make test` runs: those that are not marked `full`. `make test-all` runs all of them.

A test that asks for the fixture `scheme` (or for one built on it) runs once for each registered store. `make test`
runs it on the embedded stores only, unless it is marked `every_store`. A test that asks for `spark` shares one JVM
with all others that do: with `--dist loadgroup` one worker runs them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

import pytest

from tests import registered


def param(value: str, *, fast: bool) -> object:
    """Return the value of a parameter, which `make test` leaves out unless it is `fast`."""
    return pytest.param(value, marks=() if fast else pytest.mark.full)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test on each registered store."""
    if "scheme" not in metafunc.fixturenames:
        return
    marks = {mark.name: mark for mark in reversed([*metafunc.definition.iter_markers()])}
    only = marks["stores"].kwargs["server"] if "stores" in marks else None
    found = registered.schemes(server=only)
    fast = "every_store" in marks or not any(map(registered.embedded, found))
    values = [param(one, fast=fast or registered.embedded(one)) for one in found]
    metafunc.parametrize("scheme", values, indirect=True, scope="session")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let those that share a Spark session share a worker."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("spark"))


# --- what the end of a run shows ------------------------------------------------------------------------------------

_seconds: defaultdict[str, float] = defaultdict(float)
_tests: Counter[str] = Counter()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Count the time of a test, with its set-up and teardown, for its folder."""
    folder = str(Path(report.nodeid.partition("::")[0]).parent)
    _seconds[folder] += report.duration
    _tests[folder] += report.when == "call" or (report.when == "setup" and report.outcome != "passed")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Show the time of each folder; several workers spend it side by side."""
    if not _tests or config.getoption("collectonly"):
        return
    terminalreporter.section("time of each folder, summed over workers")
    for folder, seconds in sorted(_seconds.items(), key=lambda one: -one[1]):
        terminalreporter.write_line(f"{seconds / 60:6.1f} min  {_tests[folder]:5} tests  {folder}")
    terminalreporter.write_line(f"{sum(_seconds.values()) / 60:6.1f} min  {_tests.total():5} tests  in all")
