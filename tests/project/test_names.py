"""Names in tests are those of the package."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("tests", "spark_queue/stores/conformance")


def odd_aliases(source: str) -> Iterator[str]:
    """Yield each module of the package that is imported under another name.

    An alias may have more words, so that two modules of one name differ: `sqlite_store`.
    """
    for node in ast.walk(ast.parse(source)):
        package = (node.module or "") if isinstance(node, ast.ImportFrom) else ""
        if isinstance(node, ast.ImportFrom) and package.startswith("spark_queue"):
            for one in node.names:
                is_module = (ROOT / package.replace(".", "/") / f"{one.name}.py").exists()
                if one.asname and is_module and not f"_{one.asname}".endswith(f"_{one.name}"):
                    yield f"{one.name} as {one.asname}"


def test_modules_are_imported_by_their_names():
    files = [file for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.py"))]
    assert [f"{file.relative_to(ROOT)}: {one}" for file in files for one in odd_aliases(file.read_text())] == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("from spark_queue.spark.read import lease_renewer as keeper", ["lease_renewer as keeper"]),
        ("from spark_queue.stores.sqlite import store as sqlite_store", []),
        ("from spark_queue.stores.sqlite import store as sqlitestore", ["store as sqlitestore"]),
        ("from spark_queue.stores.types import Note as Facts", []),
        ("from pathlib import Path as File", []),
    ],
)
def test_an_alias_of_another_name_is_found(line, expected):
    assert list(odd_aliases(line)) == expected
