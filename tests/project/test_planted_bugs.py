"""The bugs that tests/chaos/planted.py plants still fit to the code."""

from __future__ import annotations

import shutil

import pytest

from tests.chaos.planted import BUGS, ROOT, plant


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_can_be_planted_and_is_python(name, tmp_path):
    file = BUGS[name].file
    copy = tmp_path / "spark_queue" / file
    copy.parent.mkdir(parents=True)
    shutil.copy(ROOT / "spark_queue" / file, copy)
    plant(name, tmp_path)
    if file.endswith(".py"):
        compile(copy.read_text(), file, "exec")
