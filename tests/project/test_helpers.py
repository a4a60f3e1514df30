"""Helpers that several tests use live once: a name stands for one thing."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]

#: How many names of helpers more than one file may define. Lower it when you merge or rename some.
MOST = 90


def shared_names(sources: Iterable[str]) -> set[str]:
    """Return the names of helpers that several of these files define, without fixtures and private names."""
    files: defaultdict[str, int] = defaultdict(int)
    for source in sources:
        names = set()
        for node in ast.parse(source).body:
            if isinstance(node, ast.FunctionDef) and not any(
                "fixture" in ast.unparse(d) for d in node.decorator_list
            ):
                names.add(node.name)
        for name in names:
            files[name] += not name.startswith(("test_", "pytest_", "_")) and name != "main"
    return {name for name, number in files.items() if number > 1}


def bodies(source: str) -> set[str]:
    """Return the helpers of a file, without their names and docstrings, if they have more than one statement."""
    found = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("test_"):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            if len(body) > 1 and not any("fixture" in ast.unparse(one) for one in node.decorator_list):
                found.add(ast.dump(node.args) + "".join(map(ast.dump, body)))
    return found


def all_sources() -> list[str]:
    return [file.read_text() for file in sorted((ROOT / "tests").rglob("*.py"))]


def test_a_helper_name_stands_for_one_thing():
    found = shared_names(all_sources())
    assert len(found) <= MOST, f"rename or merge one of {sorted(found)}"


def test_no_helper_is_written_twice():
    seen: defaultdict[str, int] = defaultdict(int)
    for source in all_sources():
        for body in bodies(source):
            seen[body] += 1
    assert [body[:300] for body, number in seen.items() if number > 1] == []


def test_shared_names_and_copies_are_found():
    fill = "def fill(a):\n    b = a\n    return b\n"
    assert shared_names([fill, fill, "def test_x(): ..."]) == {"fill"}
    assert bodies(fill) == bodies(fill.replace("fill", "push")) != set()
