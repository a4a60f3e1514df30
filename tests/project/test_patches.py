"""Tests change the constants of modules in few places, each for a reason: stores get limits instead."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("tests", "spark_queue/stores/conformance")

#: How many patches of constants there may be. Pass limits to a store instead: `limits_of`, `with_limits`.
MOST = 60

#: The name of a constant, at the end of a path or alone.
CONSTANT = re.compile(r"(?:.*\.)?_?[A-Z][A-Z0-9_]+")


def patches(source: str) -> Iterator[tuple[int, bool]]:
    """Yield each patch of a constant: its line, and whether a comment there says why."""
    lines = source.split("\n")
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != "setattr":
            continue
        names = [one.value for one in node.args[:2] if isinstance(one, ast.Constant) and isinstance(one.value, str)]
        if names and CONSTANT.fullmatch(names[0]):
            own = lines[node.lineno - 1 : node.end_lineno]
            yield node.lineno, any("  # " in line for line in own)


def test_constants_are_patched_in_few_places_each_for_a_reason():
    files = [file for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.py"))]
    found = [
        (f"{file.relative_to(ROOT)}:{line}", reason) for file in files for line, reason in patches(file.read_text())
    ]
    assert [place for place, reason in found if not reason] == [], "a comment says why it is not a limit"
    assert len(found) <= MOST, "pass limits to the store"
    assert found, "it finds some"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('monkeypatch.setattr(base, "POLL_MS", 5)', [(1, False)]),
        ('patch.setattr("spark_queue.stores.base.POLL_MS", 5)  # no store', [(1, True)]),
        ('monkeypatch.setattr(store, "now", later)', []),
        ('monkeypatch.setattr(Queue, "Layout", later)', []),
    ],
)
def test_a_patch_of_a_constant_is_found(line, expected):
    assert list(patches(line)) == expected
