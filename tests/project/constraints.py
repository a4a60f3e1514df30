"""Write constraints.txt: a version for each package that development needs. `make constraints` runs it.

pip resolves the extra `dev` anew, without installing anything. The file gets names and versions, and nothing of this
machine: no index, no path. `make compat` takes other versions of Spark, and leaves those of pyspark and py4j out.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "constraints.txt"

#: What an environment has anyway.
LEFT_OUT = {"spark-queue", "pip"}

HEADER = """\
# The versions with which the tests run, and which CI and the image install. `make constraints` renews this file.
"""


def oldest_python() -> tuple[int, int]:
    """Return the oldest supported version of Python: what it gets, newer ones get too."""
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    major, minor = re.fullmatch(r">=(\d+)\.(\d+)", asked).groups()  # type: ignore[union-attr]
    return int(major), int(minor)


def canonical(name: str) -> str:
    """Return the name of a package as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def resolve() -> dict[str, str]:
    """Let pip find a version for each package, and return them by name."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-"]
    done = subprocess.run([*command, ".[dev]"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    found = (one["metadata"] for one in json.loads(done.stdout)["install"])
    return {canonical(one["name"]): one["version"].partition("+")[0] for one in found}


def parse(text: str) -> dict[str, str]:
    """Return the versions of a file of constraints, by name."""
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return dict(line.split("==") for line in lines if line)


def changes(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Return a line for each package that comes, goes, or changes."""
    return [
        f"{name}: {before.get(name, 'new')} -> {after.get(name, 'removed')}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]


def main() -> int:
    """Write the file, and print what changed."""
    if sys.version_info[:2] != oldest_python():
        wanted = ".".join(map(str, oldest_python()))
        print(
            f"constraints are for all supported versions of Python, so the oldest one must find them: this is "
            f"{sys.version_info[0]}.{sys.version_info[1]}; make an environment with {wanted}: "
            f"make clean, then make constraints PYTHON=python{wanted}",
            file=sys.stderr,
        )
        return 1
    before = parse(FILE.read_text()) if FILE.exists() else {}
    after = {name: version for name, version in sorted(resolve().items()) if name not in LEFT_OUT}
    FILE.write_text(HEADER + "".join(f"{name}=={version}\n" for name, version in after.items()))
    print(*changes(before, after) or ["nothing changed"], sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
