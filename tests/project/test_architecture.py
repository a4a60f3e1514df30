"""The house stands: modules import from their own folder and lower floors, in no circle; files are short."""

from __future__ import annotations

import ast
import builtins
import os
import pkgutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import networkx as nx
import pytest

import spark_queue

HOUSE = Path(spark_queue.__file__).parent

#: What a module may import: what is in its own folder, and what is on lower floors. `stores` has floors of its own.
FLOORS = [
    ["errors", "lazy_names", "fork_locks"],
    ["messages"],
    ["options"],
    ["graph"],
    ["stores"],
    ["consuming"],
    ["client"],
    ["spark"],
    ["runner", "events"],
    ["admin"],
    ["rest"],
    ["cli"],
]
IN_STORES = [
    ["note_shapes", "spans"],
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
        ("from spark_queue.spark.schema import batch_converter", "spark_queue.stores.sqlite.store"),
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
    assert circles({a: hidden, b: "def f():\n    from spark_queue.errors import did_you_mean"}) == [[b, a]]


def test_files_are_short():
    files = [*MODULES, *HOUSE.rglob("*.lua")]
    long = {str(path.relative_to(HOUSE)) for path in files if len(path.read_text().splitlines()) > LONGEST}
    assert long == LONGER, "split it by subject; a file that is short now leaves the list of those that wait"


def at_the_top(nodes: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a module, also those under an `if`, `try` or `with`."""
    for node in nodes:
        yield node
        if isinstance(node, ast.If | ast.Try | ast.With):
            for part in (node, *getattr(node, "handlers", ())):
                for name in ("body", "orelse", "finalbody"):
                    yield from at_the_top(getattr(part, name, []))


def defined(source: str) -> set[str]:
    """The public classes, constants and aliases of types of a module; its variables of types are its own."""
    found = set()
    for node in at_the_top(ast.parse(source).body):
        if isinstance(node, ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            made = node.value.func if isinstance(node.value, ast.Call) else None
            if made is None or ast.unparse(made).rpartition(".")[2] not in ("TypeVar", "ParamSpec"):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = [one for each in targets for one in ast.walk(each) if isinstance(one, ast.Name)]
                found |= {one.id for one in names if isinstance(one.ctx, ast.Store)}
    return {name for name in found if name[0].isupper()}


def namesakes(sources: dict[str, str]) -> dict[str, list[str]]:
    """The names that several modules define, and these modules."""
    modules: dict[str, list[str]] = {}
    for module, source in sorted(sources.items()):
        for name in defined(source):
            modules.setdefault(name, []).append(module)
    return {name: those for name, those in sorted(modules.items()) if len(those) > 1}


def test_a_name_has_one_meaning():
    assert namesakes({module_of(path): path.read_text() for path in MODULES}) == {}, (
        "define one thing once, and import it; give two things two names"
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("class Place: ...", "if True:\n    class Place(tuple): ..."),
        ("LONG, Place = 1, 2", "try:\n    import fast\nexcept ImportError:\n    Place: int = 3"),
        ("Place = dict[str, int]", "class Place: ..."),
        ("Place = NewType('Place', int)", "OTHER = Place = None"),
    ],
)
def test_a_name_with_two_meanings_is_seen(one, other):
    a, b = "spark_queue.errors", "spark_queue.client"
    assert namesakes({a: one, b: other}) == {"Place": [b, a]}


def test_what_is_imported_private_or_a_variable_of_types_is_no_second_meaning():
    own = "T = TypeVar('T')\nP = typing.ParamSpec('P')\n_PLACE = 1\nlog = None\ndef f():\n    LOCAL = 2\n"
    a, b = "spark_queue.errors", "spark_queue.client"
    assert namesakes({a: own + "class Place: ...", b: own + "from spark_queue.errors import Place"}) == {}


#: Exceptions that no user meets: each is caught where it is raised, or one call above.
INSIDE = {"DamagedBytes", "DamagedBucket", "Unreadable", "_Stopped", "TimeLimitExceeded", "PartlyRead", "Unfit"}


def roots_of_errors(sources: dict[str, str]) -> set[str]:
    """The exceptions that derive from one of Python's, or of another package."""
    found = set()
    for source in sources.values():
        tree = ast.parse(source)
        classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        come = {one.name: f"spark_queue.{one.name}" for one in classes}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                come |= {one.asname: one.name for one in node.names if one.asname}
            elif isinstance(node, ast.ImportFrom):
                come |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
        found |= {one.name for one in classes if any(is_foreign_error(base, come) for base in one.bases)}
    return found


def is_foreign_error(base: ast.expr, come: dict[str, str]) -> bool:
    """Whether this is an exception, not one of ours; `come`: from where names come."""
    name = ast.unparse(base.value if isinstance(base, ast.Subscript) else base)
    first, dot, rest = name.partition(".")
    name = come.get(first, first if dot or not hasattr(builtins, first) else f"builtins.{first}") + dot + rest
    if name.startswith("spark_queue."):
        return False
    try:
        one = pkgutil.resolve_name(name)
    except (ImportError, AttributeError):  # of a version that is not installed here: its name tells
        return name.endswith(("Error", "Exception"))
    return isinstance(one, type) and issubclass(one, BaseException)


def test_errors_have_one_root():
    assert roots_of_errors({module_of(path): path.read_text() for path in MODULES}) == {"QueueError"} | INSIDE


@pytest.mark.parametrize(
    "source",
    [
        "class Odd(Exception): ...",
        "class Odd(dict, LookupError): ...",
        "import json\nclass Odd(json.JSONDecodeError): ...",
        "import concurrent.futures as threads\nclass Odd(threads.CancelledError): ...",
        "from json import JSONDecodeError as Bad\ndef f():\n    class Odd(Bad): ...",
        "from starlette import exceptions\nclass Odd(exceptions.HTTPException): ...",
        "import no_such_package.errors\nclass Odd(no_such_package.errors.SomeError): ...",
    ],
)
def test_a_second_root_of_errors_is_seen(source):
    sound = "from spark_queue import errors\nclass Sound(errors.QueueError): ...\nclass Bag(dict): ..."
    assert roots_of_errors({"spark_queue.client": sound, "spark_queue.rest.errors": source}) == {"Odd"}


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


def test_a_process_of_spark_imports_only_what_it_uses():
    """Spark starts seven processes for the first message of a session, and each imports this first."""
    code = (
        "import sys, pyspark_queue\n"
        "ours = {name for name in sys.modules if name.startswith('spark_queue.')}\n"
        "print({'tenacity', 'spark_queue.client'} & set(sys.modules))\n"
        "print({name for name in ours if '.runner.' in name or '.spark.write.' in name or '.read.batches' in name})"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == ["set()", "set()"]


def test_what_the_package_offers():
    assert sorted(spark_queue.__all__) == spark_queue.__all__
    for name in spark_queue.__all__:
        assert getattr(spark_queue, name).__name__ == name
    with pytest.raises(AttributeError, match="attribute nothing"):
        spark_queue.nothing  # type: ignore[attr-defined]  # noqa: B018


def test_the_package_works_in_a_zip(tmp_path):
    """As `spark-submit --py-files` takes it along."""
    path = tmp_path / "package.zip"
    with zipfile.ZipFile(path, "w") as packed:
        for file in HOUSE.rglob("*.py*"):
            if file.suffix in (".py", ".pyi"):
                packed.write(file, file.relative_to(HOUSE.parent))
    program = (
        "import spark_queue; assert '.zip' in spark_queue.__file__; print(*spark_queue.__all__)\n"
        "from spark_queue import admin, events; admin.consume.pop, admin.history.__call__, events.Events\n"
        "with spark_queue.Queue('sqlite:///queues.db', 'q') as queue: queue.push(1); print(queue.pop().payload)"
    )
    run = [sys.executable, "-P", "-c", program]
    done = subprocess.run(
        run, env=os.environ | {"PYTHONPATH": str(path)}, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines() == [" ".join(spark_queue.__all__), "1"], done.stderr
