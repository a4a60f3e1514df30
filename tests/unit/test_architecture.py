"""The house stands: a module imports only from its own floor and those below, and Spark stays out of the stores."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import spark_queue

HOUSE = Path(spark_queue.__file__).parent
FLOORS = [
    {
        "address",
        "arrow_bytes",
        "groups",
        "buckets",
        "call_mistakes",
        "errors",
        "event",
        "inputs",
        "json_text",
        "masking",
        "failure",
        "file_mistakes",
        "message",
        "options",
        "outcome",
        "graph",
        "graph_file",
        "graph_mistakes",
        "graph_parts",
        "graph_picture",
        "process",
        "queue_names",
        "processor",
        "selector_words",
        "words",
    },
    {"store"},
    {"client", "operations", "spark", "statistics"},
    {"exchange", "events"},
    {"rest"},
    {"cli"},
]
DATABASES = {"pymongo", "bson", "redis", "sqlite3"}


def part_of(module: str) -> str:
    return ([*module.split("."), ""])[1]


def floor(module: str) -> int | None:
    return next((level for level, names in enumerate(FLOORS) if part_of(module) in names), None)


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(HOUSE.parent).with_suffix("").parts).removesuffix(".__init__")


def imported(source: str) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def climbs(source: str, module: str) -> list[str]:
    """Names that the source of `module` imports from a higher floor, or from another room of its own."""
    mine = floor(module)
    found = []
    for name in sorted(imported(source)):
        level = floor(name) if name.startswith("spark_queue.") else None
        if mine is None or level is None:
            continue
        neighbours = level == mine and part_of(name) != part_of(module) and mine > 0
        if level > mine or neighbours:
            found.append(name)
    return found


MODULES = sorted(HOUSE.rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: module_of(path))
def test_a_module_imports_only_from_below(path):
    assert climbs(path.read_text(), module_of(path)) == []


@pytest.mark.parametrize("path", MODULES, ids=lambda path: module_of(path))
def test_stores_know_no_spark_and_spark_knows_no_database(path):
    roots = {name.partition(".")[0] for name in imported(path.read_text())}
    part = part_of(module_of(path))
    if part not in ("spark", "exchange", "events"):
        assert "pyspark" not in roots
    if part != "store":
        assert not DATABASES & roots


def test_every_module_has_a_floor():
    homeless = [path for path in MODULES if module_of(path) != "spark_queue" and floor(module_of(path)) is None]
    assert homeless == []


@pytest.mark.parametrize(
    ("source", "module"),
    [
        ("from spark_queue.spark.schema import shaper", "spark_queue.store.sqlite"),
        ("import spark_queue.store", "spark_queue.options"),
        ("def f():\n    from spark_queue import cli\n    from spark_queue.cli import main", "spark_queue.client"),
        ("from spark_queue.spark import drain", "spark_queue.client"),
    ],
)
def test_a_climb_is_seen(source, module):
    assert climbs(source, module)


def test_the_core_imports_no_driver_and_no_spark():
    code = (
        "import sys, spark_queue, spark_queue.client, spark_queue.options\n"
        "spark_queue.Queue('sqlite:///:memory:', 'q')\n"
        "print(sorted({'pyspark', 'pymongo', 'redis', 'typer', 'fastapi'} & set(sys.modules)))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_what_the_package_offers():
    assert sorted(spark_queue.__all__) == spark_queue.__all__
    for name in spark_queue.__all__:
        assert getattr(spark_queue, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        spark_queue.nothing  # noqa: B018
