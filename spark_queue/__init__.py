"""Work queues for Spark Structured Streaming, kept in MongoDB, Redis or an embedded SQLite file.

spark.readStream.format("queue").option("url", "sqlite:///queues.db").option("queue", "flights").load()

`Queue` is the client for programs without Spark. Each name is imported when it is first used, so a
program does not load what it does not need.
"""

import ast
import pkgutil

import lazy_loader

__version__ = "0.1.0"

# `lazy_loader.attach_stub` would look for the stub as a file, and a package in a zip
# (`spark-submit --py-files`) has none.
_names: dict[str, list[str]] = {}
for _import in ast.parse(pkgutil.get_data(__name__, "__init__.pyi") or "").body:
    if isinstance(_import, ast.ImportFrom) and _import.module:
        _names.setdefault(_import.module, []).extend(one.name for one in _import.names)
__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submod_attrs=_names)
