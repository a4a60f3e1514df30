"""Packages whose names are imported when they are first used, so that programs start fast."""

from __future__ import annotations

import ast
import pkgutil
from collections.abc import Callable
from typing import Any

import lazy_loader


def attach_stub(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package, for the names in its stub.

    `lazy_loader.attach_stub` would look for the stub as a file, and a package in a zip
    (`spark-submit --py-files`) has none.
    """
    names: dict[str, list[str]] = {}
    for line in ast.parse(pkgutil.get_data(package, "__init__.pyi") or "").body:
        if isinstance(line, ast.ImportFrom):
            names.setdefault(line.module or "", []).extend(one.name for one in line.names)
    modules = names.pop("", [])
    return lazy_loader.attach(package, modules, names)  # type: ignore[no-any-return]
