"""The versions that CI and the image install: constraints.txt, and the bounds of pyproject.toml."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import tomllib
from importlib.metadata import distributions
from pathlib import Path

import pytest
from dockerfile_parse import DockerfileParser
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
FOR_DEVELOPERS = {"bench", "demo", "dev", "dist", "notebooks", "test", "tools"}

spec = importlib.util.spec_from_file_location("constraints", Path(__file__).with_name("constraints.py"))
assert spec and spec.loader
constraints = importlib.util.module_from_spec(spec)
spec.loader.exec_module(constraints)

TEXT = (ROOT / "constraints.txt").read_text()
PINS = constraints.parse(TEXT)


def requirements(*lists):
    return [one for some in lists for text in some if (one := Requirement(text)).name != "spark-queue"]


EVERY = requirements(PROJECT["dependencies"], *EXTRAS.values())


def test_each_line_is_a_name_and_a_version():
    lines = [line for line in TEXT.splitlines() if not line.startswith("#")]
    assert len(lines) > 100 and [*PINS] == sorted(PINS)
    for line in lines:
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*==\d[\w.]*", line), f"no host, path or option: {line}"
    assert not re.search(r"://|/|@|^-", TEXT.replace("constraints.txt", ""), re.MULTILINE)


@pytest.mark.parametrize("one", EVERY, ids=str)
def test_each_requirement_has_a_version_within_its_bounds(one):
    assert one.specifier.contains(PINS[constraints.canonical(one.name)])


def test_the_versions_fit_each_other():
    """As far as the packages of this environment say what they need."""
    checked = 0
    for found in distributions():
        if PINS.get(constraints.canonical(found.metadata["Name"])) == found.version:
            for need in map(Requirement, found.requires or ()):
                pin = PINS.get(constraints.canonical(need.name))
                if pin and (need.marker is None or need.marker.evaluate({"extra": ""})):
                    assert need.specifier.contains(pin, prereleases=True), f"{found.metadata['Name']} needs {need}"
                    checked += 1
    assert checked > 100


def test_what_users_install_has_upper_bounds():
    extras = (names for extra, names in EXTRAS.items() if extra not in FOR_DEVELOPERS)
    open_end = {one.name for one in requirements(PROJECT["dependencies"], *extras) if "<" not in str(one.specifier)}
    # pyarrow has a major version each quarter. uvicorn and httptools: see the lines of pyproject.toml.
    assert open_end <= {"pyarrow"}


def test_what_changed_is_shown():
    assert constraints.changes({"a": "1", "b": "1", "c": "1"}, {"a": "1", "b": "2", "d": "1"}) == [
        "b: 1 -> 2", "c: 1 -> removed", "d: new -> 1",
    ]  # fmt: skip
    assert constraints.oldest_python() == (3, 11)


@pytest.mark.skipif(not shutil.which("make"), reason="no make here")
@pytest.mark.parametrize(
    ("target", "wanted"),
    [
        (".venv/.installed-test", "--constraint constraints.txt --editable '.[test]'"),
        (".venv/.installed-demo", "--constraint constraints.txt --editable '.[cli,demo,graph,spark]'"),
        (".venv-spark40/.installed-test", "--constraint <(grep -vE '^(pyspark|py4j)==' constraints.txt) --editable"),
        ("constraints", "tests/project/constraints.py"),
    ],
)
def test_each_environment_is_installed_by_them(target, wanted):
    command = ["make", "--no-print-directory", "--dry-run", "--always-make", target]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0 and wanted in done.stdout, done.stdout + done.stderr


def test_the_image_is_built_by_them():
    steps = DockerfileParser(str(ROOT / "Dockerfile")).structure
    copied = [one["value"] for one in steps if one["instruction"] == "COPY"]
    installs = [one["value"] for one in steps if one["instruction"] == "RUN" and "pip install" in one["value"]]
    assert any("constraints.txt" in one.split() for one in copied)
    assert installs and all("--constraint constraints.txt" in one for one in installs)
