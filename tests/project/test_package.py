"""The package as others get it: `make dist`, its metadata, what is in it, and the quickstart from a bare wheel."""

from __future__ import annotations

import ast
import email
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from email.message import Message
from pathlib import Path

import pytest
from readme_renderer import markdown

from tests.pages import blocks

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

#: Of one group: the package is built once.
pytestmark = pytest.mark.xdist_group("dist")


def run_tool(*command: object, cwd: Path, env: dict[str, str] | None = None, timeout: int = 280) -> str:
    call = [str(one) for one in command]
    done = subprocess.run(call, cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """A folder with the wheel and the sdist, built as `make dist` does; the wheel is built from the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    run_tool(sys.executable, "-m", "build", "--outdir", folder, ROOT, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def wheel(dist) -> Path:
    [found] = dist.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def metadata(wheel) -> Message:
    with zipfile.ZipFile(wheel) as opened:
        [name] = [one for one in opened.namelist() if one.endswith(".dist-info/METADATA")]
        return email.message_from_string(opened.read(name).decode())


def sources(*patterns: str) -> set[str]:
    return {str(path.relative_to(ROOT)) for pattern in patterns for path in ROOT.glob(pattern)}


PACKAGE = (
    "spark_queue/**/*.py",
    "spark_queue/**/*.pyi",
    "spark_queue/**/*.lua",
    "pyspark_queue/*.py",
    "*spark_queue/py.typed",
)


def test_twine_accepts_both(dist):
    said = run_tool(sys.executable, "-m", "twine", "--no-color", "check", "--strict", *dist.iterdir(), cwd=dist)
    assert said.count("PASSED") == 2, said


def test_the_wheel_has_the_package_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as opened:
        found = {name for name in opened.namelist() if ".dist-info/" not in name}
    assert found == sources(*PACKAGE)
    assert len([name for name in found if name.endswith(".lua")]) > 20
    assert {"spark_queue/py.typed", "pyspark_queue/py.typed", "pyspark_queue/__init__.py"} <= found


def test_the_sdist_has_what_documents_and_builds_the_package_and_nothing_else(dist):
    [path] = dist.glob("*.tar.gz")
    with tarfile.open(path) as opened:
        found = {name.partition("/")[2] for name in opened.getnames()}
    assert sources(*PACKAGE, "docs/*.md", "jobs/*.py", "conf/*.yaml") <= found
    top = {name.partition("/")[0] for name in found}
    files = {"README.md", "LICENSE", "CHANGELOG.md", "pyproject.toml", "PKG-INFO", ".gitignore"}
    assert top == files | {"spark_queue", "pyspark_queue", "docs", "jobs", "conf"}
    assert not [name for name in found if re.search(r"__pycache__|node_modules|\.db|\.services", name)]


def test_its_metadata_say_what_it_is_and_where(metadata):
    assert metadata["Name"] == "spark-queue" and metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    urls = metadata.get_all("Project-URL")
    assert urls
    for url in urls:
        label, _, address = url.partition(", ")
        assert label and re.fullmatch(r"https://[\w.-]+\.\w+/\S*", address), url
        assert not re.search(r"example|localhost|TODO|your|user/|owner", address), "an address that does not exist"
    python = [one.rpartition(" ")[2] for one in metadata.get_all("Classifier") if ":: Python :: 3." in one]
    assert python == ["3.11", "3.12", "3.13"] and "Typing :: Typed" in metadata.as_string()


def test_the_description_renders_without_links_that_lead_nowhere(metadata):
    assert metadata["Description-Content-Type"] == "text/markdown"
    text = metadata.get_payload()
    page = markdown.render(text)
    assert page is not None and re.search(r"<h1[^>]*>spark_queue<", page)
    for target in re.findall(r'(?:href|src)="([^"]*)"', page):
        assert target.startswith(("https://", "#")), target
    readme = (ROOT / "README.md").read_text()
    assert blocks(text) == blocks(readme), "code is as it was"
    words = re.sub(r"!\[[^\]]*\]\([^)]*\)|\]\([^)]*\)|\[", "", readme)
    assert re.sub(r"\]\([^)]*\)|\[", "", text).split() == words.split(), "and so are words"


def test_the_extra_all_has_every_extra_for_users(metadata):
    extras = PROJECT["optional-dependencies"]
    for_developers = {"bench", "demo", "dev", "dist", "notebooks", "test", "tools"}
    [everything] = extras["all"]
    assert set(re.findall(r"[a-z]+", everything.partition("[")[2])) == set(extras) - for_developers - {"all"}
    assert {"connect", *extras} == set(metadata.get_all("Provides-Extra"))


#: The module that each extra is for.
MODULES_OF_EXTRAS = {
    "mongodb": "spark_queue.stores.mongodb.store", "redis": "spark_queue.stores.redis.store",
    "spark": "spark_queue.spark.data_source", "cli": "spark_queue.cli.__main__", "graph": "spark_queue.graph.loader",
    "events": "spark_queue.events.config", "rest": "spark_queue.rest.server", "": "spark_queue.client",
}  # fmt: skip

#: Imports a module where only some packages are installed: those of these requirements, and what they require.
IMPORT = """
import sys
from importlib.metadata import packages_distributions, requires
from packaging.requirements import Requirement

module, *wanted = sys.argv[1:]
allowed, left = set(), [Requirement(one) for one in wanted]
while left:
    one = left.pop()
    key = one.name.lower().replace("_", "-"), frozenset(one.extras)
    if key not in allowed:
        allowed.add(key)
        for text in requires(one.name) or ():
            other = Requirement(text)
            if not other.marker or any(other.marker.evaluate({"extra": extra}) for extra in one.extras or ("",)):
                left.append(other)
names = {name for name, _ in allowed}
refused = {
    top for top, owners in packages_distributions().items()
    if not names & {owner.lower().replace("_", "-") for owner in owners} and top != "spark_queue"
}

class Refusing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in refused:
            raise ModuleNotFoundError(f"{name} is not installed with the extra", name=name)

sys.meta_path.insert(0, Refusing())
sys.argv[1:] = []
if not module.endswith("__main__"):
    __import__(module)
else:
    sys.argv[1:] = ["--help"]
    import runpy
    runpy.run_module(module, run_name="__main__")
"""


def requirements(extra: str) -> list[str]:
    """What pip installs beside the package itself."""
    found = list(PROJECT["dependencies"])
    for one in PROJECT["optional-dependencies"].get(extra, ()):
        own = re.fullmatch(r"spark-queue\[(.*)\]", one)
        found += [more for name in own[1].split(",") for more in requirements(name)] if own else [one]
    return found


@pytest.mark.parametrize("extra", MODULES_OF_EXTRAS)
def test_an_extra_alone_is_enough_for_its_module(extra, tmp_path):
    run_tool(sys.executable, "-c", IMPORT, MODULES_OF_EXTRAS[extra], *requirements(extra), cwd=tmp_path)


def test_the_extra_connect_has_the_packages_that_spark_connect_asks_for():
    from importlib.metadata import requires

    asked = {
        re.split(r"[\s<>=!~;\[(]", one)[0].lower().replace("_", "-")
        for one in requires("pyspark") or ()
        if re.search(r"extra == ['\"]connect['\"]", one)
    }
    ours = {
        re.split(r"[<>=\[]", one)[0]
        for name in ("connect", "spark")
        for one in PROJECT["optional-dependencies"][name]
    }
    ours |= {re.split(r"[<>=\[]", one)[0] for one in PROJECT["dependencies"]}
    assert {"grpcio"} <= asked <= ours


# --- the quickstart -------------------------------------------------------------------------------------------------


def quickstart() -> str:
    """The program below "Quickstart" in README.md."""
    _, found, rest = (ROOT / "README.md").read_text().partition("\n## Quickstart\n")
    assert found, "README.md has no quickstart"
    return next(text for kind, text in blocks(rest.partition("\n## ")[0]) if kind == "python")


def shown(program: str) -> list[str]:
    """What must be shown of the rows that a program writes as JSON: the first field of each, as payloads begin."""
    for node in ast.walk(ast.parse(program)):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "createDataFrame":
            rows, schema = (ast.literal_eval(one) for one in node.args)
            name = schema.split()[0]
            return [json.dumps({name: row[0]}, separators=(",", ":"))[:-1] for row in rows]
    raise AssertionError("the quickstart writes no rows")


def plain_environment() -> dict[str, str]:
    """What a shell has in which nothing was activated: nothing of this Python, nothing of a Spark."""
    prefix = str(Path(sys.executable).parent)
    path = [one for one in os.environ["PATH"].split(os.pathsep) if one != prefix]
    odd = re.compile(r"(PYTHON|PYSPARK|SPARK|VIRTUAL_ENV|PYTEST|MAKE)")
    around = {name: value for name, value in os.environ.items() if not odd.match(name)}
    return around | {"PATH": os.pathsep.join(path), "SPARK_LOCAL_IP": "127.0.0.1"}  # nothing listens to the network


@pytest.mark.full
@pytest.mark.timeout(1800)  # pip downloads Spark, and makes a wheel of it
def test_the_quickstart_runs_from_the_wheel_in_an_empty_environment_that_is_not_activated(wheel, tmp_path):
    python = tmp_path / "env" / "bin" / "python"
    venv.create(tmp_path / "env", with_pip=True)
    env = plain_environment()
    quiet = ("--quiet", "--disable-pip-version-check")
    run_tool(python, "-m", "pip", "install", *quiet, f"{wheel}[spark]", cwd=tmp_path, env=env, timeout=1500)
    (tmp_path / "elsewhere").mkdir()
    program = tmp_path / "elsewhere" / "quickstart.py"
    program.write_text(quickstart())
    assert len(program.read_text().splitlines()) <= 15
    said = run_tool(python, program.name, cwd=program.parent, env=env)
    rows = shown(program.read_text())
    assert rows
    for begin in rows:
        assert begin in said, said
