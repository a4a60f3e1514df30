"""The house stands: modules import from their own folder and lower floors, in no circle; files are short."""

from __future__ import annotations

import ast
import builtins
import subprocess
import sys
from pathlib import Path

import networkx as nx
import pytest

import spark_queue

HOUSE = Path(spark_queue.__file__).parent

#: What a module may import: what is in its own folder, and what is on lower floors. `stores` has floors of its own.
FLOORS = [
    ["errors"],
    ["messages"],
    ["options"],
    ["graph"],
    ["stores"],
    ["client"],
    ["spark"],
    ["runner", "events"],
    ["admin"],
    ["rest"],
    ["cli"],
]
IN_STORES = [
    ["note_shapes"],
    ["types"],
    ["support"],
    ["base"],
    ["services"],
    ["sqlite", "mongodb", "redis"],
    ["stores"],  # the registry, which names the databases without importing them
    ["named"],
    ["conformance"],
]
DATABASES = {"pymongo", "bson", "redis", "sqlite3"}

#: Lines of a file, and files that wait for their own change: the contract of a store, and what implements it.
LONGEST = 400
LONGER = {
    "stores/base.py", "stores/sqlite/store.py", "stores/mongodb/store.py", "stores/mongodb/documents.py",
    "stores/redis/store.py", "stores/redis/lua/common.lua", "stores/conformance/conformance.py",
    "stores/conformance/log.py",
}  # fmt: skip

MODULES = sorted(HOUSE.rglob("*.py"))


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(HOUSE.parent).with_suffix("").parts).removesuffix(".__init__")


KNOWN = {module_of(path) for path in MODULES}


def imported(source: str) -> set[str]:
    """All that a source imports, wherever: at the top, inside of functions, for types only."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= (modules & KNOWN) if modules <= KNOWN else (modules & KNOWN) | {node.module}
    return names


def floor(module: str) -> tuple[int, int] | None:
    """The floor of a module, and that within `stores`."""
    part = [*module.split("."), ""][1]
    level = next((number for number, names in enumerate(FLOORS) if part in names), None)
    if level is None:
        return None
    if part != "stores":
        return level, 0
    room = [*module.split("."), "", ""][2] or "stores"
    return level, next(number for number, names in enumerate(IN_STORES) if room in names)


def folder(module: str) -> str:
    parts = module.split(".")
    return ".".join(parts[: 3 if parts[1:2] == ["stores"] else 2])


def climbs(source: str, module: str) -> list[str]:
    """What the source of a module imports from a higher floor, or from another folder of its own."""
    mine = floor(module)
    found = []
    for name in sorted(imported(source)):
        theirs = floor(name) if name.startswith("spark_queue.") else None
        if mine is None or theirs is None or folder(name) == folder(module):
            continue
        if theirs >= mine:
            found.append(name)
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: module_of(path))
def test_a_module_imports_only_from_below(path):
    assert climbs(path.read_text(), module_of(path)) == []


def test_every_module_has_a_floor():
    assert [one for one in KNOWN if one != "spark_queue" and floor(one) is None] == []


@pytest.mark.parametrize(
    ("source", "module"),
    [
        ("from spark_queue.spark.schema import shaper", "spark_queue.stores.sqlite.store"),
        ("import spark_queue.stores", "spark_queue.options.url"),
        ("def f():\n    from spark_queue import cli\n    from spark_queue.cli import main", "spark_queue.client"),
        ("from spark_queue.spark import drain", "spark_queue.client"),
        ("from spark_queue.stores.services.ledger import Ledger", "spark_queue.stores.support.counters"),
        ("from spark_queue.stores.redis.store import RedisStore", "spark_queue.stores.mongodb.store"),
        ("from spark_queue.runner.graph import ExchangeGraph", "spark_queue.events.queue"),
    ],
)
def test_a_climb_is_seen(source, module):
    assert climbs(source, module)


def circles(sources: dict[str, str]) -> list[list[str]]:
    """Modules that import each other."""
    wires: nx.DiGraph[str] = nx.DiGraph()
    for module, source in sources.items():
        wires.add_edges_from((module, name) for name in imported(source) if name in sources and name != module)
    return [sorted(one) for one in nx.strongly_connected_components(wires) if len(one) > 1]


def test_no_modules_import_each_other():
    # The names that the package offers are imported on first use: nothing inside imports them from there.
    sources = {module_of(path): path.read_text() for path in MODULES if module_of(path) != "spark_queue"}
    assert circles(sources) == []


def test_a_circle_is_seen():
    a, b = "spark_queue.errors", "spark_queue.client"
    hidden = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from spark_queue.client import Queue"
    assert circles({a: hidden, b: "def f():\n    from spark_queue.errors import near"}) == [[b, a]]


def test_files_are_short():
    files = [*MODULES, *HOUSE.rglob("*.lua")]
    long = {str(path.relative_to(HOUSE)) for path in files if len(path.read_text().splitlines()) > LONGEST}
    assert long == LONGER, "split it by subject; a file that is short now leaves the list of those that wait"


#: Exceptions that no user meets: each is caught where it is raised, or one call above.
INSIDE = {"DamagedBytes", "DamagedBucket", "Unreadable", "_Stopped", "TimeIsUp"}


def test_errors_have_one_root():
    bases: dict[str, set[str]] = {}
    for path in MODULES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                bases[node.name] = {base.id for base in node.bases if isinstance(base, ast.Name)}
    builtin = {
        name for name, one in vars(builtins).items() if isinstance(one, type) and issubclass(one, BaseException)
    }
    roots = {name for name, of in bases.items() if of & builtin}
    assert roots == {"QueueError"} | INSIDE


@pytest.mark.parametrize("path", MODULES, ids=lambda path: module_of(path))
def test_stores_know_no_spark_and_spark_knows_no_database(path):
    roots = {name.partition(".")[0] for name in imported(path.read_text())}
    part = [*module_of(path).split("."), ""][1]
    if part not in ("spark", "runner", "events"):
        assert "pyspark" not in roots
    if part != "stores":
        assert not DATABASES & roots


def test_the_core_imports_no_driver_and_no_spark():
    code = (
        "import sys, spark_queue, spark_queue.client, spark_queue.options.queue_options\n"
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
