"""Names of Python that have changed: programs that import the old one go on, with a warning."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any


def renamed(module: str, **now: Any) -> Callable[[str], Any]:
    """Return a `__getattr__` for a module: `now` has the objects by the names that they had before."""

    def find(name: str) -> Any:
        if name not in now:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        message = f"{module}.{name} is called {now[name].__name__} now"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return now[name]

    return find
