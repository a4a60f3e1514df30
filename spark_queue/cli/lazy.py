"""Modules that are imported at their first use, so that `--help` and completion start fast."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_queue import admin as admin
    from spark_queue import events
    from spark_queue import stores as store
    from spark_queue.admin import consume, doctor, logs, queues
    from spark_queue.admin import push as admin_push
    from spark_queue.admin import sizes as admin_sizes
    from spark_queue.messages import buckets, payload
    from spark_queue.options import parsers
else:

    class _Late:
        """A module that is imported at its first use."""

        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, name: str) -> Any:
            return getattr(import_module(self._name), name)

    buckets = _Late("spark_queue.messages.buckets")
    consume = _Late("spark_queue.admin.consume")
    doctor = _Late("spark_queue.admin.doctor")
    events = _Late("spark_queue.events")
    admin_sizes = _Late("spark_queue.admin.sizes")
    logs = _Late("spark_queue.admin.logs")
    admin = _Late("spark_queue.admin")
    parsers = _Late("spark_queue.options.parsers")
    payload = _Late("spark_queue.messages.payload")
    admin_push = _Late("spark_queue.admin.push")
    queues = _Late("spark_queue.admin.queues")
    store = _Late("spark_queue.stores")

__all__ = [
    "admin",
    "admin_push",
    "admin_sizes",
    "buckets",
    "consume",
    "doctor",
    "events",
    "logs",
    "parsers",
    "payload",
    "queues",
    "store",
]  # fmt: skip
