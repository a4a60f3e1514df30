"""Old names of Python objects: to import one still works, with a `DeprecationWarning`."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any


def warn_old_names(module: str, **current: Any) -> Callable[[str], Any]:
    """Return a `__getattr__` for a module. `current` has the objects by their old names."""

    def get_attribute(name: str) -> Any:
        if name not in current:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        message = f"{module}.{name} is now called {current[name].__name__}"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return current[name]

    return get_attribute
